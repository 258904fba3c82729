//! Lean views of the kinds that KubeVirt and Kubernetes own.
//!
//! Only what is read is kept, and managedFields are dropped while parsing: on a cluster with 10,000 VMs they would
//! be most of our memory. A VM's `spec` stays as its JSON text, which is compact, exact to the byte, and parsed only
//! when a plan is made.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference, Time};
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::conditions::truncate;

/// `kubevirt.io/v1` VirtualMachine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct VirtualMachine {
    /// Without finalizers, foreign annotations and what managers own.
    #[serde(deserialize_with = "slim_meta")]
    pub metadata: ObjectMeta,
    /// The whole spec as text.
    pub spec: Box<RawValue>,
    /// What virt-controller says.
    #[serde(default)]
    pub status: VirtualMachineStatus,
}

/// The part of a VM's status that decides whether it may be written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineStatus {
    /// A VMI exists.
    pub created: bool,
    /// Stopped, Running, Starting, ...
    pub printable_status: Option<String>,
    /// Start and stop requests that virt-controller has not carried out yet.
    pub state_change_requests: Vec<StateChangeRequest>,
    /// The preference that KubeVirt froze for this VM.
    pub preference_ref: Option<FrozenRef>,
    /// The instancetype that KubeVirt froze for this VM.
    pub instancetype_ref: Option<FrozenRef>,
}

/// Where KubeVirt keeps what it froze for a VM.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrozenRef {
    /// The ControllerRevision.
    pub controller_revision_ref: Option<RevisionRef>,
}

/// Names a ControllerRevision of the VM's namespace.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct RevisionRef {
    /// Its name.
    pub name: String,
}

/// A start or stop that was asked for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateChangeRequest {
    /// Start or Stop.
    #[serde(default)]
    pub action: String,
}

/// `kubevirt.io/v1` VirtualMachineInstance.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct VirtualMachineInstance {
    /// Without managedFields and finalizers.
    #[serde(deserialize_with = "slim_meta")]
    pub metadata: ObjectMeta,
    /// What virt-handler says.
    #[serde(default)]
    pub status: VirtualMachineInstanceStatus,
}

/// The part of a VMI's status that we read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceStatus {
    /// Pending, Scheduling, Scheduled, Running, Succeeded, Failed.
    pub phase: Option<String>,
    /// Where it runs.
    pub node_name: Option<String>,
    /// What the guest agent says of the operating system.
    #[serde(rename = "guestOSInfo")]
    pub guest_os_info: GuestOsInfo,
}

/// What the guest agent says of the operating system. The guest can say anything it likes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestOsInfo {
    /// `mswindows` for Windows.
    pub id: Option<String>,
    /// Such as `Microsoft Windows Server 2022`.
    pub pretty_name: Option<String>,
}

/// Node, for its KubeVirt labels and its taints.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Node {
    /// Without managedFields and annotations.
    #[serde(deserialize_with = "slim_meta")]
    pub metadata: ObjectMeta,
    /// Only its taints.
    #[serde(default)]
    pub spec: NodeSpec,
}

/// The part of a node's spec that we read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeSpec {
    /// What keeps pods away.
    pub taints: Vec<Taint>,
}

/// A taint.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// Namespace, for the selectors of cluster policies.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Namespace {
    /// Without managedFields.
    #[serde(deserialize_with = "slim_meta")]
    pub metadata: ObjectMeta,
}

/// Longer than any annotation of ours; a pre-image that is cut here is refused as too long.
const MAX_ANNOTATION: usize = 20 * 1024;

/// Whether an annotation is ever looked at.
fn is_read(key: &str) -> bool {
    key.starts_with("wintune.dev/")
        || crate::plan::detect::annotation_keys().any(|k| k == key)
        || crate::plan::owners::annotation_keys().any(|k| k == key)
        || crate::plan::harvester::annotation_keys().contains(&key)
}

/// Parses metadata without ever building the parts that we do not read.
fn slim_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
        managed_fields: Option<Vec<Manager>>,
    }
    /// Who wrote, without what: the fields are most of an object's weight.
    #[derive(Deserialize)]
    struct Manager {
        manager: Option<String>,
    }
    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        generation: slim.generation,
        creation_timestamp: slim.creation_timestamp,
        deletion_timestamp: slim.deletion_timestamp,
        labels: slim.labels,
        // Anybody may write any annotation to any VM: only what is read is kept, and no more of it than has a meaning.
        annotations: slim.annotations.map(|mut all| {
            all.retain(|key, _| is_read(key));
            all.values_mut().filter(|v| v.len() > MAX_ANNOTATION).for_each(|v| {
                *v = truncate(v, MAX_ANNOTATION).to_owned();
            });
            all
        }),
        owner_references: slim.owner_references,
        managed_fields: slim.managed_fields.map(|all| {
            let mut names: Vec<Option<String>> = all.into_iter().map(|m| m.manager).collect();
            names.sort();
            names.dedup();
            let entry = |manager| ManagedFieldsEntry { manager, ..ManagedFieldsEntry::default() };
            names.into_iter().map(entry).collect()
        }),
        ..ObjectMeta::default()
    })
}

macro_rules! foreign_kind {
    ($kind:ident, $scope:ty, $group:literal, $version:literal, $plural:literal) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;

            fn kind(_: &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group(_: &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version(_: &()) -> Cow<'_, str> {
                $version.into()
            }
            fn plural(_: &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

foreign_kind!(VirtualMachine, kube::core::NamespaceResourceScope, "kubevirt.io", "v1", "virtualmachines");
foreign_kind!(
    VirtualMachineInstance,
    kube::core::NamespaceResourceScope,
    "kubevirt.io",
    "v1",
    "virtualmachineinstances"
);
foreign_kind!(Node, kube::core::ClusterResourceScope, "", "v1", "nodes");
foreign_kind!(Namespace, kube::core::ClusterResourceScope, "", "v1", "namespaces");

#[cfg(test)]
mod tests {
    use super::*;

    const VM: &str = r#"{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"a","namespace":"b",
        "uid":"u","generation":3,"managedFields":[{"manager":"x","fieldsV1":{"f:spec":{}}}],
        "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","k":"v","wintune.dev/tune":"true"}},
        "spec":{"runStrategy":"Halted",  "template":{"spec":{"domain":{"devices":{}}}}},"status":{"printableStatus":"Stopped"}}"#;

    #[test]
    fn the_spec_keeps_its_bytes_and_metadata_loses_its_weight() {
        let vm: VirtualMachine = serde_json::from_str(VM).unwrap();
        assert_eq!(vm.spec.get(), r#"{"runStrategy":"Halted",  "template":{"spec":{"domain":{"devices":{}}}}}"#);
        let managers = vm.metadata.managed_fields.unwrap();
        assert_eq!((managers[0].manager.as_deref(), &managers[0].fields_v1), (Some("x"), &None));
        assert_eq!(vm.metadata.annotations.unwrap().into_keys().collect::<Vec<_>>(), ["wintune.dev/tune"]);
        assert!(!vm.status.created);
    }

    #[test]
    fn a_watch_event_and_a_list_carry_the_raw_spec() {
        let event = format!(r#"{{"type":"ADDED","object":{VM}}}"#);
        let event: kube::core::WatchEvent<VirtualMachine> = serde_json::from_str(&event).unwrap();
        assert!(matches!(event, kube::core::WatchEvent::Added(vm) if vm.spec.get().contains("Halted")));
        let list =
            format!(r#"{{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineList","metadata":{{}},"items":[{VM}]}}"#);
        let list: kube::core::ObjectList<VirtualMachine> = serde_json::from_str(&list).unwrap();
        assert_eq!(list.items.len(), 1);
    }
}
