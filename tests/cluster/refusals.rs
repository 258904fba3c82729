//! What is not written, and what is said instead.

use serde_json::json;
use wintune::api::record::Phase;

use crate::support::{ALL_FEATURES, Cluster, condition, domain, until, when_stopped, windows};
use crate::webhook::Webhook;

#[tokio::test]
async fn a_webhooks_refusal_becomes_a_condition_and_no_retry_loop() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "denied")).await;
    let webhook = Webhook::start(&cluster, "kubevirt.io", "v1", &["virtualmachines"], |request| {
        let ours = request["userInfo"]["username"].as_str().is_some_and(|u| u.contains("wintune"));
        ours.then(|| "the shareable disk of this VM is on a class that cannot share".to_owned())
    })
    .await;
    let operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("denied", Phase::Refused).await;
    assert_eq!(condition(&record, "Ready").1, "ClusterRefused");
    assert!(record.status.unwrap().next.unwrap().contains("on a class that cannot share"));
    until("a warning on the VM", async || cluster.events("denied").await.contains(&"ClusterRefused".to_owned())).await;
    cluster.stays("denied").await;
    assert_eq!(operator.metric("wintune_writes_total", &["target=\"vm-dry-run\""]).await.unwrap(), 1.0);
    assert_eq!(operator.metric("wintune_writes_total", &["target=\"vm\""]).await.unwrap(), 0.0);
    // A changed VM is another question.
    webhook.stop().await;
    cluster.edit("denied", json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 4}}}}}})).await;
    cluster.phase("denied", Phase::Tuned).await;
}

#[tokio::test]
async fn a_feature_goes_in_only_if_every_eligible_node_has_it() {
    let cluster = Cluster::turn().await;
    let without: Vec<&str> = ALL_FEATURES.into_iter().filter(|f| !["synic", "synictimer"].contains(f)).collect();
    cluster.node("node-2", &without).await;
    cluster.create(&windows(&cluster, "mixed")).await;
    let mut pinned = windows(&cluster, "pinned");
    pinned["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "nowhere"});
    cluster.create(&pinned).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("mixed", Phase::Tuned).await;
    let hyperv = domain(&cluster.vm("mixed").await)["features"]["hyperv"].clone();
    assert!(hyperv["synic"].is_null() && hyperv["synictimer"].is_null(), "{hyperv}");
    assert_eq!(hyperv.as_object().unwrap().len(), 7);
    let status = record.status.unwrap();
    assert_eq!(status.plan.unwrap().refused, 3);
    assert!(status.next.unwrap().contains("hyperv.node.kubevirt.io/synic"));
    let record = cluster.phase("pinned", Phase::Tuned).await;
    let vm = cluster.vm("pinned").await;
    assert!(domain(&vm)["features"]["hyperv"].is_null(), "nothing is known of where it runs");
    assert!(record.status.unwrap().next.unwrap().contains("nodeSelector"));
    // The node is upgraded: what was refused goes in.
    cluster.node("node-2", &ALL_FEATURES).await;
    until("the rest goes in", async || {
        domain(&cluster.vm("mixed").await)["features"]["hyperv"].as_object().is_some_and(|h| h.len() == 9)
    })
    .await;
}

#[tokio::test]
async fn what_the_owner_chose_stays_unless_an_override_says_otherwise() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "chosen");
    vm["spec"]["template"]["spec"]["domain"]["features"]["hyperv"] =
        json!({"ipi": {"enabled": false}, "tlbflush": {}, "reset": {"enabled": true}});
    vm["spec"]["template"]["spec"]["domain"]["clock"] =
        json!({"timezone": "Asia/Tokyo", "timer": {"hpet": {"present": true}}});
    cluster.create(&vm).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("chosen", Phase::Tuned).await;
    let vm = cluster.vm("chosen").await;
    let hyperv = &domain(&vm)["features"]["hyperv"];
    assert_eq!((&hyperv["ipi"], &hyperv["tlbflush"]), (&json!({"enabled": false}), &json!({})));
    let clock = &domain(&vm)["clock"];
    assert_eq!(clock["timer"]["hpet"], json!({"present": true}));
    assert_eq!((&clock["timezone"], &clock["utc"]), (&json!("Asia/Tokyo"), &json!(null)));

    let overrides = json!({"hyperv": {"ipi": "Enabled", "tlbflush": "Disabled", "reset": "Disabled"}});
    cluster.policy("all", json!({"selector": {}, "overrides": overrides, "apply": {"mode": "WhenStopped"}})).await;
    until("the overrides are in", async || {
        let hyperv = domain(&cluster.vm("chosen").await)["features"]["hyperv"].clone();
        hyperv["ipi"]["enabled"] == true
            && hyperv["tlbflush"]["enabled"] == false
            && hyperv["reset"]["enabled"] == false
    })
    .await;
}

#[tokio::test]
async fn passthrough_and_broken_vms_are_refused_and_said() {
    let cluster = Cluster::turn().await;
    let mut empty = windows(&cluster, "passthrough");
    empty["spec"]["template"]["spec"]["domain"]["features"]["hypervPassthrough"] = json!({});
    cluster.create(&empty).await;
    let mut broken = windows(&cluster, "broken");
    broken["spec"]["template"]["spec"]["domain"]["firmware"] = json!({"bootloader": {"efi": {}}});
    cluster.create(&broken).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("passthrough", Phase::Refused).await;
    let status = record.status.unwrap();
    assert!(status.next.unwrap().contains("hypervPassthrough"));
    assert!(status.warnings[0].contains("ends the virt-handler of its node"), "{:?}", status.warnings);
    until("a warning on the VM", async || cluster.events("passthrough").await.contains(&"Dangerous".to_owned())).await;
    let record = cluster.phase("broken", Phase::Refused).await;
    assert!(record.status.unwrap().next.unwrap().contains("secure boot"));
    for name in ["passthrough", "broken"] {
        cluster.stays(name).await;
    }
}

#[tokio::test]
async fn a_forged_annotation_is_refused_and_reported() {
    let cluster = Cluster::turn().await;
    let entry = |at: &str| json!([{"at": at, "was": "{}", "now": "{}"}]);
    for (name, annotation) in [
        ("foreign-pointer", json!({"version": 1, "vmUid": "@", "entries": entry("/devices/disks")})),
        (
            "other-vm",
            json!({"version": 1, "vmUid": "0e6ad2a8-0000-0000-0000-000000000000", "entries": entry("/clock/utc")}),
        ),
    ] {
        let created = cluster.create(&windows(&cluster, name)).await;
        let text = annotation.to_string().replace('@', created["metadata"]["uid"].as_str().unwrap());
        cluster.edit(name, json!({"metadata": {"annotations": {"wintune.dev/applied": text}}})).await;
    }
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore"})).await;
    for name in ["foreign-pointer", "other-vm"] {
        let record = cluster.phase(name, Phase::Proposed).await;
        assert_eq!(condition(&record, "AppliedIntact"), ("False".to_owned(), "AppliedForged".to_owned()), "{name}");
        assert!(record.status.unwrap().applied.is_none());
        until("a warning", async || cluster.events(name).await.contains(&"AppliedForged".to_owned())).await;
    }
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    for name in ["foreign-pointer", "other-vm"] {
        cluster.phase(name, Phase::Observed).await;
        cluster.stays(name).await;
    }
}

#[tokio::test]
async fn a_forged_annotation_cannot_steer_the_restore_of_a_tuned_vm() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "steered")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("steered", Phase::Tuned).await;
    let forged = json!({"version": 1, "vmUid": before["metadata"]["uid"], "entries": [
        {"at": "/features/hyperv/vapic", "was": "{\"enabled\":false}", "now": "{\"enabled\":true}"}]});
    cluster.edit("steered", json!({"metadata": {"annotations": {"wintune.dev/applied": forged.to_string()}}})).await;
    until("it is noticed", async || {
        condition(&cluster.record("steered").await.unwrap(), "AppliedIntact").1 == "AppliedForged"
    })
    .await;
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    cluster.phase("steered", Phase::Reverted).await;
    assert_eq!(crate::support::spec_bytes(&cluster.vm("steered").await), crate::support::spec_bytes(&before));
}

#[tokio::test]
async fn what_another_writer_takes_back_is_left_alone() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "contested")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("contested", Phase::Tuned).await;
    cluster
        .edit("contested", json!({"spec": {"template": {"spec": {"domain": {"features": {"hyperv": null}}}}}}))
        .await;
    let record = cluster.phase("contested", Phase::Refused).await;
    assert_eq!(condition(&record, "Ready").1, "RevertedByOther");
    cluster.stays("contested").await;
    // A new generation of the policy is a new question.
    cluster.policy("all", json!({"selector": {}, "priority": 3, "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("contested", Phase::Tuned).await;
}
