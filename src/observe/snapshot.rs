//! Everything known of one VM at one moment, taken from the stores.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use serde_json::Value;

use super::preference::{Family, Reference};
use super::watches::Stores;
use crate::api::conditions::truncate;
use crate::api::kubevirt::{FrozenRef, VirtualMachine};
use crate::api::record::{PolicyKind, RecordStatus, TunedVirtualMachine};
use crate::plan::consent::{self, Consent, Marks};
use crate::plan::facts::{Facts, ManifestError, Nodes, Running, Vm};
use crate::plan::json;
use crate::plan::preference::Preference;
use crate::rollout::Instance;

/// The guest can say anything it likes; an id is a word.
const MAX_GUEST_OS: usize = 64;

/// Everything known of one VM at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// What the planner gets.
    pub facts: Facts,
    /// Who asked for what.
    pub consent: Consent,
    /// The record, where there is one for this very VM.
    pub record: Option<TunedVirtualMachine>,
    /// What is known of its instance.
    pub instance: Instance,
    /// Its preference, which is read only where a plan is made.
    pub preference: Option<Reference>,
    /// Its instancetype, likewise.
    pub instancetype: Option<Reference>,
    /// Why there is no record although one of this name lies there.
    pub foreign_record: Option<String>,
}

impl Snapshot {
    /// Status of the record.
    pub fn status(&self) -> Option<&RecordStatus> {
        self.record.as_ref().and_then(|r| r.status.as_ref())
    }
}

impl Stores {
    /// What is known of a VM of the store.
    ///
    /// # Errors
    /// When its spec is not that of a VM.
    pub fn snapshot(&self, vm: &VirtualMachine) -> Result<Snapshot, ManifestError> {
        let spec: Value = serde_json::from_str(vm.spec.get()).unwrap_or_default();
        let parsed = Vm::from_parts(&vm.metadata, spec)?;
        let instance = Instance {
            exists: false,
            created: vm.status.created,
            pending: !vm.status.state_change_requests.is_empty(),
            deleting: vm.metadata.deletion_timestamp.is_some(),
        };
        let name = |r: &Option<FrozenRef>| Some(r.as_ref()?.controller_revision_ref.as_ref()?.name.clone());
        let frozen = [name(&vm.status.preference_ref), name(&vm.status.instancetype_ref)];
        Ok(self.complete(parsed, instance, frozen))
    }

    /// What is known of a VM that was just read.
    ///
    /// # Errors
    /// When it is not a VM.
    pub fn snapshot_of(&self, object: &Value, instance_exists: bool) -> Result<Snapshot, ManifestError> {
        let vm = Vm::from_object(object)?;
        let instance = Instance {
            exists: instance_exists,
            created: json::at(object, "/status/created").and_then(Value::as_bool) == Some(true),
            pending: !json::list(object, "/status/stateChangeRequests").is_empty(),
            deleting: json::at(object, "/metadata/deletionTimestamp").is_some(),
        };
        let name =
            |of: &str| json::text(object, &format!("/status/{of}/controllerRevisionRef/name")).map(str::to_owned);
        Ok(self.complete(vm, instance, [name("preferenceRef"), name("instancetypeRef")]))
    }

    fn complete(&self, vm: Vm, mut instance: Instance, [preferred, typed]: [Option<String>; 2]) -> Snapshot {
        let of_this_name = ObjectRef::new(&vm.name).within(&vm.namespace);
        let vmi = self.instances.get(&of_this_name);
        instance.exists |= vmi.is_some();
        let running = vmi.as_ref().map(|i| Running { node: i.status.node_name.clone(), domain: Value::Null });
        let name_now = vmi.as_ref().and_then(|i| i.status.guest_os_info.pretty_name.clone()).filter(|n| !n.is_empty());
        let says_now = vmi.and_then(|i| i.status.guest_os_info.id.clone()).filter(|id| !id.is_empty());
        let mut consent = self.consent(&vm.namespace, Marks { labels: &vm.labels, annotations: &vm.annotations });
        let found = self.records.get(&ObjectRef::new(&vm.name).within(&vm.namespace));
        let (record, foreign_record) = match found.as_deref() {
            Some(DeserializeGuard(Ok(record))) if Some(&record.spec.vm_uid) == vm.uid.as_ref() => {
                (Some(record.clone()), None)
            }
            Some(DeserializeGuard(Ok(_))) => {
                let why = "the record of an earlier VM of this name is still there; delete it, if nobody collects it";
                (None, Some(why.to_owned()))
            }
            Some(DeserializeGuard(Err(invalid))) => {
                let why = format!("the record cannot be read: {}", truncate(&invalid.error, 300));
                consent = Consent::Frozen { why: why.clone() };
                (None, Some(why))
            }
            None => (None, None),
        };
        let status = record.as_ref().and_then(|r| r.status.as_ref());
        // The agent is silent when the VM is stopped, which is when it could be written: what it said last counts.
        let guest_os = says_now
            .map(|id| truncate(&id, MAX_GUEST_OS).to_owned())
            .or_else(|| status.and_then(|s| s.guest_os.clone()));
        let guest_name = name_now
            .map(|name| truncate(&name, MAX_GUEST_OS).to_owned())
            .or_else(|| status.and_then(|s| s.guest_name.clone()));
        let applied = status.and_then(|s| s.applied.as_ref());
        let ours = applied.map(|a| a.entries.iter().map(|e| e.at.clone()).collect()).unwrap_or_default();
        let consent_by_annotation = matches!(&consent, Consent::Given(g) if g.by.kind == PolicyKind::Annotation);
        let reference = Reference::of(Family::Preference, &vm.spec, preferred.as_deref());
        let instancetype = Reference::of(Family::Instancetype, &vm.spec, typed.as_deref());
        let preference = match &reference {
            None => Preference::None,
            Some(_) => Preference::Unread { why: "nothing was planned yet".to_owned() },
        };
        let facts = Facts {
            guest_os,
            guest_name,
            nodes: Nodes::Known(self.pool()),
            capabilities: self.capabilities(),
            preference,
            running,
            ours,
            consent_by_annotation,
            ..Facts::offline(vm)
        };
        Snapshot { facts, consent, record, instance, preference: reference, instancetype, foreign_record }
    }

    /// Who decides for a VM with these marks.
    pub fn consent(&self, namespace: &str, marks: Marks<'_>) -> Consent {
        let labels = self.namespaces.get(&ObjectRef::new(namespace));
        consent::decide(marks, &self.policies().of(namespace, labels.as_ref()))
    }

    /// Every VM of the store with who decides for it; for the status of policies.
    pub fn decisions(&self) -> Vec<(Arc<VirtualMachine>, Consent)> {
        let none = std::collections::BTreeMap::new();
        let decide = |vm: Arc<VirtualMachine>| {
            let namespace = vm.namespace().unwrap_or_default();
            let labels = vm.metadata.labels.as_ref().unwrap_or(&none);
            let annotations = vm.metadata.annotations.as_ref().unwrap_or(&none);
            let consent = self.consent(&namespace, Marks { labels, annotations });
            (vm, consent)
        };
        self.vms.state().into_iter().map(decide).collect()
    }
}
