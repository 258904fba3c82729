//! virt-controller's work on VirtualMachines: makes and deletes VMIs, keeps the VM's status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::context::Context;
use crate::objects::{Key, VM, VMI, code, message};
use crate::rollout;
use crate::status::{self, Known};
use crate::strategy::{Decision, decide, is_final};
use crate::time::now;
use crate::value::{deleting, list, set, set_default, text, uid};
use crate::{defaults, vmi};

const FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
const OBSERVED: [&str; 2] = ["kubevirt.io/latest-observed-api-version", "kubevirt.io/storage-observed-api-version"];

/// The API resource of VMs.
pub(crate) fn vm_resource() -> ApiResource {
    resource("VirtualMachine", VM)
}

/// The API resource of VMIs.
pub(crate) fn vmi_resource() -> ApiResource {
    resource("VirtualMachineInstance", VMI)
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: "kubevirt.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "kubevirt.io/v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Runs until it is aborted.
pub(crate) async fn run(client: Client, context: Arc<Context>) {
    let vms: Api<DynamicObject> = Api::all_with(client.clone(), &vm_resource());
    let vmis: Api<DynamicObject> = Api::all_with(client, &vmi_resource());
    Controller::new_with(vms, watcher::Config::default(), vm_resource())
        .with_config(Config::default().concurrency(64))
        .watches_with(vmis, vmi_resource(), watcher::Config::default(), |vmi| {
            let name = vmi.metadata.name.unwrap_or_default();
            let namespace = vmi.metadata.namespace.unwrap_or_default();
            Some(ObjectRef::new_with(&name, vm_resource()).within(&namespace))
        })
        .run(reconcile, on_error, context)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let key = Key::new(
        object.metadata.namespace.as_deref().unwrap_or_default(),
        object.metadata.name.as_deref().unwrap_or_default(),
    );
    let again = step(&context, &key).await?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// A lost race is tried again at once; other errors wait as little as a test can bear.
#[allow(clippy::needless_pass_by_value, reason = "the signature is kube-rs's")]
fn on_error(object: Arc<DynamicObject>, error: &kube::Error, _: Arc<Context>) -> Action {
    if code(error) == 409 {
        return Action::requeue(Duration::from_millis(5));
    }
    tracing::warn!(vm = ?object.metadata.name, %error, "simulated virt-controller failed, trying again");
    Action::requeue(Duration::from_millis(100))
}

/// One pass over one VM; returns when to look again without an event.
async fn step(context: &Context, key: &Key) -> kube::Result<Option<Duration>> {
    let objects = &context.controller;
    let Some(vm) = objects.get(VM, key).await? else {
        return Ok(None);
    };
    let vmi = objects.get(VMI, key).await?.filter(|v| vmi::owned_by(v, &vm));
    if deleting(&vm) {
        return finalize(context, key, &vm, vmi.as_ref()).await;
    }
    let vm = adopt(context, key, vm).await?;
    let vm = complete(context, key, vm, vmi.as_ref()).await?;
    remember(context, &vm, vmi.as_ref());

    let decision = decide(&vm, vmi.as_ref());
    let vm = if decision == Decision::StopAndStart { ask_for_start(context, key, vm).await? } else { vm };
    let mut again = None;
    let mut failure = None;
    let vmi = match (decision, vmi) {
        (Decision::Start, _) => match wait(context, &vm) {
            Some(left) => {
                again = Some(left);
                None
            }
            None => match start(context, key, &vm).await {
                Ok(made) => Some(made),
                Err(error) => {
                    failure = Some(message(&error));
                    again = Some(Duration::from_secs(1));
                    None
                }
            },
        },
        (Decision::Stop | Decision::StopAndStart, Some(vmi)) => Some(stop(context, key, &vmi).await?),
        (_, vmi) => {
            if vmi.is_none() {
                forget_pending(context, &vm);
            }
            vmi
        }
    };
    let known = Known { failure, now: &now(), ..Known::default() };
    write_status(context, key, vm, vmi.as_ref(), known).await?;
    Ok(again)
}

async fn write_status(
    context: &Context,
    key: &Key,
    mut vm: Value,
    vmi: Option<&Value>,
    mut known: Known<'_>,
) -> kube::Result<()> {
    if let Some(vmi) = vmi {
        let template = vm.pointer("/spec/template").cloned().unwrap_or_default();
        let (start, hotplugging) = start_revision(context, &vm);
        known.unchanged = start == template;
        if !deleting(vmi) && !is_final(vmi) {
            let outcome = rollout::compare(
                start.get("spec").unwrap_or(&Value::Null),
                template.get("spec").unwrap_or(&Value::Null),
                vmi.get("spec").unwrap_or(&Value::Null),
                context.options.rollout,
                hotplugging,
            );
            known.restart = Some(outcome.restart);
            if text(vmi, "/status/phase") == Some("Running") && !outcome.live.is_empty() {
                let operations = Value::Array(outcome.live);
                context.controller.patch(VMI, key, "", false, &operations).await?;
                if outcome.hotplug {
                    context.memory().vms.entry(uid(&vm).to_owned()).or_default().hotplugging = true;
                }
            }
        }
    }
    let status = status::next(&vm, vmi, &known);
    if vm.get("status") != Some(&status) {
        set(&mut vm, "/status", status);
        context.controller.replace_status(key, &vm).await?;
    }
    Ok(())
}

/// Adds what virt-controller adds to every VM.
async fn adopt(context: &Context, key: &Key, vm: Value) -> kube::Result<Value> {
    let finalized = list(&vm, "/metadata/finalizers").iter().any(|f| f == FINALIZER);
    let annotated = OBSERVED.iter().all(|a| vm.pointer("/metadata/annotations").is_some_and(|m| m.get(*a).is_some()));
    if finalized && annotated {
        return Ok(vm);
    }
    let mut changed = vm;
    for annotation in OBSERVED {
        let pointer = format!("/metadata/annotations/{}", annotation.replace('/', "~1"));
        set(&mut changed, &pointer, json!("v1"));
    }
    if !finalized {
        let mut finalizers = list(&changed, "/metadata/finalizers").to_vec();
        finalizers.push(json!(FINALIZER));
        set(&mut changed, "/metadata/finalizers", Value::Array(finalizers));
    }
    context.controller.replace(VM, key, &changed).await
}

/// Fills in what the webhook does at a VM's creation and somebody has dropped since: a new firmware UUID, and the PCI
/// layout of the running VMI. That is a write to the spec, and a new UUID raises RestartRequired.
/// Left out without admission, because then nothing was filled in at the creation either.
async fn complete(context: &Context, key: &Key, vm: Value, vmi: Option<&Value>) -> kube::Result<Value> {
    let mut changed = vm.clone();
    let uuid = json!(defaults::uuid_for(&key.name));
    set_default(&mut changed, "/spec/template/spec/domain/firmware/uuid", uuid);
    if let Some(layout) = vmi.and_then(|v| v.pointer(defaults::PCI_TOPOLOGY)) {
        set_default(&mut changed, &format!("/spec/template{}", defaults::PCI_TOPOLOGY), layout.clone());
    }
    if !context.options.admission || changed == vm {
        return Ok(vm);
    }
    context.controller.replace(VM, key, &changed).await
}

/// A VM that is being deleted takes its VMI along, then loses the finalizer.
async fn finalize(context: &Context, key: &Key, vm: &Value, vmi: Option<&Value>) -> kube::Result<Option<Duration>> {
    match vmi {
        Some(vmi) if !deleting(vmi) => {
            stop(context, key, vmi).await?;
        }
        Some(_) => {}
        None => {
            let mut changed = vm.clone();
            let finalizers: Vec<Value> =
                list(vm, "/metadata/finalizers").iter().filter(|f| *f != FINALIZER).cloned().collect();
            set(&mut changed, "/metadata/finalizers", Value::Array(finalizers));
            context.memory().vms.remove(uid(vm));
            context.controller.replace(VM, key, &changed).await?;
            return Ok(None);
        }
    }
    write_status(context, key, vm.clone(), vmi, Known { now: &now(), ..Known::default() }).await?;
    Ok(None)
}

/// Notes which VMI is there, and when one has gone.
fn remember(context: &Context, vm: &Value, vmi: Option<&Value>) {
    let template = vm.pointer("/spec/template").cloned().unwrap_or_default();
    let mut memory = context.memory();
    let entry = memory.vms.entry(uid(vm).to_owned()).or_default();
    match vmi {
        Some(vmi) => {
            if entry.vmi.as_deref() != Some(uid(vmi)) {
                entry.vmi = Some(uid(vmi).to_owned());
                entry.start = Some(template);
                entry.hotplugging = false;
            }
        }
        None => {
            if entry.vmi.take().is_some() {
                entry.snapshot.get_or_insert(template);
                entry.not_before = Some(Instant::now() + context.options.recreate);
            }
        }
    }
}

/// Asks for another VMI, before the failed one is deleted: a lost race for the status would lose the request later.
async fn ask_for_start(context: &Context, key: &Key, mut vm: Value) -> kube::Result<Value> {
    const REQUESTS: &str = "/status/stateChangeRequests";
    if !list(&vm, REQUESTS).is_empty() {
        return Ok(vm);
    }
    set(&mut vm, REQUESTS, json!([{"action": "Start"}]));
    context.controller.replace_status(key, &vm).await
}

/// How long the next VMI must still wait.
fn wait(context: &Context, vm: &Value) -> Option<Duration> {
    let not_before = context.memory().vms.get(uid(vm))?.not_before?;
    let left = not_before.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn forget_pending(context: &Context, vm: &Value) {
    if let Some(entry) = context.memory().vms.get_mut(uid(vm)) {
        entry.snapshot = None;
        entry.not_before = None;
    }
}

async fn start(context: &Context, key: &Key, vm: &Value) -> kube::Result<Value> {
    let template = {
        let mut memory = context.memory();
        let entry = memory.vms.entry(uid(vm).to_owned()).or_default();
        entry.snapshot.take().unwrap_or_else(|| vm.pointer("/spec/template").cloned().unwrap_or_default())
    };
    let mut wanted = vmi::build(vm, &template);
    if !context.options.admission {
        // Without webhooks nobody else would do it, and the operator under test reads these values.
        defaults::vmi(&mut wanted, context.options.rollout);
    }
    let made = context.controller.create(VMI, &key.namespace, &wanted).await?;
    let mut memory = context.memory();
    let entry = memory.vms.entry(uid(vm).to_owned()).or_default();
    entry.vmi = Some(uid(&made).to_owned());
    entry.start = Some(template);
    entry.not_before = None;
    entry.hotplugging = false;
    Ok(made)
}

async fn stop(context: &Context, key: &Key, vmi: &Value) -> kube::Result<Value> {
    context.controller.delete(VMI, key, uid(vmi)).await?;
    let now = context.controller.get(VMI, key).await?;
    // Without finalizers it is gone at once; the DELETED event brings the next pass.
    Ok(now.filter(|v| uid(v) == uid(vmi)).unwrap_or_else(|| vmi.clone()))
}

fn start_revision(context: &Context, vm: &Value) -> (Value, bool) {
    let memory = context.memory();
    let entry = memory.vms.get(uid(vm));
    let start = entry
        .and_then(|e| e.start.clone())
        .unwrap_or_else(|| vm.pointer("/spec/template").cloned().unwrap_or_default());
    (start, entry.is_some_and(|e| e.hotplugging))
}
