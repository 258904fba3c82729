//! What KubeVirt's mutating webhooks fill in. Pure, apart from new UUIDs.

use std::collections::hash_map::{DefaultHasher, RandomState};
use std::hash::{BuildHasher, BuildHasherDefault};

use serde_json::{Value, json};

use crate::options::Rollout;
use crate::quantity;
use crate::value::{flag, list_mut, number, present, set, set_default, text};

/// Every VM write: KubeVirt reads the object into its Go types and writes those back. Structs that are no pointers
/// appear although they were not sent, and zero counts vanish.
///
/// The traces show `resources: {}` and a vanished `cores: 0`. `features.acpi` is the same kind of field (a plain
/// struct with omitempty), so `acpi: {}` appears in a `features` without it; no trace has such a VM.
pub(crate) fn round_trip(spec: &mut Value) {
    if !present(spec, "/domain") {
        return;
    }
    set_default(spec, "/domain/resources", json!({}));
    set_default(spec, "/domain/devices", json!({}));
    if present(spec, "/domain/features") {
        set_default(spec, "/domain/features/acpi", json!({}));
    }
    for part in ["cores", "sockets", "threads", "maxSockets"] {
        let pointer = format!("/domain/cpu/{part}");
        if number(spec, &pointer) == Some(0) {
            crate::value::remove(spec, &pointer);
        }
    }
}

/// Where the version of the PCI layout is noted.
pub(crate) const PCI_TOPOLOGY: &str = "/metadata/annotations/kubevirt.io~1pci-topology-version";

/// A VM at its creation.
pub(crate) fn vm(vm: &mut Value) {
    set_default(vm, "/spec/template/spec/architecture", json!("amd64"));
    set_default(vm, "/spec/template/spec/domain/firmware/uuid", json!(uuid()));
    set_default(vm, "/spec/template/spec/domain/firmware/serial", json!(uuid()));
    set_default(vm, "/spec/template/spec/domain/machine/type", json!("q35"));
    set_default(vm, &format!("/spec/template{PCI_TOPOLOGY}"), json!("v3"));
}

/// A VMI at its creation.
pub(crate) fn vmi(vmi: &mut Value, rollout: Rollout) {
    set_default(vmi, "/status/phase", json!("Pending"));
    set_default(vmi, PCI_TOPOLOGY, json!("v3"));
    let Some(spec) = vmi.get_mut("spec") else {
        return;
    };
    round_trip(spec);
    set_default(spec, "/architecture", json!("amd64"));
    set_default(spec, "/evictionStrategy", json!("None"));
    set_default(spec, "/domain/machine/type", json!("q35"));
    disks(spec);
    for volume in list_mut(spec, "/volumes") {
        if present(volume, "/containerDisk") {
            set_default(volume, "/containerDisk/imagePullPolicy", json!("IfNotPresent"));
        }
    }
    cpu(spec, rollout);
    if rollout == Rollout::LiveUpdate && !present(spec, "/domain/memory/maxGuest") {
        // Four times the guest's memory, so that it can grow live.
        if let Some(guest) = text(spec, "/domain/memory/guest").and_then(quantity::milli) {
            let max = quantity::bytes(guest / 1000 * 4);
            set(spec, "/domain/memory/maxGuest", json!(max));
        }
    }
    for feature in ["acpi", "apic", "smm", "pvspinlock"] {
        enable(spec, &format!("/domain/features/{feature}"));
    }
    for timer in ["hpet", "kvm", "pit", "rtc", "hyperv"] {
        let pointer = format!("/domain/clock/timer/{timer}");
        if present(spec, &pointer) {
            set_default(spec, &format!("{pointer}/present"), json!(true));
        }
    }
    hyperv(spec);
}

fn disks(spec: &mut Value) {
    for disk in list_mut(spec, "/domain/devices/disks") {
        if !["disk", "lun", "cdrom"].iter().any(|kind| disk.get(*kind).is_some()) {
            set(disk, "/disk", json!({}));
        }
        for kind in ["disk", "lun", "cdrom"] {
            if disk.get(kind).is_some() {
                set_default(disk, &format!("/{kind}/bus"), json!("sata"));
            }
        }
        if disk.get("cdrom").is_some() {
            set_default(disk, "/cdrom/readonly", json!(true));
            set_default(disk, "/cdrom/tray", json!("closed"));
        }
    }
}

fn cpu(spec: &mut Value, rollout: Rollout) {
    let counted = ["cores", "sockets", "threads"].iter().any(|part| present(spec, &format!("/domain/cpu/{part}")));
    if !counted && present(spec, "/domain/cpu") {
        for part in ["cores", "sockets", "threads"] {
            set(spec, &format!("/domain/cpu/{part}"), json!(1));
        }
    }
    set_default(spec, "/domain/cpu/model", json!("host-model"));
    if rollout == Rollout::LiveUpdate
        && !present(spec, "/domain/cpu/maxSockets")
        && let Some(sockets) = number(spec, "/domain/cpu/sockets")
    {
        let count = |part: &str| number(spec, &format!("/domain/cpu/{part}")).unwrap_or(1).max(1);
        let per_socket = count("cores") * count("threads");
        // Four times the sockets, but not beyond 512 vCPUs.
        let max = (sockets * 4).min(512 / per_socket).max(sockets);
        set(spec, "/domain/cpu/maxSockets", json!(max));
    }
}

/// Features in use get `enabled: true`, then those they need are switched on unless they are there already.
fn hyperv(spec: &mut Value) {
    const FEATURES: [&str; 14] = [
        "relaxed",
        "vapic",
        "spinlocks",
        "vpindex",
        "runtime",
        "synic",
        "synictimer",
        "reset",
        "vendorid",
        "frequencies",
        "reenlightenment",
        "tlbflush",
        "ipi",
        "evmcs",
    ];
    const NESTED: [&str; 3] = ["synictimer/direct", "tlbflush/direct", "tlbflush/extended"];
    /// In this order a chain (synictimer needs synic, synic needs vpindex) is filled in one pass.
    const NEEDS: [(&str, &str); 5] = [
        ("evmcs", "vapic"),
        ("ipi", "vpindex"),
        ("tlbflush", "vpindex"),
        ("synictimer", "synic"),
        ("synic", "vpindex"),
    ];
    for feature in FEATURES.iter().chain(&NESTED) {
        enable(spec, &format!("/domain/features/hyperv/{feature}"));
    }
    if hyperv_on(spec, "spinlocks") {
        set_default(spec, "/domain/features/hyperv/spinlocks/spinlocks", json!(4096));
    }
    for (feature, needed) in NEEDS {
        if hyperv_on(spec, feature) {
            let pointer = format!("/domain/features/hyperv/{needed}");
            set_default(spec, &pointer, json!({"enabled": true}));
        }
    }
    if hyperv_on(spec, "evmcs") && flag(spec, "/domain/features/hyperv/vapic/enabled") == Some(true) {
        require_vmx(spec);
    }
}

fn hyperv_on(spec: &Value, feature: &str) -> bool {
    flag(spec, &format!("/domain/features/hyperv/{feature}/enabled")) == Some(true)
}

fn require_vmx(spec: &mut Value) {
    let vmx = json!({"name": "vmx", "policy": "require"});
    let mut features = crate::value::list(spec, "/domain/cpu/features").to_vec();
    match features.iter_mut().find(|f| text(f, "/name") == Some("vmx")) {
        Some(feature) => *feature = vmx,
        None => features.push(vmx),
    }
    set(spec, "/domain/cpu/features", Value::Array(features));
}

fn enable(spec: &mut Value, pointer: &str) {
    if present(spec, pointer) {
        set_default(spec, &format!("{pointer}/enabled"), json!(true));
    }
}

/// A UUID from the hasher's random keys: nothing here needs better.
fn uuid() -> String {
    uuid_of(RandomState::new().hash_one(1_u8), RandomState::new().hash_one(2_u8))
}

/// The firmware UUID that virt-controller gives to a VM without one: always the same for a name, as in KubeVirt
/// (where it is another one: a SHA-1 of the name).
pub(crate) fn uuid_for(name: &str) -> String {
    let hash = |part: u8| BuildHasherDefault::<DefaultHasher>::default().hash_one((part, name));
    uuid_of(hash(1), hash(2))
}

/// In the form of version 4.
fn uuid_of(high: u64, low: u64) -> String {
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff
    )
}
