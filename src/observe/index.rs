//! Policies as the planner wants them, sorted by namespace.
//!
//! A policy that cannot be understood stays in the index as unreadable: dropping it would look like a withdrawal.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::{DeserializeGuard, Selector};
use kube::runtime::reflector::Store;
use serde_json::Value;

use crate::api::kubevirt::Namespace;
use crate::api::record::PolicyKind;
use crate::api::tuning::{ClusterWindowsTuning, Limits, Tuning, WindowsTuning};
use crate::plan::consent::{Policies, Policy, PolicyView};
use crate::plan::{json, profile};

/// A policy of a manifest.
pub fn policy_view(
    kind: PolicyKind,
    object: &Value,
    selector: &LabelSelector,
    namespaces: Option<&LabelSelector>,
    limits: Option<Limits>,
    tuning: Tuning,
) -> Policy {
    let meta = ObjectMeta {
        name: json::text(object, "/metadata/name").map(str::to_owned),
        uid: json::text(object, "/metadata/uid").map(str::to_owned),
        ..ObjectMeta::default()
    };
    view(kind, &meta, selector, namespaces, limits, tuning)
}

fn view(
    kind: PolicyKind,
    meta: &ObjectMeta,
    selector: &LabelSelector,
    namespaces: Option<&LabelSelector>,
    limits: Option<Limits>,
    tuning: Tuning,
) -> Policy {
    let name = meta.name.clone().unwrap_or_default();
    let unreadable = |why: String| Policy::Unreadable { kind, name: name.clone(), why };
    let read = |s: &LabelSelector| match vain(s) {
        Some(why) => Err(why),
        None => Selector::try_from(s.clone()).map_err(|e| e.to_string()),
    };
    let selector = match read(selector) {
        Ok(selector) => selector,
        Err(why) => return unreadable(format!("spec.selector: {why}")),
    };
    let namespace_selector = match namespaces.map_or_else(|| Ok(Selector::default()), read) {
        Ok(selector) => selector,
        Err(why) => return unreadable(format!("spec.namespaceSelector: {why}")),
    };
    if let Some(why) = tuning.not_acted_on().or_else(|| limits.as_ref().and_then(Limits::not_acted_on)) {
        return unreadable(format!("spec.{why}"));
    }
    match profile::named(&tuning.profile) {
        Ok(Some(_)) => {}
        Ok(None) => return unreadable(format!("spec.profile: {:?} is not known", tuning.profile)),
        Err(error) => return unreadable(error.to_string()),
    }
    Policy::Readable(Box::new(PolicyView {
        kind,
        name,
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        created: meta.creation_timestamp.clone(),
        selector,
        namespace_selector,
        limits,
        tuning,
    }))
}

/// What Kubernetes itself would refuse of a selector: `NotIn` of nothing would cover every VM.
fn vain(selector: &LabelSelector) -> Option<String> {
    selector.match_expressions.iter().flatten().find_map(|e| {
        let values = e.values.as_deref().unwrap_or_default().len();
        match e.operator.as_str() {
            "In" | "NotIn" if values == 0 => Some(format!("{} {} needs values", e.key, e.operator)),
            "Exists" | "DoesNotExist" if values > 0 => Some(format!("{} {} takes no values", e.key, e.operator)),
            _ => None,
        }
    })
}

/// A `WindowsTuning` as the planner wants it.
pub fn namespaced(policy: &DeserializeGuard<WindowsTuning>) -> Policy {
    match &policy.0 {
        Ok(p) => view(PolicyKind::WindowsTuning, &p.metadata, &p.spec.selector, None, None, p.spec.tuning.clone()),
        Err(invalid) => unreadable(PolicyKind::WindowsTuning, invalid),
    }
}

/// A `ClusterWindowsTuning` as the planner wants it.
pub fn cluster(policy: &DeserializeGuard<ClusterWindowsTuning>) -> Policy {
    match &policy.0 {
        Ok(p) => {
            let namespaces = p.spec.namespace_selector.as_ref();
            let limits = p.spec.limits.clone();
            view(
                PolicyKind::ClusterWindowsTuning,
                &p.metadata,
                &p.spec.selector,
                namespaces,
                limits,
                p.spec.tuning.clone(),
            )
        }
        Err(invalid) => unreadable(PolicyKind::ClusterWindowsTuning, invalid),
    }
}

fn unreadable(kind: PolicyKind, invalid: &kube::core::error_boundary::InvalidObject) -> Policy {
    let name = invalid.metadata.name.clone().unwrap_or_default();
    Policy::Unreadable { kind, name, why: crate::api::conditions::truncate(&invalid.error, 300).to_owned() }
}

/// What may decide for the VMs of each namespace, worked out whenever a policy changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyIndex {
    namespaced: BTreeMap<String, Arc<Vec<Policy>>>,
    cluster: Arc<Vec<Policy>>,
}

impl PolicyIndex {
    /// Reads both stores.
    pub fn build(
        tunings: &Store<DeserializeGuard<WindowsTuning>>,
        cluster_tunings: &Store<DeserializeGuard<ClusterWindowsTuning>>,
    ) -> Self {
        let mut namespaced: BTreeMap<String, Vec<Policy>> = BTreeMap::new();
        for policy in tunings.state() {
            let namespace = policy.meta().namespace.clone().unwrap_or_default();
            namespaced.entry(namespace).or_default().push(self::namespaced(&policy));
        }
        let mut cluster: Vec<Policy> = cluster_tunings.state().iter().map(|p| self::cluster(p)).collect();
        // A store has no order; sorted, two indexes are equal when the policies are.
        cluster.sort_by(|a, b| a.name().cmp(b.name()));
        let sorted = |(namespace, mut policies): (String, Vec<Policy>)| {
            policies.sort_by(|a, b| a.name().cmp(b.name()));
            (namespace, Arc::new(policies))
        };
        Self { namespaced: namespaced.into_iter().map(sorted).collect(), cluster: Arc::new(cluster) }
    }

    /// What may decide in one namespace.
    pub fn of(&self, namespace: &str, labels: Option<&Arc<Namespace>>) -> Policies {
        Policies {
            namespaced: self.namespaced.get(namespace).cloned().unwrap_or_default(),
            cluster: self.cluster.clone(),
            namespace_labels: labels.and_then(|n| n.metadata.labels.clone()).unwrap_or_default(),
        }
    }

    /// Whether a readable policy with this UID is in force.
    pub fn has(&self, uid: &str) -> bool {
        let mut all = self.namespaced.values().chain([&self.cluster]).flat_map(|policies| policies.iter());
        all.any(|p| matches!(p, Policy::Readable(view) if view.uid == uid))
    }
}
