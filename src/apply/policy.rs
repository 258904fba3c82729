//! Writing the status of policies.

use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::error_boundary::InvalidObject;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::writer::{Target, Writer};
use crate::api::FIELD_MANAGER;
use crate::api::conditions::{self, condition, reason};
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

/// Says of a policy that cannot be decoded that it cannot: its status would go on claiming that it is in force.
pub async fn say_unreadable<K: Resource<DynamicType = ()>>(client: &Client, writer: &Writer, invalid: &InvalidObject) {
    let name = invalid.metadata.name.clone().unwrap_or_default();
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = match &invalid.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let Ok(Some(mut object)) = api.get_opt(&name).await else { return };
    let before = object.data.get("status").cloned().unwrap_or(Value::Null);
    let mut status: TuningStatus = serde_json::from_value(before.clone()).unwrap_or_default();
    let generation = object.metadata.generation;
    let text = format!("it cannot be read: {}; nothing is written or restored because of it", invalid.error);
    status.observed_generation = generation;
    let (ready, now) = (condition::READY, Timestamp::now());
    conditions::set(&mut status.conditions, ready, false, reason::INVALID, &text, generation, now);
    let status = serde_json::to_value(&status).unwrap_or(Value::Null);
    if status == before {
        return;
    }
    object.data.as_object_mut().map(|data| data.insert("status".to_owned(), status));
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    if let Err(error) = writer.write(Target::PolicyStatus, api.replace_status(&name, &params, &object)).await {
        tracing::warn!(policy = %name, %error, "status not written, next time again");
    }
}
