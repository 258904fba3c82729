//! What virt-controller does next for a run strategy. Pure: values in, decision out.

use serde_json::Value;

use crate::value::{deleting, flag, list, present, text, uid};

/// The run strategy of a VM; `spec.running` is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunStrategy {
    Always,
    RerunOnFailure,
    Manual,
    Once,
    Halted,
}

impl RunStrategy {
    /// Reads `spec.runStrategy`, else `spec.running`. Unknown values count as Halted: nothing is started.
    pub(crate) fn of(vm: &Value) -> RunStrategy {
        match text(vm, "/spec/runStrategy") {
            Some("Always") => RunStrategy::Always,
            Some("RerunOnFailure") => RunStrategy::RerunOnFailure,
            Some("Manual") => RunStrategy::Manual,
            Some("Once") => RunStrategy::Once,
            Some(_) => RunStrategy::Halted,
            None if flag(vm, "/spec/running") == Some(true) => RunStrategy::Always,
            None => RunStrategy::Halted,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            RunStrategy::Always => "Always",
            RunStrategy::RerunOnFailure => "RerunOnFailure",
            RunStrategy::Manual => "Manual",
            RunStrategy::Once => "Once",
            RunStrategy::Halted => "Halted",
        }
    }
}

/// Whether the VM uses the deprecated `spec.running`: start and stop write that field then.
pub(crate) fn uses_running_field(vm: &Value) -> bool {
    present(vm, "/spec/running") && !present(vm, "/spec/runStrategy")
}

/// What to do with the VMI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Leave things as they are.
    Nothing,
    /// Make a VMI.
    Start,
    /// Delete the VMI.
    Stop,
    /// Delete the failed VMI and ask for another one through `stateChangeRequests`.
    StopAndStart,
}

/// Whether a phase is an end.
pub(crate) fn is_final(vmi: &Value) -> bool {
    matches!(text(vmi, "/status/phase"), Some("Succeeded" | "Failed"))
}

/// Decides from the VM (spec and status) and its VMI.
pub(crate) fn decide(vm: &Value, vmi: Option<&Value>) -> Decision {
    let strategy = RunStrategy::of(vm);
    let Some(vmi) = vmi else {
        return decide_without_vmi(vm, strategy);
    };
    if deleting(vmi) {
        return Decision::Nothing;
    }
    if stop_requested(vm, vmi) {
        return Decision::Stop;
    }
    match strategy {
        RunStrategy::Halted => Decision::Stop,
        RunStrategy::Always if is_final(vmi) => Decision::Stop,
        RunStrategy::RerunOnFailure if text(vmi, "/status/phase") == Some("Failed") => Decision::StopAndStart,
        RunStrategy::RerunOnFailure if is_final(vmi) => Decision::Stop,
        _ => Decision::Nothing,
    }
}

fn decide_without_vmi(vm: &Value, strategy: RunStrategy) -> Decision {
    // A strategy that status does not name yet is new for this VM: that is how RerunOnFailure and Once start by
    // themselves, and only once.
    let is_new = text(vm, "/status/runStrategy") != Some(strategy.name());
    let start = match strategy {
        RunStrategy::Always => true,
        RunStrategy::RerunOnFailure => is_new || start_requested(vm),
        RunStrategy::Once => is_new,
        RunStrategy::Manual => start_requested(vm),
        RunStrategy::Halted => false,
    };
    if start { Decision::Start } else { Decision::Nothing }
}

fn stop_requested(vm: &Value, vmi: &Value) -> bool {
    list(vm, "/status/stateChangeRequests")
        .first()
        .is_some_and(|r| text(r, "/action") == Some("Stop") && text(r, "/uid") == Some(uid(vmi)))
}

fn start_requested(vm: &Value) -> bool {
    list(vm, "/status/stateChangeRequests").iter().any(|r| text(r, "/action") == Some("Start"))
}
