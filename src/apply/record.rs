//! Writing records. A record is owned by its VM, so that it goes with it; nothing is written when nothing changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};

use super::writer::{Target, WriteError, Writer};
use crate::api::FIELD_MANAGER;
use crate::api::record::{RecordStatus, TunedVirtualMachine, TunedVirtualMachineSpec};
use crate::plan::facts::Vm;

fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Makes the record of a VM, or takes the one that is there.
///
/// # Errors
/// When the API server does not take it, or when a record of an earlier VM of this name still lies there.
pub async fn ensure(
    client: &Client,
    writer: &Writer,
    vm: &Vm,
    known: Option<TunedVirtualMachine>,
) -> Result<TunedVirtualMachine, WriteError> {
    if let Some(record) = known {
        return Ok(record);
    }
    let uid = vm.uid.clone().ok_or_else(|| WriteError::Failed("the VM has no UID".to_owned()))?;
    let record = TunedVirtualMachine {
        metadata: ObjectMeta {
            name: Some(vm.name.clone()),
            namespace: Some(vm.namespace.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: "kubevirt.io/v1".to_owned(),
                kind: "VirtualMachine".to_owned(),
                name: vm.name.clone(),
                uid: uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: TunedVirtualMachineSpec { vm_uid: uid },
        status: None,
    };
    let api: Api<TunedVirtualMachine> = Api::namespaced(client.clone(), &vm.namespace);
    writer.write(Target::Record, api.create(&params(), &record)).await
}

/// Writes the status if it differs. Returns the record as it is then.
///
/// # Errors
/// When the API server does not take it; `Changed` when somebody else wrote it meanwhile.
pub async fn update(
    client: &Client,
    writer: &Writer,
    mut record: TunedVirtualMachine,
    status: RecordStatus,
) -> Result<TunedVirtualMachine, WriteError> {
    if record.status.as_ref() == Some(&status) {
        return Ok(record);
    }
    record.status = Some(status);
    let api: Api<TunedVirtualMachine> = Api::namespaced(client.clone(), &record.namespace().unwrap_or_default());
    let name = record.name_any();
    writer.write(Target::Record, api.replace_status(&name, &params(), &record)).await
}
