//! Comparing objects that carry times, UIDs and versions of their own.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::traces::{Exchange, text};
use crate::wire::Answer;

/// Recorded UIDs and resourceVersions, and ours in their place.
#[derive(Default)]
pub(crate) struct Names {
    ours: HashMap<String, String>,
}

impl Names {
    /// Learns from two answers to the same request.
    pub(crate) fn learn(&mut self, recorded: &Value, ours: &Value) {
        for pointer in ["/metadata/uid", "/metadata/resourceVersion"] {
            if let (Some(recorded), Some(ours)) = (text(recorded, pointer), text(ours, pointer)) {
                self.ours.insert(recorded.to_owned(), ours.to_owned());
            }
        }
    }

    /// A recorded value with ours in place of what was learned.
    pub(crate) fn translate(&self, value: &Value) -> Value {
        match value {
            Value::String(s) => Value::String(self.ours.get(s).unwrap_or(s).clone()),
            Value::Array(items) => Value::Array(items.iter().map(|i| self.translate(i)).collect()),
            Value::Object(map) => Value::Object(map.iter().map(|(k, v)| (k.clone(), self.translate(v))).collect()),
            other => other.clone(),
        }
    }
}

/// A VM without what differs from run to run: times, UIDs, versions, who wrote what.
pub(crate) fn normal(vm: &Value) -> Value {
    let mut vm = vm.clone();
    if let Some(metadata) = vm.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        for field in ["creationTimestamp", "managedFields", "resourceVersion", "uid"] {
            metadata.remove(field);
        }
    }
    if let Some(firmware) = vm.pointer_mut("/spec/template/spec/domain/firmware").and_then(Value::as_object_mut) {
        for field in ["uuid", "serial"] {
            if let Some(value) = firmware.get_mut(field) {
                *value = json!("random");
            }
        }
    }
    if let Some(conditions) = vm.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for time in ["lastProbeTime", "lastTransitionTime"] {
                if let Some(value) = condition.get_mut(time).filter(|v| !v.is_null()) {
                    *value = json!("time");
                }
            }
        }
    }
    vm
}

/// Says where `ours` differs from `recorded`.
pub(crate) fn differs(what: &str, recorded: &Value, ours: &Value) -> Option<String> {
    (recorded != ours).then(|| {
        let parts: Vec<String> = diff(recorded, ours).iter().map(Value::to_string).collect();
        format!("{what} differs, before = recorded, after = ours: {}", parts.join(" "))
    })
}

/// Compares status, content type and body of two answers. Objects are left to the caller.
pub(crate) fn answers(recorded: &Exchange, ours: &Answer) -> Option<String> {
    status_and_message(recorded.status, message(&recorded.answer), ours)
        .or_else(|| {
            let same = recorded.answer_type == ours.content_type;
            (!same).then(|| format!("content type {:?}, recorded {:?}", ours.content_type, recorded.answer_type))
        })
        .or_else(|| {
            let is_status = text(&recorded.answer, "/kind") == Some("Status");
            if is_status {
                differs("Status", &without_causes(&recorded.answer), &without_causes(&ours.body))
            } else if recorded.answer.is_string() {
                differs("body", &recorded.answer, &ours.body)
            } else {
                None
            }
        })
}

/// Compares status code and message.
pub(crate) fn status_and_message(status: u16, message: &str, ours: &Answer) -> Option<String> {
    (ours.status != status || (status >= 400 && ours.message() != message))
        .then(|| format!("{} {:?}, recorded {status} {message:?}", ours.status, ours.message()))
}

/// The causes that admission lists are not compared: only their messages are recorded for most rules.
fn without_causes(status: &Value) -> Value {
    let mut status = status.clone();
    let admission = text(&status, "/message").is_some_and(|m| m.starts_with("admission webhook"));
    if let Some(details) = status.pointer_mut("/details").and_then(Value::as_object_mut).filter(|_| admission) {
        details.remove("causes");
    }
    status
}

fn message(body: &Value) -> &str {
    text(body, "/message").or(body.as_str()).unwrap_or_default()
}

/// The differences of two values, in the form that the recordings use.
pub(crate) fn diff(before: &Value, after: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    walk("", before, after, &mut found);
    found
}

fn walk(path: &str, before: &Value, after: &Value, found: &mut Vec<Value>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => objects(path, old, new, found),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                walk(&format!("{path}/{index}"), old, new, found);
            }
        }
        _ if before != after => found.push(json!({"path": path, "before": before, "after": after})),
        _ => {}
    }
}

fn objects(path: &str, old: &Map<String, Value>, new: &Map<String, Value>, found: &mut Vec<Value>) {
    for (key, value) in old {
        let path = format!("{path}/{key}");
        match new.get(key) {
            Some(new) => walk(&path, value, new, found),
            None => found.push(json!({"path": path, "removed": value})),
        }
    }
    for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
        found.push(json!({"path": format!("{path}/{key}"), "added": value}));
    }
}

/// Differences in a fixed order.
pub(crate) fn sorted(mut differences: Vec<Value>) -> Value {
    differences.sort_by_key(|d| text(d, "/path").unwrap_or_default().to_owned());
    Value::Array(differences)
}
