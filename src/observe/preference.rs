//! Reads the preference and the instancetype of a VM: the frozen ControllerRevision where there is one, else the live
//! object.
//!
//! A VM keeps what it was first started with (KubeVirt pkg/instancetype/revision); an edit of the object does not reach
//! it. So the revision decides, and only a VM that has none yet is planned by the live object. Revisions never change
//! and are kept; live objects are read each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;

use super::live::{ReadError, bounded};
use crate::plan::instancetype::{Instancetype, Owned};
use crate::plan::json;
use crate::plan::preference::{Preference, Preferred};

/// The two kinds of objects that a VM is expanded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `spec.preference`.
    Preference,
    /// `spec.instancetype`.
    Instancetype,
}

impl Family {
    fn field(self) -> &'static str {
        match self {
            Self::Preference => "/preference",
            Self::Instancetype => "/instancetype",
        }
    }

    /// For people.
    fn word(self) -> &'static str {
        self.field().trim_start_matches('/')
    }

    /// Kind in a namespace and in the cluster.
    fn kinds(self) -> [&'static str; 2] {
        match self {
            Self::Preference => ["VirtualMachinePreference", "VirtualMachineClusterPreference"],
            Self::Instancetype => ["VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"],
        }
    }
}

/// Which preference or instancetype a VM has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    family: Family,
    /// `name`.
    name: String,
    /// `kind`; empty means the cluster's kind.
    kind: String,
    /// Name of the ControllerRevision that holds it frozen.
    revision: Option<String>,
    /// `inferFromVolume`: KubeVirt puts the name in when it takes the VM.
    inferred: bool,
}

impl Reference {
    /// Reads spec and status of a VM. Nothing where it has none.
    pub fn of(family: Family, spec: &Value, frozen: Option<&str>) -> Option<Self> {
        let reference = json::at(spec, family.field())?;
        let text = |pointer: &str| json::text(reference, pointer).unwrap_or_default().to_owned();
        let own = json::text(reference, "/revisionName").filter(|r| !r.is_empty());
        Some(Self {
            family,
            name: text("/name"),
            kind: text("/kind"),
            revision: own.or(frozen.filter(|r| !r.is_empty())).map(str::to_owned),
            inferred: json::at(reference, "/inferFromVolume").is_some(),
        })
    }
}

/// Reads preferences and instancetypes, and keeps those that never change.
pub struct Preferences {
    client: Client,
    /// By namespace and name of the ControllerRevision; bounded by [`MAX_KEPT`].
    kept: Mutex<HashMap<(String, String), Arc<Value>>>,
}

/// Why there is none to plan with.
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

/// More revisions than a large cluster has; the memory of a cluster where each VM has its own stays bounded.
const MAX_KEPT: usize = 2_000;

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
    pub async fn preference(&self, namespace: &str, reference: &Reference) -> Result<Preference, ReadError> {
        Ok(match self.parsed(namespace, reference, Preferred::from_object).await? {
            Ok(preferred) => Preference::Read(Box::new(preferred)),
            Err(why) => Preference::Unread { why },
        })
    }

    /// What is known of an instancetype.
    ///
    /// # Errors
    /// When the API server cannot be asked; see [`Self::preference`].
    pub async fn instancetype(&self, namespace: &str, reference: &Reference) -> Result<Instancetype, ReadError> {
        Ok(match self.parsed(namespace, reference, Owned::from_object).await? {
            Ok(owned) => Instancetype::Read(Box::new(owned)),
            Err(why) => Instancetype::Unread { why },
        })
    }

    async fn parsed<T>(
        &self,
        namespace: &str,
        reference: &Reference,
        parse: impl Fn(&str, &Value) -> Result<T, String>,
    ) -> Result<Result<T, String>, ReadError> {
        let read = match &reference.revision {
            Some(revision) => self.revision(namespace, revision).await,
            None => self.live(namespace, reference).await,
        };
        match read {
            Ok((origin, object)) => Ok(parse(&origin, &object)),
            Err(Miss::Unread(why)) => Ok(Err(why)),
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    async fn revision(&self, namespace: &str, name: &str) -> Result<(String, Arc<Value>), Miss> {
        let key = (namespace.to_owned(), name.to_owned());
        let origin = format!("ControllerRevision {name}");
        if let Some(kept) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok((origin, kept.clone()));
        }
        let api: Api<ControllerRevision> = Api::namespaced(self.client.clone(), namespace);
        let found = bounded("ControllerRevision", api.get_opt(name)).await?;
        let data = found.and_then(|r| r.data).ok_or_else(|| format!("{origin} is not there"))?;
        let object = Arc::new(data.0);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_KEPT {
            kept.insert(key, object.clone());
        }
        Ok((origin, object))
    }

    async fn live(&self, namespace: &str, reference: &Reference) -> Result<(String, Arc<Value>), Miss> {
        let word = reference.family.word();
        if reference.name.is_empty() {
            let why = if reference.inferred {
                format!("its {word} is inferred from a volume")
            } else {
                format!("its {word} has no name")
            };
            return Err(format!("{why}, and KubeVirt has not said which it is").into());
        }
        // KubeVirt's own default kind, and the plural and singular spellings that it takes.
        let [own, of_cluster] = reference.family.kinds();
        let given = reference.kind.to_lowercase();
        let is = |kind: &str| given.trim_end_matches('s') == kind.to_lowercase();
        let kind = if given.is_empty() || is(of_cluster) {
            of_cluster
        } else if is(own) {
            own
        } else {
            return Err(format!("its {word} is of the unknown kind {:?}", reference.kind).into());
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("instancetype.kubevirt.io", "v1beta1", kind));
        let api: Api<DynamicObject> = if kind == own {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let origin = format!("{kind} {}", reference.name);
        let found = bounded(word, api.get_opt(&reference.name)).await?;
        let object = found.ok_or_else(|| format!("{origin} is not there"))?;
        Ok((origin, Arc::new(serde_json::to_value(object).map_err(|e| e.to_string())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_frozen_revision_wins_and_the_vms_own_wins_over_the_status() {
        assert_eq!(Reference::of(Family::Preference, &json!({}), Some("r")), None);
        let spec = json!({"preference": {"name": "windows.11"}});
        assert_eq!(
            Reference::of(Family::Preference, &spec, Some("frozen")).unwrap().revision.as_deref(),
            Some("frozen")
        );
        assert_eq!(Reference::of(Family::Preference, &spec, None).unwrap().revision, None);
        let own = json!({"preference": {"name": "a", "revisionName": "own"}});
        assert_eq!(Reference::of(Family::Preference, &own, Some("frozen")).unwrap().revision.as_deref(), Some("own"));
        let volume = json!({"preference": {"inferFromVolume": "root"}});
        assert!(Reference::of(Family::Preference, &volume, None).unwrap().inferred);
    }
}
