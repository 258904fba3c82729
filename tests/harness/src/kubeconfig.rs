//! Kubeconfig files, and clients made from them.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// Writes a kubeconfig with one cluster, one user with a token, and one context in `namespace`.
///
/// The file is JSON, which is YAML too, and holds the CA itself: it works from any folder.
pub(crate) fn write(path: &Path, url: &str, ca_pem: &str, namespace: &str, user: &str, token: &str) -> Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "harness",
            "cluster": {"server": url, "certificate-authority-data": ByteString(ca_pem.as_bytes().to_vec())},
        }],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "harness", "context": {"cluster": "harness", "user": user, "namespace": namespace}}],
        "current-context": "harness",
    });
    std::fs::write(path, format!("{config:#}\n")).with_context(|| format!("write {}", path.display()))
}

/// A client on the current runtime, as the user of `kubeconfig`. Proxies of the environment are left aside, since
/// the server is on this machine.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use {}", kubeconfig.display()))?;
    config.proxy_url = None;
    Client::try_from(config).with_context(|| format!("make a client from {}", kubeconfig.display()))
}
