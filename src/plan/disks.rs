//! The disks of a VM: cache, I/O mode and bus of each, and which of them never move.
//!
//! Cache and I/O mode are made explicit on block volumes only; on file volumes KubeVirt's own detection knows better
//! (KubeVirt pkg/virt-launcher/virtwrap/converter/converter.go:100-200). A bus is never written here: the plan says
//! what would move and what it waits for.

use serde_json::{Value, json};

use super::context::{Ask, Context};
use super::json;
use super::profile::DataError;
use super::settings::{Effect, Outcome, Setting};
use super::sizing::sizing;
use super::volumes::{Mode, claim_name};
use crate::api::overrides::{BusWanted, CacheMode, IoMode};

/// One disk of a VM, with what stands behind it.
pub(super) struct Disk<'a> {
    pub(super) name: &'a str,
    /// Its entry; `None` for a volume that no disk names.
    pub(super) entry: Option<&'a Value>,
    pub(super) kind: Kind,
    /// Explicit, preferred or KubeVirt's default.
    pub(super) bus: &'a str,
    volume: Option<&'a Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Disk,
    Cdrom,
    Lun,
    Floppy,
}

/// KubeVirt's bus where nothing says otherwise (pkg/defaults/amd64.go:22-40).
const DEFAULT_BUS: &str = "sata";

impl<'a> Disk<'a> {
    /// Place of one of its fields.
    pub(super) fn place(&self, field: &str) -> String {
        format!("/devices/disks/{}{}/{field}", json::BY_NAME, self.name)
    }

    pub(super) fn flag(&self, field: &str) -> bool {
        self.entry.is_some_and(|e| e.get(field).and_then(Value::as_bool) == Some(true))
    }

    /// A plain disk on virtio-blk that stays for as long as the VM.
    pub(super) fn is_virtio(&self) -> bool {
        self.kind == Kind::Disk && self.bus == "virtio" && self.entry.is_some()
    }

    pub(super) fn hotplugged(&self) -> bool {
        let sources = ["/persistentVolumeClaim/hotpluggable", "/dataVolume/hotpluggable"];
        self.volume.is_some_and(|v| sources.iter().any(|s| json::flag(v, s)))
    }

    pub(super) fn claim(&self) -> Option<&'a str> {
        claim_name(self.volume?)
    }

    /// Block device or file; `None` where nobody said.
    fn mode(&self, cx: &Context<'_>) -> Option<Mode> {
        match self.claim() {
            Some(claim) => cx.facts.volumes.claim(claim)?.mode,
            // Container disks, cloud-init and the like are files.
            None => Some(Mode::File),
        }
    }

    fn order(&self) -> Option<u64> {
        json::count(self.entry?, "/bootOrder")
    }
}

/// Every disk, in the VM's order; volumes that no disk names last.
pub(super) fn disks<'a>(cx: &Context<'a>) -> Vec<Disk<'a>> {
    let entries = json::list(cx.domain, "/devices/disks");
    let volumes = json::list(&cx.facts.vm.spec, "/template/spec/volumes");
    let named = |name: &str| volumes.iter().find(|v| json::text(v, "/name") == Some(name));
    let preferred = cx.facts.preference.gives("/devices/disks/name=/disk/bus").and_then(|(bus, _)| bus.as_str());
    let default = preferred.unwrap_or(DEFAULT_BUS);
    let mut disks: Vec<Disk<'a>> = entries
        .iter()
        .filter_map(|entry| {
            let name = json::text(entry, "/name")?;
            let kinds = [("cdrom", Kind::Cdrom), ("lun", Kind::Lun), ("floppy", Kind::Floppy), ("disk", Kind::Disk)];
            let (key, kind) = kinds
                .into_iter()
                .find(|(k, _)| json::at(entry, &format!("/{k}")).is_some())
                .unwrap_or(("disk", Kind::Disk));
            let own = entry.get(key).and_then(|k| k.get("bus")).and_then(Value::as_str).filter(|b| !b.is_empty());
            let bus = own.unwrap_or(if kind == Kind::Disk { default } else { DEFAULT_BUS });
            Some(Disk { name, entry: Some(entry), kind, bus, volume: named(name) })
        })
        .collect();
    for volume in volumes {
        let Some(name) = json::text(volume, "/name") else { continue };
        let is_disk = ["persistentVolumeClaim", "dataVolume", "containerDisk", "hostDisk", "ephemeral", "emptyDisk"];
        if is_disk.iter().any(|k| volume.get(k).is_some()) && !disks.iter().any(|d| d.name == name) {
            disks.push(Disk { name, entry: None, kind: Kind::Disk, bus: default, volume: Some(volume) });
        }
    }
    disks
}

/// Plans cache, I/O mode and bus of every disk.
pub(super) fn plan(cx: &Context<'_>, disks: &[Disk<'_>]) -> Result<Vec<Setting>, DataError> {
    let mut settings = Vec::new();
    let cache = cx.desired.pick(|o| o.disks.cache);
    let io = cx.desired.pick(|o| o.disks.io);
    for disk in disks.iter().filter(|d| d.kind == Kind::Disk && d.entry.is_some()) {
        if disk.flag("shareable") {
            settings.push(untouched(
                cx,
                disk,
                "it is shareable: other VMs write it too, and KubeVirt starts it with cache none only",
            ));
            continue;
        }
        if disk.hotplugged() || disk.mode(cx) != Some(Mode::Block) {
            continue;
        }
        if let Some(value) = cache.value.filter(|c| *c != CacheMode::Leave) {
            let place = disk.place("cache");
            settings.push(cx.setting(Ask {
                place,
                desired: json!(value),
                setting: "disks.cache",
                overridden: cache.overridden,
            }));
        }
        if let Some(value) = io.value.filter(|i| *i != IoMode::Leave) {
            let place = disk.place("io");
            let ask = Ask { place, desired: json!(value), setting: "disks.io", overridden: io.overridden };
            let mut setting = cx.setting(ask);
            if value == IoMode::Native {
                // Native AIO past the page cache only: what nobody set becomes none on a block volume.
                setting.needs.push(disk.place("cache"));
            }
            settings.push(setting);
        }
    }
    settings.extend(buses(cx, disks)?);
    Ok(settings)
}

/// One line for a disk of which nothing is ever written.
fn untouched(cx: &Context<'_>, disk: &Disk<'_>, why: &str) -> Setting {
    let (reason, source) = cx.desired.said("disks.cache");
    let current = disk.entry.and_then(|e| json::at(e, "/cache"));
    Setting::new(disk.place("cache"), current, json!(CacheMode::None), reason, source)
        .outcome(Outcome::Stays { rule: "shareable-disk", why: why.to_owned() })
}

/// What a bus switch would move, and what it waits for.
fn buses(cx: &Context<'_>, disks: &[Disk<'_>]) -> Result<Vec<Setting>, DataError> {
    let picked = cx.desired.pick(|o| o.disks.bus);
    if picked.value != Some(BusWanted::Virtio) {
        return Ok(Vec::new());
    }
    let (reason, source) = cx.desired.said("disks.bus");
    let free = free_slots(cx, disks)?;
    let setting = |disk: &Disk<'_>| {
        let field = match disk.kind {
            Kind::Disk => "disk/bus",
            Kind::Cdrom => "cdrom/bus",
            Kind::Lun => "lun/bus",
            Kind::Floppy => "floppy",
        };
        let mut setting = Setting::new(disk.place(field), Some(&json!(disk.bus)), json!("virtio"), reason, source);
        setting.effect = Effect::Driver;
        let outcome = match never_moves(disk, free) {
            Some((rule, why)) => Outcome::Stays { rule, why },
            None if disk.bus == "virtio" => Outcome::Satisfied,
            None => cx.unused("disks.bus").unwrap_or_else(|| waits(installer(disks, disk))),
        };
        setting.outcome(outcome)
    };
    Ok(disks.iter().map(setting).collect())
}

/// What a switch waits for. With an installer still in front of the disk an installation may be under way, and that is
/// no state to prove anything in.
fn waits(installer: Option<&str>) -> Outcome {
    const PROOF: &str = "proof that this Windows has bound its virtio-blk driver and starts from it (Ready)";
    let evidence = match installer {
        None => PROOF.to_owned(),
        Some(cd) => format!(
            "the installer to go (CD-ROM {} starts before the disk, so an installation may be under way), and then {PROOF}",
            super::detect::printable(cd)
        ),
    };
    let unblock = match installer {
        None => "this release reports the switch and does not make it",
        Some(_) => "detach the CD-ROM or put it behind the disk; this release reports the switch and does not make it",
    };
    Outcome::Waits { evidence, unblock: unblock.to_owned() }
}

/// Why a disk stays on its bus for ever.
fn never_moves(disk: &Disk<'_>, free: bool) -> Option<(&'static str, String)> {
    let fixed = |rule: &'static str, why: &str| Some((rule, why.to_owned()));
    match disk.kind {
        Kind::Cdrom => return fixed("cdrom", "a CD-ROM cannot be on virtio"),
        Kind::Floppy => return fixed("floppy", "a floppy cannot be on virtio"),
        Kind::Lun => {
            let reserved = disk.entry.is_some_and(|e| json::flag(e, "/lun/reservation"));
            return match reserved {
                true => fixed("reservation", "a LUN with SCSI reservations is SCSI by nature"),
                false => fixed("lun", "a LUN passes SCSI commands through and cannot be on virtio-blk"),
            };
        }
        Kind::Disk => {}
    }
    if disk.bus == "virtio" {
        return None;
    }
    if disk.entry.is_none() {
        return fixed(
            "no-disk-entry",
            "the VM lists no disk for this volume, so KubeVirt makes one on its default bus; add the disk to the VM first",
        );
    }
    if disk.flag("shareable") {
        return fixed(
            "shareable-disk",
            "it is shareable: other VMs, and perhaps a cluster in the guests, use it as it is",
        );
    }
    if disk.hotplugged() {
        return fixed("hotplugged-disk", "it was hotplugged, and leaves the same way");
    }
    if !free {
        let source = sizing().map(|s| s.pci.source.as_str()).unwrap_or_default();
        return Some(("no-free-slot", format!("the machine has no PCI slot left for another virtio disk ({source})")));
    }
    None
}

/// A CD-ROM with something in it, other than drivers or answers, that the machine tries before a disk.
fn installer<'a>(disks: &[Disk<'a>], disk: &Disk<'_>) -> Option<&'a str> {
    let disk_order = disk.order();
    let is_installer = |cd: &&Disk<'a>| {
        let before = match (cd.order(), disk_order) {
            (Some(cd), Some(disk)) => cd < disk,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let holds = cd.volume.is_some_and(|v| v.get("sysprep").is_none() && v.get("containerDisk").is_none());
        cd.kind == Kind::Cdrom && before && holds
    };
    disks.iter().find(is_installer).map(|cd| cd.name)
}

/// Whether the machine has room for one more virtio device.
fn free_slots(cx: &Context<'_>, disks: &[Disk<'_>]) -> Result<bool, DataError> {
    let virtio = disks.iter().filter(|d| d.bus == "virtio").count();
    let of = |list: &str| json::list(cx.domain, list).len();
    let others = of("/devices/interfaces") + of("/devices/gpus") + of("/devices/hostDevices");
    Ok(virtio + others < sizing()?.pci.slots)
}

/// Disks to whose storage discard does not reach, by name.
pub(super) fn without_discard<'a>(cx: &Context<'_>, disks: &[Disk<'a>]) -> Vec<&'a str> {
    let thick = |d: &&Disk<'a>| d.claim().and_then(|c| cx.facts.volumes.claim(c)).is_some_and(|c| c.thick);
    disks.iter().filter(|d| matches!(d.kind, Kind::Disk | Kind::Lun)).filter(thick).map(|d| d.name).collect()
}
