//! `wintune restore`: with the operator, without it, and without a record.

use kube::api::DeleteParams;
use serde_json::json;
use tokio::process::Command;
use wintune::api::record::Phase;

use crate::support::{Cluster, program, spec_bytes, until, when_stopped, windows};

async fn restore(cluster: &Cluster, args: &[&str]) -> (bool, String, String) {
    let output = Command::new(program())
        .args(["restore", "--namespace", &cluster.namespace])
        .args(args)
        .env("KUBECONFIG", cluster.plane().admin_kubeconfig())
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn restore_undoes_and_opts_out_so_that_the_operator_does_not_tune_again() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "back")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("back", Phase::Tuned).await;
    let (ok, text, _) = restore(&cluster, &["back", "--dry-run"]).await;
    assert!(ok && text.contains("features.hyperv.vapic") && text.contains("nothing was written"), "{text}");
    assert_ne!(spec_bytes(&cluster.vm("back").await), spec_bytes(&before));
    let (ok, text, errors) = restore(&cluster, &["back"]).await;
    assert!(ok && text.contains("15 values go back"), "{text}{errors}");
    cluster.phase("back", Phase::OptedOut).await;
    let after = cluster.vm("back").await;
    assert_eq!(spec_bytes(&after), spec_bytes(&before));
    assert_eq!(after["metadata"]["annotations"]["wintune.dev/tune"], "false");
    cluster.stays("back").await;
    let (ok, text, _) = restore(&cluster, &["back"]).await;
    assert!(ok && text.contains("nothing of wintune's is in it"), "{text}");
    // The opt-out is lifted: whoever asks now asks anew.
    cluster.edit("back", json!({"metadata": {"annotations": {"wintune.dev/tune": null}}})).await;
    cluster.phase("back", Phase::Tuned).await;
}

#[tokio::test]
async fn restore_works_when_operator_and_record_are_gone() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "alone")).await;
    let operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("alone", Phase::Tuned).await;
    drop(operator);
    cluster.records().delete("alone", &DeleteParams::default()).await.unwrap();
    let (ok, text, errors) = restore(&cluster, &["alone"]).await;
    assert!(ok, "{text}{errors}");
    assert_eq!(spec_bytes(&cluster.vm("alone").await), spec_bytes(&before));
}

#[tokio::test]
async fn a_lost_record_is_made_again_from_the_annotation() {
    let cluster = Cluster::turn().await;
    let before = cluster.create(&windows(&cluster, "lost")).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("lost", Phase::Tuned).await;
    cluster.records().delete("lost", &DeleteParams::default()).await.unwrap();
    let record = cluster.phase("lost", Phase::Tuned).await;
    assert_eq!(record.status.unwrap().applied.unwrap().entries.len(), 15);
    cluster.policies().delete("all", &DeleteParams::default()).await.unwrap();
    cluster.phase("lost", Phase::Reverted).await;
    assert_eq!(spec_bytes(&cluster.vm("lost").await), spec_bytes(&before));
}

#[tokio::test]
async fn restore_refuses_a_running_vm_a_forged_pre_image_and_a_vm_that_is_not_there() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "busy");
    vm["spec"]["runStrategy"] = json!("Manual");
    cluster.create(&vm).await;
    let operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    cluster.phase("busy", Phase::Tuned).await;
    drop(operator);
    let running = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "busy", "namespace": cluster.namespace}, "spec": {"domain": {"devices": {}}}});
    let instance: kube::api::DynamicObject = serde_json::from_value(running).unwrap();
    cluster.instances().create(&Default::default(), &instance).await.unwrap();
    let (ok, _, errors) = restore(&cluster, &["busy"]).await;
    assert!(!ok && errors.contains("running instance"), "{errors}");

    let created = cluster.create(&windows(&cluster, "forged")).await;
    let forged = json!({"version": 1, "vmUid": created["metadata"]["uid"], "entries": [
        {"at": "/devices/disks", "was": "[]", "now": "[]"}]});
    cluster.edit("forged", json!({"metadata": {"annotations": {"wintune.dev/applied": forged.to_string()}}})).await;
    let (ok, _, errors) = restore(&cluster, &["forged"]).await;
    assert!(!ok && errors.contains("refused") && errors.contains("/devices/disks"), "{errors}");
    let (ok, _, errors) = restore(&cluster, &["nobody"]).await;
    assert!(!ok && errors.contains("there is no VirtualMachine"), "{errors}");
    until("clean", async || cluster.instances().delete("busy", &DeleteParams::default()).await.is_ok()).await;
}
