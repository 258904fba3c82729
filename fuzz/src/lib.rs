//! What the fuzz targets share: reading text as the command line does, and what must hold of every plan.

pub mod mutate;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wintune::api::annotation::APPLIED;
use wintune::api::record::{Applied, AppliedState};
use wintune::api::tuning::Tuning;
use wintune::plan::facts::{DOMAIN, Facts, Vm, Wanted};
use wintune::plan::{Plan, patch, plan, validate};

/// UID of VMs that a file names none for.
pub const UID: &str = "uid";

/// The documents of a text, Lists taken apart. The options are those of `limits()` in src/cli/input.rs.
pub fn documents(text: &str) -> Vec<Value> {
    let limits = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: 6_000_000, max_events: 12_000_000, max_buffered_comment_events: 1_000_000 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
    };
    let objects: Vec<Value> = serde_saphyr::from_multiple_with_options(text, limits).unwrap_or_default();
    let items = |object: Value| match object.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![object],
    };
    objects.into_iter().flat_map(items).collect()
}

/// What a policy asks for.
pub fn wanted(tuning: Tuning) -> Wanted {
    Wanted {
        profile: tuning.profile,
        overrides: tuning.overrides.unwrap_or_default(),
        allow_unmigratable: tuning.allow_unmigratable,
    }
}

/// The profile alone, with everything switched on, with everything switched off; and the larger profiles.
pub fn wishes() -> [Wanted; 5] {
    let all = |to: &str, names: &[&str]| {
        let hyperv: BTreeMap<&str, &str> = names.iter().map(|name| (*name, to)).collect();
        json!({"overrides": {"hyperv": hyperv}})
    };
    let on = [
        "relaxed",
        "vapic",
        "spinlocks",
        "vpindex",
        "synic",
        "synictimer",
        "synictimerDirect",
        "ipi",
        "runtime",
        "reset",
    ];
    let off = [&on[..], &["frequencies", "reenlightenment", "tlbflush"]].concat();
    let latency = json!({"profile": "latency", "allowUnmigratable": true, "overrides": {
        "clock": {"utc": "Enabled", "hyperv": "Disabled", "hpet": "Enabled", "kvm": "Disabled", "pit": "discard", "rtc": "delay"},
        "disks": {"cache": "writethrough", "io": "threads"}, "ioThreads": {"policy": "SupplementalPool", "poolSize": 3},
        "cpu": {"model": "host-passthrough", "topology": "Enabled", "nested": "Disabled", "dedicatedCpuPlacement": "Disabled"},
        "devices": {"memBalloon": "Enabled", "blockMultiQueue": "Disabled", "networkMultiqueue": "Enabled"}}});
    let performance = json!({"profile": "performance"});
    [json!({}), all("Enabled", &on), all("Disabled", &off), performance, latency].map(|text| {
        let tuning: Tuning = serde_json::from_value(text).expect("these are overrides");
        assert_eq!(tuning.not_acted_on(), None);
        wanted(tuning)
    })
}

/// Windows VMs of which the first says nothing and the second has something of its owner's almost everywhere.
pub fn windows_vms() -> [Value; 2] {
    let vm = |domain: Value| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "vm", "namespace": "erp", "uid": UID, "generation": 3, "resourceVersion": "21",
                "labels": {"harvesterhci.io/os": "windows"}},
            "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": domain,
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}]}}}})
    };
    let devices = json!({"disks": [{"name": "root", "disk": {"bus": "virtio"}}],
        "interfaces": [{"name": "default", "model": "virtio", "masquerade": {}}]});
    [
        vm(json!({"memory": {"guest": "4Gi"}, "cpu": {"cores": 4}, "devices": devices})),
        vm(json!({"memory": {"guest": "4Gi"}, "cpu": {"sockets": 4, "model": "host-model"}, "devices": devices,
            "features": {"acpi": {}, "smm": {"enabled": true}, "hyperv": {
                "relaxed": {"enabled": false}, "vapic": {}, "spinlocks": {"spinlocks": 4096}, "vpindex": {"enabled": true},
                "synictimer": {"direct": {"enabled": false}}, "ipi": {"enabled": false}, "tlbflush": {},
                "vendorid": {"vendorid": "somebody"}}},
            "clock": {"timezone": "Europe/Berlin", "timer": {
                "hpet": {"present": true}, "pit": {}, "rtc": {"tickPolicy": "delay"}, "kvm": {"present": false}}}})),
    ]
}

/// Takes the nulls away, as an API server does with what it keeps.
fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(prune);
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

fn domain_of(object: &Value) -> &Value {
    object.pointer(DOMAIN).expect("the VM was read, so it has a domain")
}

/// A VM after a patch.
fn send(object: &Value, patch: &json_patch::Patch) -> Value {
    let mut after = object.clone();
    json_patch::patch(&mut after, patch).expect("our patch fits the VM that it was made for");
    after
}

/// A plan without a cluster, unless the profile is not known.
fn planned(vm: &Vm, wanted: &Wanted) -> Option<Plan> {
    plan(&Facts::offline(vm.clone()), wanted).ok()
}

/// A plan, and what the record and the command line make of it: texts of others are cut and quoted there.
pub fn plan_in_words(vm: &Vm, wanted: &Wanted) -> Option<Plan> {
    let plan = planned(vm, wanted)?;
    plan.summary();
    plan.detection_summary();
    plan.warnings();
    plan.danger();
    serde_json::to_string(&plan).expect("a plan can be printed");
    Some(plan)
}

/// Plans a VM, writes the plan and takes it back.
///
/// The result obeys KubeVirt's rules, planning it again is empty, and the undo gives back every byte of the domain.
pub fn plan_write_undo(object: &Value, wanted: &Wanted) {
    let Ok(file) = Vm::from_object(object) else { return };
    let Some(from_file) = plan_in_words(&file, wanted) else { return };
    if !from_file.has_changes() {
        assert_eq!(from_file.change.entries, []);
        assert_eq!(&from_file.change.domain, file.domain());
        return;
    }
    assert_eq!(validate::violations(&file, &from_file.change.domain), []);

    // As an API server would keep it; a null in a file makes no difference.
    let mut object = object.clone();
    prune(&mut object);
    let vm = Vm::from_object(&object).expect("what reads with nulls reads without");
    let plan = planned(&vm, wanted).expect("what plans with nulls plans without");
    assert_eq!(plan.change.entries, from_file.change.entries, "nulls make a difference");
    // Annotations that are no map are in no cluster, where alone a plan is written.
    if object.pointer("/metadata/annotations").is_some_and(|a| !a.is_object()) {
        return;
    }

    let applied = patch::merge(None, UID, &plan.change);
    let written = send(&object, &patch::apply_patch(&vm, &plan.change, &applied));
    assert_eq!(domain_of(&written), &plan.change.domain, "the patch does not lead to the planned domain");

    let tuned = Vm::from_object(&written).expect("what we wrote can be read");
    let again = planned(&tuned, wanted).expect("what we wrote can be planned");
    assert_eq!(again.change.entries, [], "a plan is not empty after its own write");
    assert!(!again.has_changes());

    let read = patch::from_annotation(&tuned.annotations[APPLIED], UID).expect("our own annotation is accepted");
    assert_eq!(read, Applied { state: AppliedState::Written, ..applied });
    let undo = patch::undo(tuned.domain(), &read);
    assert_eq!(undo.domain.to_string(), vm.domain().to_string(), "the undo does not give back the domain");
    assert_eq!(undo.kept, Vec::<String>::new());
    let restored = send(&written, &patch::undo_patch(&tuned, &undo, &read));
    assert_eq!(domain_of(&restored), &undo.domain, "the patch does not lead to the domain of the undo");
}

/// Undoes what an annotation says that anybody may have written.
///
/// Only what it names moves, and none of that is what a guest finds its disks, memory and firmware by.
pub fn undo_forged(object: &Value, text: &str, accepted: &Applied) {
    let mut object = object.clone();
    object["metadata"]["annotations"] = json!({APPLIED: text});
    let vm = Vm::from_object(&object).expect("VMs of ours can be read");
    let undo = patch::undo(vm.domain(), accepted);
    let after = send(&object, &patch::undo_patch(&vm, &undo, accepted));
    assert_eq!(domain_of(&after), &undo.domain, "the patch does not lead to the domain of the undo");
    assert_eq!(after.pointer("/metadata/annotations"), Some(&json!({})));

    let (mut before, mut changed) = (BTreeSet::new(), BTreeSet::new());
    leaves(vm.domain(), "", &mut before);
    leaves(&undo.domain, "", &mut changed);
    let named: Vec<String> =
        accepted.entries.iter().map(|e| &e.at).chain(&accepted.created).map(|at| shape(at)).collect();
    for (at, value) in before.symmetric_difference(&changed) {
        let at = shape(at);
        // An object that holds nothing any more is a leaf above what was taken out of it.
        let is_named = named.iter().any(|n| below(&at, n) || (value == "{}" && below(n, &at)));
        assert!(is_named, "{at} was or is {value}, and the annotation does not name it");
        let never = [
            "/memory",
            "/firmware",
            "/machine",
            "/devices/disks/*/name",
            "/devices/disks/*/disk",
            "/devices/interfaces/*/name",
        ];
        assert!(!never.iter().any(|n| below(&at, n)), "{at} was or is {value}, and wintune never writes it");
    }
}

/// A pointer whose places in lists, by number or by name, are all the same.
fn shape(pointer: &str) -> String {
    let place = |key: &str| key.starts_with("name=") || (!key.is_empty() && key.bytes().all(|b| b.is_ascii_digit()));
    pointer.split('/').map(|key| if place(key) { "*" } else { key }).collect::<Vec<_>>().join("/")
}

fn below(pointer: &str, above: &str) -> bool {
    pointer == above || pointer.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// Every leaf of a value by its pointer, as text; what is empty is a leaf.
fn leaves(value: &Value, at: &str, found: &mut BTreeSet<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(key, value)| leaves(value, &format!("{at}/{key}"), found));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(index, value)| leaves(value, &format!("{at}/{index}"), found));
        }
        leaf => drop(found.insert((at.to_owned(), leaf.to_string()))),
    }
}
