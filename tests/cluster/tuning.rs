//! The main job: a stopped Windows VM gets its enlightenments and its clock, once.

use serde_json::json;
use wintune::api::record::Phase;

use crate::support::{Cluster, condition, domain, resource_version, until, when_stopped, windows};

#[tokio::test]
async fn a_stopped_windows_vm_gets_the_nine_and_the_clock() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "plain")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;

    let record = cluster.phase("plain", Phase::Tuned).await;
    let vm = cluster.vm("plain").await;
    let on = json!({"enabled": true});
    assert_eq!(
        domain(&vm)["features"],
        json!({"acpi": {"enabled": true}, "hyperv": {
            "ipi": on, "relaxed": on, "reset": on, "runtime": on, "spinlocks": {"enabled": true, "spinlocks": 8191},
            "synic": on, "synictimer": {"enabled": true, "direct": on}, "vapic": on, "vpindex": on}})
    );
    assert_eq!(
        domain(&vm)["clock"],
        json!({"utc": {}, "timer": {"hyperv": {"present": true}, "hpet": {"present": false},
            "pit": {"tickPolicy": "delay"}, "rtc": {"tickPolicy": "catchup"}}})
    );
    for (field, value) in domain(&before).as_object().unwrap() {
        if field != "features" {
            assert_eq!(domain(&vm)[field], *value, "{field} was touched");
        }
    }
    // One write for one decision: the generation moved once.
    assert_eq!(vm["metadata"]["generation"], 2);
    let managers = vm["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|m| m["manager"] == "wintune"), "{managers:?}");
    assert_eq!(condition(&record, "Ready"), ("True".to_owned(), "Tuned".to_owned()));
    assert_eq!(condition(&record, "Windows").0, "True");
    let owner = &record.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("VirtualMachine", vm["metadata"]["uid"].as_str().unwrap()));
    assert!(serde_json::to_string(&record.status).unwrap().len() < 4096);
    until("an event on the VM", async || cluster.events("plain").await.contains(&"Tuned".to_owned())).await;
    until("the policy's status", async || {
        let status = cluster.policies().get("all").await.unwrap().status.unwrap_or_default();
        status.matched == 1
            && status.tuned == 1
            && status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    })
    .await;
}

#[tokio::test]
async fn what_is_there_stays_and_a_second_pass_writes_nothing() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "relaxed");
    vm["spec"]["template"]["spec"]["domain"]["features"]["hyperv"] = json!({"relaxed": {}});
    cluster.create(&vm).await;
    let mut operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("relaxed", Phase::Tuned).await;
    let vm = cluster.vm("relaxed").await;
    let hyperv = domain(&vm)["features"]["hyperv"].as_object().unwrap();
    assert_eq!(hyperv.len(), 9);
    assert_eq!(hyperv["relaxed"], json!({}));
    assert_eq!(domain(&vm)["clock"]["timer"].as_object().unwrap().len(), 4);

    // A new look for every reason that there is: an edit of the policy, a status of the VM, another operator.
    cluster.policy("all", json!({"selector": {}, "priority": 1, "apply": {"mode": "WhenStopped"}})).await;
    cluster.stays("relaxed").await;
    operator.terminate().await.unwrap();
    let _operator = cluster.operator().await;
    cluster.stays("relaxed").await;
    assert_eq!(resource_version(&cluster.vm("relaxed").await), resource_version(&vm));
    // Only what the edited policy changed in the record: its generation.
    let again = cluster.record("relaxed").await.unwrap().status.unwrap();
    let before = record.status.unwrap();
    assert_eq!((again.applied, again.since, again.plan), (before.applied, before.since, before.plan));
}

#[tokio::test]
async fn a_running_vm_waits_until_it_is_stopped() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "busy");
    vm["spec"]["runStrategy"] = json!("RerunOnFailure");
    let simvirt = simvirt::Simvirt::start(cluster.client.clone(), simvirt::Options::default()).await.unwrap();
    cluster.create(&vm).await;
    until("it runs", async || cluster.instances().get_opt("busy").await.unwrap().is_some()).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("busy", Phase::Waiting).await;
    assert!(record.status.unwrap().next.unwrap().contains("running instance"));
    assert!(domain(&cluster.vm("busy").await)["features"]["hyperv"].is_null());

    until("the guest has booted", async || {
        let vmi = cluster.instances().get_opt("busy").await.unwrap();
        vmi.is_some_and(|i| i.data.pointer("/status/phase").is_some_and(|p| p == "Running"))
    })
    .await;
    // A guest that shuts itself down stays down under RerunOnFailure: a clean moment to write.
    simvirt.guest().shutdown(&cluster.namespace, "busy").await.unwrap();
    cluster.phase("busy", Phase::Tuned).await;
    let vm = cluster.vm("busy").await;
    assert_eq!(domain(&vm)["features"]["hyperv"].as_object().unwrap().len(), 9);
    assert!(cluster.instances().get_opt("busy").await.unwrap().is_none(), "nothing started it");
    simvirt.stop().await;
}

#[tokio::test]
async fn an_always_vm_is_told_how_to_be_written() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "always");
    vm["spec"]["runStrategy"] = json!("Always");
    cluster.create(&vm).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("always", Phase::Waiting).await;
    assert!(record.status.unwrap().next.unwrap().contains("Halted"));
    cluster.stays("always").await;
    cluster.edit("always", json!({"spec": {"runStrategy": "Halted"}})).await;
    cluster.phase("always", Phase::Tuned).await;
}
