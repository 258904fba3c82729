//! KubeVirt's own rules for a VM and for the instance made from it.
//!
//! Half of them run only when the instance is created: a VM that breaks one is stored and does not start any more
//! (facts `kubevirt.md` 2.2, observed in `kubevirt-live.md` 16). So the plan checks its own result, and a result that
//! breaks a rule is a refusal, never a write. A test compares this copy with recorded answers of the real KubeVirt.

use std::collections::BTreeSet;

use serde_json::Value;

use super::facts::Vm;
use super::json::{self, State};

/// A rule that a spec breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong, naming the field.
    pub text: String,
    /// Where KubeVirt has the rule.
    pub source: &'static str,
}

const ADMITTER: &str = "KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters/vmi-create-admitter.go";
const VM_ADMITTER: &str = "KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters/vms-admitter.go:209-229";
const HYPERV: &str = "KubeVirt pkg/virt-api/webhooks/hyperv.go:109-300";
const DISKS: &str = "KubeVirt pkg/storage/admitters/disks.go";

/// Every rule that a VM with this domain would break.
pub fn violations(vm: &Vm, domain: &Value) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |text: String, source: &'static str| found.push(Violation { text, source });
    run_strategy(vm, &mut add);
    hyperv(domain, &mut add);
    disks(vm, domain, &mut add);
    iothreads(domain, &mut add);
    cpu(domain, &mut add);
    firmware_and_devices(domain, &mut add);
    // An instancetype gives the memory where there is one.
    let memory =
        ["/memory/guest", "/memory/hugepages/pageSize", "/resources/requests/memory", "/resources/limits/memory"];
    if json::at(&vm.spec, "/instancetype").is_none() && memory.iter().all(|p| json::at(domain, p).is_none()) {
        add("no memory is asked for: set domain.memory.guest".to_owned(), ADMITTER);
    }
    found
}

type Add<'a> = &'a mut dyn FnMut(String, &'static str);

fn run_strategy(vm: &Vm, add: Add<'_>) {
    const KNOWN: [&str; 6] = ["Always", "Halted", "Manual", "RerunOnFailure", "Once", "WaitAsReceiver"];
    let strategy = json::text(&vm.spec, "/runStrategy");
    if strategy.is_some() && json::at(&vm.spec, "/running").is_some() {
        add("spec.running and spec.runStrategy exclude each other".to_owned(), VM_ADMITTER);
    }
    if let Some(unknown) = strategy.filter(|s| !KNOWN.contains(s)) {
        add(format!("spec.runStrategy {unknown:?} is not known"), VM_ADMITTER);
    }
    let eviction = json::text(&vm.spec, "/template/spec/evictionStrategy");
    if let Some(unknown) =
        eviction.filter(|e| !["None", "LiveMigrate", "LiveMigrateIfPossible", "External"].contains(e))
    {
        add(format!("evictionStrategy {unknown:?} is not known"), ADMITTER);
    }
}

fn hyperv(domain: &Value, add: Add<'_>) {
    // Feature and what it requires; KubeVirt adds a missing one and refuses one that is explicitly off.
    const REQUIRES: [(&str, &str); 5] = [
        ("evmcs", "vapic"),
        ("ipi", "vpindex"),
        ("tlbflush", "vpindex"),
        ("synictimer", "synic"),
        ("synic", "vpindex"),
    ];
    let features = json::at(domain, "/features/hyperv");
    if let Some(features) = features {
        let state = |name: &str| json::state(features.get(name), "enabled");
        // Turning synictimer on turns synic on, and that vpindex.
        let on = |name: &str| state(name) == State::On || (name == "synic" && state("synictimer") == State::On);
        for (feature, requirement) in REQUIRES {
            if on(feature) && state(requirement) == State::Off {
                add(format!("hyperv.{feature} requires hyperv.{requirement}, which is off"), HYPERV);
            }
        }
        if json::at(domain, "/features/hypervPassthrough").is_some() {
            add("features.hyperv and features.hypervPassthrough exclude each other".to_owned(), HYPERV);
        }
    }
}

/// Names a disk in a violation; most have none, so nothing is written for them.
struct At<'a> {
    index: usize,
    name: &'a str,
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "disks[{}] {:?}", self.index, self.name)
    }
}

fn disks(vm: &Vm, domain: &Value, add: Add<'_>) {
    let disks = json::list(domain, "/devices/disks");
    let volumes: BTreeSet<&str> =
        json::list(&vm.spec, "/template/spec/volumes").iter().filter_map(|v| json::text(v, "/name")).collect();
    let (mut names, mut orders) = (BTreeSet::new(), BTreeSet::new());
    for (index, disk) in disks.iter().enumerate() {
        let name = json::text(disk, "/name").unwrap_or_default();
        let at = At { index, name };
        let cdrom = json::at(disk, "/cdrom").is_some();
        if !names.insert(name) {
            add(format!("{at}: another disk has the same name"), DISKS);
        }
        if !volumes.contains(name) && !cdrom {
            add(format!("{at}: no volume has this name"), ADMITTER);
        }
        if let Some(order) = json::at(disk, "/bootOrder").and_then(Value::as_u64)
            && !orders.insert(order)
        {
            add(format!("{at}: another device has bootOrder {order}"), ADMITTER);
        }
        bus(disk, &at, cdrom, add);
        one_of(disk, "/cache", &["none", "writethrough", "writeback"], &at, add);
        one_of(disk, "/io", &["native", "threads"], &at, add);
        one_of(disk, "/errorPolicy", &["stop", "ignore", "report", "enospace"], &at, add);
        block_size(disk, &at, add);
    }
}

fn bus(disk: &Value, at: &At<'_>, cdrom: bool, add: Add<'_>) {
    let there = |k: &&str| disk.get(*k).is_some_and(|v| !v.is_null());
    let kind = ["disk", "cdrom", "lun"].into_iter().find(there);
    let bus = kind.and_then(|k| disk.get(k)?.get("bus")?.as_str()).unwrap_or("");
    if !["", "virtio", "scsi", "sata", "usb"].contains(&bus) {
        add(format!("{at}: bus {bus:?} is not known"), DISKS);
    }
    if bus == "virtio" && kind != Some("disk") && kind.is_some() {
        add(format!("{at}: {} cannot be on virtio", if cdrom { "a CD-ROM" } else { "a LUN" }), DISKS);
    }
    let read_only = json::at(disk, "/disk/readonly").and_then(Value::as_bool) == Some(true);
    if bus == "sata" && read_only {
        add(format!("{at}: a sata disk cannot be read-only"), DISKS);
    }
    // An empty bus becomes sata at VMI create (pkg/defaults/amd64.go:22-40), and is refused only then.
    let dedicated = json::at(disk, "/dedicatedIOThread").and_then(Value::as_bool) == Some(true);
    if dedicated && bus != "virtio" {
        let bus = if bus.is_empty() { "sata, which an empty bus becomes" } else { bus };
        add(format!("{at}: dedicatedIOThread needs virtio, the bus is {bus}"), DISKS);
    }
}

fn block_size(disk: &Value, at: &At<'_>, add: Add<'_>) {
    let Some(custom) = json::at(disk, "/blockSize/custom") else { return };
    let size = |name: &str| custom.get(name).and_then(Value::as_u64);
    let (Some(logical), Some(physical)) = (size("logical"), size("physical")) else { return };
    if logical > physical {
        add(format!("{at}: logical block size {logical} is over the physical {physical}"), DISKS);
    }
    if logical != 512 && json::text(disk, "/disk/bus") == Some("sata") {
        add(format!("{at}: logical block size {logical} must be 512 on sata"), DISKS);
    }
}

fn one_of(disk: &Value, field: &str, known: &[&str], at: &At<'_>, add: Add<'_>) {
    if let Some(other) = json::text(disk, field).filter(|v| !known.contains(v)) {
        add(format!("{at}: {} {other:?} is not one of {}", field.trim_start_matches('/'), known.join(", ")), DISKS);
    }
}

fn iothreads(domain: &Value, add: Add<'_>) {
    match json::text(domain, "/ioThreadsPolicy") {
        None | Some("shared" | "auto") => {}
        Some("supplementalPool") => {
            let count = json::at(domain, "/ioThreads/supplementalPoolThreadCount").and_then(Value::as_u64);
            if count.unwrap_or(0) == 0 {
                add(
                    "ioThreadsPolicy supplementalPool needs ioThreads.supplementalPoolThreadCount".to_owned(),
                    ADMITTER,
                );
            }
        }
        Some(unknown) => add(format!("ioThreadsPolicy {unknown:?} is not known"), ADMITTER),
    }
}

fn cpu(domain: &Value, add: Add<'_>) {
    let flag = |p: &str| json::at(domain, p).and_then(Value::as_bool) == Some(true);
    let count = |p: &str| json::at(domain, p).and_then(Value::as_u64).unwrap_or(0);
    let dedicated = flag("/cpu/dedicatedCpuPlacement");
    if flag("/cpu/isolateEmulatorThread") && !dedicated {
        add("cpu.isolateEmulatorThread needs cpu.dedicatedCpuPlacement".to_owned(), ADMITTER);
    }
    if dedicated && count("/cpu/threads") > 2 {
        add("cpu.threads must be at most 2 with dedicatedCpuPlacement".to_owned(), ADMITTER);
    }
    let numa = json::at(domain, "/cpu/numa/guestMappingPassthrough").is_some();
    if numa && !(dedicated && json::at(domain, "/memory/hugepages").is_some()) {
        add("cpu.numa.guestMappingPassthrough needs dedicatedCpuPlacement and hugepages".to_owned(), ADMITTER);
    }
    if json::at(domain, "/cpu/realtime").is_some() && !(dedicated && numa) {
        add("cpu.realtime needs dedicatedCpuPlacement and numa.guestMappingPassthrough".to_owned(), ADMITTER);
    }
    if count("/cpu/maxSockets") > 0 && count("/cpu/sockets") > count("/cpu/maxSockets") {
        add("cpu.sockets is over cpu.maxSockets".to_owned(), ADMITTER);
    }
    for feature in json::list(domain, "/cpu/features") {
        let policy = json::text(feature, "/policy").unwrap_or("");
        if !["", "force", "require", "optional", "disable", "forbid"].contains(&policy) {
            add(format!("cpu.features policy {policy:?} is not known"), ADMITTER);
        }
    }
}

fn firmware_and_devices(domain: &Value, add: Add<'_>) {
    if let Some(efi) = json::at(domain, "/firmware/bootloader/efi") {
        let secure = efi.get("secureBoot").and_then(Value::as_bool).unwrap_or(true);
        if secure && json::state(json::at(domain, "/features/smm"), "enabled") != State::On {
            add("secure boot, which EFI has by default, needs features.smm".to_owned(), ADMITTER);
        }
    }
    let machine = json::text(domain, "/machine/type").unwrap_or("");
    if !(machine.is_empty() || machine.starts_with("q35") || machine.starts_with("pc-q35")) {
        add(format!("machine.type {machine:?} is not q35"), ADMITTER);
    }
    for input in json::list(domain, "/devices/inputs") {
        if json::text(input, "/type") != Some("tablet") {
            add("an input device can only be a tablet".to_owned(), ADMITTER);
        }
        if !matches!(json::text(input, "/bus"), None | Some("" | "usb" | "virtio")) {
            add("an input device can only be on usb or virtio".to_owned(), ADMITTER);
        }
    }
    for panic in json::list(domain, "/devices/panicDevices") {
        if !matches!(json::text(panic, "/model"), None | Some("" | "hyperv" | "isa" | "pvpanic")) {
            add("the model of a panic device must be hyperv, isa or pvpanic".to_owned(), ADMITTER);
        }
    }
    const NICS: [&str; 7] = ["", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"];
    for nic in json::list(domain, "/devices/interfaces") {
        let model = json::text(nic, "/model").unwrap_or("");
        if model != "virtio" && !NICS.contains(&model) {
            add(format!("network interface model {model:?} is not known"), ADMITTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The VM that the recorded combinations were patched into.
    fn base() -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "jp"},
            "spec": {"runStrategy": "Halted", "template": {
                "metadata": {"labels": {"app": "win"}, "annotations": {"kubevirt.io/pci-topology-version": "v3"}},
                "spec": {"architecture": "amd64", "domain": {
                    "cpu": {"cores": 4}, "memory": {"guest": "4Gi"}, "features": {"acpi": {}}, "machine": {"type": "q35"},
                    "firmware": {"uuid": "u", "serial": "s"}, "resources": {},
                    "devices": {"disks": [{"name": "rootdisk", "bootOrder": 1, "disk": {"bus": "sata"}},
                                           {"name": "tools", "cdrom": {"bus": "sata"}}],
                                "interfaces": [{"name": "default", "model": "e1000e", "masquerade": {}}]}},
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": [{"name": "rootdisk", "persistentVolumeClaim": {"claimName": "claim0"}},
                                 {"name": "tools", "containerDisk": {"image": "registry.example/virtio-win:1"}}]}}}})
    }

    /// Refusals of the real KubeVirt that this copy leaves to the cluster's dry run, each because no setting of ours
    /// touches the field and the rule needs arithmetic on quantities or the cluster's configuration.
    const LEFT_TO_THE_DRY_RUN: [&str; 9] = [
        "cpu-dedicated-requests-ne-limits",
        "cpu-dedicated-fraction",
        "cpu-limits-lt-requests",
        "mem-hugepages-bogus",
        "mem-hugepages-not-multiple",
        "arch-arm64-hyperv",
        "rebootpolicy-bogus",
        "hooksidecar-gate-off",
        "hooksidecar-bad-json",
    ];
    const LAUNCH_SECURITY: &str = "launchsecurity-sev";

    #[test]
    fn our_copy_agrees_with_the_recorded_kubevirt() {
        let shared = std::env::var("WINTUNE_SHARED").unwrap_or_else(|_| "../shared".to_owned());
        let Ok(text) = std::fs::read_to_string(format!("{shared}/kubevirt/traces/b2-combinations/table.json")) else {
            println!("skipped: no recorded combinations in {shared}");
            return;
        };
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        let mut compared = 0;
        for row in &rows {
            let name = row["name"].as_str().unwrap();
            if LEFT_TO_THE_DRY_RUN.contains(&name) || name == LAUNCH_SECURITY {
                continue;
            }
            let mut object = base();
            let patch: json_patch::Patch = serde_json::from_value(row["ops"].clone()).unwrap();
            if json_patch::patch(&mut object, &patch).is_err() {
                continue;
            }
            let vm = Vm::from_object(&object).unwrap();
            let ours = violations(&vm, vm.domain());
            let theirs = row["vmPatch"]["status"] == 422 || row["vmiCreate"]["status"] == 422;
            assert_eq!(!ours.is_empty(), theirs, "{name}: {ours:?} against {}", row["vmiCreate"]["message"]);
            compared += 1;
        }
        assert!(compared >= 95, "only {compared} of {} rows were compared", rows.len());
    }

    #[test]
    fn a_prerequisite_that_is_off_is_found() {
        let mut object = base();
        object["spec"]["template"]["spec"]["domain"]["features"]["hyperv"] =
            json!({"synictimer": {}, "vpindex": {"enabled": false}});
        let vm = Vm::from_object(&object).unwrap();
        assert_eq!(violations(&vm, vm.domain())[0].text, "hyperv.synic requires hyperv.vpindex, which is off");
    }
}
