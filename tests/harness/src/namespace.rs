//! Namespaces as a cluster makes them.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

/// Makes the namespace and its ServiceAccount `default`; what exists stays as it is.
///
/// In a cluster kube-controller-manager makes that ServiceAccount, and without it no pod can be created. Nothing
/// finishes the deletion of a namespace here: use a new name per test instead.
///
/// # Errors
/// When the API server refuses either object.
pub async fn create_namespace(client: &kube::Client, name: &str) -> Result<()> {
    let namespace = Namespace { metadata: named(name), ..Namespace::default() };
    let created = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
    unless_it_exists(created).with_context(|| format!("create the namespace {name}"))?;
    create_default_account(client, name).await
}

/// Makes the ServiceAccount `default` of a namespace unless it is there.
pub(crate) async fn create_default_account(client: &kube::Client, namespace: &str) -> Result<()> {
    let account = ServiceAccount { metadata: named("default"), ..ServiceAccount::default() };
    let created = Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &account).await;
    unless_it_exists(created).with_context(|| format!("create the ServiceAccount default in {namespace}"))
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn unless_it_exists<T>(created: kube::Result<T>) -> kube::Result<()> {
    match created {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}
