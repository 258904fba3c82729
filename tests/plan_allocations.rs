//! What a plan allocates does not grow with the number of nodes, nor with rules times disks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::sync::Arc;

use serde_json::{Value, json};
use wintune::plan::facts::{Facts, Nodes, Vm, Wanted};
use wintune::plan::known_bad::rules;
use wintune::plan::nodes::{NodePool, NodeView};
use wintune::plan::plan;

/// Nodes of two kinds, of which the VM's selector takes one, so that each has to be looked at.
fn facts(disks: usize, nodes: usize) -> Facts {
    let text = include_str!("fixtures/eight-disks.json");
    let mut object: Value = serde_json::from_str(text).unwrap();
    let spec = &mut object["spec"]["template"]["spec"];
    spec["nodeSelector"] = json!({"kind": "fast"});
    spec["domain"]["devices"]["disks"].as_array_mut().unwrap().truncate(disks);
    spec["volumes"].as_array_mut().unwrap().truncate(disks);
    let node = |i: usize| {
        let kind = if i.is_multiple_of(2) { "fast" } else { "slow" };
        let labels = [("kubevirt.io/schedulable", "true"), ("hyperv.node.kubevirt.io/base", "true"), ("kind", kind)];
        let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned()));
        NodeView { name: format!("node-{i:04}"), labels: labels.into(), taints: Vec::new() }
    };
    let mut facts = Facts::offline(Vm::from_object(&object).unwrap());
    facts.nodes = Nodes::Known(Arc::new(NodePool::new((0..nodes).map(node))));
    facts
}

fn allocations(facts: &Facts) -> u64 {
    let wanted = Wanted { profile: "performance".to_owned(), ..Wanted::default() };
    // The data files are parsed by the first plan of a process.
    drop(plan(facts, &wanted).unwrap());
    allocation_counter::measure(|| drop(plan(facts, &wanted).unwrap())).count_total
}

#[test]
fn nodes_cost_no_allocation_and_disks_only_their_own_settings() {
    let (few, many) = (allocations(&facts(8, 20)), allocations(&facts(8, 2_000)));
    assert_eq!(few, many, "with 20 nodes and with 2,000");
    let (four, eight) = (allocations(&facts(4, 20)), allocations(&facts(8, 20)));
    let each = (eight - four) / 4;
    println!("allocations of a plan: {eight} with 8 disks, {each} for each disk");
    // A disk has three settings of about ten allocations each; one for each rule would be as many as there are rules more.
    assert!(each < 50 && rules().unwrap().len() > 20, "{each} allocations for each disk");
}
