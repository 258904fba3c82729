//! The status that virt-controller writes into a VM. Pure: the clock is passed in.

use serde_json::{Value, json};

use crate::strategy::{RunStrategy, is_final};
use crate::value::{condition, condition_true, deleting, list, number, remove, set, text, uid};

/// What the controller knows besides the VM and its VMI.
#[derive(Default)]
pub(crate) struct Known<'a> {
    /// The last attempt to make a VMI failed with this text; `None` if there was no attempt or it worked.
    pub(crate) failure: Option<String>,
    /// The verdict on RestartRequired; `None` leaves the condition as it is.
    pub(crate) restart: Option<Option<&'a str>>,
    /// The template is the one the VMI was started from.
    pub(crate) unchanged: bool,
    /// RFC 3339.
    pub(crate) now: &'a str,
}

/// Conditions that belong to the VM; all others are copies from the VMI.
const OWN: [&str; 3] = ["Ready", "Failure", "RestartRequired"];

/// The next status of `vm`.
pub(crate) fn next(vm: &Value, vmi: Option<&Value>, known: &Known<'_>) -> Value {
    let mut status = vm.get("status").cloned().unwrap_or(json!({}));
    put(&mut status, "/created", vmi.map(|_| json!(true)));
    let ready = vmi.is_some_and(|v| condition_true(v, "Ready"));
    put(&mut status, "/ready", ready.then_some(json!(true)));
    set(&mut status, "/printableStatus", json!(printable(vm, vmi)));
    let requests = requests(vm, vmi);
    put(&mut status, "/stateChangeRequests", (!requests.is_empty()).then_some(Value::Array(requests)));
    if vmi.is_some() {
        let generation = number(vm, "/metadata/generation").unwrap_or(1);
        set(&mut status, "/desiredGeneration", json!(generation));
        if known.unchanged || number(&status, "/observedGeneration").is_none() {
            set(&mut status, "/observedGeneration", json!(generation));
        }
        set(&mut status, "/runStrategy", json!(RunStrategy::of(vm).name()));
    }
    set(&mut status, "/conditions", Value::Array(conditions(vm, vmi, known)));
    set(&mut status, "/volumeSnapshotStatuses", Value::Array(snapshots(vm)));
    status
}

fn put(status: &mut Value, pointer: &str, value: Option<Value>) {
    match value {
        Some(value) => set(status, pointer, value),
        None => {
            remove(status, pointer);
        }
    }
}

fn printable(vm: &Value, vmi: Option<&Value>) -> &'static str {
    if deleting(vm) {
        return "Terminating";
    }
    let Some(vmi) = vmi else { return "Stopped" };
    if is_final(vmi) {
        return "Stopped";
    }
    if deleting(vmi) {
        return "Stopping";
    }
    match text(vmi, "/status/phase") {
        Some("Running") if condition_true(vmi, "Paused") => "Paused",
        Some("Running") => "Running",
        _ => "Starting",
    }
}

/// Requests that are done are taken off the front: a Stop once its VMI is gone, a Start once a VMI is there.
fn requests(vm: &Value, vmi: Option<&Value>) -> Vec<Value> {
    let mut requests = list(vm, "/status/stateChangeRequests").to_vec();
    if requests.first().is_some_and(|r| text(r, "/action") == Some("Stop") && vmi.map(uid) != text(r, "/uid")) {
        requests.remove(0);
    }
    let started = vmi.is_some_and(|v| !deleting(v) && !is_final(v));
    if started && requests.first().is_some_and(|r| text(r, "/action") == Some("Start")) {
        requests.remove(0);
    }
    requests
}

fn conditions(vm: &Value, vmi: Option<&Value>, known: &Known<'_>) -> Vec<Value> {
    let mut conditions = vec![ready(vm, vmi, known.now)];
    match vmi {
        Some(vmi) => conditions.extend(list(vmi, "/status/conditions").iter().filter(|c| !own(c)).cloned()),
        // KubeVirt leaves the copies on a stopped VM.
        None => conditions.extend(list(vm, "/status/conditions").iter().filter(|c| !own(c)).cloned()),
    }
    if let Some(message) = &known.failure {
        let message = format!("Failure while starting VMI: {message}");
        conditions.push(kept(vm, "Failure", &message, known.now, Some("FailedCreate")));
    } else if vmi.is_none() {
        conditions.extend(condition(vm, "Failure").cloned());
    }
    match known.restart {
        Some(Some(message)) => {
            // KubeVirt does not reword a condition that is already True.
            let message = condition(vm, "RestartRequired")
                .filter(|c| vmi.is_some() && text(c, "/status") == Some("True"))
                .and_then(|c| text(c, "/message"))
                .unwrap_or(message)
                .to_owned();
            conditions.push(kept(vm, "RestartRequired", &message, known.now, None));
        }
        Some(None) => {}
        None => conditions.extend(condition(vm, "RestartRequired").cloned()),
    }
    conditions
}

fn own(condition: &Value) -> bool {
    text(condition, "/type").is_some_and(|t| OWN.contains(&t))
}

fn ready(vm: &Value, vmi: Option<&Value>, now: &str) -> Value {
    let (reason, message) = match vmi {
        None => ("VMINotExists", "VMI does not exist"),
        Some(vmi) => match condition(vmi, "Ready") {
            Some(ready) => return ready.clone(),
            None => ("VMIConditionMissing", "VMI is missing the Ready condition"),
        },
    };
    if let Some(old) = condition(vm, "Ready").filter(|c| text(c, "/reason") == Some(reason)) {
        return old.clone();
    }
    json!({
        "type": "Ready", "status": "False", "reason": reason, "message": message,
        "lastProbeTime": now, "lastTransitionTime": now,
    })
}

/// A True condition that keeps its time while it says the same.
fn kept(vm: &Value, kind: &str, message: &str, now: &str, reason: Option<&str>) -> Value {
    if let Some(old) = condition(vm, kind).filter(|c| text(c, "/message") == Some(message)) {
        return old.clone();
    }
    let mut condition = json!({
        "type": kind, "status": "True", "message": message,
        "lastProbeTime": null, "lastTransitionTime": now,
    });
    if let Some(reason) = reason {
        set(&mut condition, "/reason", json!(reason));
    }
    condition
}

fn snapshots(vm: &Value) -> Vec<Value> {
    list(vm, "/spec/template/spec/volumes")
        .iter()
        .map(|volume| {
            let name = text(volume, "/name").unwrap_or_default();
            let claim = volume.get("persistentVolumeClaim").is_some() || volume.get("dataVolume").is_some();
            let reason = if claim {
                format!("No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [] [{name}]")
            } else {
                format!("Snapshot is not supported for this volumeSource type [{name}]")
            };
            json!({"enabled": false, "name": name, "reason": reason})
        })
        .collect()
}
