//! Virtual machines as the tests handle them.

use kube::Client;
use kube::api::{Api, DynamicObject, GroupVersionKind, PostParams};
use kube::discovery::ApiResource;
use serde_json::{Value, json};

/// A VM with fields that the schema knows, and three that it does not.
pub async fn create_vm(client: &Client, name: &str) -> DynamicObject {
    let vm = object(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
        "spec": {
            "runStrategy": "Halted",
            "template": {"spec": {"domain": {
                "chassis": {"unknown": true},
                "clock": {"kept": true, "timer": {"hyperv": {}, "tsc": {}}},
                "devices": {},
                "features": {"hyperv": {
                    "vapic": {}, "synictimer": {"direct": {"enabled": true}}, "avic": {"enabled": true},
                }},
            }}},
        },
    }));
    vms(client).create(&PostParams::default(), &vm).await.expect("create a VM")
}

/// The virtual machines of the namespace `erp`.
pub fn vms(client: &Client) -> Api<DynamicObject> {
    api(client, "v1", "VirtualMachine", "virtualmachines")
}

/// The running ones, as `version` shows them.
pub fn vmis(client: &Client, version: &str) -> Api<DynamicObject> {
    api(client, version, "VirtualMachineInstance", "virtualmachineinstances")
}

fn api(client: &Client, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("kubevirt.io", version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(client.clone(), "erp", &resource)
}

/// Any object.
pub fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("a Kubernetes object")
}

/// The HTTP status with which the API server refused, if it was the API server.
pub fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
