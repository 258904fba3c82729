//! What the operator survives: its own death at the worst moment, the API server's absence, a second replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::Operator;
use serde_json::{Value, json};
use wintune::api::record::Phase;

use crate::support::{Cluster, domain, program, spec_bytes, until, when_stopped, windows};
use crate::webhook::Webhook;

/// The moments at which the operator is killed: what it has just sent, and is not answered for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    DryRun,
    Announcement,
    Write,
    Result,
}

fn is(moment: Moment, request: &Value) -> bool {
    let kind = request["kind"]["kind"].as_str().unwrap_or_default();
    let dry_run = request["dryRun"] == json!(true);
    let by_us = request["userInfo"]["username"].as_str().is_some_and(|u| u.contains("wintune"));
    let state = &request["object"]["status"]["applied"]["state"];
    by_us
        && match moment {
            Moment::DryRun => kind == "VirtualMachine" && dry_run,
            Moment::Write => kind == "VirtualMachine" && !dry_run,
            Moment::Announcement => kind == "TunedVirtualMachine" && state == "Announced",
            Moment::Result => kind == "TunedVirtualMachine" && state == "Written",
        }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_loses_nothing_and_converges() {
    for moment in [Moment::DryRun, Moment::Announcement, Moment::Write, Moment::Result] {
        killed_at(moment).await;
    }
}

async fn killed_at(moment: Moment) {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "victim")).await;
    let operator = Arc::new(std::sync::Mutex::new(None::<Operator>));
    let (killer, killed) = (operator.clone(), Arc::new(AtomicBool::new(false)));
    let hit = killed.clone();
    let groups = if matches!(moment, Moment::DryRun | Moment::Write) {
        ("kubevirt.io", "v1", vec!["virtualmachines"])
    } else {
        ("wintune.dev", "v1alpha1", vec!["tunedvirtualmachines", "tunedvirtualmachines/status"])
    };
    let webhook = Webhook::start(&cluster, groups.0, groups.1, &groups.2, move |request| {
        if is(moment, request) && !hit.swap(true, Ordering::SeqCst) {
            // It dies while the API server works on its request, which may go through all the same.
            killer.lock().unwrap().as_mut().unwrap().kill();
        }
        None
    })
    .await;
    *operator.lock().unwrap() = Some(cluster.operator().await);
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    until("it was killed", async || killed.load(Ordering::SeqCst)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    *operator.lock().unwrap() = None;

    let _second = cluster.operator().await;
    let record = cluster.phase("victim", Phase::Tuned).await;
    let vm = cluster.vm("victim").await;
    assert_eq!(domain(&vm)["features"]["hyperv"].as_object().unwrap().len(), 9, "{moment:?}");
    assert_eq!(vm["metadata"]["generation"], 2, "{moment:?}: written once");
    assert_eq!(record.status.unwrap().applied.unwrap().entries.len(), 15, "{moment:?}");
    webhook.stop().await;
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    cluster.phase("victim", Phase::Reverted).await;
    assert_eq!(spec_bytes(&cluster.vm("victim").await), spec_bytes(&before), "{moment:?}: the pre-image is whole");
}

#[tokio::test]
async fn twenty_seconds_without_an_api_server() {
    let mut cluster = Cluster::turn().await;
    for n in 0..5 {
        cluster.create(&windows(&cluster, &format!("before-{n}"))).await;
    }
    let mut operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    // Right in the middle of the work.
    cluster.plane_mut().stop_apiserver().await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(operator.get("/healthz").await.is_ok_and(|(code, _)| code == 200) || !operator.running().unwrap());
    cluster.plane_mut().start_apiserver().await.unwrap();
    // The lease could not be renewed for longer than its deadline: the process ended, and its pod is started again.
    let mut second = None;
    if !operator.running().unwrap() {
        assert!(operator.log().contains("lease was lost"), "{}", operator.log());
        second = Some(cluster.operator().await);
    }
    cluster.create(&windows(&cluster, "after")).await;
    for name in ["before-0", "before-1", "before-2", "before-3", "before-4", "after"] {
        cluster.phase(name, Phase::Tuned).await;
        assert_eq!(cluster.vm(name).await["metadata"]["generation"], 2, "{name} was written once");
    }
    drop(second);
}

#[tokio::test]
async fn one_of_two_replicas_writes_and_the_other_takes_over() {
    let cluster = Cluster::turn().await;
    let mut first = cluster.operator().await;
    until("the first leads", async || first.metric("wintune_leader", &[]).await.is_ok_and(|v| v == 1.0)).await;
    let second = Operator::start(cluster.plane(), cluster.install(), program(), "wintune-second").await.unwrap();
    until("the second is ready without leading", async || second.get("/readyz").await.is_ok_and(|(c, _)| c == 200))
        .await;
    cluster.create(&windows(&cluster, "one")).await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("one", Phase::Tuned).await;
    assert_eq!(second.metric("wintune_writes_total", &[]).await.unwrap(), 0.0);
    // A graceful end hands the lease over at once; the second sees it at its next look, within 3 s.
    first.terminate().await.unwrap();
    until("the second leads", async || second.metric("wintune_leader", &[]).await.is_ok_and(|v| v == 1.0)).await;
    cluster.create(&windows(&cluster, "two")).await;
    cluster.phase("two", Phase::Tuned).await;
    assert!(second.metric("wintune_writes_total", &["target=\"vm\"", "outcome=\"ok\""]).await.unwrap() >= 1.0);
    // So that the next test's operator need not wait for a lease that nobody gave back.
    let mut second = second;
    second.terminate().await.unwrap();
}
