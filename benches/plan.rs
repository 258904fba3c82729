//! How long a plan takes beside the parsing of the same VM: eight disks, everything asked for, 500 nodes.
//!
//! `cargo bench --bench plan`; its last line is `plan/parse ratio: X`, the goal at most 2. Both are timed in the same
//! run, in turns, so that a busy machine slows both.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use serde_json::{Value, json};
use wintune::plan::capabilities::Capabilities;
use wintune::plan::facts::{Facts, Nodes, Vm, Wanted};
use wintune::plan::nodes::{NodePool, NodeView};
use wintune::plan::plan;
use wintune::plan::volumes::{Claim, Mode, claim_names};

/// As the product has it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn parse(text: &str) -> Vm {
    let object: Value = serde_json::from_str(text).unwrap();
    Vm::from_object(&object).unwrap()
}

fn facts(vm: Vm) -> Facts {
    let node = |i: usize| {
        let features =
            ["base", "time", "vpindex", "synic", "synictimer", "ipi", "runtime", "reset", "frequencies", "tlbflush"];
        let labels = features.iter().map(|f| (format!("hyperv.node.kubevirt.io/{f}"), "true".to_owned()));
        let own = [
            "kubevirt.io/schedulable",
            "cpu-vendor.node.kubevirt.io/Intel",
            "host-model-cpu.node.kubevirt.io/Icelake-Server",
        ];
        let labels = labels.chain(own.map(|l| (l.to_owned(), "true".to_owned())));
        NodeView { name: format!("node-{i}"), labels: labels.collect(), taints: Vec::new() }
    };
    let claims: Vec<String> = claim_names(&vm).map(str::to_owned).collect();
    let mut facts = Facts::offline(vm);
    facts.nodes = Nodes::Known(Arc::new(NodePool::new((0..500).map(node))));
    facts.capabilities = Arc::new(Capabilities::of_kubevirt("1.9").unwrap());
    for claim in claims {
        facts.volumes.insert(&claim, Claim { mode: Some(Mode::Block), thick: false });
    }
    facts
}

/// The mean of one round of each, in turns.
fn ratio(text: &str, facts: &Facts, wanted: &Wanted) -> f64 {
    let (mut parsing, mut planning) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..2_000 {
        let start = Instant::now();
        black_box(parse(black_box(text)));
        parsing += start.elapsed();
        let start = Instant::now();
        black_box(plan(black_box(facts), black_box(wanted)).unwrap());
        planning += start.elapsed();
    }
    planning.as_secs_f64() / parsing.as_secs_f64()
}

fn main() {
    let text = include_str!("../tests/fixtures/eight-disks.json");
    let facts = facts(parse(text));
    let wanted = Wanted { profile: "performance".to_owned(), ..Wanted::default() };
    assert!(plan(&facts, &wanted).unwrap().settings.iter().filter(|s| s.is_write()).count() > 30);
    let mut criterion = Criterion::default().configure_from_args();
    criterion.bench_function("parse", |b| b.iter(|| parse(black_box(text))));
    criterion.bench_function("plan", |b| b.iter(|| plan(black_box(&facts), &wanted).unwrap()));
    criterion.final_summary();
    println!("{}", json!({"settings": plan(&facts, &wanted).unwrap().settings.len(), "bytes": text.len()}));
    println!("plan/parse ratio: {:.2}", ratio(text, &facts, &wanted));
}
