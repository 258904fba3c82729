//! Requests on the wire, as the administrator and as the operator's ServiceAccount.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::http::Request;
use harness::ControlPlane;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::traces::{Traces, text};

/// How long an effect may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long something that must not happen is waited for.
pub(crate) const CALM: Duration = Duration::from_millis(150);
/// The Accept header of the recorded requests, apart from those about that header.
const ACCEPT: &str = "application/json, */*";

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Admin,
    Operator,
    Nobody,
}

/// Clients of one API server.
pub(crate) struct Wire {
    admin: Client,
    operator: Client,
    nobody: Client,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: Option<String>,
    /// Parsed if it is JSON, else a string.
    pub(crate) body: Value,
}

impl Answer {
    /// The message of a Status object, the text of a plain answer, or nothing.
    pub(crate) fn message(&self) -> &str {
        text(&self.body, "/message").or(self.body.as_str()).unwrap_or_default()
    }
}

impl Wire {
    /// Makes the namespaces and accounts of the recordings: the operator's account is bound to KubeVirt's own
    /// ClusterRole `kubevirt.io:edit`, another one to nothing.
    pub(crate) async fn new(plane: &ControlPlane, traces: &Traces) -> anyhow::Result<Wire> {
        let admin = plane.admin();
        let spaces = [
            "wintune-system",
            "scen-b",
            "scen-b2",
            "scen-c1",
            "scen-c2",
            "scen-d1",
            "scen-d2",
            "scen-d3",
            "scen-d4",
            "scen-f",
        ];
        for space in spaces {
            harness::create_namespace(&admin, space).await?;
        }
        let mut wire = Wire { admin: admin.clone(), operator: admin.clone(), nobody: admin };
        for (space, name) in [("wintune-system", "wintune"), ("scen-d3", "nobody")] {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            wire.admin_post(&format!("/api/v1/namespaces/{space}/serviceaccounts"), &account).await?;
        }
        let roles = traces.json("setup/rbac.json")?;
        let edit = roles
            .pointer("/items")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .find(|i| text(i, "/kind") == Some("ClusterRole") && text(i, "/metadata/name") == Some("kubevirt.io:edit"))
            .context("no ClusterRole kubevirt.io:edit in setup/rbac.json")?;
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        wire.admin_post(&format!("{rbac}/clusterroles"), edit).await?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "wintune"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubevirt.io:edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "wintune", "namespace": "wintune-system"}],
        });
        wire.admin_post(&format!("{rbac}/clusterrolebindings"), &binding).await?;
        let config = plane.token_kubeconfig("wintune-system", "wintune", "wintune.kubeconfig").await?;
        wire.operator = plane.client_from(&config).await?;
        let config = plane.token_kubeconfig("scen-d3", "nobody", "nobody.kubeconfig").await?;
        wire.nobody = plane.client_from(&config).await?;
        Ok(wire)
    }

    async fn admin_post(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        let answer = self.json(User::Admin, "POST", path, body).await?;
        anyhow::ensure!(answer.status < 300, "POST {path}: {}", answer.message());
        Ok(())
    }

    /// A request with a JSON body (none if null).
    pub(crate) async fn json(&self, user: User, method: &str, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send(user, method, path, Some("application/json"), Some(ACCEPT), body).await
    }

    /// A JSON Patch.
    pub(crate) async fn patch(&self, user: User, path: &str, operations: &Value) -> anyhow::Result<Answer> {
        let content = Some("application/json-patch+json");
        self.send(user, "PATCH", path, content, Some(ACCEPT), operations).await
    }

    /// Any request. A string as body is sent as it is.
    pub(crate) async fn send(
        &self,
        user: User,
        method: &str,
        path: &str,
        content_type: Option<&str>,
        accept: Option<&str>,
        body: &Value,
    ) -> anyhow::Result<Answer> {
        let bytes = match body {
            Value::Null => Vec::new(),
            Value::String(raw) => raw.clone().into_bytes(),
            other => serde_json::to_vec(other)?,
        };
        let mut request = Request::builder().method(method).uri(path);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let client = match user {
            User::Admin => &self.admin,
            User::Operator => &self.operator,
            User::Nobody => &self.nobody,
        };
        let response = client.send(request.body(Body::from(bytes))?).await?;
        let status = response.status().as_u16();
        let content_type = response.headers().get("content-type").and_then(|v| v.to_str().ok()).map(str::to_owned);
        let bytes = axum::body::to_bytes(axum::body::Body::new(response.into_body()), usize::MAX).await?;
        let raw = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&raw).unwrap_or(Value::String(raw));
        Ok(Answer { status, content_type, body })
    }

    /// The object at `path`, or null.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.json(User::Admin, "GET", path, &Value::Null).await?;
        Ok(if answer.status == 200 { answer.body } else { Value::Null })
    }

    /// Polls until `difference` finds none; returns the last one.
    pub(crate) async fn settle(
        &self,
        path: &str,
        mut difference: impl FnMut(&Value) -> Option<String>,
    ) -> anyhow::Result<Option<String>> {
        let start = Instant::now();
        loop {
            let object = self.get(path).await?;
            let found = difference(&object);
            if found.is_none() || start.elapsed() > PATIENCE {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The path of a VM.
pub(crate) fn vm_path(namespace: &str, name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}")
}

/// The path of a VMI.
pub(crate) fn vmi_path(namespace: &str, name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}")
}

/// The path of a VM's subresource.
pub(crate) fn subresource_path(namespace: &str, name: &str, sub: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/{sub}")
}
