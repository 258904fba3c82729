//! Model, topology and placement of the virtual CPUs.

use serde_json::{Value, json};

use super::context::{Ask, Context, cpus};
use super::json;
use super::nodes::Class;
use super::profile::DataError;
use super::settings::{Outcome, Setting};
use super::sizing::sizing;
use crate::api::overrides::{CpuModelWanted, Switch};

const MODEL: &str = "/cpu/model";
const DEDICATED: &str = "/cpu/dedicatedCpuPlacement";
const ISOLATED: &str = "/cpu/isolateEmulatorThread";
const NUMA: &str = "/cpu/numa/guestMappingPassthrough";
/// Node fact of wintune's agent: two threads to each core.
const SMT: &str = "node.wintune.dev/smt";

/// How the vCPUs will be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// On CPUs of their own.
    pub(super) dedicated: bool,
    /// With another one for QEMU's own threads.
    pub(super) isolated: bool,
}

/// Plans everything below `cpu`.
pub(super) fn plan(cx: &Context<'_>) -> Result<(Vec<Setting>, Placed), DataError> {
    let mut settings = Vec::new();
    settings.extend(model(cx));
    let placement = placement(cx);
    // What this very plan turns on or off counts, and what stands there otherwise.
    let planned =
        |place: &str| placement.iter().find(|s| s.pointer == place && s.is_write()).map(|s| s.desired == json!(true));
    let dedicated = planned(DEDICATED).unwrap_or_else(|| cx.dedicated());
    let isolated = planned(ISOLATED).unwrap_or_else(|| json::flag(cx.domain, ISOLATED));
    settings.extend(placement);
    settings.extend(topology(cx)?);
    threads(cx, dedicated, &mut settings);
    settings.extend(nested(cx));
    Ok((settings, Placed { dedicated, isolated }))
}

/// The whole CPU of the host, where every node has the same.
fn model(cx: &Context<'_>) -> Option<Setting> {
    let picked = cx.desired.pick(|o| o.cpu.model);
    let value = picked.value.filter(|m| *m != CpuModelWanted::Leave)?;
    let ask =
        Ask { place: MODEL.to_owned(), desired: json!(value), setting: "cpu.model", overridden: picked.overridden };
    let setting = cx.setting(ask);
    if !setting.is_write() || value != CpuModelWanted::HostPassthrough {
        return Some(setting);
    }
    let first =
        cx.eligible.as_ref().and_then(|e| e.classes().next().map(|(class, _)| (class.vendor(), class.host_model())));
    let same = |class: &Class| {
        let own = (class.vendor(), class.host_model());
        own.0.is_some() && own.1.is_some() && Some(own) == first
    };
    // With an override the migration solver still counts the nodes that a VM can move between.
    let known = match picked.overridden {
        true => Ok(()),
        false => cx.every_known_node("has the same CPU model (host-model-cpu.node.kubevirt.io)", same),
    };
    Some(match known {
        Ok(()) => setting,
        Err(refused) => setting.outcome(refused),
    })
}

/// Dedicated CPUs and what builds on them.
fn placement(cx: &Context<'_>) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut flag = |place: &'static str,
                    name: &'static str,
                    picked: super::profile::Picked<Switch>,
                    needs: Vec<String>,
                    refusal: Option<Outcome>| {
        let on = match picked.value {
            Some(Switch::On) => true,
            Some(Switch::Off) if picked.overridden && json::flag(cx.domain, place) => false,
            _ => return,
        };
        let ask = Ask { place: place.to_owned(), desired: json!(on), setting: name, overridden: picked.overridden };
        let setting = cx.setting(ask).needs(if on { needs } else { Vec::new() });
        settings.push(match refusal.filter(|_| on && setting.is_write()) {
            Some(refusal) => setting.outcome(refusal),
            None => setting,
        });
    };
    let dedicated = cx.desired.pick(|o| o.cpu.dedicated_cpu_placement);
    flag(DEDICATED, "cpu.dedicatedCpuPlacement", dedicated, Vec::new(), no_dedicated(cx));
    let isolated = cx.desired.pick(|o| o.cpu.isolate_emulator_thread);
    let pool = (json::text(cx.domain, "/ioThreadsPolicy") == Some("supplementalPool")).then(|| {
        Outcome::refused(
            "emulator-thread-beside-pool",
            "the VM has a pool of I/O threads, beside which isolateEmulatorThread fails (KubeVirt issue 15404)",
            "remove ioThreadsPolicy supplementalPool first",
        )
    });
    flag(ISOLATED, "cpu.isolateEmulatorThread", isolated, vec![DEDICATED.to_owned()], pool);
    let numa = cx.desired.pick(|o| o.cpu.guest_mapping_passthrough);
    let numa_wanted = numa.value == Some(Switch::On);
    if numa_wanted && json::at(cx.domain, NUMA).is_none() {
        let ask = Ask {
            place: NUMA.to_owned(),
            desired: json!({}),
            setting: "cpu.guestMappingPassthrough",
            overridden: numa.overridden,
        };
        let setting = cx.setting(ask).needs([DEDICATED.to_owned()]);
        settings.push(match no_numa(cx).filter(|_| setting.is_write()) {
            Some(refusal) => setting.outcome(refusal),
            None => setting,
        });
    }
    settings
}

/// Why a VM cannot have CPUs of its own (KubeVirt admitters/vmi-create-admitter.go:722-860).
fn no_dedicated(cx: &Context<'_>) -> Option<Outcome> {
    if !cx.facts.capabilities.gate("CPUManager") && cx.eligible.is_some() {
        return Some(Outcome::refused(
            "gate-off",
            "KubeVirt's feature gate CPUManager is off: a VM with dedicated CPUs would never be scheduled",
            "turn the gate on in the KubeVirt object; on Harvester, enable the CPU manager on nodes",
        ));
    }
    if let Err(refused) = cx.every_known_node("gives pods CPUs of their own (label cpumanager)", Class::cpu_manager) {
        // KubeVirt selects such nodes by itself; the migration solver counts whether there are enough.
        let some = cx.eligible.as_ref().is_some_and(|e| e.any(Class::cpu_manager));
        if !some {
            return Some(refused);
        }
    }
    let (limit, request) =
        (json::at(cx.domain, "/resources/limits/cpu"), json::at(cx.domain, "/resources/requests/cpu"));
    let (limit, request) = (limit.map(cpus), request.map(cpus));
    let whole = |q: Option<Option<u64>>| q.is_none_or(|q| q.is_some_and(|n| n > 0 && n % 1000 == 0));
    // Harvester's webhook makes requests equal to limits as soon as dedicated CPUs are asked for.
    let equal = cx.harvester || limit.is_none() || request.is_none() || limit == request;
    let topology = ["/cpu/cores", "/cpu/sockets", "/cpu/threads"].iter().any(|p| json::at(cx.domain, p).is_some());
    if !whole(limit) || !whole(request) || !equal || !(topology || limit.is_some() || request.is_some()) {
        return Some(Outcome::refused(
            "cpu-resources",
            "dedicated CPUs need whole CPUs, and requests.cpu equal to limits.cpu where both are set",
            "set cpu.cores, and remove resources.requests.cpu and resources.limits.cpu or make them equal and whole",
        ));
    }
    None
}

fn no_numa(cx: &Context<'_>) -> Option<Outcome> {
    if json::at(cx.domain, "/memory/hugepages").is_none() {
        return Some(Outcome::refused(
            "no-hugepages",
            "guestMappingPassthrough needs hugepages, which are never asked for on an owner's behalf",
            "set memory.hugepages in the VM, on nodes that have them",
        ));
    }
    if cx.eligible.is_some() && !cx.facts.capabilities.gate("NUMA") {
        return Some(Outcome::refused(
            "gate-off",
            "KubeVirt's feature gate NUMA is off",
            "turn the gate on in the KubeVirt object",
        ));
    }
    None
}

/// One socket for a Windows desktop that has more than it uses; the number of vCPUs stays.
fn topology(cx: &Context<'_>) -> Result<Vec<Setting>, DataError> {
    let picked = cx.desired.pick(|o| o.cpu.topology);
    let sockets = json::count(cx.domain, "/cpu/sockets").unwrap_or(1);
    let desktop = cx.guest.as_ref().is_some_and(|(guest, _)| guest.desktop);
    let wanted = picked.value == Some(Switch::On) && (picked.overridden || desktop);
    if !wanted || sockets <= sizing()?.desktop.sockets {
        return Ok(Vec::new());
    }
    let threads = json::count(cx.domain, "/cpu/threads").unwrap_or(1).max(1);
    let Some(cores) = cx.vcpus.and_then(|all| all.checked_div(threads)) else { return Ok(Vec::new()) };
    // It replaces a value, which a profile alone never does: here it is the point, and the vCPUs stay as many.
    let place = |name: &str| format!("/cpu/{name}");
    let set = |name: &str, value: u64, other: &str| {
        let ask = Ask { place: place(name), desired: json!(value), setting: "cpu.topology", overridden: true };
        cx.setting(ask).needs([place(other)])
    };
    let hotplug = json::at(cx.domain, "/cpu/maxSockets").is_some();
    let mut settings = vec![set("sockets", 1, "cores"), set("cores", cores, "sockets")];
    if hotplug {
        for setting in settings.iter_mut().filter(|s| s.is_write()) {
            setting.outcome = Outcome::refused(
                "cpu-hotplug",
                "the VM has cpu.maxSockets: its vCPUs are hotplugged by sockets",
                "remove cpu.maxSockets, or give the guest cores yourself",
            );
        }
    }
    Ok(settings)
}

/// Two threads to a core, where the vCPUs are host threads of one core; then topoext on AMD, without which the guest
/// does not see them.
fn threads(cx: &Context<'_>, dedicated: bool, settings: &mut Vec<Setting>) {
    let picked = cx.desired.pick(|o| o.cpu.threads);
    let now = json::count(cx.domain, "/cpu/threads").unwrap_or(1).max(1);
    if picked.value != Some(Switch::On) || !dedicated {
        return;
    }
    if now == 1 {
        // The topology of the same plan may set the cores already; then they are halved there.
        let planned = settings.iter().position(|s| s.pointer == "/cpu/cores" && s.is_write());
        let planned = planned.and_then(|at| settings.get_mut(at));
        let cores = planned.as_ref().and_then(|s| s.desired.as_u64()).or_else(|| json::count(cx.domain, "/cpu/cores"));
        let cores = cores.unwrap_or(1).max(1);
        let refusal = no_threads(cx, cores);
        let set = |name: &str, value: u64, other: &str| {
            let ask =
                Ask { place: format!("/cpu/{name}"), desired: json!(value), setting: "cpu.threads", overridden: true };
            cx.setting(ask).needs([format!("/cpu/{other}"), DEDICATED.to_owned()])
        };
        let two = set("threads", 2, "cores");
        match (refusal, planned) {
            (Some(refusal), _) => {
                let two = if two.is_write() { two.outcome(refusal) } else { two };
                settings.push(two);
                return;
            }
            (None, Some(planned)) => {
                planned.desired = json!(cores / 2);
                planned.needs.extend(["/cpu/threads".to_owned(), DEDICATED.to_owned()]);
            }
            (None, None) => settings.push(set("cores", cores / 2, "threads")),
        }
        settings.push(two);
    }
    let two = now == 2 || settings.iter().any(|s| s.pointer == "/cpu/threads" && s.is_write());
    let amd = |class: &Class| class.vendor() == Some("AMD");
    if two && cx.eligible.as_ref().is_some_and(|e| e.count() > 0 && e.all(amd)) {
        let mut setting = feature(cx, "topoext", "require", "cpu.threads", false);
        setting.needs.push("/cpu/threads".to_owned());
        let has = cx.every_known_node("has the CPU feature topoext", |c| c.has("cpu-feature.node.kubevirt.io/topoext"));
        if let (true, Err(refused)) = (setting.is_write(), has) {
            setting.outcome = refused;
        }
        settings.push(setting);
    }
}

fn no_threads(cx: &Context<'_>, cores: u64) -> Option<Outcome> {
    if cx.harvester {
        return Some(Outcome::refused(
            "harvester-topology",
            "Harvester's form multiplies sockets, cores and threads at every save, so threads stay 1",
            "nothing to do",
        ));
    }
    if !cores.is_multiple_of(2) {
        return Some(Outcome::refused(
            "odd-cores",
            "an odd number of cores does not halve",
            "give the VM an even number of cores",
        ));
    }
    let smt =
        cx.every_known_node("runs two threads to a core (node.wintune.dev/smt, from wintune's agent)", |c| c.has(SMT));
    smt.err()
}

/// Hides vmx and svm from a guest that runs no hypervisor of its own. Only a policy can know that.
fn nested(cx: &Context<'_>) -> Vec<Setting> {
    let picked = cx.desired.pick(|o| o.cpu.nested);
    if picked.value != Some(Switch::Off) || !picked.overridden {
        return Vec::new();
    }
    let vendor = |name: &str| cx.eligible.as_ref().is_none_or(|e| e.any(|c| c.vendor() == Some(name)));
    let mut settings = Vec::new();
    for (name, feature_name) in [("Intel", "vmx"), ("AMD", "svm")] {
        if vendor(name) {
            settings.push(feature(cx, feature_name, "disable", "cpu.nested", true));
        }
    }
    settings
}

/// A CPU feature with its policy: as a new item of the list, or as the policy of the one that is there.
fn feature(cx: &Context<'_>, name: &str, policy: &str, setting: &'static str, overridden: bool) -> Setting {
    let item = format!("/cpu/features/{}{name}", json::BY_NAME);
    let place = format!("{item}/policy");
    match json::at(cx.domain, &item) {
        None => {
            let desired = json!({"name": name, "policy": policy});
            cx.setting(Ask { place: item, desired, setting, overridden })
        }
        // KubeVirt takes a feature without a policy for a required one.
        Some(own)
            if policy == "require"
                && matches!(own.get("policy").and_then(Value::as_str), None | Some("" | "force")) =>
        {
            let (reason, source) = cx.desired.said(setting);
            Setting::new(place, json::at(own, "/policy"), json!(policy), reason, source)
        }
        Some(_) => cx.setting(Ask { place, desired: json!(policy), setting, overridden }),
    }
}
