//! Whole plans: refusals of the set, holds, findings, digests.

use super::*;

mod groups;
use crate::api::tuning::{Enlightenment, Switch};
use facts::Vm;
use serde_json::json;

fn vm(edit: &Value) -> Vm {
    let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "labels": {"harvesterhci.io/os": "windows"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"memory": {"guest": "4Gi"}, "devices": {}}}}}});
    json_patch::merge(&mut object, edit);
    Vm::from_object(&object).unwrap()
}

fn plan_of(edit: &Value) -> Plan {
    plan(&Facts::offline(vm(edit)), &Wanted::default()).unwrap()
}

fn rules(plan: &Plan) -> Vec<&'static str> {
    plan.holds.iter().map(|h| h.rule).collect()
}

fn ids(plan: &Plan) -> Vec<&str> {
    plan.findings.iter().map(|f| f.id.as_ref()).collect()
}

#[track_caller]
fn all_refused(plan: &Plan, by: &str) {
    let writes = plan.settings.iter().filter(|s| s.is_write()).count();
    let refused =
        plan.settings.iter().filter(|s| matches!(&s.outcome, Outcome::Refused { rule, .. } if rule == by)).count();
    assert_eq!((writes, refused), (0, 15), "{:?}", plan.settings);
    assert_eq!((plan.change.entries.len(), plan.holds.len(), plan.assumptions.len()), (0, 0, 0));
}

#[test]
fn a_plain_vm_gets_everything_in_the_order_of_the_pointers() {
    let plan = plan_of(&json!({}));
    assert!(plan.settings.is_sorted_by_key(|s| s.pointer.clone()));
    assert_eq!((plan.summary().changes, plan.holds.len(), plan.findings.len()), (15, 0, 0));
    assert_eq!(plan.assumptions.len(), 2);
    assert!(plan.assumptions[0].contains("no nodes were given") && plan.assumptions[1].contains("--kubevirt"));
    assert_eq!(plan.vm, VmRef { namespace: "default".to_owned(), name: "vm".to_owned() });
}

#[test]
fn another_system_gets_no_settings() {
    let plan = plan_of(&json!({"metadata": {"labels": {"harvesterhci.io/os": "linux"}}}));
    assert!(!plan.is_windows() && plan.settings.is_empty() && plan.change.entries.is_empty());
}

#[test]
fn one_fault_refuses_the_whole_set() {
    all_refused(&plan_of(&json!({"spec": {"template": {"spec": {"architecture": "arm64"}}}})), "architecture");
    let passthrough =
        json!({"spec": {"template": {"spec": {"domain": {"features": {"hypervPassthrough": {"enabled": true}}}}}}});
    all_refused(&plan_of(&passthrough), "hyperv-passthrough");
    assert_eq!(ids(&plan_of(&passthrough)), ["hyperv-passthrough-on-bios", "migration-blocked"]);
    let without_memory = json!({"spec": {"template": {"spec": {"domain": {"memory": null}}}}});
    all_refused(&plan_of(&without_memory), "kubevirt-rules");
}

#[test]
fn what_a_reader_should_know_is_found() {
    let empty = json!({"spec": {"template": {"spec": {"domain": {"features": {"hypervPassthrough": {}},
        "firmware": {"bootloader": {"efi": {"secureBoot": false}}}}}}}});
    assert_eq!(ids(&plan_of(&empty)), ["hyperv-passthrough-empty", "migration-blocked"]);
    // The record has room for all of it.
    let danger = plan_of(&empty).danger().unwrap();
    assert!(danger.ends_with("remove it or write enabled: true"), "{danger}");
    assert_eq!(plan_of(&empty).warnings(), [danger]);
    assert_eq!(ids(&plan_of(&json!({"spec": {"runStrategy": null}}))), ["no-run-strategy"]);
    let sysprep = json!([{"name": "a", "sysprep": {}}]);
    let contradiction = json!({"metadata": {"labels": {"harvesterhci.io/os": "linux"}}, "spec": {"template": {"spec": {"volumes": sysprep}}}});
    assert_eq!(ids(&plan_of(&contradiction)), ["contradicting-signs"]);
    let misplaced = json!({"spec": {"template": {"spec": {"domain": {"resources": {"clock": {}, "features": {}}, "cpu": {"thread": 1}}}}}});
    assert_eq!(ids(&plan_of(&misplaced)), ["misplaced-field"; 3]);
    // Findings are there for what is refused altogether as well.
    let linux = json!({"metadata": {"labels": {"harvesterhci.io/os": "linux"}}, "spec": {"runStrategy": null}});
    assert_eq!(ids(&plan_of(&linux)), ["no-run-strategy"]);
}

#[test]
fn what_keeps_a_plan_from_being_written_is_said_only_where_there_is_one() {
    let unsure = json!({"metadata": {"labels": {"harvesterhci.io/os": null}},
        "spec": {"template": {"spec": {"domain": {"clock": {"timer": {"hyperv": {}}}}}}}});
    assert_eq!(rules(&plan_of(&unsure)), ["unsure-windows"]);
    assert_eq!(rules(&plan_of(&json!({"spec": {"preference": {"name": "windows.11"}}}))), ["preference-unread"]);
    for owned in [
        json!({"labels": {"argocd.argoproj.io/instance": "erp"}}),
        json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "erp"}}),
        json!({"labels": {"helm.toolkit.fluxcd.io/name": "erp"}}),
        json!({"labels": {"fleet.cattle.io/bundle-name": "erp"}}),
        json!({"annotations": {"argocd.argoproj.io/tracking-id": "erp"}}),
        json!({"annotations": {"fleet.cattle.io/bundle-id": "erp"}}),
        json!({"annotations": {"objectset.rio.cattle.io/id": "erp"}}),
        json!({"annotations": {"meta.helm.sh/release-name": "erp"}}),
    ] {
        assert_eq!(rules(&plan_of(&json!({"metadata": owned}))), ["gitops-owner"], "{owned}");
    }
    let done = Facts::offline(Vm {
        spec: written(&vm(&json!({"spec": {"preference": {"name": "windows.11"}}}))),
        ..vm(&json!({}))
    });
    let plan = plan(&done, &Wanted::default()).unwrap();
    assert_eq!((plan.has_changes(), plan.holds.len(), plan.assumptions.len()), (false, 0, 0));
}

fn written(vm: &Vm) -> Value {
    let mut spec = vm.spec.clone();
    let change = plan(&Facts::offline(vm.clone()), &Wanted::default()).unwrap().change;
    spec["template"]["spec"]["domain"] = change.domain;
    spec
}

/// A policy of an older schema, or of a file, may have any priority.
#[test]
fn the_lowest_of_all_priorities_is_one() {
    use consent::{Consent, Marks, Policies, Policy, PolicyView};
    let policy = |name: &str, priority| {
        let tuning = crate::api::tuning::Tuning { priority, ..Default::default() };
        Policy::Readable(Box::new(PolicyView {
            kind: crate::api::record::PolicyKind::WindowsTuning,
            name: name.to_owned(),
            uid: String::new(),
            generation: 1,
            created: None,
            selector: Default::default(),
            namespace_selector: Default::default(),
            limits: None,
            tuning,
        }))
    };
    let policies =
        Policies { namespaced: vec![policy("low", i32::MIN), policy("high", 0)].into(), ..Policies::default() };
    let vm = vm(&json!({}));
    let consent = consent::decide(Marks { labels: &vm.labels, annotations: &vm.annotations }, &policies);
    assert!(matches!(consent, Consent::Given(given) if given.by.name == "high"));
}

#[test]
fn equal_changes_have_equal_digests() {
    let digest = |edit: &Value| plan_of(edit).digest();
    assert_eq!(digest(&json!({})), digest(&json!({"metadata": {"name": "other"}, "spec": {"runStrategy": "Manual"}})));
    assert_ne!(
        digest(&json!({})),
        digest(&json!({"spec": {"template": {"spec": {"domain": {"clock": {"utc": {}}}}}}}))
    );
    // FNV-1a over the same text for ever: a record of an earlier build must not look like another plan.
    assert_eq!(digest(&json!({"spec": {"template": {"spec": {"architecture": "arm64"}}}})), "9de48e1de9497083");
}

#[test]
fn an_unknown_profile_names_the_known_ones() {
    let wanted = Wanted { profile: "fast".to_owned(), ..Wanted::default() };
    let error = plan(&Facts::offline(vm(&json!({}))), &wanted).unwrap_err();
    assert_eq!(
        error.to_string(),
        "profile \"fast\" is not known; known are: migration-safe, performance, legacy, latency"
    );
}

#[test]
fn an_override_that_breaks_what_the_owner_has_refuses_the_set() {
    let mut wanted = Wanted::default();
    wanted.overrides.hyperv.insert(Enlightenment::Vpindex, Switch::Off);
    let facts = Facts::offline(vm(
        &json!({"spec": {"template": {"spec": {"domain": {"features": {"hyperv": {"synic": {}, "vpindex": {}}}}}}}}),
    ));
    let plan = plan(&facts, &wanted).unwrap();
    let why = plan.settings.iter().find_map(|s| match &s.outcome {
        Outcome::Refused { rule, why, .. } if rule == "kubevirt-rules" => Some(why.clone()),
        _ => None,
    });
    assert!(why.unwrap().contains("hyperv.synic requires hyperv.vpindex, which is off"));
    assert!(!plan.has_changes() && plan.change.entries.is_empty());
}
