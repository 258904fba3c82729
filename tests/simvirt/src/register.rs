//! Makes the API server send KubeVirt's subresources, and if wanted its admission reviews, to this process.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use axum::http::Method;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::objects::{Objects, code};
use crate::server::Server;

/// The group of the subresources.
pub(crate) const GROUP: &str = "subresources.kubevirt.io";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const API_SERVICE: &str = "v1.subresources.kubevirt.io";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const MUTATOR: &str = "virt-api-mutator";
const VALIDATOR: &str = "virt-api-validator";

/// One of KubeVirt's webhooks that is simulated.
struct Webhook {
    name: &'static str,
    path: &'static str,
    resource: &'static str,
    operations: &'static [&'static str],
}

const MUTATING: [Webhook; 2] = [
    Webhook {
        name: "virtualmachines-mutator.kubevirt.io",
        path: "/virtualmachines-mutate",
        resource: "virtualmachines",
        operations: &["CREATE", "UPDATE"],
    },
    Webhook {
        name: "virtualmachineinstances-mutator.kubevirt.io",
        path: "/virtualmachineinstances-mutate",
        resource: "virtualmachineinstances",
        operations: &["CREATE"],
    },
];

const VALIDATING: [Webhook; 2] = [
    Webhook {
        name: "virtualmachine-validator.kubevirt.io",
        path: "/virtualmachines-validate",
        resource: "virtualmachines",
        operations: &["CREATE", "UPDATE"],
    },
    Webhook {
        name: "virtualmachineinstances-create-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-create",
        resource: "virtualmachineinstances",
        operations: &["CREATE"],
    },
];

/// Registers the server as the subresource API. Its Service is of type ExternalName, as in the recorded set-up: it
/// needs no endpoints and no node.
pub(crate) async fn api_service(objects: &Objects, server: &Server, namespace: &str) -> anyhow::Result<()> {
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    put(objects, "/api/v1/namespaces", namespace, space).await?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "virt-api", "namespace": namespace, "labels": {"kubevirt.io": "virt-api"}},
        "spec": {
            "type": "ExternalName", "externalName": "localhost",
            "ports": [{"port": server.port, "protocol": "TCP", "targetPort": server.port}],
        },
    });
    put(objects, &format!("/api/v1/namespaces/{namespace}/services"), "virt-api", service).await?;
    let registration = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": API_SERVICE, "labels": {"kubevirt.io": "virt-api-aggregator"}},
        "spec": {
            "group": GROUP, "version": "v1",
            "groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"name": "virt-api", "namespace": namespace, "port": server.port},
            "caBundle": bundle(server),
        },
    });
    put(objects, API_SERVICES, API_SERVICE, registration).await
}

/// Waits until the API server calls the registration Available and serves the group.
pub(crate) async fn wait(objects: &Objects) -> anyhow::Result<()> {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let path = format!("{API_SERVICES}/{API_SERVICE}");
        let registration = objects.send(Method::GET, path, None).await?;
        let available = crate::value::condition_true(&registration, "Available");
        let served = objects.send(Method::GET, format!("/apis/{GROUP}/v1"), None).await;
        if available && served.is_ok() {
            return Ok(());
        }
        if Instant::now() > give_up {
            let condition = crate::value::condition(&registration, "Available");
            bail!("the API server does not serve {GROUP}: {condition:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Registers the webhooks under KubeVirt's own names, so that others sort before or after them as they would.
pub(crate) async fn webhooks(objects: &Objects, server: &Server) -> anyhow::Result<()> {
    let mutating = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": MUTATOR},
        "webhooks": MUTATING.iter().map(|w| webhook(w, server)).collect::<Vec<_>>(),
    });
    put(objects, &format!("{ADMISSION}/mutatingwebhookconfigurations"), MUTATOR, mutating).await?;
    let validating = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": VALIDATOR},
        "webhooks": VALIDATING.iter().map(|w| webhook(w, server)).collect::<Vec<_>>(),
    });
    put(objects, &format!("{ADMISSION}/validatingwebhookconfigurations"), VALIDATOR, validating).await
}

/// Takes all registrations back, so that later writes do not go to a dead port.
pub(crate) async fn withdraw(objects: &Objects) {
    let paths = [
        format!("{ADMISSION}/mutatingwebhookconfigurations/{MUTATOR}"),
        format!("{ADMISSION}/validatingwebhookconfigurations/{VALIDATOR}"),
        format!("{API_SERVICES}/{API_SERVICE}"),
    ];
    for path in paths {
        if let Err(error) = objects.send(Method::DELETE, path, None).await {
            tracing::debug!(%error, "could not withdraw a registration of the simulated virt-api");
        }
    }
}

fn webhook(webhook: &Webhook, server: &Server) -> Value {
    json!({
        "name": webhook.name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {
            "url": format!("https://127.0.0.1:{}{}", server.port, webhook.path),
            "caBundle": bundle(server),
        },
        "rules": [{
            "apiGroups": ["kubevirt.io"], "apiVersions": ["v1alpha3", "v1"],
            "resources": [webhook.resource], "operations": webhook.operations,
        }],
    })
}

fn bundle(server: &Server) -> ByteString {
    ByteString(server.certificate.clone().into_bytes())
}

/// Creates an object, or replaces what an earlier simulation left.
async fn put(objects: &Objects, collection: &str, name: &str, object: Value) -> anyhow::Result<()> {
    match objects.send(Method::POST, collection.to_owned(), Some(&object)).await {
        Ok(_) => return Ok(()),
        Err(error) if code(&error) == 409 => {}
        Err(error) => return Err(error).with_context(|| format!("create {name}")),
    }
    if collection == "/api/v1/namespaces" {
        return Ok(());
    }
    let path = format!("{collection}/{name}");
    let old = objects.send(Method::GET, path.clone(), None).await?;
    let mut object = object;
    let version = old.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
    crate::value::set(&mut object, "/metadata/resourceVersion", version);
    objects.send(Method::PUT, path, Some(&object)).await.with_context(|| format!("replace {name}"))?;
    Ok(())
}
