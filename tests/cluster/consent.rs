//! Who may ask for a VM to be written, and who wins.

use serde_json::json;
use wintune::api::record::{Phase, PolicyKind};

use crate::support::{Cluster, QUIET, domain, until, when_stopped, windows};

#[tokio::test]
async fn with_neither_annotation_nor_policy_nothing_is_written() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "alone")).await;
    let _operator = cluster.operator().await;
    cluster.stays("alone").await;
    assert!(cluster.record("alone").await.is_none());
}

#[tokio::test]
async fn an_annotation_alone_is_consent_for_that_vm() {
    let cluster = Cluster::turn().await;
    for (name, annotation) in [
        ("by-tune", json!({"wintune.dev/tune": "true"})),
        ("by-profile", json!({"wintune.dev/profile": "migration-safe"})),
    ] {
        let mut vm = windows(&cluster, name);
        vm["metadata"]["annotations"] = annotation;
        cluster.create(&vm).await;
    }
    cluster.create(&windows(&cluster, "beside")).await;
    let _operator = cluster.operator().await;
    for name in ["by-tune", "by-profile"] {
        let record = cluster.phase(name, Phase::Tuned).await;
        assert_eq!(record.status.unwrap().policy.unwrap().kind, PolicyKind::Annotation);
        let vm = cluster.vm(name).await;
        assert_eq!(domain(&vm)["features"]["hyperv"].as_object().unwrap().len(), 9);
        assert_eq!(domain(&vm)["devices"]["disks"][0]["disk"]["bus"], "sata", "disks are kept");
    }
    assert!(cluster.record("beside").await.is_none());
}

#[tokio::test]
async fn an_annotation_with_a_wrong_value_or_profile_is_said_and_writes_nothing() {
    let cluster = Cluster::turn().await;
    for (name, key, value) in
        [("odd-tune", "wintune.dev/tune", "yes please"), ("odd-profile", "wintune.dev/profile", "turbo")]
    {
        let mut vm = windows(&cluster, name);
        vm["metadata"]["annotations"] = json!({key: value});
        cluster.create(&vm).await;
    }
    let _operator = cluster.operator().await;
    let record = cluster.phase("odd-tune", Phase::NeedsHuman).await;
    assert!(record.status.unwrap().next.unwrap().contains("must be \"true\" or \"false\""));
    let record = cluster.phase("odd-profile", Phase::Refused).await;
    assert!(record.status.unwrap().next.unwrap().contains("turbo"));
    cluster.stays("odd-tune").await;
    assert!(domain(&cluster.vm("odd-profile").await)["clock"].is_null());
}

#[tokio::test]
async fn propose_writes_only_the_record() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "shown")).await;
    let mut guess = windows(&cluster, "guessed");
    guess["metadata"]["labels"] = json!({});
    guess["spec"]["template"]["spec"]["domain"]["clock"] = json!({"timer": {"hyperv": {}}});
    cluster.create(&guess).await;
    let mut git = windows(&cluster, "from-git");
    git["metadata"]["annotations"] = json!({"argocd.argoproj.io/tracking-id": "x"});
    cluster.create(&git).await;
    cluster.policy("first", json!({"selector": {}})).await;
    let _operator = cluster.operator().await;
    let record = cluster.phase("shown", Phase::Proposed).await;
    assert_eq!(record.status.unwrap().plan.unwrap().changes, 15);
    cluster.stays("shown").await;

    cluster.policy("first", when_stopped()).await;
    cluster.phase("shown", Phase::Tuned).await;
    // Weak signs and a GitOps owner only ever propose.
    for name in ["guessed", "from-git"] {
        cluster.phase(name, Phase::Proposed).await;
        cluster.stays(name).await;
    }
}

#[tokio::test]
async fn an_opt_out_wins_and_its_end_is_noticed() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "out");
    vm["metadata"]["annotations"] = json!({"wintune.dev/tune": "true"});
    cluster.create(&vm).await;
    let _operator = cluster.operator().await;
    cluster.phase("out", Phase::Tuned).await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    let out = json!({"metadata": {"annotations": {"wintune.dev/tune": "false", "wintune.dev/reason": "vendor"}}});
    cluster.edit("out", out).await;
    let record = cluster.phase("out", Phase::OptedOut).await;
    assert!(record.status.unwrap().next.unwrap().contains("vendor"));
    // Frozen: what was written stays, even when the policy goes.
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    cluster.stays("out").await;
    assert_eq!(domain(&cluster.vm("out").await)["features"]["hyperv"].as_object().unwrap().len(), 9);
    cluster.edit("out", json!({"metadata": {"annotations": {"wintune.dev/tune": "true"}}})).await;
    cluster.phase("out", Phase::Tuned).await;
}

#[tokio::test]
async fn the_higher_priority_decides_and_the_loser_says_so() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "wanted")).await;
    cluster.policy("low", when_stopped()).await;
    cluster.policy("high", json!({"selector": {}, "priority": 10})).await;
    let _operator = cluster.operator().await;
    let record = cluster.phase("wanted", Phase::Proposed).await;
    assert_eq!(record.status.unwrap().policy.unwrap().name, "high");
    until("the loser's condition", async || {
        let status = cluster.policies().get("low").await.unwrap().status.unwrap_or_default();
        status.conditions.iter().any(|c| c.type_ == "Overlaps" && c.status == "True" && c.message.contains("high"))
    })
    .await;
}

#[tokio::test]
async fn a_cluster_policy_covers_namespaces_and_limits_narrow() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "covered")).await;
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}});
    cluster
        .cluster_policy("default", json!({"selector": {}, "namespaceSelector": here, "limits": {"modes": ["Propose"]}, "apply": {"mode": "WhenStopped"}}))
        .await;
    let _operator = cluster.operator().await;
    let record = cluster.phase("covered", Phase::Proposed).await;
    assert!(record.status.unwrap().next.unwrap().contains("does not allow mode WhenStopped"));
    tokio::time::sleep(QUIET).await;
    assert!(domain(&cluster.vm("covered").await)["features"]["hyperv"].is_null());
    cluster
        .cluster_policy("default", json!({"selector": {}, "namespaceSelector": here, "apply": {"mode": "WhenStopped"}}))
        .await;
    let record = cluster.phase("covered", Phase::Tuned).await;
    assert_eq!(record.status.unwrap().policy.unwrap().kind, PolicyKind::ClusterWindowsTuning);
}
