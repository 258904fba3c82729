//! Writing the status of policies.

use kube::api::{Api, PostParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::writer::{Target, Writer};
use crate::api::FIELD_MANAGER;
use crate::api::tuning::TuningStatus;

/// Writes a status, where there is a new one. A failure is logged and counted; the next round tries again.
pub async fn update<K>(
    api: &Api<K>,
    writer: &Writer,
    object: &K,
    status: Option<TuningStatus>,
    set: fn(&mut K, TuningStatus),
) where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let Some(status) = status else { return };
    let mut object = object.clone();
    set(&mut object, status);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let name = object.name_any();
    if let Err(error) = writer.write(Target::PolicyStatus, api.replace_status(&name, &params, &object)).await {
        tracing::warn!(policy = %name, %error, "status not written, next time again");
    }
}
