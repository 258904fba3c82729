//! The node's part: brings a VMI from Pending to Running and, when it is deleted, to its end.
//! There is no pod, no libvirt and no guest; only the VMI's status and finalizers are written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::controller::{Action, Config};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::context::{Context, VmiMemory};
use crate::controller::vmi_resource;
use crate::guest_os;
use crate::objects::{Key, VM, VMI, code};
use crate::options::Stage;
use crate::strategy::is_final;
use crate::time::now;
use crate::value::{condition, condition_true, deleting, list, number, present, set, set_default, text, uid};
use crate::vmi;

/// How often a VMI that the test holds back is looked at again.
const HELD: Duration = Duration::from_millis(20);

/// Runs until it is aborted.
pub(crate) async fn run(client: Client, context: Arc<Context>) {
    let vmis: Api<DynamicObject> = Api::all_with(client, &vmi_resource());
    Controller::new_with(vmis, watcher::Config::default(), vmi_resource())
        .with_config(Config::default().concurrency(64))
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

#[allow(clippy::needless_pass_by_value, reason = "the signature is kube-rs's")]
fn on_error(object: Arc<DynamicObject>, error: &kube::Error, _: Arc<Context>) -> Action {
    if code(error) == 409 {
        return Action::requeue(Duration::from_millis(5));
    }
    tracing::warn!(vmi = ?object.metadata.name, %error, "simulated node failed, trying again");
    Action::requeue(Duration::from_millis(100))
}

async fn step(context: &Context, key: &Key) -> kube::Result<Option<Duration>> {
    let Some(vmi) = context.handler.get(VMI, key).await? else {
        return Ok(None);
    };
    let memory = see(context, &vmi);
    if deleting(&vmi) {
        return end(context, key, vmi, memory).await;
    }
    if is_final(&vmi) {
        return Ok(None);
    }
    advance(context, key, vmi, memory).await
}

/// Notes the moments of this VMI. A VMI that already runs was seen before by another simulation.
fn see(context: &Context, vmi: &Value) -> VmiMemory {
    let now = Instant::now();
    let mut memory = context.memory();
    let entry = memory.vmis.entry(uid(vmi).to_owned()).or_insert(VmiMemory { seen: now, deleted: None, running: None });
    if deleting(vmi) {
        entry.deleted.get_or_insert(now);
    }
    if text(vmi, "/status/phase") == Some("Running") {
        entry.running.get_or_insert(now);
    }
    *entry
}

/// One step towards Running.
async fn advance(context: &Context, key: &Key, vmi: Value, memory: VmiMemory) -> kube::Result<Option<Duration>> {
    let options = &context.options;
    let limit = context.guest(key).limit.unwrap_or(Stage::Agent);
    let since = memory.seen.elapsed();
    match text(&vmi, "/status/phase") {
        Some("Scheduling") if limit < Stage::Scheduled => Ok(Some(HELD)),
        Some("Scheduling") => {
            if let Some(left) = left(options.boot / 2, since) {
                return Ok(Some(left));
            }
            let mut next = vmi;
            phase(&mut next, "Scheduled");
            set(&mut next, "/status/nodeName", json!(options.node));
            set(&mut next, "/metadata/labels/kubevirt.io~1nodeName", json!(options.node));
            let pod = format!("/status/activePods/{}", uid(&next).to_owned());
            set(&mut next, &pod, json!(options.node));
            context.handler.replace(VMI, key, &next).await?;
            Ok(None)
        }
        Some("Scheduled") if limit < Stage::Running => Ok(Some(HELD)),
        Some("Scheduled") => {
            if let Some(left) = left(options.boot, since) {
                return Ok(Some(left));
            }
            let mut next = vmi;
            phase(&mut next, "Running");
            running(&mut next);
            context.handler.replace(VMI, key, &next).await?;
            Ok(None)
        }
        Some("Running") => serve(context, key, vmi, memory, limit).await,
        _ => {
            let mut next = vmi;
            phase(&mut next, "Scheduling");
            put_condition(&mut next, guest_not_running());
            context.controller.replace(VMI, key, &next).await?;
            Ok(None)
        }
    }
}

/// A running VMI becomes Ready, then its agent connects.
async fn serve(
    context: &Context,
    key: &Key,
    mut vmi: Value,
    memory: VmiMemory,
    limit: Stage,
) -> kube::Result<Option<Duration>> {
    if !condition_true(&vmi, "Ready") {
        put_condition(
            &mut vmi,
            json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": now()}),
        );
        context.controller.replace(VMI, key, &vmi).await?;
        return Ok(None);
    }
    if limit < Stage::Agent {
        return Ok(Some(HELD));
    }
    let vm = context.handler.get(VM, key).await?;
    let Some(os) = context.guest(key).os.or_else(|| guest_os::declared(vm.as_ref(), &vmi)) else {
        return Ok(None);
    };
    if condition_true(&vmi, "AgentConnected") && vmi.pointer("/status/guestOSInfo") == Some(&os) {
        return Ok(None);
    }
    let since = memory.running.map_or(Duration::ZERO, |r| r.elapsed());
    if let Some(left) = left(context.options.agent, since) {
        return Ok(Some(left));
    }
    agent_connected(&mut vmi, os);
    context.handler.replace(VMI, key, &vmi).await?;
    Ok(None)
}

/// A VMI that is being deleted: not ready at once, over after its time, gone after that.
async fn end(context: &Context, key: &Key, mut vmi: Value, memory: VmiMemory) -> kube::Result<Option<Duration>> {
    let terminating = condition(&vmi, "Ready").and_then(|c| text(c, "/reason")) == Some("PodTerminating");
    if !terminating && !is_final(&vmi) && condition(&vmi, "Ready").is_some() {
        put_condition(&mut vmi, pod_terminating());
        context.controller.replace(VMI, key, &vmi).await?;
        return Ok(None);
    }
    let forced = number(&vmi, "/spec/terminationGracePeriodSeconds").is_some_and(|s| s <= 1);
    let time = match (forced, is_final(&vmi)) {
        (true, _) | (_, true) => context.options.terminating / 2,
        _ => context.options.terminating,
    };
    if let Some(left) = left(time, memory.deleted.map_or(Duration::ZERO, |d| d.elapsed())) {
        return Ok(Some(left));
    }
    if !is_final(&vmi) {
        let end = if text(&vmi, "/status/phase") == Some("Running") { "Succeeded" } else { "Failed" };
        phase(&mut vmi, end);
        vmi = context.handler.replace(VMI, key, &vmi).await?;
    }
    snapshot(context, key, &vmi).await?;
    let finalizers: Vec<Value> = list(&vmi, "/metadata/finalizers")
        .iter()
        .filter(|f| !vmi::FINALIZERS.iter().any(|ours| *f == ours))
        .cloned()
        .collect();
    set(&mut vmi, "/metadata/finalizers", Value::Array(finalizers));
    context.controller.replace(VMI, key, &vmi).await?;
    context.memory().vmis.remove(uid(&vmi));
    Ok(None)
}

/// Keeps the VM's template as it is now: the next VMI is made from it.
async fn snapshot(context: &Context, key: &Key, vmi: &Value) -> kube::Result<()> {
    let Some(vm) = context.controller.get(VM, key).await? else {
        return Ok(());
    };
    if vmi::owned_by(vmi, &vm) {
        let template = vm.pointer("/spec/template").cloned();
        context.memory().vms.entry(uid(&vm).to_owned()).or_default().snapshot = template;
    }
    Ok(())
}

fn left(wanted: Duration, since: Duration) -> Option<Duration> {
    wanted.checked_sub(since).filter(|d| !d.is_zero())
}

/// Enters a phase.
pub(crate) fn phase(vmi: &mut Value, phase: &str) {
    set(vmi, "/status/phase", json!(phase));
    let mut times = list(vmi, "/status/phaseTransitionTimestamps").to_vec();
    times.push(json!({"phase": phase, "phaseTransitionTimestamp": now()}));
    set(vmi, "/status/phaseTransitionTimestamps", Value::Array(times));
}

/// Adds or replaces a condition.
pub(crate) fn put_condition(vmi: &mut Value, condition: Value) {
    let mut conditions = list(vmi, "/status/conditions").to_vec();
    match conditions.iter_mut().find(|c| text(c, "/type") == text(&condition, "/type")) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
    set(vmi, "/status/conditions", Value::Array(conditions));
}

fn guest_not_running() -> Value {
    json!({
        "type": "Ready", "status": "False", "reason": "GuestNotRunning",
        "message": "Guest VM is not reported as running",
        "lastProbeTime": now(), "lastTransitionTime": now(),
    })
}

/// The Ready condition of a VMI whose pod is going.
pub(crate) fn pod_terminating() -> Value {
    json!({
        "type": "Ready", "status": "False", "reason": "PodTerminating",
        "message": "virt-launcher pod is terminating",
        "lastProbeTime": now(), "lastTransitionTime": now(),
    })
}

/// What virt-handler reports once the agent answers.
pub(crate) fn agent_connected(vmi: &mut Value, os: Value) {
    set(vmi, "/status/guestOSInfo", os);
    if !condition_true(vmi, "AgentConnected") {
        put_condition(
            vmi,
            json!({"type": "AgentConnected", "status": "True", "lastProbeTime": now(), "lastTransitionTime": null}),
        );
    }
}

/// What virt-handler reports of a domain that has just started.
fn running(vmi: &mut Value) {
    for kind in ["LiveMigratable", "StorageLiveMigratable"] {
        put_condition(vmi, json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": null}));
    }
    let topology = |part: &str| number(vmi, &format!("/spec/domain/cpu/{part}")).unwrap_or(1);
    let topology = json!({
        "cores": topology("cores"), "sockets": topology("sockets"), "threads": topology("threads"),
    });
    set(vmi, "/status/currentCPUTopology", topology);
    if let Some(guest) = text(vmi, "/spec/domain/memory/guest").map(str::to_owned) {
        for part in ["guestAtBoot", "guestCurrent", "guestRequested"] {
            set(vmi, &format!("/status/memory/{part}"), json!(guest));
        }
    }
    let volumes: Vec<Value> = list(vmi, "/spec/volumes").iter().map(volume_status).collect();
    set(vmi, "/status/volumeStatus", Value::Array(volumes));
    for (pointer, value) in [
        ("/status/guestOSInfo", json!({})),
        ("/status/machine", json!({"type": "pc-q35-rhel9.6.0"})),
        ("/status/migrationMethod", json!("BlockMigration")),
        ("/status/migrationTransport", json!("Unix")),
        ("/status/qosClass", json!("Burstable")),
        ("/status/runtimeUser", json!(107)),
    ] {
        set_default(vmi, pointer, value);
    }
}

fn volume_status(volume: &Value) -> Value {
    let mut status = json!({"name": text(volume, "/name"), "target": ""});
    if present(volume, "/persistentVolumeClaim") {
        set(
            &mut status,
            "/persistentVolumeClaimInfo",
            json!({
                "claimName": text(volume, "/persistentVolumeClaim/claimName"),
                "accessModes": ["ReadWriteMany"],
                "capacity": {"storage": "20Gi"},
                "requests": {"storage": "20Gi"},
                "volumeMode": "Filesystem",
                "filesystemOverhead": "0.055",
            }),
        );
    }
    status
}
