//! The status of policies: how many VMs each decides for, and how far they are.
//!
//! Counted over all records at most every half minute instead of at each event: a fleet that is being tuned would
//! otherwise cost one write to its policy for each VM.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::{Client, Resource, ResourceExt};

use crate::api::conditions::{self, condition, reason};
use crate::api::record::{Phase, TunedVirtualMachine};
use crate::api::tuning::{ClusterWindowsTuning, TuningStatus, WindowsTuning};
use crate::apply::policy;
use crate::apply::writer::Writer;
use crate::controller::metrics::Metrics;
use crate::observe::index;
use crate::observe::watches::Stores;
use crate::plan::consent::{Consent, Policy};

const PHASES: [(Phase, &str); 9] = [
    (Phase::Observed, "Observed"),
    (Phase::Proposed, "Proposed"),
    (Phase::Waiting, "Waiting"),
    (Phase::Applying, "Applying"),
    (Phase::Tuned, "Tuned"),
    (Phase::Reverted, "Reverted"),
    (Phase::Refused, "Refused"),
    (Phase::NeedsHuman, "NeedsHuman"),
    (Phase::OptedOut, "OptedOut"),
];

/// Writes statuses for as long as the operator runs.
pub(super) async fn run(client: Client, stores: Arc<Stores>, writer: Writer, metrics: Arc<Metrics>, every: Duration) {
    stores.wait_until_synced().await;
    loop {
        tokio::time::sleep(every).await;
        let records: Vec<TunedVirtualMachine> =
            stores.records.state().iter().filter_map(|r| r.0.as_ref().ok().cloned()).collect();
        for (phase, label) in PHASES {
            let count = records.iter().filter(|r| r.status.as_ref().is_some_and(|s| s.phase == phase)).count();
            metrics.phase(label, count);
        }
        if writer.leads() {
            let tally = tally(&stores, &records);
            write_all(&client, &stores, &writer, &tally).await;
        }
    }
}

/// What is counted for one policy.
#[derive(Clone, Debug, Default)]
struct Tally {
    matched: i32,
    tuned: i32,
    proposed: i32,
    waiting: i32,
    refused: i32,
    /// Policies that win over this one for some VM.
    lost_to: BTreeSet<String>,
}

/// Counts by the policies' UIDs, and losers by kind, namespace and name.
fn tally(stores: &Stores, records: &[TunedVirtualMachine]) -> BTreeMap<String, Tally> {
    let mut tally: BTreeMap<String, Tally> = BTreeMap::new();
    let phases: BTreeMap<(String, String), Phase> =
        records.iter().filter_map(|r| Some(((r.namespace()?, r.name_any()), r.status.as_ref()?.phase))).collect();
    for (vm, consent) in stores.decisions() {
        let namespace = vm.namespace().unwrap_or_default();
        let Some(phase) = phases.get(&(namespace.clone(), vm.name_any())) else { continue };
        let Consent::Given(given) = consent else { continue };
        let Some(uid) = given.by.uid.clone() else { continue };
        let counts = tally.entry(uid).or_default();
        counts.matched += 1;
        match phase {
            Phase::Tuned => counts.tuned += 1,
            Phase::Proposed => counts.proposed += 1,
            Phase::Waiting | Phase::Applying => counts.waiting += 1,
            Phase::Refused | Phase::NeedsHuman | Phase::OptedOut => counts.refused += 1,
            Phase::Observed | Phase::Reverted => {}
        }
        for loser in &given.losers {
            let key = loser_key(&format!("{:?}", given.by.kind), &namespace, loser);
            tally.entry(key).or_default().lost_to.insert(given.by.name.clone());
        }
    }
    tally
}

fn loser_key(kind: &str, namespace: &str, name: &str) -> String {
    let namespace = if kind == "ClusterWindowsTuning" { "" } else { namespace };
    format!("{kind}/{namespace}/{name}")
}

async fn write_all(client: &Client, stores: &Stores, writer: &Writer, tally: &BTreeMap<String, Tally>) {
    for guard in stores.tunings.state() {
        let view = index::namespaced(&guard);
        if let DeserializeGuard(Err(invalid)) = &*guard {
            policy::say_unreadable::<WindowsTuning>(client, writer, invalid).await;
        }
        if let DeserializeGuard(Ok(tuning)) = &*guard {
            let api = Api::namespaced(client.clone(), &tuning.namespace().unwrap_or_default());
            let new = status(tuning, tuning.status.as_ref(), &view, tally);
            policy::update(&api, writer, tuning, new, |t, s| t.status = Some(s)).await;
        }
    }
    for guard in stores.cluster_tunings.state() {
        let view = index::cluster(&guard);
        if let DeserializeGuard(Err(invalid)) = &*guard {
            policy::say_unreadable::<ClusterWindowsTuning>(client, writer, invalid).await;
        }
        if let DeserializeGuard(Ok(tuning)) = &*guard {
            let api = Api::all(client.clone());
            let new = status(tuning, tuning.status.as_ref(), &view, tally);
            policy::update(&api, writer, tuning, new, |t, s| t.status = Some(s)).await;
        }
    }
}

/// The status that the counts lead to, or nothing where it is there already.
fn status<K: Resource<DynamicType = ()>>(
    object: &K,
    before: Option<&TuningStatus>,
    policy: &Policy,
    tally: &BTreeMap<String, Tally>,
) -> Option<TuningStatus> {
    let generation = object.meta().generation;
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    let counts = tally.get(&object.meta().uid.clone().unwrap_or_default()).cloned().unwrap_or_default();
    let key = loser_key(&K::kind(&()), &namespace, &object.meta().name.clone().unwrap_or_default());
    let lost_to = tally.get(&key).map(|t| &t.lost_to);
    let mut status = before.cloned().unwrap_or_default();
    status.observed_generation = generation;
    status.matched = counts.matched;
    status.tuned = counts.tuned;
    status.proposed = counts.proposed;
    status.waiting = counts.waiting;
    status.refused = counts.refused;
    let now = Timestamp::now();
    let (ready, why, text) = match policy {
        Policy::Readable(_) => (true, reason::ACCEPTED, "in force".to_owned()),
        Policy::Unreadable { why, .. } => {
            (false, reason::INVALID, format!("{why}; nothing is written or restored because of it"))
        }
    };
    conditions::set(&mut status.conditions, condition::READY, ready, why, &text, generation, now);
    let (overlaps, why, text) = match lost_to {
        Some(winners) if !winners.is_empty() => {
            let winners: Vec<&str> = winners.iter().map(String::as_str).collect();
            (true, reason::LOWER_PRIORITY, format!("{} decides for some of its VMs", winners.join(", ")))
        }
        _ => (false, reason::NO_OVERLAP, "no other policy takes any of its VMs".to_owned()),
    };
    conditions::set(&mut status.conditions, condition::OVERLAPS, overlaps, why, &text, generation, now);
    (Some(&status) != before).then_some(status)
}
