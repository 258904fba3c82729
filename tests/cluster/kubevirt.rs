//! Beside KubeVirt's own webhooks and controller, as far as simvirt plays them.

use serde_json::json;
use wintune::api::record::Phase;

use crate::support::{Cluster, domain, spec_bytes, until, windows};

#[tokio::test]
async fn what_kubevirts_webhook_adds_into_our_objects_leaves_with_them() {
    let cluster = Cluster::turn().await;
    let options = simvirt::Options { admission: true, ..simvirt::Options::default() };
    let simvirt = simvirt::Simvirt::start(cluster.client.clone(), options).await.unwrap();
    // KubeVirt's type has no way to leave `acpi` out of a `features` that we make.
    let mut bare = windows(&cluster, "no-features");
    bare["spec"]["template"]["spec"]["domain"]["features"] = json!(null);
    cluster.create(&bare).await;
    let mut clock = windows(&cluster, "with-clock");
    clock["spec"]["template"]["spec"]["domain"]["clock"] = json!({"utc": {}, "timer": {"hyperv": {}}});
    cluster.create(&clock).await;
    // virt-controller and the webhook add their own parts to every VM; what counts is the spec after that.
    until("virt-controller has seen them", async || {
        let vm = cluster.vm("no-features").await;
        vm["metadata"]["finalizers"].is_array() && vm["status"]["printableStatus"] == "Stopped"
    })
    .await;
    let before = [("no-features", cluster.vm("no-features").await), ("with-clock", cluster.vm("with-clock").await)];
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    for (name, before) in &before {
        cluster.phase(name, Phase::Tuned).await;
        let vm = cluster.vm(name).await;
        assert_eq!(domain(&vm)["features"]["hyperv"].as_object().unwrap().len(), 9);
        let generation = |vm: &serde_json::Value| vm["metadata"]["generation"].as_i64().unwrap();
        assert_eq!(generation(&vm), generation(before) + 1, "{name}: one write");
    }
    assert_eq!(domain(&cluster.vm("no-features").await)["features"]["acpi"], json!({}), "the webhook's own");
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    for (name, before) in &before {
        cluster.phase(name, Phase::Reverted).await;
        assert_eq!(spec_bytes(&cluster.vm(name).await), spec_bytes(before), "{name}");
    }
    simvirt.stop().await;
}

#[tokio::test]
async fn a_tuned_vm_starts_and_raises_no_restart() {
    let cluster = Cluster::turn().await;
    let options = simvirt::Options { admission: true, ..simvirt::Options::default() };
    let simvirt = simvirt::Simvirt::start(cluster.client.clone(), options).await.unwrap();
    let mut vm = windows(&cluster, "starts");
    vm["spec"]["runStrategy"] = json!("Manual");
    cluster.create(&vm).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "apply": {"mode": "WhenStopped"}})).await;
    cluster.phase("starts", Phase::Tuned).await;
    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachines/starts/start", cluster.namespace);
    let mut command = cluster.plane().kubectl().unwrap();
    let started = command.args(["replace", "--raw", &path, "-f", "-"]).stdin(std::process::Stdio::null());
    let output = started.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until("it runs with what we wrote", async || {
        let vmi = cluster.instances().get_opt("starts").await.unwrap();
        vmi.is_some_and(|i| {
            i.data["status"]["phase"] == "Running"
                && i.data["spec"]["domain"]["features"]["hyperv"]["synictimer"]["direct"]["enabled"] == true
        })
    })
    .await;
    let generation = cluster.vm("starts").await["metadata"]["generation"].clone();
    tokio::time::sleep(crate::support::QUIET).await;
    assert_eq!(cluster.vm("starts").await["metadata"]["generation"], generation, "a running VM is not written");
    let conditions = cluster.vm("starts").await["status"]["conditions"].clone();
    assert!(!conditions.to_string().contains("RestartRequired"), "{conditions}");
    cluster.phase("starts", Phase::Tuned).await;
    simvirt.stop().await;
}

#[tokio::test]
async fn without_kubevirt_it_waits_and_says_so() {
    // A control plane of its own: KubeVirt's definitions are shared by all other tests.
    let plane = harness::ControlPlane::start().await.unwrap();
    let install = harness::Install::chart(&plane, &crate::support::chart(), "wintune-system", Some).await.unwrap();
    let mut operator =
        harness::Operator::start(&plane, &install, crate::support::program(), "wintune-test").await.unwrap();
    until("it says what is missing", async || {
        operator.get("/readyz").await.is_ok_and(|(code, text)| {
            code == 503 && text.contains("virtualmachines.kubevirt.io/v1") && text.contains("install KubeVirt")
        })
    })
    .await;
    assert_eq!(operator.metric("wintune_crd_missing", &["\"virtualmachines\""]).await.unwrap(), 1.0);
    assert!(operator.running().unwrap(), "it waits and does not crash");
    plane.install_kubevirt_crds().await.unwrap();
    until("it is ready", async || operator.get("/readyz").await.is_ok_and(|(code, _)| code == 200)).await;
    assert_eq!(operator.metric("wintune_crd_missing", &[]).await.unwrap(), 0.0);
    operator.terminate().await.unwrap();
}
