//! KubeVirt's webhooks for VMs and VMIs.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::answers::json_answer;
use crate::context::Context;
use crate::defaults;
use crate::rules::{self, Refusal};
use crate::value::{deleting, set, text};

/// The routes of the webhooks.
pub(crate) fn router() -> Router<Arc<Context>> {
    Router::new()
        .route("/virtualmachines-mutate", post(mutate_vm))
        .route("/virtualmachineinstances-mutate", post(mutate_vmi))
        .route("/virtualmachines-validate", post(validate_vm))
        .route("/virtualmachineinstances-validate-create", post(validate_vmi))
}

async fn mutate_vm(body: Bytes) -> Response {
    review(&body, |object, operation| {
        let refusals = rules::schema(object);
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let before = object.clone();
        if operation == "CREATE" {
            defaults::vm(object);
        }
        if let Some(spec) = object.pointer_mut("/spec/template/spec") {
            defaults::round_trip(spec);
        }
        Ok(patch(&before, object))
    })
}

async fn mutate_vmi(State(context): State<Arc<Context>>, body: Bytes) -> Response {
    review(&body, |object, _| {
        let before = object.clone();
        defaults::vmi(object, context.options.rollout);
        Ok(patch(&before, object))
    })
}

async fn validate_vm(body: Bytes) -> Response {
    review(&body, |object, _| {
        if deleting(object) {
            return Ok(None);
        }
        refuse(rules::vm(object))
    })
}

async fn validate_vmi(body: Bytes) -> Response {
    review(&body, |object, _| refuse(rules::vmi(object)))
}

fn refuse(refusals: Vec<Refusal>) -> Result<Option<Value>, Vec<Refusal>> {
    if refusals.is_empty() { Ok(None) } else { Err(refusals) }
}

/// KubeVirt replaces spec, metadata and (for a VMI) status as a whole.
fn patch(before: &Value, after: &Value) -> Option<Value> {
    let operations: Vec<Value> = ["metadata", "spec", "status"]
        .iter()
        .filter(|part| before.get(**part) != after.get(**part))
        .map(|part| json!({"op": "add", "path": format!("/{part}"), "value": after.get(*part)}))
        .collect();
    (!operations.is_empty()).then_some(Value::Array(operations))
}

fn review(body: &[u8], decide: impl FnOnce(&mut Value, &str) -> Result<Option<Value>, Vec<Refusal>>) -> Response {
    let Ok(review) = serde_json::from_slice::<Value>(body) else {
        return crate::answers::text_answer(StatusCode::BAD_REQUEST, "no admission review".to_owned());
    };
    let mut object = review.pointer("/request/object").cloned().unwrap_or_default();
    let operation = text(&review, "/request/operation").unwrap_or_default();
    let mut response = json!({"uid": text(&review, "/request/uid"), "allowed": true});
    match decide(&mut object, operation) {
        Ok(None) => {}
        Ok(Some(operations)) => {
            set(&mut response, "/patchType", json!("JSONPatch"));
            set(&mut response, "/patch", json!(ByteString(operations.to_string().into_bytes())));
        }
        Err(refusals) => {
            set(&mut response, "/allowed", json!(false));
            set(&mut response, "/status", status(&refusals));
        }
    }
    json_answer(
        StatusCode::OK,
        &json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}),
    )
}

/// All messages in one, and each as a cause.
fn status(refusals: &[Refusal]) -> Value {
    let message: Vec<&str> = refusals.iter().map(|r| r.message.as_str()).collect();
    let causes: Vec<Value> =
        refusals.iter().map(|r| json!({"reason": r.reason, "message": r.message, "field": r.field})).collect();
    json!({
        "code": 422, "reason": "Invalid",
        "message": message.join(", "),
        "details": {"causes": causes},
    })
}
