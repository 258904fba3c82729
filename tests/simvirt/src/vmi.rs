//! The VMI that virt-controller makes from a VM.

use serde_json::{Value, json};

use crate::time::now;
use crate::value::{name, namespace, number, set, text, uid};

/// The finalizers of a VMI, in KubeVirt's order.
pub(crate) const FINALIZERS: [&str; 2] =
    ["kubevirt.io/virtualMachineControllerFinalize", "kubevirt.io/foregroundDeleteVirtualMachine"];

/// Builds the VMI of `vm` from `template` (the VM's own, or the one kept from when its last VMI went).
pub(crate) fn build(vm: &Value, template: &Value) -> Value {
    let generation = number(vm, "/metadata/generation").unwrap_or(1);
    let mut vmi = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name(vm),
            "namespace": namespace(vm),
            "labels": template.pointer("/metadata/labels").cloned().unwrap_or(json!({})),
            "annotations": template.pointer("/metadata/annotations").cloned().unwrap_or(json!({})),
            "finalizers": FINALIZERS,
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachine",
                "name": name(vm),
                "uid": uid(vm),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": template.get("spec").cloned().unwrap_or(json!({})),
        "status": {
            "phase": "Pending",
            "phaseTransitionTimestamps": [{"phase": "Pending", "phaseTransitionTimestamp": now()}],
            "virtualMachineRevisionName": format!("revision-start-vm-{}-{generation}", uid(vm)),
        },
    });
    set(&mut vmi, "/metadata/annotations/kubevirt.io~1vm-generation", json!(generation.to_string()));
    for version in ["latest", "storage"] {
        let pointer = format!("/metadata/annotations/kubevirt.io~1{version}-observed-api-version");
        set(&mut vmi, &pointer, json!("v1"));
    }
    vmi
}

/// Whether `vmi` belongs to `vm`.
pub(crate) fn owned_by(vmi: &Value, vm: &Value) -> bool {
    owner(vmi) == Some(uid(vm))
}

/// The UID of the VM that a VMI belongs to.
pub(crate) fn owner(vmi: &Value) -> Option<&str> {
    crate::value::list(vmi, "/metadata/ownerReferences")
        .iter()
        .find(|r| text(r, "/kind") == Some("VirtualMachine"))
        .and_then(|r| text(r, "/uid"))
}
