//! Patches and their inverse: values in, values out. `tests/plan_props.rs` tries many more values.

use super::*;
use crate::plan::facts::{Facts, Wanted};
use crate::plan::settings::Outcome;

fn vm(domain: &Value) -> Vm {
    Vm::from_object(&object(domain)).unwrap()
}

fn object(domain: &Value) -> Value {
    let mut whole = json!({"memory": {"guest": "4Gi"}, "devices": {}});
    json_patch::merge(&mut whole, domain);
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "uid": "u", "generation": 3, "resourceVersion": "9",
            "labels": {"harvesterhci.io/os": "windows"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": whole}}}})
}

fn planned(vm: &Vm) -> Change {
    crate::plan::plan(&Facts::offline(vm.clone()), &Wanted::default()).unwrap().change
}

fn write(pointer: &str, desired: Value) -> Setting {
    Setting::new(pointer.to_owned(), None, desired, "", "").outcome(Outcome::Write)
}

fn ops(patch: &Patch) -> Vec<String> {
    let name = |op: &PatchOperation| serde_json::to_value(op).unwrap()["op"].as_str().unwrap().to_owned();
    patch.0.iter().map(|op| format!("{} {}", name(op), op.path())).collect()
}

fn entry(at: &str, was: Option<&str>, now: &str) -> Entry {
    Entry { at: at.to_owned(), was: was.map(str::to_owned), now: now.to_owned() }
}

fn applied(entries: Vec<Entry>, created: &[&str]) -> Applied {
    let created = created.iter().map(|c| (*c).to_owned()).collect();
    Applied { vm_uid: "u".to_owned(), state: AppliedState::Written, asked_by: None, entries, created }
}

#[test]
fn one_patch_opens_with_tests_and_writes_the_outermost_missing_object_once() {
    let vm = vm(&json!({"features": {"acpi": {}}}));
    let change = planned(&vm);
    let patch = apply_patch(&vm, &change, &merge(None, "u", &change));
    let expected = [
        "test /metadata/uid",
        "test /metadata/generation",
        "test /metadata/resourceVersion",
        "add /spec/template/spec/domain/clock",
        "add /spec/template/spec/domain/features/hyperv",
        "add /metadata/annotations",
    ];
    assert_eq!(ops(&patch), expected);
    assert_eq!(change.created, ["/clock", "/clock/timer", "/features/hyperv"]);
    // Where annotations are, only ours is added.
    let annotated = Vm { has_annotations: true, ..vm };
    let patch = apply_patch(&annotated, &change, &merge(None, "u", &change));
    assert_eq!(ops(&patch).last().unwrap(), "add /metadata/annotations/wintune.dev~1applied");
    // For a person: the settings alone.
    assert_eq!(ops(&settings_patch(&annotated, &change)).len(), 2);
}

#[test]
fn a_switch_is_written_alone() {
    let domain = json!({"features": {"hyperv": {"vapic": {"extra": 1}}}});
    let change = change(&domain, &[write("/features/hyperv/vapic/enabled", json!(false))]);
    assert_eq!(change.entries, [entry("/features/hyperv/vapic/enabled", None, "false")]);
    assert_eq!(change.domain, json!({"features": {"hyperv": {"vapic": {"extra": 1, "enabled": false}}}}));
    assert_eq!(
        ops(&settings_patch(&vm(&domain), &change)),
        ["add /spec/template/spec/domain/features/hyperv/vapic/enabled"]
    );
    let undone = undo(&change.domain, &applied(change.entries.clone(), &[]));
    assert_eq!(undone.domain, domain);
}

/// Found by the property tests: the holder was replaced as a whole and then changed once more at a place that it
/// no longer had, which an API server refuses for ever.
#[test]
fn an_undo_beside_what_somebody_else_added_is_a_patch_that_works() {
    let plain = vm(&json!({}));
    let change = planned(&plain);
    let mut after = object(&change.domain);
    after["spec"]["template"]["spec"]["domain"]["features"]["smm"] = json!({"enabled": true});
    after["spec"]["template"]["spec"]["domain"]["features"]["hyperv"]["synictimer"]["theirs"] = json!(1);
    let vm = Vm::from_object(&after).unwrap();
    let applied = merge(None, "u", &change);
    let undone = undo(vm.domain(), &applied);
    let features = json!({"smm": {"enabled": true}, "hyperv": {"synictimer": {"enabled": true, "theirs": 1}}});
    assert_eq!(undone.domain["features"], features);
    assert_eq!(undone.kept, ["/features/hyperv/synictimer"]);
    let patch = undo_patch(&vm, &undone, &applied);
    json_patch::patch(&mut after, &patch).unwrap();
    assert_eq!(after.pointer(DOMAIN), Some(&undone.domain));
    let operations = ops(&patch);
    assert!(operations.contains(&"remove /spec/template/spec/domain/clock".to_owned()), "{operations:?}");
    assert!(!operations.iter().any(|o| o.ends_with("/features")), "{operations:?}");
}

#[test]
fn what_was_made_to_hold_our_values_goes_only_when_it_is_empty() {
    let ours = || vec![entry("/clock/utc", None, "{}"), entry("/features/hyperv/vapic", None, "{\"enabled\":true}")];
    let made = ["/clock", "/features", "/features/hyperv"];
    let domain = json!({"clock": {"utc": {}}, "features": {"hyperv": {"vapic": {"enabled": true}}}});
    assert_eq!(undo(&domain, &applied(ours(), &made)).domain, json!({}));
    let theirs = json!({"clock": {"utc": {}, "timezone": "UTC"}, "features": {"hyperv": {"vapic": {}}}});
    let undone = undo(&theirs, &applied(ours(), &made));
    assert_eq!(undone.domain, json!({"clock": {"timezone": "UTC"}, "features": {"hyperv": {"vapic": {}}}}));
    assert_eq!(
        (undone.restored, undone.kept),
        (vec!["/clock/utc".to_owned()], vec!["/features/hyperv/vapic".to_owned()])
    );
    // What was there before stays, empty or not.
    assert_eq!(undo(&domain, &applied(ours(), &["/features/hyperv"])).domain, json!({"clock": {}, "features": {}}));
}

#[test]
fn an_undo_of_nothing_only_takes_the_annotation_away() {
    let mut object = object(&json!({}));
    let applied = applied(vec![entry("/clock/utc", None, "{}")], &["/clock"]);
    object["metadata"]["annotations"] = json!({annotation::APPLIED: to_annotation(&applied)});
    let vm = Vm::from_object(&object).unwrap();
    let patch = undo_patch(&vm, &undo(vm.domain(), &applied), &applied);
    assert_eq!(ops(&patch)[3..], ["remove /metadata/annotations/wintune.dev~1applied"]);
}

#[test]
fn two_writes_lead_back_to_the_first_original() {
    let vapic = "/features/hyperv/vapic/enabled";
    let original = json!({"features": {"hyperv": {"vapic": {}}}});
    let off = change(&original, &[write(vapic, json!(false))]);
    let first = merge(None, "u", &off);
    let on = change(&off.domain, &[write(vapic, json!(true)), write("/clock/utc", json!({}))]);
    let second = merge(Some(&first), "u", &on);
    assert_eq!(second.entries, [entry("/clock/utc", None, "{}"), entry(vapic, None, "true")]);
    assert_eq!(second.created, ["/clock"]);
    assert_eq!(undo(&on.domain, &second).domain, original);
    // Somebody else's value in between is the one to go back to.
    let theirs = json!({"features": {"hyperv": {"vapic": {"enabled": true}}}});
    let again = change(&theirs, &[write(vapic, json!(false))]);
    assert_eq!(merge(Some(&first), "u", &again).entries, [entry(vapic, Some("true"), "false")]);
    // What another VM's record says is nothing to this one.
    let other = Applied { vm_uid: "other".to_owned(), ..first };
    assert_eq!(merge(Some(&other), "u", &on).entries[1], entry(vapic, Some("false"), "true"));
}

#[test]
fn a_webhooks_companion_is_ours_only_in_an_object_that_we_made() {
    let (expected, answered) = (json!({"features": {"hyperv": {}}}), json!({"features": {"hyperv": {}, "acpi": {}}}));
    assert_eq!(companions(&expected, &answered, &["/features".to_owned()]), [entry("/features/acpi", None, "{}")]);
    assert_eq!(companions(&expected, &answered, &["/features/hyperv".to_owned()]), []);
    assert_eq!(companions(&answered, &answered, &["/features".to_owned()]), []);
    let (asked, answer) = (vm(&json!({})), vm(&json!({"cpu": {"sockets": 1}})));
    assert_eq!(beyond(&asked, &answer), ["/spec/template/spec/domain/cpu"]);
}

#[test]
fn a_pre_image_names_this_vm_and_only_what_wintune_writes() {
    let change = planned(&vm(&json!({})));
    let ours = merge(None, "u", &change);
    assert_eq!(check(&ours, "u"), Ok(()));
    assert!(matches!(check(&ours, "v"), Err(AppliedError::OtherVm { .. })));
    for foreign in [
        "/devices/disks/0/disk/bus",
        "/features",
        "/features/hypervPassthrough",
        "",
        "/clock/timezone",
        "/features/hyperv/vapic/",
    ] {
        let forged = applied(vec![entry(foreign, None, "{}")], &[]);
        assert_eq!(check(&forged, "u"), Err(AppliedError::ForeignPointer(foreign.to_owned())));
    }
    for made in ["", "/devices/disks", "/features/hyperv/vapic"] {
        assert!(matches!(check(&applied(vec![], &[made]), "u"), Err(AppliedError::ForeignPointer(_))), "{made}");
    }
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(300));
    for value in ["[]", "\"on\"", "null", "{", long.as_str()] {
        for (was, now) in [(Some(value), "{}"), (None, value)] {
            let forged = applied(vec![entry("/features/hyperv/vapic", was, now)], &[]);
            assert!(matches!(check(&forged, "u"), Err(AppliedError::ForeignValue(_))), "{value}");
        }
    }
}

#[test]
fn an_annotation_of_another_shape_is_refused() {
    let ours = merge(None, "u", &planned(&vm(&json!({}))));
    let text = to_annotation(&ours);
    assert_eq!(from_annotation(&text, "u"), Ok(Applied { state: AppliedState::Written, ..ours }));
    for (from, to) in [
        ("\"version\":1", "\"version\":2"),
        ("\"version\":1", "\"version\":1,\"more\":1"),
        ("\"entries\"", "\"entrees\""),
    ] {
        let other = text.replacen(from, to, 1);
        assert!(matches!(from_annotation(&other, "u"), Err(AppliedError::Shape(_))), "{to}");
    }
    assert_eq!(from_annotation(&"[".repeat(17_000), "u"), Err(AppliedError::TooLong(17_000)));
    let control = from_annotation("{\"version\":1,\"\u{1b}[31m\":1}", "u").unwrap_err().to_string();
    assert!(!control.contains('\u{1b}'), "{control:?}");
}
