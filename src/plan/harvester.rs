//! What bites on Harvester: its quota, its webhooks, its importers and its form.

use serde_json::Value;

use super::context::{Context, cpus, number};
use super::disks::{Disk, Kind};
use super::facts::Facts;
use super::json;
use super::settings::{Finding, Setting, Severity};
use super::volumes::CLAIM_TEMPLATES;
use super::{detect, iothreads};

const RESERVED: &str = "harvesterhci.io/reservedMemory";
const HOTPLUG: &str = "harvesterhci.io/enableCPUAndMemoryHotplug";
/// Labels that only Harvester's form, templates and importers write.
const MARKS: [&str; 4] =
    ["harvesterhci.io/creator", "harvesterhci.io/vmName", "harvesterhci.io/os", "migration.harvesterhci.io/imported"];

/// Whether a VM lives on Harvester: its cluster says so, or the VM's own marks do.
pub(super) fn is(facts: &Facts) -> bool {
    let labelled = || facts.vm.marks(false).any(|(k, _)| MARKS.contains(&k));
    let annotated = || facts.vm.annotations.keys().any(|k| k == CLAIM_TEMPLATES || k == RESERVED);
    facts.capabilities.harvester.is_some() || labelled() || annotated()
}

/// Annotations that are read of a VM in a cluster.
pub fn annotation_keys() -> [&'static str; 2] {
    [RESERVED, HOTPLUG]
}

/// Everything that a reader on Harvester should know, for a VM as it would be after a plan.
pub(super) fn findings(cx: &Context<'_>, after: &Value, disks: &[Disk<'_>], settings: &[Setting]) -> Vec<Finding> {
    let mut found = Vec::new();
    quota(cx, after, &mut found);
    if cx.harvester {
        topology(cx, &mut found);
        admission(cx, disks, settings, &mut found);
        form(cx, settings, &mut found);
    }
    found
}

/// What shares the VM's CPU limit.
fn quota(cx: &Context<'_>, after: &Value, found: &mut Vec<Finding>) {
    let Some(limit) = json::at(after, "/resources/limits/cpu").and_then(cpus) else { return };
    let Some(vcpus) = cx.vcpus else { return };
    if vcpus.saturating_mul(1000) > limit {
        let words = json::at(after, "/resources/limits/cpu").map(Value::to_string).unwrap_or_default();
        found.push(Finding::new(
            "more-vcpus-than-limit",
            Severity::Warning,
            format!("the guest has {vcpus} vCPUs (sockets x cores x threads) under a CPU limit of {words}: it is throttled, and every wait looks like a slow disk; importers leave such VMs; lower the cores or raise limits.cpu"),
            "Harvester vm-import-controller pkg/source/helper.go:58-68; Harvester issue 11410",
        ));
    } else if iothreads::any(after)
        && vcpus.saturating_mul(1000) == limit
        && !json::flag(after, "/cpu/dedicatedCpuPlacement")
    {
        found.push(Finding::new(
            "io-threads-in-quota",
            Severity::Warning,
            format!("I/O threads and QEMU's own threads share the CPU limit of the {vcpus} vCPUs; watch container_cpu_cfs_throttled_periods_total, and raise limits.cpu where it grows"),
            "KubeVirt pkg/virt-controller/services/renderresources.go:77-145",
        ));
    }
    let request = json::at(after, "/resources/requests/cpu").and_then(cpus);
    // From 4 on, waiting for a core is what a guest notices first (Harvester issue 10087, docs PR 1077: 200 to 400 %).
    if let Some(request) = request.filter(|r| *r > 0 && limit / *r > 4) {
        found.push(Finding::new(
            "cpu-overcommit",
            Severity::Note,
            format!("the VM asks for one CPU in {} of its limit: on a full node its vCPUs wait for cores; Harvester advises an overcommit of 200 to 400 % for what must answer fast", limit / request),
            "Harvester issue 10087, docs PR 1077",
        ));
    }
}

/// Harvester's form makes vCPUs out of sockets, cores and threads.
fn topology(cx: &Context<'_>, found: &mut Vec<Finding>) {
    let of = |name: &str| json::count(cx.domain, &format!("/cpu/{name}")).unwrap_or(1);
    let source = "harvester-ui-extension utils/cpuMemory.js:13, mixins/harvester-vm/index.js:849-854";
    let hotplug = cx.facts.vm.annotations.get(HOTPLUG).is_some_and(|v| v == "true");
    if of("threads") > 1 {
        found.push(Finding::new("harvester-threads", Severity::Warning, format!("cpu.threads is {}: every save of Harvester's form multiplies the vCPUs by it; set threads to 1 and cores to the product", of("threads")), source));
    } else if of("sockets") > 1 && !hotplug {
        found.push(Finding::new("harvester-sockets", Severity::Warning, format!("cpu.sockets is {}: the next save of Harvester's form puts all vCPUs into one socket; set sockets to 1 and cores to the product", of("sockets")), source));
    }
    let desktop = cx.guest.as_ref().is_some_and(|(guest, _)| guest.desktop);
    if hotplug && desktop {
        found.push(Finding::new("harvester-hotplug-sockets", Severity::Warning, "with CPU hotplug Harvester gives every vCPU a socket, and a Windows desktop uses at most two; turn CPU and memory hotplug off for this VM", source));
    }
}

/// What Harvester's webhooks refuse or add.
fn admission(cx: &Context<'_>, disks: &[Disk<'_>], settings: &[Setting], found: &mut Vec<Finding>) {
    const VALIDATOR: &str = "Harvester pkg/webhook/resources/virtualmachine/validator.go:265-355";
    let vm = &cx.facts.vm;
    if let Some(text) = vm.annotations.get(CLAIM_TEMPLATES) {
        let parsed = serde_json::from_str::<Value>(text);
        let named = |t: &Value| json::text(t, "/metadata/name").is_some();
        if !parsed.is_ok_and(|v| v.as_array().is_some_and(|all| all.iter().all(named))) {
            found.push(Finding::new("harvester-claim-templates", Severity::Warning, format!("annotation {CLAIM_TEMPLATES} is not a list of claims with names: Harvester refuses every write to this VM until it is put right"), VALIDATOR));
        }
    }
    let memory = |place: &str| json::at(cx.domain, place).and_then(number);
    if let (Some(guest), Some(limit)) = (memory("/memory/guest"), memory("/resources/limits/memory")) {
        let reserved =
            vm.annotations.get(RESERVED).and_then(|text| number(&Value::String(text.clone()))).unwrap_or(0.0);
        if guest + reserved > limit {
            found.push(Finding::new("harvester-reserved-memory", Severity::Warning, format!("memory.guest and annotation {RESERVED} come to more than limits.memory: Harvester refuses every write to this VM until it is put right"), VALIDATOR));
        }
    }
    let boot = disks
        .iter()
        .filter(|d| d.kind == Kind::Disk)
        .min_by_key(|d| d.entry.and_then(|e| json::count(e, "/bootOrder")).unwrap_or(u64::MAX));
    for disk in disks.iter().filter(|d| d.flag("shareable")) {
        let why = if boot.is_some_and(|b| b.name == disk.name) {
            "it is the boot disk"
        } else if disk.claim().is_none() {
            "it has no claim"
        } else {
            continue;
        };
        found.push(Finding::new(
            "harvester-shareable",
            Severity::Warning,
            format!(
                "disk {} is shareable although {why}: Harvester 1.9 refuses every write to this VM",
                detect::printable(disk.name)
            ),
            VALIDATOR,
        ));
    }
    let completes = minor(cx).is_some_and(|m| m >= 7) && settings.iter().any(Setting::is_write);
    let unset: Vec<&str> = [
        ("cpu.sockets", "/template/spec/domain/cpu/sockets"),
        ("cpu.threads", "/template/spec/domain/cpu/threads"),
        ("terminationGracePeriodSeconds", "/template/spec/terminationGracePeriodSeconds"),
    ]
    .into_iter()
    .filter(|(_, at)| json::at(&vm.spec, at).is_none())
    .map(|(name, _)| name)
    .collect();
    if !unset.is_empty() && completes {
        found.push(Finding::new(
            "harvester-completes",
            Severity::Note,
            format!(
                "Harvester 1.7 and later add {} at the first write by anybody; that is theirs, and an undo leaves it",
                unset.join(", ")
            ),
            "Harvester pkg/webhook/resources/virtualmachine/mutator.go:611-690",
        ));
    }
}

/// What a save in Harvester's form does to what is planned.
fn form(cx: &Context<'_>, settings: &[Setting], found: &mut Vec<Finding>) {
    let of_disks = settings.iter().any(|s| s.is_write() && s.pointer.starts_with("/devices/disks/"));
    if of_disks && minor(cx).is_none_or(|m| m < 7) {
        found.push(Finding::new(
            "harvester-form-drops",
            Severity::Warning,
            "Harvester's form up to 1.6 drops cache, io and dedicatedIOThread of every disk at each save; what is planned for disks is gone then, and is proposed again",
            "harvester-ui-extension PR 487; Harvester issue 8946",
        ));
    }
}

/// `8` of Harvester 1.8.
fn minor(cx: &Context<'_>) -> Option<u64> {
    super::capabilities::parse_version(cx.facts.capabilities.harvester.as_deref()?).map(|v| v.minor)
}
