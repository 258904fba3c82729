//! Nodes before and after, and plans that must not strand a VM.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::plan::facts::{Nodes, Running, Vm, Wanted};
use crate::plan::nodes::{NodePool, NodeView, Taint};
use crate::plan::settings::Outcome;
use crate::plan::{Plan, plan};

/// A node with every Hyper-V feature but some, and labels of its own.
fn node(name: &str, lacks: &[&str], labels: &[(&str, &str)]) -> NodeView {
    let all = [
        "base",
        "time",
        "vpindex",
        "synic",
        "synictimer",
        "ipi",
        "runtime",
        "reset",
        "frequencies",
        "tlbflush",
        "reenlightenment",
    ];
    let has =
        all.iter().filter(|f| !lacks.contains(f)).map(|f| (format!("hyperv.node.kubevirt.io/{f}"), "true".to_owned()));
    let own = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let labels = has.chain(own).chain([("kubevirt.io/schedulable".to_owned(), "true".to_owned())]);
    NodeView { name: name.to_owned(), labels: labels.collect(), taints: Vec::new() }
}

const INTEL: (&str, &str) = ("cpu-vendor.node.kubevirt.io/Intel", "true");
const AMD: (&str, &str) = ("cpu-vendor.node.kubevirt.io/AMD", "true");
const ICE: (&str, &str) = ("host-model-cpu.node.kubevirt.io/Icelake-Server", "true");
const SKY: (&str, &str) = ("host-model-cpu.node.kubevirt.io/Skylake-Server", "true");
const SCALES: (&str, &str) = ("cpu-timer.node.kubevirt.io/tsc-scalable", "true");

fn hz(hz: &'static str) -> (&'static str, &'static str) {
    ("cpu-timer.node.kubevirt.io/tsc-frequency", hz)
}

fn facts(domain: &Value, nodes: Vec<NodeView>) -> Facts {
    let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "labels": {"harvesterhci.io/os": "windows"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"memory": {"guest": "4Gi"}, "devices": {}}}}}});
    json_patch::merge(&mut object["spec"]["template"]["spec"]["domain"], domain);
    let mut facts = Facts::offline(Vm::from_object(&object).unwrap());
    facts.nodes = Nodes::Known(Arc::new(NodePool::new(nodes)));
    facts
}

fn wanted(profile: &str, overrides: &Value, allow_unmigratable: bool) -> Wanted {
    Wanted {
        profile: profile.to_owned(),
        overrides: serde_json::from_value(overrides.clone()).unwrap(),
        allow_unmigratable,
    }
}

fn with(facts: &Facts, overrides: &Value) -> Plan {
    plan(facts, &wanted("migration-safe", overrides, false)).unwrap()
}

fn words(plan: &Plan) -> String {
    plan.migration.as_ref().unwrap().words()
}

fn outcome<'a>(plan: &'a Plan, field: &str) -> &'a Outcome {
    &plan.settings.iter().find(|s| s.field == field).unwrap_or_else(|| panic!("{field}: {plan:?}")).outcome
}

#[track_caller]
fn unmigratable(plan: &Plan, field: &str) {
    let Outcome::Refused { rule, why, unblock } = outcome(plan, field) else { panic!("{:?}", outcome(plan, field)) };
    assert!(rule == "unmigratable" && unblock.contains("allowUnmigratable"), "{why}");
}

const PASSTHROUGH: &str = "host-passthrough";

#[test]
fn what_every_node_can_do_costs_nothing() {
    let plan = with(&facts(&json!({}), vec![node("a", &[], &[]), node("b", &["tlbflush"], &[])]), &json!({}));
    assert_eq!(words(&plan), "2 of 2 nodes -> 2 of 2");
    assert!(plan.has_changes());
}

#[test]
fn nodes_that_are_lost_are_named_with_what_they_lack() {
    let ice = |name: &str| node(name, &[], &[INTEL, ICE]);
    let sky =
        |name: &str| node(name, &[], &[INTEL, SKY, ("cpu-model-migration.node.kubevirt.io/Icelake-Server", "true")]);
    // From an Icelake node a host-model VM reaches all six; passed through, only the two of its own kind.
    let mut nodes = vec![ice("node-1"), ice("node-2")];
    nodes.extend(["node-3", "node-4", "node-5", "node-6"].map(sky));
    let mut facts = facts(&json!({}), nodes);
    facts.running = Some(Running { node: Some("node-1".to_owned()), domain: Value::Null });
    let passthrough = json!({"cpu": {"model": PASSTHROUGH}});
    let plan = with(&facts, &passthrough);
    assert_eq!(
        words(&plan),
        "6 of 6 nodes -> 2 of 6, lost: node-3 has another CPU, node-4 has another CPU, node-5 has another CPU, node-6 has another CPU"
    );
    assert_eq!(outcome(&plan, "cpu.model"), &Outcome::Write);
    // A profile alone never does that.
    let plan = crate::plan::plan(&facts, &wanted("performance", &json!({}), false)).unwrap();
    assert!(matches!(outcome(&plan, "cpu.model"), Outcome::Refused { rule, .. } if rule == "node-lacks-feature"));
}

#[test]
fn more_than_five_lost_nodes_are_counted() {
    let mut nodes = vec![node("a", &[], &[INTEL, ICE]), node("b", &[], &[INTEL, ICE])];
    nodes.extend((0..8).map(|i| {
        node(&format!("z{i}"), &[], &[INTEL, SKY, ("cpu-model-migration.node.kubevirt.io/Icelake-Server", "true")])
    }));
    let mut facts = facts(&json!({}), nodes);
    facts.running = Some(Running { node: Some("a".to_owned()), domain: Value::Null });
    let plan = with(&facts, &json!({"cpu": {"model": PASSTHROUGH}}));
    let migration = plan.migration.as_ref().unwrap();
    assert_eq!((migration.before, migration.after, migration.lost.len(), migration.more), (10, 2, 5, 3));
    assert!(words(&plan).ends_with(" and 3 more"));
}

#[test]
fn a_plan_that_strands_a_vm_loses_the_setting_that_does_it() {
    let nodes = || {
        vec![
            node("a", &[], &[INTEL, ICE]),
            node("b", &[], &[INTEL, SKY, ("cpu-model-migration.node.kubevirt.io/Icelake-Server", "true")]),
        ]
    };
    let mut facts = facts(&json!({}), nodes());
    facts.running = Some(Running { node: Some("a".to_owned()), domain: Value::Null });
    let passthrough = json!({"cpu": {"model": PASSTHROUGH}});
    let plan = with(&facts, &passthrough);
    unmigratable(&plan, "cpu.model");
    // The rest still goes.
    assert_eq!(outcome(&plan, "features.hyperv.vapic"), &Outcome::Write);
    assert_eq!(words(&plan), "2 of 2 nodes -> 2 of 2");
    let plan = crate::plan::plan(&facts, &wanted("migration-safe", &passthrough, true)).unwrap();
    assert_eq!(outcome(&plan, "cpu.model"), &Outcome::Write);
    assert_eq!(words(&plan), "2 of 2 nodes -> 1 of 2, lost: b has another CPU");
}

#[test]
fn a_vm_with_one_node_has_nothing_to_lose() {
    let facts = facts(&json!({}), vec![node("a", &[], &[INTEL, ICE])]);
    let plan = with(&facts, &json!({"cpu": {"model": PASSTHROUGH}}));
    assert_eq!((outcome(&plan, "cpu.model"), words(&plan).as_str()), (&Outcome::Write, "1 of 1 nodes -> 1 of 1"));
}

#[test]
fn a_time_stamp_counter_must_be_near_or_scale() {
    let of = |second: NodeView| {
        let facts = facts(
            &json!({"features": {"hyperv": {"reenlightenment": {}}}}),
            vec![node("a", &[], &[INTEL, SCALES, hz("2000000000")]), second],
        );
        with(&facts, &json!({})).migration.unwrap().before
    };
    assert_eq!(of(node("b", &[], &[INTEL, hz("2000400000")])), 2, "within 250 millionths");
    assert_eq!(of(node("b", &[], &[INTEL, hz("2100000000")])), 1, "too far");
    assert_eq!(of(node("b", &[], &[INTEL, SCALES, hz("2100000000")])), 2, "scales down");
    assert_eq!(of(node("b", &[], &[INTEL])), 1, "not published");
}

#[test]
fn models_features_vendors_and_cpu_managers_decide() {
    let reach = |domain: Value, nodes: Vec<NodeView>| {
        let migration = with(&facts(&domain, nodes), &json!({})).migration.unwrap();
        (migration.nodes, migration.before)
    };
    let named = json!({"cpu": {"model": "Skylake-Server"}});
    let has = ("cpu-model.node.kubevirt.io/Skylake-Server", "true");
    assert_eq!(reach(named, vec![node("a", &[], &[has]), node("b", &[], &[])]), (2, 1));
    let features = json!({"cpu": {"features": [{"name": "avx512f"}, {"name": "vmx", "policy": "disable"}]}});
    let avx = ("cpu-feature.node.kubevirt.io/avx512f", "true");
    assert_eq!(reach(features, vec![node("a", &[], &[avx]), node("b", &[], &[])]), (2, 1));
    assert_eq!(reach(json!({}), vec![node("a", &[], &[INTEL]), node("b", &[], &[AMD])]), (2, 1));
    let dedicated = json!({"cpu": {"cores": 2, "dedicatedCpuPlacement": true}});
    assert_eq!(
        reach(dedicated, vec![node("a", &[], &[("cpumanager", "true")]), node("b", &[], &[("cpumanager", "false")])]),
        (2, 1)
    );
    let required = ("host-model-required-features.node.kubevirt.io/pdcm", "true");
    assert_eq!(reach(json!({}), vec![node("a", &[], &[INTEL, ICE, required]), node("b", &[], &[INTEL, ICE])]), (2, 1));
    let mut tainted = node("c", &[], &[]);
    tainted.taints.push(Taint { key: "gpu".to_owned(), value: String::new(), effect: "NoSchedule".to_owned() });
    assert_eq!(reach(json!({}), vec![node("a", &[], &[]), tainted]), (1, 1));
}

#[test]
fn what_is_not_ours_to_lift_is_said() {
    let gpu = json!({"devices": {"gpus": [{"name": "g", "deviceName": "x"}]}});
    let plan = with(&facts(&gpu, vec![node("a", &[], &[])]), &json!({}));
    assert!(words(&plan).contains("cannot migrate anyway: a GPU is passed through"));
    let offline = plan_offline(&gpu);
    assert!(offline.migration.is_none() && offline.findings.iter().any(|f| f.id == "migration-blocked"));
}

fn plan_offline(domain: &Value) -> Plan {
    let facts = Facts { nodes: Nodes::Assumed, ..facts(domain, Vec::new()) };
    plan(&facts, &Wanted::default()).unwrap()
}
