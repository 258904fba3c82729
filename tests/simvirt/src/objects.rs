//! Reads and writes of KubeVirt objects as plain JSON, as admin, under the field manager that the real component uses.

use axum::http::{Method, Request};
use kube::Client;
use serde_json::Value;

/// The resource names of the two kinds that the simulation plays with.
pub(crate) const VM: &str = "virtualmachines";
pub(crate) const VMI: &str = "virtualmachineinstances";

/// A name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// JSON access to one API group, with one field manager.
#[derive(Clone)]
pub(crate) struct Objects {
    client: Client,
    manager: &'static str,
}

impl Objects {
    pub(crate) fn new(client: Client, manager: &'static str) -> Objects {
        Objects { client, manager }
    }

    pub(crate) async fn get(&self, plural: &str, key: &Key) -> kube::Result<Option<Value>> {
        match self.send(Method::GET, path(plural, key), None).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn create(&self, plural: &str, namespace: &str, object: &Value) -> kube::Result<Value> {
        let path = format!("/apis/kubevirt.io/v1/namespaces/{namespace}/{plural}?fieldManager={}", self.manager);
        self.send(Method::POST, path, Some(object)).await
    }

    /// Replaces the whole object; its resourceVersion guards against lost updates.
    pub(crate) async fn replace(&self, plural: &str, key: &Key, object: &Value) -> kube::Result<Value> {
        let path = format!("{}?fieldManager={}", path(plural, key), self.manager);
        self.send(Method::PUT, path, Some(object)).await
    }

    /// Replaces the status of a VirtualMachine.
    pub(crate) async fn replace_status(&self, key: &Key, object: &Value) -> kube::Result<Value> {
        let path = format!("{}/status?fieldManager={}", path(VM, key), self.manager);
        self.send(Method::PUT, path, Some(object)).await
    }

    /// A JSON Patch of the object or, with `suffix` "/status", of its status.
    pub(crate) async fn patch(
        &self,
        plural: &str,
        key: &Key,
        suffix: &str,
        dry_run: bool,
        operations: &Value,
    ) -> kube::Result<Value> {
        let dry = if dry_run { "&dryRun=All" } else { "" };
        let path = format!("{}{suffix}?fieldManager={}{dry}", path(plural, key), self.manager);
        self.send_as(Method::PATCH, path, "application/json-patch+json", Some(operations)).await
    }

    /// Deletes exactly the object with this UID.
    pub(crate) async fn delete(&self, plural: &str, key: &Key, uid: &str) -> kube::Result<Value> {
        let options = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "preconditions": {"uid": uid},
        });
        self.send(Method::DELETE, path(plural, key), Some(&options)).await
    }

    /// Any JSON request to the API server.
    pub(crate) async fn send(&self, method: Method, path: String, body: Option<&Value>) -> kube::Result<Value> {
        self.send_as(method, path, "application/json", body).await
    }

    async fn send_as(&self, method: Method, path: String, content: &str, body: Option<&Value>) -> kube::Result<Value> {
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(kube::Error::SerdeError)?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(bytes)
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

fn path(plural: &str, key: &Key) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{}/{plural}/{}", key.namespace, key.name)
}

/// The HTTP code of an API error, 0 for other errors.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// The API server's own words, or the error's text.
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
