//! A validating webhook of the test: it sees what the operator sends, at the very moment, and may refuse it.

use std::sync::Arc;

use axum::routing::post;
use axum::{Json, Router};
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::Cluster;

const NAME: &str = "test.wintune.dev";

/// A registered webhook; taken back by [`Webhook::stop`].
pub struct Webhook {
    api: Api<DynamicObject>,
    task: JoinHandle<()>,
}

impl Webhook {
    /// Calls `answer` with each admission request of `resources` in `group`; a returned text is a refusal.
    pub async fn start(
        cluster: &Cluster,
        group: &str,
        version: &str,
        resources: &[&str],
        answer: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self::with_code(cluster, 422, group, version, resources, answer).await
    }

    /// The same with another status code of its refusals.
    pub async fn with_code(
        cluster: &Cluster,
        code: u16,
        group: &str,
        version: &str,
        resources: &[&str],
        answer: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let server = simvirt::Server::bind("test").await.unwrap();
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": NAME, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
                "timeoutSeconds": 10,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
                "clientConfig": {"url": format!("https://127.0.0.1:{}/", server.port), "caBundle": base64(server.certificate.as_bytes())},
                "rules": [{"apiGroups": [group], "apiVersions": [version], "resources": resources, "operations": ["CREATE", "UPDATE"]}]}]});
        let answer = Arc::new(answer);
        let review = move |Json(review): Json<Value>| {
            let answer = answer.clone();
            async move {
                let refusal = answer(&review["request"]);
                Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
                    "uid": review["request"]["uid"], "allowed": refusal.is_none(),
                    "status": {"code": code, "message": refusal.unwrap_or_default()}}}))
            }
        };
        let task = tokio::spawn(server.run(Router::new().route("/", post(review))));
        let api = cluster.all("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration");
        let object: DynamicObject = serde_json::from_value(configuration).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        // The API server learns of a new webhook by a watch.
        tokio::time::sleep(std::time::Duration::from_millis(1000)).await;
        Self { api, task }
    }

    pub async fn stop(self) {
        self.api.delete(NAME, &DeleteParams::default()).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        self.task.abort();
    }
}

fn base64(bytes: &[u8]) -> String {
    use k8s_openapi::ByteString;
    let value = serde_json::to_value(ByteString(bytes.to_vec())).unwrap();
    value.as_str().unwrap().to_owned()
}
