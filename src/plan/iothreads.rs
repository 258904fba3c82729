//! Threads that do nothing but I/O: a pool for all virtio disks, or one for each.
//!
//! A pool adds to what the launcher pod asks for, so it goes in only where the VM's own limits leave room for it
//! (design, safety decision 14; KubeVirt pkg/virt-controller/services/renderresources.go:77-145). Elsewhere each virtio
//! disk gets a thread.

use serde_json::{Value, json};

use super::context::{Ask, Context, cpus};
use super::cpu::Placed;
use super::disks::Disk;
use super::json;
use super::profile::DataError;
use super::settings::{Outcome, Setting};
use super::sizing::sizing;
use crate::api::overrides::{IoThreadsWanted, Switch};

const POLICY: &str = "/ioThreadsPolicy";
const COUNT: &str = "/ioThreads/supplementalPoolThreadCount";
const QUEUES: &str = "/devices/blockMultiQueue";

/// Plans I/O threads and the queues of disks, beside CPUs as the same plan places them.
pub(super) fn plan(cx: &Context<'_>, disks: &[Disk<'_>], cpus: Placed) -> Result<Vec<Setting>, DataError> {
    let picked = cx.desired.pick(|o| o.io_threads.policy);
    let virtio: Vec<&Disk<'_>> = disks.iter().filter(|d| d.is_virtio() && !d.hotplugged()).collect();
    if virtio.is_empty() {
        return Ok(Vec::new());
    }
    let mut settings = match picked.value {
        None | Some(IoThreadsWanted::Leave) => Vec::new(),
        Some(IoThreadsWanted::Dedicated) => dedicated(cx, &virtio, picked.overridden),
        Some(IoThreadsWanted::SupplementalPool) => pool(cx, &virtio, picked.overridden, cpus)?,
    };
    let queues = cx.desired.pick(|o| o.devices.block_multi_queue);
    let has_pool =
        settings.iter().any(|s| s.pointer == POLICY && matches!(s.outcome, Outcome::Write | Outcome::Satisfied))
            || json::text(cx.domain, POLICY) == Some("supplementalPool");
    let wanted = match queues.value {
        Some(Switch::On) if has_pool || queues.overridden => Some(true),
        Some(Switch::Off) if queues.overridden => Some(false),
        _ => None,
    };
    if let Some(on) = wanted {
        let ask = Ask {
            place: QUEUES.to_owned(),
            desired: json!(on),
            setting: "devices.blockMultiQueue",
            overridden: queues.overridden,
        };
        settings.push(cx.setting(ask));
    }
    Ok(settings)
}

fn dedicated(cx: &Context<'_>, virtio: &[&Disk<'_>], overridden: bool) -> Vec<Setting> {
    // A pool takes every disk; a thread of a disk's own is ignored beside it.
    if json::text(cx.domain, POLICY) == Some("supplementalPool") {
        return Vec::new();
    }
    let one = |disk: &&Disk<'_>| {
        let place = disk.place("dedicatedIOThread");
        cx.setting(Ask { place, desired: json!(true), setting: "ioThreads.policy", overridden })
    };
    // KubeVirt refuses the field while the disk itself names no bus (pkg/storage/admitters/disks.go:223).
    virtio.iter().filter(|d| d.entry.and_then(|e| json::text(e, "/disk/bus")) == Some("virtio")).map(one).collect()
}

fn pool(cx: &Context<'_>, virtio: &[&Disk<'_>], overridden: bool, placed: Placed) -> Result<Vec<Setting>, DataError> {
    let sizing = &sizing()?.io_threads;
    let vcpus = cx.vcpus.unwrap_or(0);
    let size = cx.desired.overrides.io_threads.pool_size.map(u64::from);
    let own = json::count(cx.domain, COUNT);
    let wanted = size.or(own).unwrap_or_else(|| sizing.pool(virtio.len() as u64, vcpus));
    let mut policy = cx.setting(Ask {
        place: POLICY.to_owned(),
        desired: json!("supplementalPool"),
        setting: "ioThreads.policy",
        overridden,
    });
    // Whoever has a pool keeps its size: it is what the VM's limits were made for.
    if policy.outcome == Outcome::Satisfied && size.is_none() {
        return Ok(vec![policy]);
    }
    if !matches!(policy.outcome, Outcome::Write | Outcome::Satisfied) {
        return Ok(vec![policy]);
    }
    if !cx.facts.capabilities.serves(COUNT) {
        policy.outcome = Outcome::refused(
            "not-served",
            "this KubeVirt has no pools of I/O threads",
            "a thread for each disk is planned instead; upgrade KubeVirt, or offline name its version with --kubevirt or --harvester",
        );
        let mut settings = vec![policy];
        settings.extend(dedicated(cx, virtio, overridden));
        return Ok(settings);
    }
    if size.is_none() && vcpus < sizing.least_vcpus {
        return Ok(dedicated(cx, virtio, overridden));
    }
    if let Some(why) = no_room(cx, vcpus, wanted, placed) {
        let unblock =
            "a thread for each disk is planned instead; raise resources.limits.cpu by the size of the pool to have one";
        policy.outcome = Outcome::refused("io-thread-room", why, unblock);
        let mut settings = vec![policy];
        settings.extend(dedicated(cx, virtio, overridden));
        return Ok(settings);
    }
    let count = cx.setting(Ask {
        place: COUNT.to_owned(),
        desired: json!(wanted),
        setting: "ioThreads.policy",
        overridden: overridden || own.is_none(),
    });
    Ok(vec![policy.needs([COUNT.to_owned(), QUEUES.to_owned()]), count.needs([POLICY.to_owned()])])
}

/// Why a pool may not be added. What the VM itself limits bounds its pod; without a limit of its own the pod asks for
/// more, and whether quota and nodes have it is not known.
fn no_room(cx: &Context<'_>, vcpus: u64, threads: u64, placed: Placed) -> Option<String> {
    if placed.dedicated {
        return Some(format!(
            "with dedicated CPUs a pool of {threads} takes {threads} more CPUs of a node, and whether a node has them is not known"
        ));
    }
    if placed.isolated {
        return Some("a pool beside isolateEmulatorThread is refused by KubeVirt issue 15404".to_owned());
    }
    let limit = json::at(cx.domain, "/resources/limits/cpu").map(|q| cpus(q).unwrap_or(0));
    let request = json::at(cx.domain, "/resources/requests/cpu");
    let needed = vcpus.saturating_add(threads).saturating_mul(1000);
    match (limit, request) {
        (Some(limit), _) if limit < needed => Some(format!(
            "limits.cpu gives {vcpus} vCPUs and a pool of {threads} only {} together: the pool would be throttled with the guest",
            words(limit)
        )),
        (Some(_), Some(_)) => None,
        (Some(_), None) | (None, _) if cx.eligible.is_none() => None,
        (Some(_) | None, _) => Some(format!(
            "the VM does not set both limits.cpu and requests.cpu, so its pod would ask for {threads} more threads' worth of CPU, and whether quota and nodes have it is not known"
        )),
    }
}

/// Thousandths of a CPU for people.
fn words(thousandths: u64) -> String {
    match thousandths % 1000 {
        0 => format!("{}", thousandths / 1000),
        _ => format!("{thousandths}m"),
    }
}

/// Whether any thread of this VM does only I/O: after a plan, or as its owner has it.
pub(super) fn any(domain: &Value) -> bool {
    let dedicated = |d: &Value| d.get("dedicatedIOThread").and_then(Value::as_bool) == Some(true);
    json::at(domain, POLICY).is_some() || json::list(domain, "/devices/disks").iter().any(dedicated)
}
