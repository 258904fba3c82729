//! What is done with a VM: planned, written, restored, changed by somebody else, as an API server does it.

use serde_json::{Value, json as j};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use wintune::api::annotation::APPLIED;
use wintune::api::record::Applied;
use wintune::plan::facts::{DOMAIN, Facts, Vm, Wanted};
use wintune::plan::instancetype::Instancetype;
use wintune::plan::preference::Preference;
use wintune::plan::volumes::{Claim, Mode};
use wintune::plan::{Plan, json, patch, plan};

use crate::generate::*;
use crate::{PLANS, WRITES};

pub fn read(object: &Value) -> Vm {
    Vm::from_object(object).unwrap()
}

pub fn plan_for(object: &Value, wanted: &Wanted, world: &World) -> Plan {
    PLANS.fetch_add(1, Ordering::Relaxed);
    let mut facts = Facts {
        nodes: world.nodes.clone(),
        capabilities: world.capabilities.clone(),
        running: world.running.clone(),
        ..Facts::offline(read(object))
    };
    for claim in world.block.iter().flatten() {
        facts.volumes.insert(claim, Claim { mode: Some(Mode::Block), thick: claim.ends_with('1') });
    }
    if object.pointer("/spec/instancetype").is_some()
        && let Some(owned) = &world.instancetype
    {
        facts.instancetype = Instancetype::Read(Box::new(owned.clone()));
    }
    if let Preference::Read(_) = world.preference {
        facts.preference = world.preference.clone();
    }
    let plan = plan(&facts, wanted).unwrap();
    WRITES.fetch_add(usize::from(plan.has_changes()), Ordering::Relaxed);
    plan
}

pub fn domain_of(object: &Value) -> &Value {
    object.pointer(DOMAIN).unwrap()
}

/// What the API server does to the counters: generation with the spec, resourceVersion always.
pub fn bump(object: &mut Value, before: &Value) {
    let meta = &mut object["metadata"];
    let number = |v: &Value| v.as_str().unwrap().parse::<u64>().unwrap();
    meta["resourceVersion"] = j!((number(&before["metadata"]["resourceVersion"]) + 3).to_string());
    if object["spec"] != before["spec"] {
        object["metadata"]["generation"] = j!(before["metadata"]["generation"].as_i64().unwrap() + 1);
    }
    prune(object);
}

/// Sends a patch as an API server takes it.
pub fn send(object: &Value, patch: &json_patch::Patch) -> Value {
    let mut after = object.clone();
    if let Err(error) = json_patch::patch(&mut after, patch) {
        panic!("{error}\npatch {}\nobject {object}", serde_json::to_string(patch).unwrap());
    }
    bump(&mut after, object);
    after
}

/// Writes a plan into a VM: the VM afterwards, and the pre-image.
pub fn write(object: &Value, plan: &Plan, earlier: Option<&Applied>) -> (Value, Applied) {
    let applied = patch::merge(earlier, UID, &plan.change);
    let after = send(object, &patch::apply_patch(&read(object), &plan.change, &applied));
    assert_eq!(domain_of(&after), &plan.change.domain, "the patch does not lead to the planned domain");
    (after, applied)
}

/// Restores a VM by what its annotation says, by the patch; the same by values must agree.
pub fn restore(object: &Value) -> (Value, patch::Undo) {
    let vm = read(object);
    let applied = patch::from_annotation(&vm.annotations[APPLIED], UID).unwrap();
    let undo = patch::undo(vm.domain(), &applied);
    let after = send(object, &patch::undo_patch(&vm, &undo, &applied));
    assert_eq!(domain_of(&after), &undo.domain, "the patch does not lead to the domain of the undo");
    (after, undo)
}

/// Sets a value as a person would, making what holds it.
pub fn put(object: &mut Value, pointer: &str, value: &Value) {
    let mut place = object;
    for key in pointer.split('/').skip(1) {
        if key == "+" {
            place.as_array_mut().unwrap().push(value.clone());
            return;
        }
        if let Value::Array(items) = place {
            let index = json::index(items, key).unwrap();
            place = &mut items[index];
            continue;
        }
        place = place.as_object_mut().unwrap().entry(key).or_insert_with(|| j!({}));
    }
    *place = value.clone();
}

pub fn changed(object: &Value, theirs: &[(&str, Value)]) -> Value {
    let mut after = object.clone();
    theirs.iter().for_each(|(pointer, value)| put(&mut after, pointer, value));
    bump(&mut after, object);
    after
}

/// The bytes of a VM without the counters that the API server moves.
pub fn bytes(object: &Value) -> String {
    let mut object = object.clone();
    let meta = object["metadata"].as_object_mut().unwrap();
    meta.remove("generation");
    meta.remove("resourceVersion");
    serde_json::to_string(&object).unwrap()
}

/// Every leaf of a value by its pointer; an empty object is a leaf.
pub fn leaves(value: &Value, at: &str, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| leaves(value, &format!("{at}/{key}"), found));
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(|i| i["name"].is_string()) => {
            items.iter().for_each(|i| leaves(i, &format!("{at}/name={}", i["name"].as_str().unwrap()), found));
        }
        leaf => {
            found.insert(at.to_owned(), leaf.clone());
        }
    }
}

pub fn below(pointer: &str, above: &str) -> bool {
    pointer == above || pointer.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}
