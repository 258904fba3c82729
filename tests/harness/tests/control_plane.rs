//! The harness against the real programs: what it promises to the tests of the operator.

#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

mod support {
    pub mod manifests;
    pub mod objects;
    pub mod processes;
    pub mod tiny_api_server;
}

use std::time::{Duration, Instant};

use harness::{ControlPlane, CrdSource, create_namespace};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use support::manifests::{ACCOUNT, AGGREGATED, BINDING};
use support::objects::{code, create_vm, object, vmis, vms};
use support::processes::processes_of;
use support::tiny_api_server::tiny_api_server;

/// One start (and one restart) for all of these, since each takes seconds.
#[tokio::test]
async fn a_control_plane_from_start_to_stop() {
    let begin = Instant::now();
    let mut plane = ControlPlane::start().await.expect("start");
    println!("started in {:.1?}", begin.elapsed());
    create_namespace(&plane.admin(), "erp").await.expect("create the namespace");
    create_namespace(&plane.admin(), "erp").await.expect("once more changes nothing");

    minimal_crds_prune_as_the_full_ones_do(&plane).await;
    full_crds_prune(&plane).await;
    kubectl_sees_the_vm(&plane).await;
    rbac_is_real_and_audited(&plane).await;
    an_aggregated_api_is_reached_through_an_external_name(&plane).await;
    an_outage_keeps_the_data(&mut plane).await;

    let dir = plane.dir().to_owned();
    plane.stop().await.expect("stop");
    assert!(!dir.exists(), "{} is still there", dir.display());
    assert_eq!(processes_of(&dir), Vec::<String>::new());
}

async fn minimal_crds_prune_as_the_full_ones_do(plane: &ControlPlane) {
    let source = CrdSource::minimal();
    plane.apply_files(source.path()).await.expect("install the minimal CRDs");
    plane.apply_files(source.path()).await.expect("once more changes nothing");
    hyperv_is_pruned(&plane.admin(), "minimal").await;
    only_the_vm_has_a_status_subresource(&plane.admin(), "minimal").await;
}

async fn full_crds_prune(plane: &ControlPlane) {
    let Ok(source) = CrdSource::full() else {
        println!("SKIPPED: KubeVirt's own CRDs are not on this machine");
        return;
    };
    let begin = Instant::now();
    plane.apply_files(source.path()).await.expect("install the full CRDs");
    println!("{source} installed in {:.1?}", begin.elapsed());
    // The names were served before; the new schema takes effect a moment after it is stored.
    let client = plane.admin();
    let deadline = Instant::now() + Duration::from_secs(20);
    for attempt in 0.. {
        let vm = create_vm(&client, &format!("probe-{attempt}")).await;
        if vm.data.pointer("/spec/template/spec/domain/chassis/unknown").is_none() {
            break;
        }
        assert!(Instant::now() < deadline, "the full schema never took effect");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    hyperv_is_pruned(&client, "full").await;
    only_the_vm_has_a_status_subresource(&client, "full").await;
}

async fn hyperv_is_pruned(client: &Client, name: &str) {
    let vm = create_vm(client, name).await;
    let features = vm.data.pointer("/spec/template/spec/domain/features").expect("features");
    assert_eq!(features, &json!({"hyperv": {"vapic": {}, "synictimer": {"direct": {"enabled": true}}}}));
    let clock = vm.data.pointer("/spec/template/spec/domain/clock").expect("clock");
    assert_eq!(clock, &json!({"kept": true, "timer": {"hyperv": {}}}));
}

async fn only_the_vm_has_a_status_subresource(client: &Client, name: &str) {
    let status = Patch::Merge(json!({"status": {"ready": true}}));
    let params = PatchParams::default();
    vms(client).patch_status(name, &params, &status).await.expect("patch the VM's status");
    let vmi = object(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
        "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running"},
    }));
    let stored = vmis(client, "v1").create(&PostParams::default(), &vmi).await.expect("create a VMI");
    let phase = stored.data.pointer("/status/phase");
    assert_eq!(phase, Some(&json!("Running")), "its status is written with it");
    let vmis = vmis(client, "v1alpha3");
    vmis.get(name).await.expect("v1alpha3 is served too");
    let refused = vmis.patch_status(name, &params, &status).await.expect_err("no such subresource");
    assert_eq!(code(&refused), Some(404), "{refused}");
}

async fn kubectl_sees_the_vm(plane: &ControlPlane) {
    let mut kubectl = plane.kubectl().expect("find kubectl");
    let output = kubectl.args(["get", "vm", "minimal", "-n", "erp"]).output().await.expect("run kubectl");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("STATUS") && text.contains("READY") && text.contains("minimal"), "{text}");
}

async fn rbac_is_real_and_audited(plane: &ControlPlane) {
    let file = plane.dir().join("rbac.yaml");
    std::fs::write(&file, ACCOUNT).expect("write");
    plane.apply_files(&file).await.expect("create the ServiceAccount");
    let kubeconfig = plane.token_kubeconfig("shop", "operator", "operator.kubeconfig").await.expect("a token");
    let operator = plane.client_from(&kubeconfig).await.expect("a client");

    let refused = vms(&operator).list(&Default::default()).await.expect_err("no rule allows it");
    assert_eq!(code(&refused), Some(403), "{refused}");
    let user = "system:serviceaccount:shop:operator";
    let event = plane
        .wait_for_audit_event(Duration::from_secs(5), |event| event.user == user && event.verb == "list")
        .await
        .expect("it is audited");
    assert_eq!((event.api_group.as_str(), event.resource.as_str()), ("kubevirt.io", "virtualmachines"));
    assert_eq!((event.namespace.as_str(), event.name.as_str(), event.code), ("erp", "", 403));

    std::fs::write(&file, BINDING).expect("write");
    plane.apply_files(&file).await.expect("create the binding");
    // The authorizer reads its rules from a watch, so a new one counts a moment later.
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = vms(&operator).list(&Default::default()).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    vms(&operator).patch("minimal", &dry_run, &label).await.expect_err("list is not patch");
    let event = plane
        .wait_for_audit_event(Duration::from_secs(5), |event| event.user == user && event.verb == "patch")
        .await
        .expect("it is audited");
    assert!(event.is_dry_run() && event.code == 403 && event.name == "minimal", "{event:?}");
    assert!(plane.audit_events().expect("read").iter().any(|event| event.user == user && event.code == 200));
}

async fn an_aggregated_api_is_reached_through_an_external_name(plane: &ControlPlane) {
    let port = tiny_api_server("subresources.kubevirt.io/v1").await;
    let file = plane.dir().join("aggregated.yaml");
    std::fs::write(&file, AGGREGATED.replace("PORT", &port.to_string())).expect("write");
    plane.apply_files(&file).await.expect("register the APIService");
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/erp/virtualmachines/minimal/restart";
    let deadline = Instant::now() + Duration::from_secs(30);
    let answer = loop {
        let request = http::Request::put(path).body(Vec::new()).expect("a request");
        match plane.admin().request_text(request).await {
            Ok(answer) => break answer,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(answer.starts_with(&format!("put {path}")), "{answer}");
    assert!(answer.contains("x-remote-user: admin") && answer.contains("x-remote-group: system:masters"), "{answer}");
}

async fn an_outage_keeps_the_data(plane: &mut ControlPlane) {
    let client = plane.admin();
    let uid = vms(&client).get("minimal").await.expect("before the outage").uid();
    plane.stop_apiserver().await.expect("stop the API server");
    plane.stop_apiserver().await.expect("it is stopped already");
    vms(&client).get("minimal").await.expect_err("nobody answers");

    // Another process may hold the port for a moment when the API server wants it back.
    let address = plane.url().trim_start_matches("https://").to_owned();
    let squatter = std::net::TcpListener::bind(address).expect("take the port");
    tokio::spawn(async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(squatter);
    });
    plane.start_apiserver().await.expect("start it again");
    plane.start_apiserver().await.expect("it runs already");
    assert_eq!(vms(&client).get("minimal").await.expect("after the outage").uid(), uid);
}
