//! Faults that a hostile reviewer found, each kept as a test.

use serde_json::{Value, json};
use wintune::api::record::Phase;

use crate::support::{Cluster, condition, domain, spec_bytes, until, when_stopped, windows};
use crate::webhook::Webhook;

/// An instance whose guest agent reports an operating system.
async fn instance(cluster: &Cluster, name: &str, os: &str) {
    let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": cluster.namespace}, "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "guestOSInfo": {"id": os}}});
    let object: kube::api::DynamicObject = serde_json::from_value(vmi).unwrap();
    cluster.instances().create(&Default::default(), &object).await.unwrap();
}

fn manual(cluster: &Cluster, name: &str) -> Value {
    let mut vm = windows(cluster, name);
    vm["spec"]["runStrategy"] = json!("Manual");
    vm
}

#[tokio::test]
async fn what_the_guest_agent_said_counts_when_the_vm_is_stopped() {
    let cluster = Cluster::turn().await;
    // A Linux guest with a Windows label, and a Windows guest with no mark at all.
    cluster.create(&manual(&cluster, "really-linux")).await;
    let mut unmarked = manual(&cluster, "really-windows");
    unmarked["metadata"]["labels"] = json!({});
    cluster.create(&unmarked).await;
    instance(&cluster, "really-linux", "ubuntu").await;
    instance(&cluster, "really-windows", "mswindows").await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("really-linux", Phase::Refused).await;
    cluster.phase("really-windows", Phase::Waiting).await;
    for name in ["really-linux", "really-windows"] {
        cluster.instances().delete(name, &Default::default()).await.unwrap();
    }
    cluster.phase("really-windows", Phase::Tuned).await;
    cluster.stays("really-linux").await;
    assert!(domain(&cluster.vm("really-linux").await)["clock"].is_null());
    let status = cluster.record("really-linux").await.unwrap().status.unwrap();
    assert_eq!((status.phase, status.guest_os.as_deref()), (Phase::Refused, Some("ubuntu")));
}

#[tokio::test]
async fn the_policys_last_word_decides_what_its_deletion_means() {
    let cluster = Cluster::turn().await;
    let names: Vec<String> = (0..20).map(|n| format!("last-{n}")).collect();
    for name in &names {
        cluster.create(&windows(&cluster, name)).await;
    }
    let _operator = cluster.operator().await;
    let spec = |word: &str| json!({"selector": {}, "onWithdrawal": word, "apply": {"mode": "WhenStopped"}});
    cluster.policy("all", spec("Restore")).await;
    for name in &names {
        cluster.phase(name, Phase::Tuned).await;
    }
    // No time for twenty records to follow.
    cluster.policy("all", spec("Keep")).await;
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    for name in &names {
        cluster.phase(name, Phase::Observed).await;
        assert!(domain(&cluster.vm(name).await)["features"]["hyperv"].is_object(), "{name} was restored");
    }
}

#[tokio::test]
async fn a_value_that_the_owner_sets_again_after_a_restore_is_the_owners() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "mine")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("mine", Phase::Tuned).await;
    let restored = tokio::process::Command::new(crate::support::program())
        .args(["restore", "mine", "--namespace", &cluster.namespace])
        .env("KUBECONFIG", cluster.plane().admin_kubeconfig())
        .output()
        .await
        .unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    cluster.phase("mine", Phase::OptedOut).await;
    until("the pre-image is let go", async || cluster.record("mine").await.unwrap().status.unwrap().applied.is_none())
        .await;
    let own =
        json!({"spec": {"template": {"spec": {"domain": {"features": {"hyperv": {"relaxed": {"enabled": true}}}}}}}});
    let mine = cluster.edit("mine", own).await;
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    cluster.edit("mine", json!({"metadata": {"annotations": {"wintune.dev/tune": null}}})).await;
    cluster.phase("mine", Phase::Observed).await;
    assert_eq!(spec_bytes(&cluster.vm("mine").await), spec_bytes(&mine));
}

#[tokio::test]
async fn a_changed_override_of_a_running_vm_is_no_fight() {
    let cluster = Cluster::turn().await;
    cluster.create(&manual(&cluster, "flip")).await;
    let _operator = cluster.operator().await;
    let with = |switch: &str| json!({"selector": {}, "apply": {"mode": "WhenStopped"}, "overrides": {"hyperv": {"vapic": switch}}});
    cluster.policy("all", with("Enabled")).await;
    cluster.phase("flip", Phase::Tuned).await;
    cluster.policy("all", with("Disabled")).await;
    let vapic = async || domain(&cluster.vm("flip").await)["features"]["hyperv"]["vapic"]["enabled"].clone();
    until("vapic is off", async || vapic().await == false).await;
    instance(&cluster, "flip", "mswindows").await;
    cluster.policy("all", with("Enabled")).await;
    cluster.phase("flip", Phase::Waiting).await;
    cluster.instances().delete("flip", &Default::default()).await.unwrap();
    until("vapic is on", async || vapic().await == true).await;
    cluster.phase("flip", Phase::Tuned).await;
}

#[tokio::test]
async fn a_refused_restore_is_said_and_is_no_loop() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "held")).await;
    let operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("held", Phase::Tuned).await;
    let before = operator.metric("wintune_writes_total", &["vm-dry-run"]).await.unwrap();
    let webhook = Webhook::start(&cluster, "kubevirt.io", "v1", &["virtualmachines"], |request| {
        let ours = request["userInfo"]["username"].as_str().is_some_and(|u| u.contains("wintune"));
        ours.then(|| "a backup of this VM is running".to_owned())
    })
    .await;
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    let record = cluster.phase("held", Phase::NeedsHuman).await;
    assert_eq!(condition(&record, "Ready").1, "ClusterRefused");
    assert!(record.status.unwrap().next.unwrap().contains("a backup of this VM is running"));
    cluster.stays("held").await;
    assert_eq!(operator.metric("wintune_writes_total", &["vm-dry-run"]).await.unwrap() - before, 1.0);
    webhook.stop().await;
}

#[tokio::test]
async fn vms_of_gitops_managers_and_of_pools_are_proposed_only() {
    let cluster = Cluster::turn().await;
    let applied = windows(&cluster, "from-argocd");
    let params = kube::api::PatchParams::apply("argocd-controller");
    cluster.vms().patch("from-argocd", &params, &kube::api::Patch::Apply(&applied)).await.unwrap();
    let mut pooled = windows(&cluster, "from-pool");
    pooled["metadata"]["ownerReferences"] = json!([{"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
        "name": "desktops", "uid": "b5b1c3f0-0000-4000-8000-000000000000", "controller": true}]);
    cluster.create(&pooled).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    for (name, words) in [("from-argocd", "Argo CD"), ("from-pool", "VirtualMachinePool desktops")] {
        let record = cluster.phase(name, Phase::Proposed).await;
        let next = record.status.unwrap().next.unwrap();
        assert!(next.contains(words), "{next}");
        cluster.stays(name).await;
    }
}

#[tokio::test]
async fn hostile_annotations_and_selectors_are_bounded_and_named() {
    let cluster = Cluster::turn().await;
    let mut long = windows(&cluster, "long");
    long["metadata"]["annotations"] = json!({"wintune.dev/profile": "x".repeat(100_000), "noise": "y".repeat(100_000)});
    cluster.create(&long).await;
    cluster.create(&windows(&cluster, "covered")).await;
    let _operator = cluster.operator().await;
    let everything = json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]});
    cluster.policy("vain", json!({"selector": everything, "apply": {"mode": "WhenStopped"}})).await;
    until("the policy is said to be invalid", async || {
        let status = cluster.policies().get("vain").await.unwrap().status.unwrap_or_default();
        status
            .conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "False" && c.message.contains("needs values"))
    })
    .await;
    cluster.stays("covered").await;
    assert!(cluster.record("long").await.is_none_or(|r| serde_json::to_string(&r.status).unwrap().len() < 4096));
}

#[tokio::test]
async fn a_record_of_an_earlier_vm_is_named_and_blocks_nothing_for_ever() {
    let cluster = Cluster::turn().await;
    let record = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "TunedVirtualMachine",
        "metadata": {"name": "again", "namespace": cluster.namespace}, "spec": {"vmUid": "of-an-earlier-one"}});
    let params = kube::api::PatchParams::apply("test");
    cluster.records().patch("again", &params, &kube::api::Patch::Apply(&record)).await.unwrap();
    cluster.create(&windows(&cluster, "again")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    until("a warning on the VM", async || cluster.events("again").await.contains(&"Frozen".to_owned())).await;
    cluster.stays("again").await;
    cluster.records().delete("again", &Default::default()).await.unwrap();
    cluster.phase("again", Phase::Tuned).await;
}

#[tokio::test]
async fn a_write_that_fails_is_said_and_backs_off_in_spite_of_its_own_records() {
    let cluster = Cluster::turn().await;
    cluster.create(&windows(&cluster, "failing")).await;
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = seen.clone();
    // The dry run passes and the write itself does not.
    let webhook = Webhook::with_code(&cluster, 500, "kubevirt.io", "v1", &["virtualmachines"], move |request| {
        let ours = request["userInfo"]["username"].as_str().is_some_and(|u| u.contains("wintune"));
        (ours && request["dryRun"] != true).then(|| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            "out of order".to_owned()
        })
    })
    .await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    until("the failure is said", async || {
        let record = cluster.record("failing").await;
        record.is_some_and(|r| condition(&r, "Ready").1 == "WriteFailed")
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    // 1 s, 2 s, 4 s, ... a quarter less at the least: at most four tries.
    let tries = seen.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=5).contains(&tries), "{tries} tries");
    webhook.stop().await;
    cluster.phase("failing", Phase::Tuned).await;
    assert_eq!(cluster.vm("failing").await["metadata"]["generation"], 2);
}
