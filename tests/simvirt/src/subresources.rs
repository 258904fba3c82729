//! The subresource API: discovery, and start, stop and restart of VMs as virt-api does them.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde_json::{Value, json};

use crate::answers::{Failure, accepted, json_answer, method_not_allowed, not_acceptable, text_answer};
use crate::context::Context;
use crate::guest_queries;
use crate::objects::{Key, VM, VMI, code, message};
use crate::register::GROUP;
use crate::strategy::{RunStrategy, is_final, uses_running_field};
use crate::value::{list, number, present, text, uid};

/// The routes of the group.
pub(crate) fn router() -> Router<Arc<Context>> {
    Router::new()
        .route("/apis", get(async || json_answer(StatusCode::OK, &groups())))
        .route("/apis/subresources.kubevirt.io", get(async || json_answer(StatusCode::OK, &group())))
        .route("/apis/subresources.kubevirt.io/v1", get(async || json_answer(StatusCode::OK, &resources())))
        .route(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/{sub}",
            any(vm_subresource),
        )
        .route(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{sub}",
            any(guest_queries::vmi_subresource),
        )
        .route("/healthz", get(async || "ok"))
        .fallback(async || text_answer(StatusCode::NOT_FOUND, "404: Page Not Found".to_owned()))
}

fn groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})
}

fn group() -> Value {
    let version = json!({"groupVersion": format!("{GROUP}/v1"), "version": "v1"});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": [version], "preferredVersion": version,
    })
}

fn resources() -> Value {
    let resource = |name: &str, verb: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": [verb]});
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
        "resources": [
            resource("virtualmachines/restart", "update"),
            resource("virtualmachines/start", "update"),
            resource("virtualmachines/stop", "update"),
            resource("virtualmachineinstances/guestosinfo", "get"),
            resource("virtualmachineinstances/filesystemlist", "get"),
            resource("virtualmachineinstances/userlist", "get"),
        ],
    })
}

async fn vm_subresource(
    State(context): State<Arc<Context>>,
    Path((namespace, name, sub)): Path<(String, String, String)>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !["start", "stop", "restart"].contains(&sub.as_str()) {
        let text = format!("501: {sub} is not simulated");
        return text_answer(StatusCode::NOT_IMPLEMENTED, text);
    }
    if method != Method::PUT {
        return method_not_allowed();
    }
    if let Some(refusal) = not_acceptable(&headers) {
        return refusal;
    }
    let key = Key::new(&namespace, &name);
    let done = match sub.as_str() {
        "start" => start(&context, &key, &body).await,
        "stop" => stop(&context, &key, &body).await,
        _ => restart(&context, &key, &body).await,
    };
    match done {
        Ok(()) => accepted(),
        Err(failure) => failure.into_response(),
    }
}

/// The body of the three calls. Empty is allowed.
struct Wish {
    grace: Option<i64>,
    dry_run: bool,
}

fn wish(body: &[u8], grace_field: &str) -> Result<Wish, Failure> {
    let unreadable =
        |why: String| Failure::bad_request(format!("Can not unmarshal Request body to struct, error: {why}"));
    if body.is_empty() {
        return Ok(Wish { grace: None, dry_run: false });
    }
    let body: Value = serde_json::from_slice(body).map_err(|e| unreadable(e.to_string()))?;
    let pointer = format!("/{grace_field}");
    if let Some(kind) = body.pointer(&pointer).and_then(go_kind) {
        return Err(unreadable(format!(
            "json: cannot unmarshal {kind} into Go struct field .{grace_field} of type int64"
        )));
    }
    Ok(Wish { grace: number(&body, &pointer), dry_run: list(&body, "/dryRun").iter().any(|d| d == "All") })
}

/// What Go's decoder calls a value that is no number.
fn go_kind(value: &Value) -> Option<&'static str> {
    match value {
        Value::String(_) => Some("string"),
        Value::Bool(_) => Some("bool"),
        Value::Array(_) => Some("array"),
        Value::Object(_) => Some("object"),
        Value::Number(_) | Value::Null => None,
    }
}

async fn restart(context: &Context, key: &Key, body: &[u8]) -> Result<(), Failure> {
    let wish = wish(body, "gracePeriodSeconds")?;
    match wish.grace {
        Some(grace) if grace > 0 => {
            return Err(Failure::bad_request("For force restart, only gracePeriod=0 is supported for now"));
        }
        Some(grace) if grace < 0 => {
            return Err(Failure::bad_request("gracePeriod has to be greater or equal to 0"));
        }
        _ => {}
    }
    let (vm, vmi) = read(context, key).await?;
    let strategy = RunStrategy::of(&vm);
    if matches!(strategy, RunStrategy::Halted | RunStrategy::Once) {
        let why = format!("RunStategy {} does not support manual restart requests", strategy.name());
        return Err(conflict(key, &why));
    }
    let Some(vmi) = vmi else {
        return Err(conflict(key, "VM is not running: Halted"));
    };
    let requests = json!([{"action": "Stop", "uid": uid(&vmi)}, {"action": "Start"}]);
    request(context, key, &vm, requests, wish.dry_run).await?;
    if wish.grace == Some(0) {
        shorten(context, key, 1, wish.dry_run).await?;
    }
    Ok(())
}

async fn start(context: &Context, key: &Key, body: &[u8]) -> Result<(), Failure> {
    let wish = wish(body, "gracePeriod")?;
    let (vm, vmi) = read(context, key).await?;
    let running = vmi.as_ref().is_some_and(|v| !is_final(v));
    if running {
        return Err(conflict(key, "VM is already running"));
    }
    match RunStrategy::of(&vm) {
        RunStrategy::Halted => set_strategy(context, key, &vm, true, wish.dry_run).await,
        RunStrategy::Manual | RunStrategy::RerunOnFailure => {
            let mut requests = Vec::new();
            if let Some(vmi) = &vmi {
                requests.push(json!({"action": "Stop", "uid": uid(vmi)}));
            }
            requests.push(json!({"action": "Start"}));
            request(context, key, &vm, Value::Array(requests), wish.dry_run).await
        }
        strategy @ (RunStrategy::Always | RunStrategy::Once) => {
            let why = format!("{} does not support manual start requests", strategy.name());
            Err(conflict(key, &why))
        }
    }
}

async fn stop(context: &Context, key: &Key, body: &[u8]) -> Result<(), Failure> {
    let wish = wish(body, "gracePeriod")?;
    let (vm, vmi) = read(context, key).await?;
    let vmi = vmi.filter(|v| !is_final(v));
    let strategy = RunStrategy::of(&vm);
    let Some(vmi) = vmi else {
        return match strategy {
            RunStrategy::Always | RunStrategy::Once => set_strategy(context, key, &vm, false, wish.dry_run).await,
            _ => Err(conflict(key, "VM is not running")),
        };
    };
    if let Some(grace) = wish.grace {
        shorten(context, key, grace, wish.dry_run).await?;
    }
    match strategy {
        RunStrategy::Halted if wish.grace.is_none() => {
            Err(conflict(key, "Halted does not support manual stop requests"))
        }
        RunStrategy::Halted => Ok(()),
        RunStrategy::Manual | RunStrategy::RerunOnFailure => {
            let requests = json!([{"action": "Stop", "uid": uid(&vmi)}]);
            request(context, key, &vm, requests, wish.dry_run).await
        }
        RunStrategy::Always | RunStrategy::Once => set_strategy(context, key, &vm, false, wish.dry_run).await,
    }
}

async fn read(context: &Context, key: &Key) -> Result<(Value, Option<Value>), Failure> {
    let vm = context.api.get(VM, key).await.map_err(internal)?;
    let vm = vm.ok_or_else(|| Failure::not_found("virtualmachine", &key.name))?;
    let vmi = context.api.get(VMI, key).await.map_err(internal)?;
    Ok((vm, vmi))
}

/// Writes stateChangeRequests, only where none are pending: guarded by a test, as virt-api does it.
async fn request(context: &Context, key: &Key, vm: &Value, requests: Value, dry_run: bool) -> Result<(), Failure> {
    const PATH: &str = "/status/stateChangeRequests";
    if !list(vm, PATH).is_empty() {
        return Err(underway());
    }
    let operations = if present(vm, "/status") {
        json!([
            {"op": "test", "path": PATH, "value": null},
            {"op": "add", "path": PATH, "value": requests},
        ])
    } else {
        json!([{"op": "add", "path": "/status", "value": {"stateChangeRequests": requests}}])
    };
    match context.api.patch(VM, key, "/status", dry_run, &operations).await {
        Ok(_) => Ok(()),
        // The test failed: another request came in between.
        Err(error) if code(&error) == 422 => Err(underway()),
        Err(error) => Err(internal(error)),
    }
}

fn underway() -> Failure {
    Failure::internal("unable to complete request: stop/start already underway")
}

/// Starts or stops through the spec: Always or Halted, or `running` for VMs that use that field.
async fn set_strategy(context: &Context, key: &Key, vm: &Value, run: bool, dry_run: bool) -> Result<(), Failure> {
    let (path, value) = if uses_running_field(vm) {
        ("/spec/running", json!(run))
    } else {
        ("/spec/runStrategy", json!(if run { "Always" } else { "Halted" }))
    };
    let old = vm.pointer(path).cloned().unwrap_or_default();
    let operations = json!([
        {"op": "test", "path": path, "value": old},
        {"op": "replace", "path": path, "value": value},
    ]);
    let written = context.api.patch(VM, key, "", dry_run, &operations).await;
    written.map(|_| ()).map_err(internal)
}

/// Shortens the grace period of the running VMI.
async fn shorten(context: &Context, key: &Key, grace: i64, dry_run: bool) -> Result<(), Failure> {
    let operations = json!([{"op": "add", "path": "/spec/terminationGracePeriodSeconds", "value": grace}]);
    let written = context.api.patch(VMI, key, "", dry_run, &operations).await;
    written.map(|_| ()).map_err(internal)
}

fn conflict(key: &Key, why: &str) -> Failure {
    Failure::conflict("virtualmachine", &key.name, why)
}

#[allow(clippy::needless_pass_by_value, reason = "used as a function in map_err")]
fn internal(error: kube::Error) -> Failure {
    Failure::internal(&message(&error))
}

/// The phase of a VMI for messages.
pub(crate) fn phase(vmi: &Value) -> &str {
    text(vmi, "/status/phase").unwrap_or_default()
}
