//! Reads the PersistentVolumeClaims of a VM: block or file decides how its disks are best read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Client;
use kube::api::Api;

use super::live::bounded;
use crate::plan::facts::Facts;
use crate::plan::volumes::{Claim, claim_names};

/// More disks than this are left to KubeVirt.
const MOST: usize = 64;
/// A claim's volume mode never changes, but a claim can be made anew under its name.
const FRESH: Duration = Duration::from_secs(600);
const MAX_KEPT: usize = 20_000;

/// What a claim was, and when it was read.
type Kept = (Instant, Option<Claim>);

/// Reads claims, and keeps them for a while.
pub struct Claims {
    client: Client,
    /// By namespace and name.
    kept: Mutex<HashMap<(String, String), Kept>>,
}

impl Claims {
    /// Reads with this client.
    pub fn new(client: Client) -> Self {
        Self { client, kept: Mutex::default() }
    }

    /// Puts what is known of a VM's claims into its facts. A claim that cannot be read stays unknown, and nothing is
    /// planned for its disk.
    pub async fn put_into(&self, facts: &mut Facts) {
        let names: Vec<String> = claim_names(&facts.vm).take(MOST).map(str::to_owned).collect();
        for name in names {
            if let Some(claim) = self.claim(&facts.vm.namespace, &name).await {
                facts.volumes.insert(&name, claim);
            }
        }
    }

    async fn claim(&self, namespace: &str, name: &str) -> Option<Claim> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some((at, claim)) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key)
            && at.elapsed() < FRESH
        {
            return *claim;
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let found = match bounded("PersistentVolumeClaim", api.get_opt(name)).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(namespace, name, %error, "a claim cannot be read; nothing is planned for its disk");
                return None;
            }
        };
        let claim = found.map(|claim| {
            let spec = claim.spec.and_then(|s| serde_json::to_value(s).ok());
            let annotations = claim.metadata.annotations.and_then(|a| serde_json::to_value(a).ok());
            Claim::of(spec.as_ref(), annotations.as_ref())
        });
        // One that is not there yet is looked for again.
        if claim.is_some() {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= MAX_KEPT {
                kept.clear();
            }
            kept.insert(key, (Instant::now(), claim));
        }
        claim
    }
}
