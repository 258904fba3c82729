//! Reads the preference of a VM: the frozen ControllerRevision where there is one, else the live object.
//!
//! A VM keeps the preference that it was first started with (KubeVirt pkg/instancetype/revision); an edit of the
//! preference does not reach it. So the revision decides, and only a VM that has none yet is planned by the live
//! object. Revisions never change and are kept; live objects are read each time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;

use super::live::{ReadError, bounded};
use crate::plan::json;
use crate::plan::preference::{Preference, Preferred};

/// Which preference a VM has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreferenceRef {
    /// `spec.preference.name`.
    name: String,
    /// `spec.preference.kind`; empty means the cluster's kind.
    kind: String,
    /// Name of the ControllerRevision that holds it frozen.
    revision: Option<String>,
    /// `spec.preference.inferFromVolume`: KubeVirt puts the name in when it takes the VM.
    inferred: bool,
}

impl PreferenceRef {
    /// Reads spec and status of a VM. Nothing where it has no preference.
    pub fn of(spec: &Value, frozen: Option<&str>) -> Option<Self> {
        let preference = json::at(spec, "/preference")?;
        let text = |pointer: &str| json::text(preference, pointer).unwrap_or_default().to_owned();
        let own = json::text(preference, "/revisionName").filter(|r| !r.is_empty());
        Some(Self {
            name: text("/name"),
            kind: text("/kind"),
            revision: own.or(frozen.filter(|r| !r.is_empty())).map(str::to_owned),
            inferred: json::at(preference, "/inferFromVolume").is_some(),
        })
    }
}

/// Reads preferences, and keeps those that never change.
pub struct Preferences {
    client: Client,
    /// By namespace and name of the ControllerRevision; bounded by [`MAX_KEPT`].
    kept: Mutex<HashMap<(String, String), Preferred>>,
}

/// Why there is no preference to plan with.
enum Miss {
    /// It is not there or cannot be understood.
    Unread(String),
    /// The API server cannot be asked.
    Failed(ReadError),
}

impl From<String> for Miss {
    fn from(why: String) -> Self {
        Self::Unread(why)
    }
}

impl From<ReadError> for Miss {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// More revisions than a large cluster has preferences; the memory of a cluster where each VM has its own stays bounded.
const MAX_KEPT: usize = 5_000;

impl Preferences {
    /// Reads with this client.
    pub fn new(client: Client) -> Self {
        Self { client, kept: Mutex::default() }
    }

    /// What is known of a preference.
    ///
    /// # Errors
    /// When the API server cannot be asked. A preference that is not there or cannot be understood is no error: it is
    /// unread, and the plan says so.
    pub async fn read(&self, namespace: &str, reference: &PreferenceRef) -> Result<Preference, ReadError> {
        let read = match &reference.revision {
            Some(revision) => self.revision(namespace, revision).await,
            None => self.live(namespace, reference).await,
        };
        match read {
            Ok(preferred) => Ok(Preference::Read(Box::new(preferred))),
            Err(Miss::Unread(why)) => Ok(Preference::Unread { why }),
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    async fn revision(&self, namespace: &str, name: &str) -> Result<Preferred, Miss> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(kept) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(kept.clone());
        }
        let origin = format!("ControllerRevision {name}");
        let api: Api<ControllerRevision> = Api::namespaced(self.client.clone(), namespace);
        let found = bounded("ControllerRevision", api.get_opt(name)).await?;
        let data = found.and_then(|r| r.data).ok_or_else(|| format!("{origin} is not there"))?;
        let preferred = Preferred::from_object(&origin, &data.0)?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_KEPT {
            kept.insert(key, preferred.clone());
        }
        Ok(preferred)
    }

    async fn live(&self, namespace: &str, reference: &PreferenceRef) -> Result<Preferred, Miss> {
        if reference.name.is_empty() {
            let why = if reference.inferred {
                "its preference is inferred from a volume"
            } else {
                "its preference has no name"
            };
            return Err(format!("{why}, and KubeVirt has not said which it is").into());
        }
        // KubeVirt's own default kind, and the plural and singular spellings that it takes.
        let namespaced = match reference.kind.to_lowercase().as_str() {
            "virtualmachinepreference" | "virtualmachinepreferences" => true,
            "" | "virtualmachineclusterpreference" | "virtualmachineclusterpreferences" => false,
            _ => return Err(format!("its preference is of the unknown kind {:?}", reference.kind).into()),
        };
        let kind = if namespaced { "VirtualMachinePreference" } else { "VirtualMachineClusterPreference" };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("instancetype.kubevirt.io", "v1beta1", kind));
        let api: Api<DynamicObject> = if namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let origin = format!("{kind} {}", reference.name);
        let found = bounded("preference", api.get_opt(&reference.name)).await?;
        let object = found.ok_or_else(|| format!("{origin} is not there"))?;
        let object = serde_json::to_value(object).map_err(|e| e.to_string())?;
        Ok(Preferred::from_object(&origin, &object)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_frozen_revision_wins_and_the_vms_own_wins_over_the_status() {
        assert_eq!(PreferenceRef::of(&json!({}), Some("r")), None);
        let spec = json!({"preference": {"name": "windows.11"}});
        assert_eq!(PreferenceRef::of(&spec, Some("frozen")).unwrap().revision.as_deref(), Some("frozen"));
        assert_eq!(PreferenceRef::of(&spec, None).unwrap().revision, None);
        let own = json!({"preference": {"name": "a", "revisionName": "own"}});
        assert_eq!(PreferenceRef::of(&own, Some("frozen")).unwrap().revision.as_deref(), Some("own"));
        let volume = json!({"preference": {"inferFromVolume": "root"}});
        assert!(PreferenceRef::of(&volume, None).unwrap().inferred);
    }
}
