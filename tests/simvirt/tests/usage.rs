//! How other tests use simvirt: no traces, no webhooks, default times.

use std::time::{Duration, Instant};

use harness::ControlPlane;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};
use simvirt::{GUEST_ANNOTATION, Options, Simvirt};

const NAMESPACE: &str = "erp";

fn api(client: kube::Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
    Api::namespaced_with(client, NAMESPACE, &resource)
}

async fn until(api: &Api<DynamicObject>, what: &str, wanted: impl Fn(Option<&Value>) -> bool) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let object = api.get_opt("sql").await?;
        if wanted(object.as_ref().map(|o| &o.data)) {
            return Ok(());
        }
        anyhow::ensure!(start.elapsed() < Duration::from_secs(10), "never {what}: {object:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_windows_vm_runs_is_asked_shut_down_and_deleted() -> anyhow::Result<()> {
    let plane = ControlPlane::start().await?;
    plane.install_kubevirt_crds().await?;
    harness::create_namespace(&plane.admin(), NAMESPACE).await?;
    let simvirt = Simvirt::start(plane.admin(), Options::default()).await?;
    let guest = simvirt.guest();
    let vms = api(plane.admin(), "VirtualMachine");
    let vmis = api(plane.admin(), "VirtualMachineInstance");

    let vm: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "sql", "annotations": {GUEST_ANNOTATION: "windows-2022"}},
        "spec": {"runStrategy": "RerunOnFailure", "template": {"spec": {
            "domain": {
                "memory": {"guest": "4Gi"}, "features": {"hyperv": {"synictimer": {}}},
                "devices": {"disks": [{"name": "root", "serial": "r00t", "disk": {"bus": "virtio"}}]},
            },
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
        }}},
    }))?;
    let made = vms.create(&PostParams::default(), &vm).await?;
    until(&vmis, "Windows with an agent", |vmi| {
        vmi.and_then(|v| v.pointer("/status/guestOSInfo/id")) == Some(&json!("mswindows"))
    })
    .await?;
    until(&vms, "Running", |vm| vm.and_then(|v| v.pointer("/status/printableStatus")) == Some(&json!("Running")))
        .await?;

    // Nobody but the user writes the VM's spec; the VMI has what KubeVirt would have filled in.
    let stored = vms.get("sql").await?;
    assert_eq!(stored.metadata.generation, Some(1));
    assert_eq!(stored.data["spec"], made.data["spec"]);
    let hyperv = vmis.get("sql").await?.data["spec"]["domain"]["features"]["hyperv"].clone();
    assert_eq!(hyperv["vpindex"], json!({"enabled": true}));

    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/sql/filesystemlist");
    let request = axum::http::Request::get(path).body(Vec::new())?;
    let list: Value = plane.admin().request(request).await?;
    assert_eq!(list["items"][0]["disk"][0], json!({"serial": "r00t", "busType": "virtio"}));

    guest.shutdown(NAMESPACE, "sql").await?;
    until(&vmis, "gone", |vmi| vmi.is_none()).await?;
    until(&vms, "Stopped", |vm| vm.and_then(|v| v.pointer("/status/printableStatus")) == Some(&json!("Stopped")))
        .await?;
    assert!(guest.crash(NAMESPACE, "sql").await.is_err(), "there is no VMI to crash");

    vms.delete("sql", &DeleteParams::default()).await?;
    until(&vms, "deleted", |vm| vm.is_none()).await?;
    simvirt.stop().await;
    Ok(())
}
