//! What a VM's instancetype owns: KubeVirt refuses a VM that says anything about such a field itself.
//!
//! Sources: KubeVirt pkg/instancetype/apply/*.go; observed in `kubevirt-live.md` 28: the CPU model and the I/O-thread
//! policy are free where the instancetype says nothing of them, CPU features always are.

use serde_json::{Map, Value};

use super::json;

/// What is known of a VM's instancetype.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Instancetype {
    /// The VM has none.
    #[default]
    None,
    /// The VM has one, and it was not read.
    Unread {
        /// Why not.
        why: String,
    },
    /// It was read.
    Read(Box<Owned>),
}

/// What an instancetype owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owned {
    /// Which object it came from.
    pub origin: String,
    /// Its values in the shape of a domain.
    pub domain: Value,
    /// How many vCPUs it gives.
    pub vcpus: Option<u64>,
}

/// Places that every instancetype owns, whatever it says.
const ALWAYS: [&str; 8] = [
    "/cpu/cores",
    "/cpu/sockets",
    "/cpu/threads",
    "/cpu/maxSockets",
    "/cpu/dedicatedCpuPlacement",
    "/cpu/isolateEmulatorThread",
    "/cpu/numa",
    "/cpu/realtime",
];
/// Places that it owns where it says something of them.
const WHERE_SET: [(&str, &str); 6] = [
    ("/spec/cpu/model", "/cpu/model"),
    ("/spec/cpu/dedicatedCPUPlacement", "/cpu/dedicatedCpuPlacement"),
    ("/spec/cpu/isolateEmulatorThread", "/cpu/isolateEmulatorThread"),
    ("/spec/cpu/numa", "/cpu/numa"),
    ("/spec/ioThreadsPolicy", "/ioThreadsPolicy"),
    ("/spec/ioThreads", "/ioThreads"),
];

impl Owned {
    /// Reads a VirtualMachineInstancetype or VirtualMachineClusterInstancetype, live or frozen.
    ///
    /// # Errors
    /// When it is another kind.
    pub fn from_object(origin: &str, object: &Value) -> Result<Self, String> {
        let kind = json::text(object, "/kind").unwrap_or_default();
        if !kind.ends_with("Instancetype") && !kind.is_empty() {
            return Err(format!("{origin} holds a {}", super::detect::printable(kind)));
        }
        let mut domain = Value::Object(Map::new());
        for (from, to) in WHERE_SET {
            if let Some(value) = json::at(object, from) {
                super::patch::set(&mut domain, to, value.clone());
            }
        }
        let vcpus = json::count(object, "/spec/cpu/guest");
        Ok(Self { origin: origin.to_owned(), domain, vcpus })
    }
}

impl Instancetype {
    /// Whether it owns a place, or may own it, and in which words.
    pub(super) fn owns(&self, place: &str) -> Option<(Option<&Value>, String)> {
        let within = |own: &str| place.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match self {
            Self::None => None,
            Self::Unread { why } => {
                let may = ALWAYS.iter().any(|own| within(own)) || WHERE_SET.iter().any(|(_, own)| within(own));
                may.then(|| (None, format!("its instancetype may own it, and was not read: {why}")))
            }
            Self::Read(owned) => {
                let value = json::at(&owned.domain, place);
                let always = ALWAYS.iter().any(|own| within(own));
                let set = WHERE_SET.iter().any(|(_, own)| within(own) && json::at(&owned.domain, own).is_some());
                (always || set).then(|| (value, format!("{} owns it", owned.origin)))
            }
        }
    }

    /// How many vCPUs it gives.
    pub(super) fn vcpus(&self) -> Option<u64> {
        match self {
            Self::Read(owned) => owned.vcpus,
            Self::None | Self::Unread { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_it_sets_and_the_topology_are_its_own_and_the_rest_is_free() {
        let object = json!({"kind": "VirtualMachineClusterInstancetype",
            "spec": {"cpu": {"guest": 4, "model": "host-model"}, "memory": {"guest": "8Gi"}, "ioThreadsPolicy": "auto"}});
        let read = Instancetype::Read(Box::new(Owned::from_object("u1.large", &object).unwrap()));
        assert_eq!(read.vcpus(), Some(4));
        assert_eq!(read.owns("/cpu/model").unwrap().0, Some(&json!("host-model")));
        assert_eq!(read.owns("/ioThreadsPolicy").unwrap().1, "u1.large owns it");
        assert!(read.owns("/cpu/sockets").is_some() && read.owns("/cpu/numa/guestMappingPassthrough").is_some());
        assert!(read.owns("/cpu/features/name=vmx").is_none() && read.owns("/features/hyperv/vapic").is_none());
        let bare =
            Instancetype::Read(Box::new(Owned::from_object("u1", &json!({"spec": {"cpu": {"guest": 2}}})).unwrap()));
        assert!(bare.owns("/cpu/model").is_none() && bare.owns("/ioThreads/supplementalPoolThreadCount").is_none());
        assert!(Owned::from_object("x", &json!({"kind": "Pod"})).is_err());
    }

    #[test]
    fn what_was_not_read_may_own_all_of_it() {
        let unread = Instancetype::Unread { why: "offline".to_owned() };
        assert!(unread.owns("/cpu/model").unwrap().1.contains("offline"));
        assert!(unread.owns("/devices/blockMultiQueue").is_none());
        assert!(Instancetype::None.owns("/cpu/model").is_none());
    }
}
