//! From a plan to one JSON Patch, and from what was applied back again.
//!
//! Everything is at or below `/spec/template/spec/domain`, at places in which items of lists are called by their names:
//! an index would move when somebody else adds a disk. A patch names the index of the moment and tests the name. What was replaced is kept value by value; undoing gives
//! each one back unless somebody else changed it since, and removes the objects that were made only to hold them.
//! Pointers that are not in the planner's closed list are refused, wherever they come from.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::clock::ClockField;
use super::facts::{DOMAIN, Vm};
use super::json;
use super::profile::{DataError, enlightenments};
use super::settings::Setting;
use crate::api::annotation;
use crate::api::record::{Applied, AppliedState, Entry};

/// Objects that a plan may create to hold its values.
const PARENTS: [&str; 9] = [
    "/features",
    "/features/hyperv",
    "/clock",
    "/clock/timer",
    "/cpu",
    "/cpu/features",
    "/cpu/numa",
    "/devices",
    "/ioThreads",
];
/// Lists that are short and written as a whole: an item in it has no index that a test could hold on to.
const WHOLE_LISTS: [&str; 1] = ["/cpu/features"];
/// Lists in which items are called by their names.
const NAMED_LISTS: [&str; 2] = ["/cpu/features", "/devices/disks"];
/// KubeVirt's webhook writes this beside ours when we create `features`: its type has no way to leave it out.
const COMPANIONS: [&str; 1] = ["/features/acpi"];
/// No value of the closed list is longer than this as JSON text.
const MAX_VALUE_BYTES: usize = 256;
/// No pre-image has more entries than the closed list has pointers; this bounds what is read before it is checked.
const MAX_APPLIED_BYTES: usize = 16 * 1024;

/// A VM's domain after a plan, and how to get back.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The domain with every setting written.
    pub domain: Value,
    /// What was replaced, in the order of the pointers.
    pub entries: Vec<Entry>,
    /// Objects that did not exist before, outermost first.
    pub created: Vec<String>,
}

/// Writes the settings that are to be written into a copy of a domain.
pub fn change(domain: &Value, settings: &[Setting]) -> Change {
    let mut writes: Vec<&Setting> = settings.iter().filter(|s| s.is_write()).collect();
    writes.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    let mut change = Change { domain: domain.clone(), entries: Vec::new(), created: Vec::new() };
    for setting in writes {
        let was = json::at(&change.domain, &setting.pointer).map(text);
        let holder = setting.pointer.rsplit_once('/').map_or("", |(holder, _)| holder);
        if was.is_none() && json::at(&change.domain, holder).is_none() {
            for parent in ancestors(&setting.pointer) {
                if json::at(&change.domain, parent).is_none() {
                    change.created.push(parent.to_owned());
                }
            }
        }
        set(&mut change.domain, &setting.pointer, setting.desired.clone());
        change.entries.push(Entry { at: setting.pointer.clone(), was, now: text(&setting.desired) });
    }
    change
}

fn text(value: &Value) -> String {
    // A value that was parsed can always be written.
    serde_json::to_string(value).unwrap_or_default()
}

/// The fewest operations that turn one domain into another, at or above the given places only.
fn operations<'a>(before: &Value, after: &Value, places: impl Iterator<Item = &'a str>) -> Vec<PatchOperation> {
    let mut outermost = BTreeSet::new();
    for place in places {
        let list = WHOLE_LISTS.iter().find(|l| place.strip_prefix(**l).is_some_and(|rest| rest.starts_with('/')));
        let place = list.copied().unwrap_or(place);
        // The outermost place at which one side has nothing stands for everything below it.
        let place = ancestors(place)
            .chain([place])
            .find(|p| json::at(before, p).is_some() != json::at(after, p).is_some())
            .unwrap_or(place);
        outermost.insert(place);
    }
    let (mut tests, mut operations) = (Vec::new(), Vec::new());
    let mut written: Vec<&str> = Vec::new();
    let mut tested: BTreeSet<&str> = BTreeSet::new();
    for place in outermost {
        // Its holder was written as a whole.
        if written.iter().any(|w| place.strip_prefix(w).is_some_and(|rest| rest.starts_with('/'))) {
            continue;
        }
        let (old, new) = (json::at(before, place), json::at(after, place));
        if old == new {
            continue;
        }
        let Some(path) = absolute(before, place) else { continue };
        if let Some((item, name)) = item_of(place)
            && tested.insert(item)
            && let Some(at) = absolute(before, &format!("{item}/name"))
        {
            tests.push(PatchOperation::Test(TestOperation { path: at, value: json!(name) }));
        }
        if let (Some(old), true) = (old, WHOLE_LISTS.contains(&place)) {
            tests.push(PatchOperation::Test(TestOperation { path: path.clone(), value: old.clone() }));
        }
        operations.push(match (old, new) {
            (None, Some(value)) => PatchOperation::Add(AddOperation { path, value: value.clone() }),
            (Some(_), Some(value)) => PatchOperation::Replace(ReplaceOperation { path, value: value.clone() }),
            (_, None) => PatchOperation::Remove(RemoveOperation { path }),
        });
        written.push(place);
    }
    // No operation moves an item, so every test holds or fails before the first of them.
    tests.extend(operations);
    tests
}

/// The item of a list that a place lies in, and its name.
pub(super) fn item_of(place: &str) -> Option<(&str, &str)> {
    let start = place.find(&format!("/{}", json::BY_NAME))? + 1;
    let end = place.get(start..)?.find('/').map_or(place.len(), |at| start + at);
    Some((place.get(..end)?, place.get(start + json::BY_NAME.len()..end)?))
}

/// The operations of a plan alone, without tests and annotation: what a person would apply by hand.
pub fn settings_patch(vm: &Vm, change: &Change) -> Patch {
    Patch(operations(vm.domain(), &change.domain, change.entries.iter().map(|e| e.at.as_str())))
}

/// What a person would apply by hand: the operations, guarded by uid and generation where the manifest has them.
pub fn manual_patch(vm: &Vm, change: &Change) -> Patch {
    let mut patch = settings_patch(vm, change).0;
    if !patch.is_empty() {
        // No resourceVersion: the status of a VM moves all the time, and nothing of it is written here.
        patch.splice(0..0, guards(&Vm { resource_version: None, ..vm.clone() }));
    }
    Patch(patch)
}

/// Whether a patch puts in whole objects that the VM in the cluster may have, and does not say which VM it is for.
pub fn could_overwrite(vm: &Vm, change: &Change) -> bool {
    vm.uid.is_none() && change.created.iter().any(|c| c.matches('/').count() == 1)
}

/// The one atomic patch that brings a plan into a VM.
///
/// It opens with tests on uid, generation and resourceVersion. The generation guards the parents that an `add` would
/// overwrite; the resourceVersion guards annotations, opt-outs among them, which do not move the generation.
pub fn apply_patch(vm: &Vm, change: &Change, applied: &Applied) -> Patch {
    let mut patch = guards(vm);
    patch.extend(settings_patch(vm, change).0);
    patch.push(annotate(vm, applied));
    Patch(patch)
}

/// What an undo would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// The domain afterwards.
    pub domain: Value,
    /// Pointers that go back to their former value.
    pub restored: Vec<String>,
    /// Pointers that stay, because somebody else changed them since.
    pub kept: Vec<String>,
}

/// Works out an undo. Values that somebody else changed since stay and are listed.
pub fn undo(domain: &Value, applied: &Applied) -> Undo {
    let mut undo = Undo { domain: domain.clone(), restored: Vec::new(), kept: Vec::new() };
    let mut entries: Vec<&Entry> = applied.entries.iter().collect();
    // What lies deeper goes first, so that its holder is again what we wrote when its turn comes.
    entries.sort_by(|a, b| b.at.cmp(&a.at));
    for entry in entries {
        let parse = |text: &String| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
        let (now, was) = (parse(&entry.now), entry.was.as_ref().map(parse));
        match json::at(&undo.domain, &entry.at) {
            current if current == was.as_ref() => {}
            Some(current) if *current == now => {
                match was {
                    Some(was) => set(&mut undo.domain, &entry.at, was),
                    None => remove(&mut undo.domain, &entry.at),
                }
                undo.restored.push(entry.at.clone());
            }
            _ => undo.kept.push(entry.at.clone()),
        }
    }
    let mut created: Vec<&String> = applied.created.iter().collect();
    created.sort_by(|a, b| b.cmp(a));
    for parent in created {
        let empty = |holder: &Value| match holder {
            Value::Object(map) => map.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if json::at(&undo.domain, parent).is_some_and(empty) {
            remove(&mut undo.domain, parent);
        }
    }
    undo.restored.sort();
    undo.kept.sort();
    undo
}

/// The one atomic patch that undoes, and takes our annotation away. Empty of changes to the spec where there is
/// nothing left to undo.
pub fn undo_patch(vm: &Vm, undo: &Undo, applied: &Applied) -> Patch {
    let mut patch = guards(vm);
    // An object that we made and that now holds something of somebody else stays, and is nothing to write.
    let gone = applied.created.iter().filter(|c| json::at(&undo.domain, c).is_none());
    let pointers = applied.entries.iter().map(|e| e.at.as_str()).chain(gone.map(String::as_str));
    patch.extend(operations(vm.domain(), &undo.domain, pointers));
    if vm.annotations.contains_key(annotation::APPLIED) {
        patch.push(PatchOperation::Remove(RemoveOperation {
            path: PointerBuf::from_tokens(["metadata", "annotations", annotation::APPLIED]),
        }));
    }
    Patch(patch)
}

/// Joins what earlier writes replaced with what this one replaces, so that an undo leads back to the very first.
pub fn merge(earlier: Option<&Applied>, vm_uid: &str, change: &Change) -> Applied {
    let mut entries: Vec<Entry> = Vec::new();
    let mut created: BTreeSet<String> = change.created.iter().cloned().collect();
    let earlier = earlier.filter(|a| a.vm_uid == vm_uid);
    for entry in &change.entries {
        let was = match earlier.and_then(|a| a.entries.iter().find(|e| e.at == entry.at)) {
            // Nobody else wrote between our two writes: the first value is the original.
            Some(first) if entry.was.as_ref() == Some(&first.now) => first.was.clone(),
            _ => entry.was.clone(),
        };
        entries.push(Entry { was, ..entry.clone() });
    }
    if let Some(earlier) = earlier {
        let new: BTreeSet<&str> = change.entries.iter().map(|e| e.at.as_str()).collect();
        entries.extend(earlier.entries.iter().filter(|e| !new.contains(e.at.as_str())).cloned());
        created.extend(earlier.created.iter().cloned());
    }
    entries.sort_by(|a, b| a.at.cmp(&b.at));
    Applied {
        vm_uid: vm_uid.to_owned(),
        state: AppliedState::Announced,
        asked_by: None,
        entries,
        created: created.into_iter().collect(),
    }
}

/// What a cluster's own webhooks put beside our values into an object that we created. It leaves with the object.
pub fn companions(expected: &Value, answered: &Value, created: &[String]) -> Vec<Entry> {
    COMPANIONS
        .iter()
        .filter(|at| created.iter().any(|parent| at.starts_with(&format!("{parent}/"))))
        .filter(|at| json::at(expected, at).is_none())
        .filter_map(|at| {
            let now = json::at(answered, at)?.to_string();
            Some(Entry { at: (*at).to_owned(), was: None, now })
        })
        .collect()
}

/// Template paths that a dry run changed beyond what was asked, as pointers below the domain or whole paths.
pub fn beyond(expected: &Vm, answered: &Vm) -> Vec<String> {
    let difference = json_patch::diff(&expected.spec, &answered.spec);
    difference.0.iter().map(|op| format!("/spec{}", op.path())).collect()
}

/// Why a pre-image is not used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AppliedError {
    /// Too long to be ours.
    #[error("it has {0} bytes, more than any pre-image of ours")]
    TooLong(usize),
    /// Not our shape.
    #[error("it is not a pre-image: {0}")]
    Shape(String),
    /// Made for another VM.
    #[error("it was made for the VM with UID {found}, this one has {expected}")]
    OtherVm {
        /// UID in the pre-image.
        found: String,
        /// UID of this VM.
        expected: String,
    },
    /// Outside the planner's closed list.
    #[error("it names {0}, which wintune never writes")]
    ForeignPointer(String),
    /// A value that no setting of ours can have had.
    #[error("its value at {0} is not one that this field can have")]
    ForeignValue(String),
    /// The embedded data is invalid.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// Accepts a pre-image only if it speaks of this VM and only of places that the planner writes.
///
/// # Errors
/// One of [`AppliedError`], naming what is wrong.
pub fn check(applied: &Applied, vm_uid: &str) -> Result<(), AppliedError> {
    if applied.vm_uid != vm_uid {
        return Err(AppliedError::OtherVm {
            found: super::detect::printable(&applied.vm_uid),
            expected: vm_uid.to_owned(),
        });
    }
    let allowed = closed_list().as_ref().map_err(Clone::clone)?;
    for entry in &applied.entries {
        if !is_allowed(allowed, &entry.at) {
            return Err(AppliedError::ForeignPointer(super::detect::printable(&entry.at)));
        }
        for text in entry.was.iter().chain([&entry.now]) {
            let value: Option<Value> =
                (text.len() <= MAX_VALUE_BYTES).then(|| serde_json::from_str(text).ok()).flatten();
            if !value.is_some_and(|v| fits(&entry.at, &v)) {
                return Err(AppliedError::ForeignValue(entry.at.clone()));
            }
        }
    }
    match applied.created.iter().find(|c| !PARENTS.contains(&c.as_str())) {
        Some(foreign) => Err(AppliedError::ForeignPointer(super::detect::printable(foreign))),
        None => Ok(()),
    }
}

/// Fields of a disk that a plan can write.
const OF_DISKS: [&str; 3] = ["cache", "io", "dedicatedIOThread"];
/// CPU features that a plan can write.
const CPU_FEATURES: [&str; 3] = ["topoext", "vmx", "svm"];
/// Other places at which a plan can write.
const PLAIN: [&str; 12] = [
    "/cpu/model",
    "/cpu/sockets",
    "/cpu/cores",
    "/cpu/threads",
    "/cpu/dedicatedCpuPlacement",
    "/cpu/isolateEmulatorThread",
    "/cpu/numa/guestMappingPassthrough",
    "/ioThreadsPolicy",
    "/ioThreads/supplementalPoolThreadCount",
    "/devices/blockMultiQueue",
    "/devices/networkInterfaceMultiqueue",
    "/devices/autoattachMemBalloon",
];

/// Every place at which a plan can write, below the domain; those of disks apart, whose names are the owner's.
fn closed_list() -> &'static Result<BTreeSet<String>, DataError> {
    static LIST: LazyLock<Result<BTreeSet<String>, DataError>> = LazyLock::new(|| {
        let mut all: BTreeSet<String> = COMPANIONS.iter().chain(&PLAIN).map(|c| (*c).to_owned()).collect();
        for known in enlightenments()? {
            all.insert(known.pointer().to_owned());
            all.insert(format!("{}/enabled", known.pointer()));
        }
        for field in ClockField::ALL {
            all.insert(field.pointer().to_owned());
            all.insert(format!("{}/tickPolicy", field.pointer()));
            all.insert(format!("{}/present", field.pointer()));
        }
        for name in CPU_FEATURES {
            let item = format!("/cpu/features/{}{name}", json::BY_NAME);
            all.insert(format!("{item}/policy"));
            all.insert(item);
        }
        Ok(all)
    });
    &LIST
}

/// Every place at which a plan can write, those of disks for a disk of no name.
pub(super) fn places() -> BTreeSet<String> {
    let mut all = closed_list().as_ref().cloned().unwrap_or_default();
    all.extend(OF_DISKS.iter().map(|field| format!("/devices/disks/{}/{field}", json::BY_NAME)));
    // Switches of timers that have none in KubeVirt's API are in the list for every timer alike.
    all.retain(|place| {
        ![
            "/clock/utc/tickPolicy",
            "/clock/utc/present",
            "/clock/timer/kvm/tickPolicy",
            "/clock/timer/hyperv/tickPolicy",
        ]
        .contains(&place.as_str())
    });
    all
}

/// The longest name that Kubernetes gives an object, and so a disk.
const MAX_NAME: usize = 253;

fn is_allowed(closed: &BTreeSet<String>, place: &str) -> bool {
    if closed.contains(place) {
        return true;
    }
    let Some((name, field)) = place.strip_prefix("/devices/disks/name=").and_then(|rest| rest.split_once('/')) else {
        return false;
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(plain) && OF_DISKS.contains(&field)
}

/// Whether a value has the type that KubeVirt's API has at that place.
fn fits(at: &str, value: &Value) -> bool {
    let last = at.rsplit('/').next().unwrap_or_default();
    match last {
        "enabled"
        | "present"
        | "dedicatedCpuPlacement"
        | "isolateEmulatorThread"
        | "blockMultiQueue"
        | "networkInterfaceMultiqueue"
        | "autoattachMemBalloon"
        | "dedicatedIOThread" => value.is_boolean(),
        "tickPolicy" | "cache" | "io" | "model" | "ioThreadsPolicy" | "policy" => value.is_string(),
        "sockets" | "cores" | "threads" | "supplementalPoolThreadCount" => value.is_u64(),
        // An item of a list must keep the name by which it is found again.
        _ => match last.strip_prefix(json::BY_NAME) {
            Some(name) => value.get("name").and_then(Value::as_str) == Some(name),
            None => value.is_object(),
        },
    }
}

/// The annotation's text.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mirror {
    version: i32,
    vm_uid: String,
    entries: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    created: Vec<String>,
}

/// The pre-image as it is written into the VM's annotation.
pub fn to_annotation(applied: &Applied) -> String {
    let Applied { vm_uid, state: _, asked_by: _, entries, created } = applied.clone();
    serde_json::to_string(&Mirror { version: 1, vm_uid, entries, created }).unwrap_or_default()
}

/// Reads and checks the annotation of a VM.
///
/// # Errors
/// One of [`AppliedError`], naming what is wrong.
pub fn from_annotation(text: &str, vm_uid: &str) -> Result<Applied, AppliedError> {
    if text.len() > MAX_APPLIED_BYTES {
        return Err(AppliedError::TooLong(text.len()));
    }
    let mirror: Mirror =
        serde_json::from_str(text).map_err(|e| AppliedError::Shape(super::detect::printable(&e.to_string())))?;
    if mirror.version != 1 {
        return Err(AppliedError::Shape(format!("version {} is not known", mirror.version)));
    }
    let Mirror { version: _, vm_uid: found, entries, created } = mirror;
    let applied = Applied { vm_uid: found, state: AppliedState::Written, asked_by: None, entries, created };
    check(&applied, vm_uid)?;
    Ok(applied)
}

fn guards(vm: &Vm) -> Vec<PatchOperation> {
    let test = |field: &str, value: Value| {
        PatchOperation::Test(TestOperation { path: PointerBuf::from_tokens(["metadata", field]), value })
    };
    let mut guards = Vec::new();
    if let Some(uid) = &vm.uid {
        guards.push(test("uid", json!(uid)));
    }
    if let Some(generation) = vm.generation {
        guards.push(test("generation", json!(generation)));
    }
    if let Some(version) = &vm.resource_version {
        guards.push(test("resourceVersion", json!(version)));
    }
    guards
}

fn annotate(vm: &Vm, applied: &Applied) -> PatchOperation {
    let text = to_annotation(applied);
    if vm.has_annotations {
        let path = PointerBuf::from_tokens(["metadata", "annotations", annotation::APPLIED]);
        PatchOperation::Add(AddOperation { path, value: json!(text) })
    } else {
        let path = PointerBuf::from_tokens(["metadata", "annotations"]);
        PatchOperation::Add(AddOperation { path, value: json!({annotation::APPLIED: text}) })
    }
}

/// `/a/b/c` has the ancestors `/a` and `/a/b`.
fn ancestors(pointer: &str) -> impl Iterator<Item = &str> {
    pointer.char_indices().skip(1).filter(|(_, c)| *c == '/').filter_map(|(i, _)| pointer.get(..i))
}

/// The JSON pointer of a place in a whole VM, with the indices that items have now.
fn absolute(domain: &Value, place: &str) -> Option<PointerBuf> {
    let mut tokens: Vec<Token<'_>> = DOMAIN.split('/').skip(1).map(Token::new).collect();
    let mut found = Some(domain);
    for token in place.split('/').skip(1) {
        match (found, token.starts_with(json::BY_NAME)) {
            (Some(Value::Array(items)), true) => {
                let index = json::index(items, token)?;
                tokens.push(Token::from(index));
                found = items.get(index);
            }
            (_, true) => return None,
            (place, false) => {
                tokens.push(Token::new(token));
                found = place.and_then(|p| p.get(token));
            }
        }
    }
    Some(PointerBuf::from_tokens(tokens))
}

/// Sets a value at a place, making objects and lists on the way where there are none. An item that a list does not have
/// is added at its end; nothing is set in one.
pub(super) fn set(root: &mut Value, place: &str, value: Value) {
    let mut found = root;
    let mut at = 0;
    for key in place.split('/').skip(1) {
        let here = place.get(..at).unwrap_or_default();
        at += key.len() + 1;
        if found.is_null() || !(found.is_object() || found.is_array()) {
            *found = if NAMED_LISTS.contains(&here) { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
        }
        found = match found {
            Value::Object(map) => map.entry(key).or_insert(Value::Null),
            Value::Array(items) => {
                let index = json::index(items, key).unwrap_or(items.len());
                if index == items.len() && at == place.len() {
                    items.push(Value::Null);
                }
                let Some(item) = items.get_mut(index) else { return };
                item
            }
            _ => return,
        };
    }
    *found = value;
}

fn remove(root: &mut Value, place: &str) {
    let Some((parent, key)) = place.rsplit_once('/') else { return };
    match at_mut(root, parent) {
        Some(Value::Object(map)) => {
            map.remove(key);
        }
        Some(Value::Array(items)) => {
            if let Some(index) = json::index(items, key).filter(|i| *i < items.len()) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

fn at_mut<'a>(root: &'a mut Value, place: &str) -> Option<&'a mut Value> {
    let mut found = root;
    for token in place.split('/').skip(1) {
        found = match found {
            Value::Object(map) => map.get_mut(token)?,
            Value::Array(items) => {
                let index = json::index(items, token)?;
                items.get_mut(index)?
            }
            _ => return None,
        };
    }
    Some(found)
}

#[cfg(test)]
mod tests;
