//! The shapes of virt-api's answers.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A failure as a Kubernetes Status object.
#[derive(Debug)]
pub(crate) struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
}

impl Failure {
    pub(crate) fn bad_request(message: impl Into<String>) -> Failure {
        Failure { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into(), details: None }
    }

    pub(crate) fn not_found(kind: &str, name: &str) -> Failure {
        Failure {
            code: StatusCode::NOT_FOUND,
            reason: "NotFound",
            message: format!("{kind}.kubevirt.io \"{name}\" not found"),
            details: Some(json!({"name": name, "group": "kubevirt.io", "kind": kind})),
        }
    }

    pub(crate) fn conflict(kind: &str, name: &str, why: &str) -> Failure {
        Failure {
            code: StatusCode::CONFLICT,
            reason: "Conflict",
            message: format!("Operation cannot be fulfilled on {kind}.kubevirt.io \"{name}\": {why}"),
            details: Some(json!({"name": name, "group": "kubevirt.io", "kind": kind})),
        }
    }

    pub(crate) fn internal(why: &str) -> Failure {
        Failure {
            code: StatusCode::INTERNAL_SERVER_ERROR,
            reason: "InternalError",
            message: format!("Internal error occurred: {why}"),
            details: Some(json!({"causes": [{"message": why}]})),
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let Some(details) = self.details {
            crate::value::set(&mut status, "/details", details);
        }
        json_answer(self.code, &status)
    }
}

/// JSON under exactly `application/json`.
pub(crate) fn json_answer(code: StatusCode, value: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Plain text, as virt-api's router and its guest queries answer.
pub(crate) fn text_answer(code: StatusCode, text: String) -> Response {
    (code, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// 202 without a body and without a content type.
pub(crate) fn accepted() -> Response {
    StatusCode::ACCEPTED.into_response()
}

/// The router's words for a verb that a path does not know.
pub(crate) fn method_not_allowed() -> Response {
    text_answer(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".to_owned())
}

/// The lifecycle paths produce nothing in particular, so the router serves only clients that take anything.
pub(crate) fn not_acceptable(headers: &HeaderMap) -> Option<Response> {
    let accept = headers.get(header::ACCEPT)?.to_str().ok()?;
    let anything = accept.split(',').any(|part| part.trim().starts_with("*/*"));
    (!anything).then(|| {
        text_answer(StatusCode::NOT_ACCEPTABLE, "406: Not Acceptable\n\nAvailable representations: ".to_owned())
    })
}
