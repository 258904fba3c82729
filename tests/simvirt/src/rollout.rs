//! When RestartRequired is raised, and which template changes reach a running VMI. Pure.

use serde_json::{Value, json};

use crate::options::Rollout;
use crate::value::{number, remove, text};

/// KubeVirt's words for a change that cannot be made live.
pub(crate) const NOT_LIVE: &str = "a non-live-updatable field was changed in the template spec";
const MORE_SOCKETS: &str = "CPU sockets updated in template spec to a value higher than what's available";
const FEWER_SOCKETS: &str = "Reduction of CPU socket count requires a restart";

const SCHEDULING: [&str; 3] = ["/nodeSelector", "/affinity", "/tolerations"];
const SOCKETS: &str = "/domain/cpu/sockets";
const GUEST_MEMORY: &str = "/domain/memory/guest";

/// What a template means for the VMI that runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The RestartRequired message, if a restart is needed.
    pub(crate) restart: Option<&'static str>,
    /// JSON Patch operations for the VMI.
    pub(crate) live: Vec<Value>,
    /// The operations hotplug CPU or memory. No second one follows: only a migration would finish it, and here
    /// none ever runs.
    pub(crate) hotplug: bool,
}

/// Compares the template spec that the VMI was started from with the current one.
///
/// `hotplugging` is whether an earlier hotplug of this VMI is still under way.
pub(crate) fn compare(start: &Value, now: &Value, vmi_spec: &Value, rollout: Rollout, hotplugging: bool) -> Outcome {
    if comparable(start, rollout) != comparable(now, rollout) {
        return Outcome { restart: Some(NOT_LIVE), ..Outcome::default() };
    }
    let mut outcome = Outcome::default();
    if rollout == Rollout::Stage {
        return outcome;
    }
    for field in SCHEDULING {
        outcome.live.extend(sync(&format!("/spec{field}"), now.pointer(field), vmi_spec.pointer(field)));
    }
    if hotplugging {
        return outcome;
    }
    if let Some(sockets) = number(now, SOCKETS).filter(|s| number(start, SOCKETS) != Some(*s)) {
        let running = number(vmi_spec, SOCKETS).unwrap_or(0);
        if sockets > number(vmi_spec, "/domain/cpu/maxSockets").unwrap_or(0) {
            outcome.restart = Some(MORE_SOCKETS);
        } else if sockets < running {
            outcome.restart = Some(FEWER_SOCKETS);
        } else if sockets > running {
            outcome.live.push(json!({"op": "add", "path": format!("/spec{SOCKETS}"), "value": sockets}));
            outcome.hotplug = true;
        }
    }
    if let Some(guest) = text(now, GUEST_MEMORY).filter(|g| text(start, GUEST_MEMORY) != Some(*g)) {
        outcome.live.push(json!({"op": "add", "path": format!("/spec{GUEST_MEMORY}"), "value": guest}));
        outcome.hotplug = true;
    }
    if outcome.restart.is_some() {
        outcome.live.clear();
        outcome.hotplug = false;
    }
    outcome
}

/// The template spec without what may change live, and with named lists in a fixed order: swapping disks raises
/// nothing.
fn comparable(spec: &Value, rollout: Rollout) -> Value {
    let mut spec = spec.clone();
    if rollout == Rollout::LiveUpdate {
        for field in SCHEDULING {
            remove(&mut spec, field);
        }
        remove(&mut spec, SOCKETS);
        remove(&mut spec, GUEST_MEMORY);
    }
    for list in ["/domain/devices/disks", "/volumes"] {
        if let Some(items) = spec.pointer_mut(list).and_then(Value::as_array_mut) {
            items.sort_by(|a, b| text(a, "/name").cmp(&text(b, "/name")));
        }
    }
    spec
}

fn sync(path: &str, wanted: Option<&Value>, has: Option<&Value>) -> Option<Value> {
    match (wanted, has) {
        (Some(wanted), has) if Some(wanted) != has => Some(json!({"op": "add", "path": path, "value": wanted})),
        (None, Some(_)) => Some(json!({"op": "remove", "path": path})),
        _ => None,
    }
}
