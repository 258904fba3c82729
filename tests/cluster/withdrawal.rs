//! The end of a policy: restored or kept when it was seen, frozen when it was not.

use harness::{Install, Operator};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use wintune::api::record::Phase;

use crate::support::{Cluster, QUIET, condition, domain, spec_bytes, until, when_stopped, windows};

const RESTORE: &str = r#"{"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}}"#;

fn restoring() -> serde_json::Value {
    serde_json::from_str(RESTORE).unwrap()
}

#[tokio::test]
async fn restore_gives_back_the_very_bytes() {
    let cluster = Cluster::turn().await;
    let bare = cluster.create(&windows(&cluster, "bare")).await;
    let mut partly = windows(&cluster, "partly");
    partly["spec"]["template"]["spec"]["domain"]["features"] =
        json!({"hyperv": {"relaxed": {}, "synictimer": {}, "synic": {"enabled": true}}});
    partly["spec"]["template"]["spec"]["domain"]["clock"] = json!({"timezone": "Europe/Berlin", "timer": {"pit": {}}});
    let partly = cluster.create(&partly).await;
    let mut none = windows(&cluster, "no-features");
    none["spec"]["template"]["spec"]["domain"]["features"] = json!(null);
    let none = cluster.create(&none).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", restoring()).await;
    for name in ["bare", "partly", "no-features"] {
        cluster.phase(name, Phase::Tuned).await;
        assert_eq!(domain(&cluster.vm(name).await)["features"]["hyperv"].as_object().unwrap().len(), 9);
    }
    cluster.policies().delete("all", &DeleteParams::default()).await.unwrap();
    for (name, before) in [("bare", bare), ("partly", partly), ("no-features", none)] {
        let record = cluster.phase(name, Phase::Reverted).await;
        let after = cluster.vm(name).await;
        assert_eq!(spec_bytes(&after), spec_bytes(&before), "{name}");
        assert!(after["metadata"]["annotations"]["wintune.dev/applied"].is_null());
        assert!(record.status.unwrap().applied.is_none());
        cluster.stays(name).await;
    }
    until("an event", async || cluster.events("bare").await.contains(&"Restored".to_owned())).await;
}

#[tokio::test]
async fn restore_leaves_what_others_changed_since() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "shared")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", restoring()).await;
    cluster.phase("shared", Phase::Tuned).await;
    // Unrelated fields, and one of ours.
    let theirs = json!({"metadata": {"labels": {"tier": "db"}}, "spec": {"template": {"spec": {"domain": {
        "cpu": {"cores": 8}, "features": {"smm": {"enabled": true}, "hyperv": {"spinlocks": {"spinlocks": 4096}}}}}}}});
    cluster.edit("shared", theirs).await;
    cluster.policies().delete("all", &DeleteParams::default()).await.unwrap();
    let record = cluster.phase("shared", Phase::Reverted).await;
    let after = cluster.vm("shared").await;
    let mut expected = before.clone();
    let wanted = &mut expected["spec"]["template"]["spec"]["domain"];
    wanted["cpu"]["cores"] = json!(8);
    wanted["features"]["smm"] = json!({"enabled": true});
    wanted["features"]["hyperv"] = json!({"spinlocks": {"enabled": true, "spinlocks": 4096}});
    assert_eq!(spec_bytes(&after), spec_bytes(&expected));
    assert_eq!(record.status.unwrap().kept_on_restore, ["/features/hyperv/spinlocks"]);
}

#[tokio::test]
async fn an_unrelated_change_does_not_hinder_an_exact_restore() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "edited")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", restoring()).await;
    cluster.phase("edited", Phase::Tuned).await;
    cluster.edit("edited", json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 6}}}}}})).await;
    // No longer selected, which is a withdrawal as well.
    cluster.policy("all", json!({"selector": {"matchLabels": {"tier": "none"}}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("edited", Phase::Reverted).await;
    let mut expected = before.clone();
    expected["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = json!(6);
    assert_eq!(spec_bytes(&cluster.vm("edited").await), spec_bytes(&expected));
}

#[tokio::test]
async fn keep_changes_nothing() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "kept")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("kept", Phase::Tuned).await;
    let tuned = cluster.vm("kept").await;
    cluster.policies().delete("all", &DeleteParams::default()).await.unwrap();
    let record = cluster.phase("kept", Phase::Observed).await;
    assert!(record.status.unwrap().applied.is_some(), "wintune restore can still take it back");
    cluster.stays("kept").await;
    assert_eq!(cluster.vm("kept").await["metadata"]["resourceVersion"], tuned["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_restores_nothing() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "frozen")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", restoring()).await;
    cluster.phase("frozen", Phase::Tuned).await;
    // A later release's schema lets through what this one cannot read.
    let definitions = cluster.all("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let name = "windowstunings.wintune.dev";
    let original = definitions.get(name).await.unwrap();
    let mut loose = original.clone();
    loose.data["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    definitions.replace(name, &Default::default(), &loose).await.unwrap();
    let bad = json!({"spec": {"onWithdrawal": "Restore", "apply": {"mode": "Tomorrow"}}});
    until("the loose schema is in force", async || {
        cluster.policies().patch_metadata("all", &PatchParams::default(), &Patch::Merge(&bad)).await.is_ok()
    })
    .await;
    let record = cluster.phase("frozen", Phase::NeedsHuman).await;
    assert_eq!(condition(&record, "Ready").1, "Frozen");
    until("the policy says so itself", async || {
        let api = cluster.all("wintune.dev", "v1alpha1", "WindowsTuning");
        let found = api.list(&Default::default()).await.unwrap().items;
        let own = found.iter().find(|p| p.metadata.namespace.as_ref() == Some(&cluster.namespace)).unwrap();
        own.data["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Ready" && c["status"] == "False")
    })
    .await;
    cluster.stays("frozen").await;
    assert_eq!(domain(&cluster.vm("frozen").await)["features"]["hyperv"].as_object().unwrap().len(), 9);

    cluster.policies().delete("all", &DeleteParams::default()).await.unwrap();
    let mut back = definitions.get(name).await.unwrap();
    back.data["spec"] = original.data["spec"].clone();
    definitions.replace(name, &Default::default(), &back).await.unwrap();
    // Now its deletion was seen, under a definition that is there.
    cluster.phase("frozen", Phase::Reverted).await;
}

#[tokio::test]
async fn a_deleted_definition_restores_nothing() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "orphan")).await;
    let mut operator = cluster.operator().await;
    cluster.policy("all", restoring()).await;
    cluster.phase("orphan", Phase::Tuned).await;
    let definitions = cluster.all("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    // The API server deletes every policy before the definition goes: the deletions are seen, but nobody withdrew.
    definitions.delete("windowstunings.wintune.dev", &DeleteParams::default()).await.unwrap();
    until("the definition is gone", async || {
        definitions.get_opt("windowstunings.wintune.dev").await.unwrap().is_none()
    })
    .await;
    let record = cluster.phase("orphan", Phase::NeedsHuman).await;
    assert!(record.status.unwrap().next.unwrap().contains("windowstunings.wintune.dev"));
    tokio::time::sleep(QUIET).await;
    assert_eq!(domain(&cluster.vm("orphan").await)["features"]["hyperv"].as_object().unwrap().len(), 9);

    // A new start without the definition waits, says so, and restores nothing either.
    operator.terminate().await.unwrap();
    let operator =
        Operator::start(cluster.plane(), cluster.install(), crate::support::program(), "wintune-test").await.unwrap();
    until("it says what is missing", async || {
        operator.get("/readyz").await.is_ok_and(|(code, text)| code == 503 && text.contains("windowstunings"))
    })
    .await;
    assert_eq!(operator.metric("wintune_crd_missing", &["windowstunings"]).await.unwrap(), 1.0);
    cluster.plane().apply_files(&crate::support::chart().join("files/crds")).await.unwrap();
    until("it is ready", async || operator.get("/readyz").await.is_ok_and(|(code, _)| code == 200)).await;
    // The definition is there again and the policy is not, but still nobody withdrew it.
    let record = cluster.phase("orphan", Phase::NeedsHuman).await;
    cluster.stays("orphan").await;
    assert!(record.status.unwrap().policy.is_some());
    // The policy comes back as it was: still tuned, nothing written.
    cluster.policy("all", restoring()).await;
    cluster.phase("orphan", Phase::Tuned).await;
}

#[tokio::test]
async fn a_store_that_was_never_filled_restores_nothing() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "unsynced")).await;
    let mut operator = cluster.operator().await;
    cluster.policy("all", restoring()).await;
    cluster.phase("unsynced", Phase::Tuned).await;
    operator.terminate().await.unwrap();
    cluster.policies().delete("all", &DeleteParams::default()).await.unwrap();

    // Without the right to list namespaces one store stays empty; the policy's absence is in another, which is full.
    let cut = |mut object: serde_json::Value| {
        if object["kind"] == "ClusterRole" && object["metadata"]["name"] == "wintune-operator" {
            let rules = object["rules"].as_array_mut().unwrap();
            rules.iter_mut().for_each(|rule| {
                rule["resources"].as_array_mut().unwrap().retain(|r| r != "namespaces");
            });
            rules.retain(|rule| !rule["resources"].as_array().unwrap().is_empty());
        }
        Some(object)
    };
    let chart = crate::support::chart();
    Install::chart(cluster.plane(), &chart, "wintune-system", cut).await.unwrap();
    tokio::time::sleep(QUIET).await;
    let operator =
        Operator::start(cluster.plane(), cluster.install(), crate::support::program(), "wintune-test").await.unwrap();
    cluster.stays("unsynced").await;
    let (code, text) = operator.get("/readyz").await.unwrap();
    assert!(code == 503 && text.contains("filling the stores"), "{code} {text}");
    assert_eq!(domain(&cluster.vm("unsynced").await)["features"]["hyperv"].as_object().unwrap().len(), 9);

    Install::chart(cluster.plane(), &chart, "wintune-system", Some).await.unwrap();
    cluster.phase("unsynced", Phase::Reverted).await;
}
