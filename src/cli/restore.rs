//! `wintune restore`: gives a VM back what wintune replaced, with the operator or without it.

use std::process::ExitCode;

use clap::Args;
use json_patch::{AddOperation, PatchOperation, jsonptr::PointerBuf};
use kube::Client;
use kube::api::{Api, Patch as KubePatch, PatchParams};
use serde_json::{Value, json};

use super::{CliError, print, runtime};
use crate::api::record::TunedVirtualMachine;
use crate::api::{FIELD_MANAGER, annotation};
use crate::observe::live;
use crate::plan::facts::Vm;
use crate::plan::{json as read, patch};
use crate::rollout::{self, Instance, Run};

/// Arguments of `restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Name of the VM.
    vm: String,
    /// Its namespace; the one of the kubeconfig's context where none is given.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Show what would be put back, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not opt the VM out. A policy that still covers it leaves it alone until that policy changes.
    #[arg(long)]
    keep_consent: bool,
}

/// Why a restore was not done.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// No cluster to talk to.
    #[error("no cluster to talk to: {0}")]
    Client(String),
    /// There is no such VM.
    #[error("there is no VirtualMachine {0}")]
    NoVm(String),
    /// The cluster could not be read.
    #[error(transparent)]
    Read(#[from] live::ReadError),
    /// It is not a VM that we can read.
    #[error("{vm}: {cause}")]
    Manifest {
        /// Which VM.
        vm: String,
        /// What is wrong.
        cause: crate::plan::facts::ManifestError,
    },
    /// Nothing says that wintune wrote anything.
    #[error("{0}: neither a record nor the annotation wintune.dev/applied says that wintune wrote anything")]
    NothingApplied(String),
    /// The pre-image is not used.
    #[error("{vm}: the pre-image is refused: {cause}")]
    Refused {
        /// Which VM.
        vm: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The VM runs.
    #[error("{vm}: {why}")]
    Busy {
        /// Which VM.
        vm: String,
        /// Why it is not written now.
        why: String,
    },
    /// The cluster refused.
    #[error("{vm}: {cause}")]
    Write {
        /// Which VM.
        vm: String,
        /// The API server's words.
        cause: Box<kube::Error>,
    },
}

pub(super) fn run(args: RestoreArgs) -> Result<ExitCode, CliError> {
    let text = runtime()?.block_on(restore(args))?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn restore(args: RestoreArgs) -> Result<String, RestoreError> {
    let client = Client::try_default().await.map_err(|e| RestoreError::Client(e.to_string()))?;
    let namespace = args.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let label = format!("{namespace}/{}", args.vm);
    let object = live::vm(&client, &namespace, &args.vm).await?.ok_or_else(|| RestoreError::NoVm(label.clone()))?;
    let vm = Vm::from_object(&object).map_err(|cause| RestoreError::Manifest { vm: label.clone(), cause })?;
    let records: Api<TunedVirtualMachine> = Api::namespaced(client.clone(), &namespace);
    // Without our CRDs there is no record, and the annotation has to do.
    let record = match records.get_opt(&args.vm).await {
        Ok(record) => record.and_then(|r| r.status),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(cause) => return Err(RestoreError::Write { vm: label, cause: Box::new(cause) }),
    };
    let preimage = rollout::preimage(&vm, record.as_ref());
    if preimage.spent {
        return Ok(format!("{label}: everything that wintune wrote is back already\n"));
    }
    let Some(applied) = preimage.applied else {
        return Err(match preimage.fault {
            Some(cause) => RestoreError::Refused { vm: label, cause },
            None if record.is_some() => return Ok(format!("{label}: nothing of wintune's is in it\n")),
            None => RestoreError::NothingApplied(label),
        });
    };
    let uid = vm.uid.as_deref().unwrap_or_default();
    patch::check(&applied, uid).map_err(|e| RestoreError::Refused { vm: label.clone(), cause: e.to_string() })?;
    let undo = patch::undo(vm.domain(), &applied);
    let mut text = report(&label, &vm, &undo, preimage.fault.as_deref());
    if !args.keep_consent {
        text += &format!("and it is opted out by {}: \"false\", so that no policy tunes it again\n", annotation::TUNE);
    }
    let instance = Instance {
        exists: live::instance_exists(&client, &namespace, &args.vm).await?,
        created: read::at(&object, "/status/created").and_then(Value::as_bool) == Some(true),
        pending: !read::list(&object, "/status/stateChangeRequests").is_empty(),
        deleting: read::at(&object, "/metadata/deletionTimestamp").is_some(),
    };
    let busy = match rollout::run(&vm, &instance) {
        Run::Busy(why) => Some(why),
        Run::Stopped => None,
    };
    if args.dry_run {
        let refused = busy.map(|why| format!("without --dry-run this would be refused: {why}\n"));
        return Ok(text + &refused.unwrap_or_default() + "nothing was written (--dry-run)\n");
    }
    if let Some(why) = busy {
        return Err(RestoreError::Busy { vm: label, why });
    }
    let mut request = patch::undo_patch(&vm, &undo, &applied);
    if !args.keep_consent {
        opt_out(&mut request, &vm);
    }
    let api = live::vms(client, &namespace);
    for dry_run in [true, false] {
        let params = PatchParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(&args.vm, &params, &KubePatch::<()>::Json(request.clone()))
            .await
            .map_err(|cause| RestoreError::Write { vm: label.clone(), cause: Box::new(cause) })?;
    }
    Ok(text)
}

/// Adds the opt-out to the patch. It comes last: `undo_patch` may have taken the only other annotation away.
fn opt_out(request: &mut json_patch::Patch, vm: &Vm) {
    let mut add = |path: PointerBuf, value: Value| request.0.push(PatchOperation::Add(AddOperation { path, value }));
    if vm.has_annotations {
        add(PointerBuf::from_tokens(["metadata", "annotations", annotation::TUNE]), json!("false"));
        // An owner's own words stay.
        if vm.annotations.contains_key(annotation::REASON) {
            return;
        }
        add(
            PointerBuf::from_tokens(["metadata", "annotations", annotation::REASON]),
            json!("restored by wintune restore"),
        );
    } else {
        let both = json!({annotation::TUNE: "false", annotation::REASON: "restored by wintune restore"});
        add(PointerBuf::from_tokens(["metadata", "annotations"]), both);
    }
}

fn report(label: &str, vm: &Vm, undo: &patch::Undo, fault: Option<&str>) -> String {
    let value =
        |root: &Value, pointer: &str| read::at(root, pointer).map_or_else(|| "absent".to_owned(), Value::to_string);
    let name = |p: &String| p.trim_start_matches('/').replace('/', ".");
    let mut text = String::new();
    if let Some(fault) = fault {
        text += &format!("{label}: note: {fault}\n");
    }
    text += &format!("{label}: {} values go back to what they were\n", undo.restored.len());
    for pointer in &undo.restored {
        text += &format!("  {}: {} -> {}\n", name(pointer), value(vm.domain(), pointer), value(&undo.domain, pointer));
    }
    for pointer in &undo.kept {
        text += &format!("  {} stays: somebody else changed it since\n", name(pointer));
    }
    text
}
