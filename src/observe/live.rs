//! Live reads right before a write, where a cache may be behind.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource};
use serde_json::Value;

use crate::api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use crate::api::record::{PolicyKind, PolicyRef};
use crate::api::tuning::{ClusterWindowsTuning, WindowsTuning};
use crate::rollout::Withdrawal;

/// No single read takes longer; kube's own retries could otherwise hold a reconcile for minutes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a live read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The API server refused or could not be reached.
    #[error("cannot read {what}: {cause}")]
    Api {
        /// What was read.
        what: &'static str,
        /// The client's error.
        cause: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("cannot read {what}: no answer within {} s", TIMEOUT.as_secs())]
    TimedOut {
        /// What was read.
        what: &'static str,
    },
}

impl ReadError {
    /// Whether the API server does not know the kind.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if matches!(&**cause, kube::Error::Api(s) if s.code == 404))
    }

    /// Whether the API server said that we may not.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if matches!(&**cause, kube::Error::Api(s) if s.code == 403))
    }
}

pub(super) async fn bounded<T>(
    what: &'static str,
    read: impl Future<Output = kube::Result<T>>,
) -> Result<T, ReadError> {
    match tokio::time::timeout(TIMEOUT, read).await {
        Ok(answer) => answer.map_err(|cause| ReadError::Api { what, cause: Box::new(cause) }),
        Err(_) => Err(ReadError::TimedOut { what }),
    }
}

/// The API of VirtualMachines as whole JSON objects.
pub fn vms(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<VirtualMachine>(&()))
}

/// A whole VirtualMachine, or nothing where there is none.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn vm(client: &Client, namespace: &str, name: &str) -> Result<Option<Value>, ReadError> {
    let api = vms(client.clone(), namespace);
    let object = bounded("VirtualMachine", api.get_opt(name)).await?;
    Ok(object.and_then(|o| serde_json::to_value(o).ok()))
}

/// Whether a VirtualMachineInstance exists.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn instance_exists(client: &Client, namespace: &str, name: &str) -> Result<bool, ReadError> {
    let api: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    Ok(bounded("VirtualMachineInstance", api.get_metadata_opt(name)).await?.is_some())
}

/// Whether the policy that decides is still what the caches say. An annotation was read with the VM itself.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn unchanged(client: &Client, policy: &PolicyRef, namespace: &str) -> Result<bool, ReadError> {
    let found = match policy.kind {
        PolicyKind::Annotation => return Ok(true),
        PolicyKind::WindowsTuning => {
            let api: Api<WindowsTuning> = Api::namespaced(client.clone(), namespace);
            bounded("WindowsTuning", api.get_metadata_opt(&policy.name)).await?.map(|p| p.metadata)
        }
        PolicyKind::ClusterWindowsTuning => {
            let api: Api<ClusterWindowsTuning> = Api::all(client.clone());
            bounded("ClusterWindowsTuning", api.get_metadata_opt(&policy.name)).await?.map(|p| p.metadata)
        }
    };
    Ok(found.is_some_and(|meta| meta.uid == policy.uid && meta.generation == policy.generation))
}

/// Whether a policy was really withdrawn.
///
/// A policy that is missing because its definition was deleted or is being deleted was not withdrawn by anybody, and
/// neither was one that the API server cannot be asked about.
pub async fn withdrawal(client: &Client, policy: &PolicyRef, namespace: &str) -> Withdrawal {
    let (definition, found) = match policy.kind {
        PolicyKind::Annotation => return Withdrawal::Observed,
        PolicyKind::WindowsTuning => {
            let api: Api<WindowsTuning> = Api::namespaced(client.clone(), namespace);
            (
                definition::<WindowsTuning>(client).await,
                bounded("WindowsTuning", api.get_metadata_opt(&policy.name)).await.map(uid),
            )
        }
        PolicyKind::ClusterWindowsTuning => {
            let api: Api<ClusterWindowsTuning> = Api::all(client.clone());
            (
                definition::<ClusterWindowsTuning>(client).await,
                bounded("ClusterWindowsTuning", api.get_metadata_opt(&policy.name)).await.map(uid),
            )
        }
    };
    match definition {
        Err(why) => return Withdrawal::Unknown(why),
        Ok(made) if made > policy.created => {
            return Withdrawal::Unknown("its definition was made anew since, and lost every policy".to_owned());
        }
        Ok(_) => {}
    }
    match found {
        Err(error) => Withdrawal::Unknown(error.to_string()),
        Ok(None) => Withdrawal::Observed,
        // Another policy of the same name: the recorded one is gone, and the new one selects this VM or not.
        Ok(uid) if uid != policy.uid => Withdrawal::Observed,
        Ok(_) => Withdrawal::Unknown("it still exists".to_owned()),
    }
}

fn uid<K>(found: Option<PartialObjectMeta<K>>) -> Option<String> {
    found.and_then(|found| found.metadata.uid)
}

/// When a definition of ours was made. Fails unless it is there, established and not being deleted.
async fn definition<K: Resource<DynamicType = ()>>(client: &Client) -> Result<Option<Time>, String> {
    let name = format!("{}.{}", K::plural(&()), K::group(&()));
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = match bounded("CustomResourceDefinition", api.get_opt(&name)).await {
        Err(error) => return Err(error.to_string()),
        Ok(None) => return Err(format!("the definition {name} is missing")),
        Ok(Some(crd)) => crd,
    };
    if crd.metadata.deletion_timestamp.is_some() {
        return Err(format!("the definition {name} is being deleted"));
    }
    let conditions = crd.status.and_then(|s| s.conditions).unwrap_or_default();
    if conditions.iter().any(|c| c.type_ == "Established" && c.status == "True") {
        Ok(crd.metadata.creation_timestamp)
    } else {
        Err(format!("the definition {name} is not established"))
    }
}
