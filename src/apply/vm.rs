//! Writing one VM: dry run, pre-image, patch.
//!
//! The order makes every crash harmless. Before the announcement nothing happened. After it the annotation, which
//! goes into the VM with the very same patch, tells whether the write happened.

use json_patch::Patch;
use kube::Client;
use kube::api::{Patch as KubePatch, PatchParams};
use serde_json::Value;

use super::record;
use super::writer::{Target, WriteError, Writer};
use crate::api::FIELD_MANAGER;
use crate::api::record::{Applied, AppliedState, RecordStatus, TunedVirtualMachine};
use crate::observe::live;
use crate::plan::facts::Vm;
use crate::plan::{json, patch};

/// What a write led to.
#[derive(Debug)]
pub struct Written {
    /// The VM as the API server answered.
    pub object: Value,
    /// The record, with the pre-image.
    pub record: TunedVirtualMachine,
    /// The pre-image as it now stands.
    pub applied: Applied,
    /// Paths that the cluster's own webhooks changed beside ours.
    pub beside: Vec<String>,
}

/// Why a plan was not written.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server's answer.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The cluster took the patch but not our values.
    #[error("the cluster would not keep {0}: its KubeVirt does not know the field, or a webhook changes it")]
    Dropped(String),
    /// The answer was not a VM.
    #[error("the answer is not a VirtualMachine: {0}")]
    Answer(String),
}

/// What is to be written.
pub struct Change<'a> {
    /// The VM as it was just read.
    pub vm: &'a Vm,
    /// The planned change.
    pub change: &'a patch::Change,
    /// What earlier writes replaced.
    pub earlier: Option<&'a Applied>,
    /// For whom, as the pre-image keeps it.
    pub asked_by: String,
    /// The status to announce the write with.
    pub announce: RecordStatus,
    /// The record, where there is one.
    pub record: Option<TunedVirtualMachine>,
}

/// Writes a plan into a VM.
///
/// # Errors
/// When the cluster refuses, when something changed meanwhile, or when there is no answer.
pub async fn write(client: &Client, writer: &Writer, change: Change<'_>) -> Result<Written, ApplyError> {
    let Change { vm, change, earlier, asked_by, announce, record } = change;
    let uid = vm.uid.clone().unwrap_or_default();
    let mut applied = patch::merge(earlier, &uid, change);
    applied.asked_by = Some(asked_by);
    let mut request = patch::apply_patch(vm, change, &applied);
    let mut answer = answered(send(client, writer, Target::VmDryRun, vm, &request).await?)?;
    let companions = patch::companions(&change.domain, answer.domain(), &change.created);
    if !companions.is_empty() {
        // What the webhook added into our object belongs to the pre-image, and so into the annotation: the patch is
        // another one now, and is tried out as that.
        applied.entries.extend(companions);
        applied.entries.sort_by(|a, b| a.at.cmp(&b.at));
        request = patch::apply_patch(vm, change, &applied);
        answer = answered(send(client, writer, Target::VmDryRun, vm, &request).await?)?;
    }
    if let Some(entry) =
        change.entries.iter().find(|e| json::at(answer.domain(), &e.at) != json::at(&change.domain, &e.at))
    {
        return Err(ApplyError::Dropped(entry.at.trim_start_matches('/').replace('/', ".")));
    }
    let beside = beside(vm, change, &applied, &answer);
    let record = record::ensure(client, writer, vm, record).await?;
    let record =
        record::update(client, writer, record, RecordStatus { applied: Some(applied.clone()), ..announce }).await?;
    // The guards of the patch watch the VM; that nobody made an instance of it meanwhile has to be asked.
    not_started(client, vm).await?;
    let object = send(client, writer, Target::Vm, vm, &request).await?;
    applied.state = AppliedState::Written;
    Ok(Written { object, record, applied, beside })
}

/// Gives a VM back what stood there before. Returns the VM as the API server answered.
///
/// # Errors
/// When the cluster refuses, when something changed meanwhile, or when there is no answer.
pub async fn restore(
    client: &Client,
    writer: &Writer,
    vm: &Vm,
    undo: &patch::Undo,
    applied: &Applied,
) -> Result<Value, WriteError> {
    let request = patch::undo_patch(vm, undo, applied);
    let answer = send(client, writer, Target::VmDryRun, vm, &request).await?;
    let answer = Vm::from_object(&answer).map_err(|e| WriteError::Failed(e.to_string()))?;
    let differs = |at: &&String| json::at(answer.domain(), at) != json::at(&undo.domain, at);
    if let Some(at) = undo.restored.iter().find(differs) {
        let field = at.trim_start_matches('/').replace('/', ".");
        return Err(WriteError::Refused(format!("a webhook would not let {field} go back")));
    }
    not_started(client, vm).await?;
    send(client, writer, Target::Vm, vm, &request).await
}

async fn not_started(client: &Client, vm: &Vm) -> Result<(), WriteError> {
    match live::instance_exists(client, &vm.namespace, &vm.name).await {
        Ok(false) => Ok(()),
        Ok(true) => Err(WriteError::Changed("the VM was started".to_owned())),
        Err(error) => Err(WriteError::Failed(error.to_string())),
    }
}

async fn send(client: &Client, writer: &Writer, target: Target, vm: &Vm, patch: &Patch) -> Result<Value, WriteError> {
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        dry_run: target == Target::VmDryRun,
        ..PatchParams::default()
    };
    let api = live::vms(client.clone(), &vm.namespace);
    let patch: KubePatch<()> = KubePatch::Json(patch.clone());
    let object = writer.write(target, api.patch(&vm.name, &params, &patch)).await?;
    serde_json::to_value(object).map_err(|e| WriteError::Failed(e.to_string()))
}

fn answered(object: Value) -> Result<Vm, ApplyError> {
    Vm::from_object(&object).map_err(|e| ApplyError::Answer(e.to_string()))
}

/// What the cluster's webhooks changed that is neither ours nor in the pre-image.
fn beside(vm: &Vm, change: &patch::Change, applied: &Applied, answer: &Vm) -> Vec<String> {
    let mut expected = vm.clone();
    if let Some(domain) = expected.spec.pointer_mut("/template/spec/domain") {
        *domain = change.domain.clone();
    }
    let ours =
        |path: &String| applied.entries.iter().any(|e| *path == format!("{}{}", crate::plan::facts::DOMAIN, e.at));
    patch::beyond(&expected, answer).into_iter().filter(|path| !ours(path)).collect()
}
