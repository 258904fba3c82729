//! The refusals of KubeVirt's webhooks, as far as the traces show them. Pure: objects in, reasons out.
//!
//! Where several rules refuse one object KubeVirt joins their messages in the order of its code; that order is known
//! here only for the pairs that the traces contain.

mod cpu;
mod devices;
mod disks;
mod hyperv;

use serde_json::Value;

use crate::value::{flag, present, text};

/// One reason to refuse.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) field: String,
    pub(crate) message: String,
}

/// A spec under check, with the path that messages name it by, and what was found so far.
pub(crate) struct Check<'a> {
    spec: &'a Value,
    at: &'static str,
    found: Vec<Refusal>,
}

impl Check<'_> {
    fn refuse(&mut self, field: &str, message: String) {
        self.found.push(Refusal { reason: "FieldValueInvalid", field: format!("{}{field}", self.at), message });
    }
}

/// The mutator's check of the object against KubeVirt's schema. Only `clock` needs it: the CRD keeps unknown fields
/// there, elsewhere the API server has pruned them.
pub(crate) fn schema(vm: &Value) -> Vec<Refusal> {
    const CLOCK: &str = "/spec/template/spec/domain/clock";
    let Some(clock) = vm.pointer(CLOCK).and_then(Value::as_object) else {
        return Vec::new();
    };
    clock
        .keys()
        .filter(|key| !["utc", "timezone", "timer"].contains(&key.as_str()))
        .map(|key| Refusal {
            reason: "FieldValueInvalid",
            field: String::new(),
            message: format!("spec.template.spec.domain.clock.{key} in body is a forbidden property"),
        })
        .collect()
}

/// The validator of VirtualMachines.
pub(crate) fn vm(vm: &Value) -> Vec<Refusal> {
    let none = Value::Null;
    let mut check =
        Check { spec: vm.pointer("/spec/template/spec").unwrap_or(&none), at: "spec.template.spec", found: Vec::new() };
    run_strategy(&mut check, vm);
    if sockets_above_maximum(check.spec) {
        // KubeVirt's VM validator says this twice.
        cpu::sockets(&mut check);
    }
    spec(&mut check);
    sidecar(&mut check, vm.pointer("/spec/template/metadata"), "spec.template.metadata.annotations");
    check.found
}

/// The validator of VirtualMachineInstances at their creation.
pub(crate) fn vmi(vmi: &Value) -> Vec<Refusal> {
    let none = Value::Null;
    let mut check = Check { spec: vmi.get("spec").unwrap_or(&none), at: "spec", found: Vec::new() };
    spec(&mut check);
    // Disks and network devices are checked a second time here, so their messages come twice.
    disks::each(&mut check);
    devices::interfaces(&mut check);
    memory_given(&mut check);
    hyperv::check(&mut check);
    devices::per_architecture(&mut check);
    sidecar(&mut check, vmi.get("metadata"), "metadata.annotations");
    check.found
}

/// What both validators check.
fn spec(check: &mut Check<'_>) {
    disks::each(check);
    disks::together(check);
    cpu::check(check);
    devices::check(check);
    devices::interfaces(check);
    eviction(check);
}

fn run_strategy(check: &mut Check<'_>, vm: &Value) {
    let strategy = text(vm, "/spec/runStrategy");
    if strategy.is_some() && flag(vm, "/spec/running").is_some() {
        check.found.push(Refusal {
            reason: "FieldValueInvalid",
            field: "spec.running".to_owned(),
            message: "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use \
                      RunStrategy instead"
                .to_owned(),
        });
    }
    if let Some(strategy) = strategy {
        let known = ["Always", "RerunOnFailure", "Manual", "Once", "Halted", "WaitAsReceiver"];
        if !known.contains(&strategy) {
            check.found.push(Refusal {
                reason: "FieldValueInvalid",
                field: "spec.runStrategy".to_owned(),
                message: format!("Invalid RunStrategy ({strategy})"),
            });
        }
    }
}

fn sockets_above_maximum(spec: &Value) -> bool {
    let count = |part: &str| crate::value::number(spec, &format!("/domain/cpu/{part}")).unwrap_or(0);
    count("maxSockets") != 0 && count("sockets") > count("maxSockets")
}

fn eviction(check: &mut Check<'_>) {
    let Some(strategy) = text(check.spec, "/evictionStrategy").map(str::to_owned) else {
        return;
    };
    if !["None", "LiveMigrate", "LiveMigrateIfPossible", "External"].contains(&strategy.as_str()) {
        let message = format!("{}.evictionStrategy is set with an unrecognized option: {strategy}", check.at);
        check.refuse(".evictionStrategy", message);
    }
}

fn memory_given(check: &mut Check<'_>) {
    let given = ["/domain/memory/guest", "/domain/memory/hugepages/pageSize", "/domain/resources/requests/memory"];
    if given.iter().any(|p| present(check.spec, p)) {
        return;
    }
    let at = check.at;
    let message = format!(
        "no memory requested, at least one of '{at}.domain.memory.guest', '{at}.domain.memory.hugepages.pageSize' or \
         '{at}.domain.resources.requests.memory' must be set"
    );
    check.refuse(".domain", message);
}

fn sidecar(check: &mut Check<'_>, metadata: Option<&Value>, at: &str) {
    const SIDECARS: &str = "/annotations/hooks.kubevirt.io~1hookSidecars";
    if metadata.is_some_and(|m| present(m, SIDECARS)) {
        check.found.push(Refusal {
            reason: "FieldValueInvalid",
            field: at.to_owned(),
            message: format!(
                "sidecar feature gate is not enabled in kubevirt-config, invalid entry \
                 {at}.hooks.kubevirt.io/hookSidecars"
            ),
        });
    }
}
