//! Under the chart's ServiceAccount every rule is needed, and none is missing.
//!
//! The scenario uses everything that the operator does. It passes with the chart's rules, and fails without any one
//! verb on any one resource of them.

use harness::{Install, Operator};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use wintune::api::record::Phase;

use crate::support::{Cluster, chart, program, windows};

/// How long a scenario may take that lacks a rule without anything saying so.
const SCENARIO: Duration = Duration::from_secs(25);

/// One verb on one resource of one rule.
#[derive(Clone, Debug, PartialEq)]
struct Atom {
    role: String,
    rule: usize,
    resource: String,
    name: Option<String>,
    verb: String,
}

fn strings(rule: &Value, field: &str) -> Vec<String> {
    rule[field].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn is_operators_role(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    let aggregated =
        object["metadata"]["labels"].as_object().is_some_and(|l| l.keys().any(|k| k.contains("aggregate-to")));
    (kind == "Role" || kind == "ClusterRole") && !aggregated
}

fn atoms() -> Vec<Atom> {
    let mut atoms = Vec::new();
    for object in harness::helm_template(&chart(), "wintune", "wintune-system", &[]).unwrap() {
        if !is_operators_role(&object) {
            continue;
        }
        for (index, rule) in object["rules"].as_array().unwrap().iter().enumerate() {
            let names = strings(rule, "resourceNames");
            let names: Vec<Option<String>> =
                if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
            for resource in strings(rule, "resources") {
                for verb in strings(rule, "verbs") {
                    for name in &names {
                        atoms.push(Atom {
                            role: format!(
                                "{}/{}",
                                object["kind"].as_str().unwrap(),
                                object["metadata"]["name"].as_str().unwrap()
                            ),
                            rule: index,
                            resource: resource.clone(),
                            name: name.clone(),
                            verb: verb.clone(),
                        });
                    }
                }
            }
        }
    }
    atoms
}

/// The role without one atom: its rule is split, so that nothing else is lost.
fn without(atom: &Atom, mut object: Value) -> Value {
    let label = format!(
        "{}/{}",
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default()
    );
    if !is_operators_role(&object) || label != atom.role {
        return object;
    }
    let rules = object["rules"].as_array().unwrap().clone();
    let mut kept = Vec::new();
    for (index, rule) in rules.into_iter().enumerate() {
        if index != atom.rule {
            kept.push(rule);
            continue;
        }
        for resource in strings(&rule, "resources") {
            let names = strings(&rule, "resourceNames");
            let names: Vec<Option<String>> =
                if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
            for name in names {
                let hit = resource == atom.resource && name == atom.name;
                let verbs: Vec<String> =
                    strings(&rule, "verbs").into_iter().filter(|v| !(hit && *v == atom.verb)).collect();
                if verbs.is_empty() {
                    continue;
                }
                let mut part = json!({"apiGroups": rule["apiGroups"], "resources": [resource], "verbs": verbs});
                if let Some(name) = name {
                    part["resourceNames"] = json!([name]);
                }
                kept.push(part);
            }
        }
    }
    object["rules"] = json!(kept);
    object
}

/// Waits for something, and fails as soon as the operator says that it was not allowed something.
async fn wait(operator: &Operator, end: Instant, what: &str, mut is: impl AsyncFnMut() -> bool) -> Result<(), String> {
    loop {
        if let Some(line) = operator.log().lines().find(|l| l.contains("is forbidden")) {
            return Err(format!("{what}: {line}"));
        }
        if is().await {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{what}: not in time"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

const LEASE: &str = "wintune-operator";

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.client.clone(), &cluster.install().namespace)
}

/// Everything that the operator does.
async fn scenario(cluster: &Cluster, round: usize) -> Result<(), String> {
    // Every round makes the lease anew.
    let _ = leases(cluster).delete(LEASE, &DeleteParams::default()).await;
    let operator = Operator::start(cluster.plane(), cluster.install(), program(), "wintune-test").await.unwrap();
    let (own, other) = (format!("a-{round}"), format!("b-{round}"));
    for (name, by) in [(&own, "namespace"), (&other, "cluster")] {
        let mut vm = windows(cluster, name);
        vm["metadata"]["labels"]["by"] = json!(by);
        cluster.create(&vm).await;
    }
    // One VM for each place in which a preference can lie.
    let preferred = [format!("c-{round}"), format!("d-{round}"), format!("e-{round}")];
    crate::preference::make(cluster, "rbac").await;
    for (name, preference) in preferred.iter().zip(crate::preference::PLACES) {
        let mut vm = windows(cluster, name);
        vm["metadata"]["labels"]["by"] = json!("namespace");
        vm["spec"]["preference"] = crate::preference::place(preference, "rbac");
        // Instancetypes lie in the same places; one that is not there is asked for as well.
        let kinds = ["VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"];
        if let Some(kind) = kinds.get(preferred.iter().position(|p| p == name).unwrap()) {
            vm["spec"]["instancetype"] = json!({"name": "not-there", "kind": kind});
        }
        cluster.create(&vm).await;
    }
    let result = steps(cluster, &operator, &own, &other, &preferred).await;
    // What this round left must not decide for the next one. Nobody collects garbage here.
    drop(operator);
    let cluster_policies = cluster.all("wintune.dev", "v1alpha1", "ClusterWindowsTuning");
    let _ = cluster.policies().delete("rbac", &DeleteParams::default()).await;
    let _ = cluster_policies.delete("rbac", &DeleteParams::default()).await;
    for name in [&own, &other].into_iter().chain(&preferred) {
        let _ = cluster.vms().delete(name, &DeleteParams::default()).await;
        let _ = cluster.records().delete(name, &DeleteParams::default()).await;
    }
    result
}

async fn steps(
    cluster: &Cluster,
    operator: &Operator,
    own: &str,
    other: &str,
    preferred: &[String],
) -> Result<(), String> {
    let end = Instant::now() + SCENARIO;
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}});
    let spec = |by: &str| json!({"selector": {"matchLabels": {"by": by}}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}});
    let mut of_cluster = spec("cluster");
    of_cluster["namespaceSelector"] = here;
    cluster.policy("rbac", spec("namespace")).await;
    cluster.cluster_policy("rbac", of_cluster).await;
    let in_phase = async |name: &str, phase: Phase| {
        cluster.record(name).await.is_some_and(|r| r.status.is_some_and(|s| s.phase == phase))
    };
    let cluster_policies = cluster.all("wintune.dev", "v1alpha1", "ClusterWindowsTuning");
    wait(operator, end, "tuned by a policy", async || in_phase(own, Phase::Tuned).await).await?;
    wait(operator, end, "tuned by a cluster policy", async || in_phase(other, Phase::Tuned).await).await?;
    for name in preferred {
        wait(operator, end, "tuned beside a preference", async || in_phase(name, Phase::Tuned).await).await?;
    }
    wait(operator, end, "status of the policies", async || {
        let status = cluster.policies().get("rbac").await.unwrap().status.unwrap_or_default();
        status.tuned == 4 && cluster_policies.get("rbac").await.unwrap().data["status"]["tuned"] == 1
    })
    .await?;
    cluster.policies().delete("rbac", &DeleteParams::default()).await.unwrap();
    cluster_policies.delete("rbac", &DeleteParams::default()).await.unwrap();
    wait(operator, end, "restored", async || in_phase(own, Phase::Reverted).await).await?;
    for name in preferred {
        wait(operator, end, "restored beside a preference", async || in_phase(name, Phase::Reverted).await).await?;
    }
    wait(operator, end, "restored, cluster policy", async || in_phase(other, Phase::Reverted).await).await?;
    // The same event again within minutes is a series, which is a patch.
    cluster.policy("rbac", spec("namespace")).await;
    wait(operator, end, "tuned again", async || in_phase(own, Phase::Tuned).await).await?;
    let events = cluster.all("events.k8s.io", "v1", "Event");
    wait(operator, end, "a series of events", async || {
        events.list(&Default::default()).await.unwrap().items.iter().any(|e| {
            e.data["regarding"]["name"] == own
                && e.data["reason"] == "Tuned"
                && e.data["series"]["count"].as_i64() >= Some(2)
        })
    })
    .await?;
    wait(operator, end, "the lease renewed", async || {
        let spec = leases(cluster).get(LEASE).await.unwrap().spec.unwrap_or_default();
        spec.renew_time > spec.acquire_time
    })
    .await
}

#[tokio::test]
async fn no_rule_is_missing_and_none_is_too_many() {
    let cluster = Cluster::turn().await;
    let atoms = atoms();
    assert!(atoms.len() > 20, "{atoms:?}");
    scenario(&cluster, 0).await.expect("with every rule of the chart the scenario passes");
    let mut too_many = Vec::new();
    for (index, atom) in atoms.iter().enumerate() {
        let cut = atom.clone();
        Install::chart(cluster.plane(), &chart(), "wintune-system", move |o| Some(without(&cut, o))).await.unwrap();
        // The API server's authorizer learns of it by a watch.
        tokio::time::sleep(Duration::from_millis(300)).await;
        match scenario(&cluster, index + 1).await {
            Ok(()) => too_many.push(format!("{atom:?}")),
            Err(why) => {
                // It fails because of this very rule, and the operator's log says so to whoever reads it.
                let (resource, sub) = atom.resource.split_once('/').unwrap_or((&atom.resource, ""));
                let resource = if sub.is_empty() { resource.to_owned() } else { format!("{resource}/{sub}") };
                let words = format!("cannot {} resource \\\"{resource}\\\"", atom.verb);
                let plain = words.replace('\\', "");
                assert!(why.contains(&words) || why.contains(&plain), "without {atom:?}: {why}");
                println!("without {} {resource} {}: said so", atom.verb, atom.name.as_deref().unwrap_or(""));
            }
        }
    }
    Install::chart(cluster.plane(), &chart(), "wintune-system", Some).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(too_many.is_empty(), "the scenario passes without them: {too_many:#?}");
    println!("RBAC: each of {} verbs on resources is needed", atoms.len());
}
