//! What a VM's preference gives it where the VM itself says nothing.
//!
//! KubeVirt copies a preferred Hyper-V feature only where the VM has none, whole struct by whole struct; preferred
//! timers only where the VM sets no timer at all; a preferred offset only where the VM has none (KubeVirt
//! pkg/instancetype/preference/apply/{features,clock}.go).

use serde_json::{Map, Value};

use super::json;

/// What is known of a VM's preference.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Preference {
    /// The VM has none.
    #[default]
    None,
    /// The VM has one, and it was not read.
    Unread {
        /// Why not, and what to do.
        why: String,
    },
    /// It was read.
    Read(Box<Preferred>),
}

/// The part of a preference that this planner speaks of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preferred {
    /// Which object it came from.
    pub origin: String,
    /// `spec.features.preferredHyperv`; null where there is none.
    pub hyperv: Value,
    /// `spec.clock.preferredTimer`; null where there is none.
    pub timers: Value,
    /// `spec.clock.preferredClockOffset`; null where there is none.
    pub offset: Value,
    /// What else it gives a domain, in the shape of one.
    pub domain: Value,
    /// What it gives each disk that does not say otherwise: `bus`, `cache`, `io`, `dedicatedIOThread`.
    pub disk: Value,
    /// The model of a network interface that names none.
    pub interface_model: Option<String>,
}

/// Where a preference says something of a domain's place (KubeVirt instancetype v1beta1).
const DOMAIN_FIELDS: [(&str, &str); 4] = [
    ("/spec/devices/preferredBlockMultiQueue", "/devices/blockMultiQueue"),
    ("/spec/devices/preferredNetworkInterfaceMultiQueue", "/devices/networkInterfaceMultiqueue"),
    ("/spec/devices/preferredAutoattachMemBalloon", "/devices/autoattachMemBalloon"),
    ("/spec/cpu/preferredCPUFeatures", "/cpu/features"),
];
/// Where it says something of every disk.
const DISK_FIELDS: [(&str, &str); 4] = [
    ("/spec/devices/preferredDiskBus", "/bus"),
    ("/spec/devices/preferredDiskCache", "/cache"),
    ("/spec/devices/preferredDiskIO", "/io"),
    ("/spec/devices/preferredDiskDedicatedIoThread", "/dedicatedIOThread"),
];

impl Preferred {
    /// Reads a VirtualMachinePreference or VirtualMachineClusterPreference, live or frozen in a ControllerRevision.
    ///
    /// # Errors
    /// When it is another kind, or what we read of it has another shape: a guess about it would be a guess about the
    /// VM.
    pub fn from_object(origin: &str, object: &Value) -> Result<Self, String> {
        let kind = json::text(object, "/kind").unwrap_or_default();
        if !kind.ends_with("Preference") && !kind.is_empty() {
            return Err(format!("{origin} holds a {}", super::detect::printable(kind)));
        }
        let part = |pointer: &str| match json::at(object, pointer) {
            Some(value) if !value.is_object() => Err(format!("{pointer} of {origin} is not an object")),
            value => Ok(value.cloned().unwrap_or_default()),
        };
        let fields = |fields: &[(&str, &str)]| {
            let mut all = Value::Object(Map::new());
            for (from, to) in fields {
                if let Some(value) = json::at(object, from) {
                    super::patch::set(&mut all, to, value.clone());
                }
            }
            all
        };
        Ok(Self {
            domain: fields(&DOMAIN_FIELDS),
            disk: fields(&DISK_FIELDS),
            interface_model: json::text(object, "/spec/devices/preferredInterfaceModel").map(str::to_owned),
            origin: origin.to_owned(),
            hyperv: part("/spec/features/preferredHyperv")?,
            timers: part("/spec/clock/preferredTimer")?,
            offset: part("/spec/clock/preferredClockOffset")?,
        })
    }
}

impl Preference {
    /// The preferred Hyper-V features, if they are known.
    pub(super) fn read(&self) -> Option<&Preferred> {
        match self {
            Self::Read(preferred) => Some(preferred),
            Self::None | Self::Unread { .. } => None,
        }
    }

    /// What it gives for a Hyper-V field (`vapic`, `synictimer/direct`) of a VM, and where from.
    pub(super) fn hyperv(&self, domain: &Value, field: &str) -> Option<(&Value, &str)> {
        let preferred = self.read()?;
        // A struct that the VM has is not completed from the preference.
        let whole = field.split('/').next().unwrap_or(field);
        if json::at(domain, &format!("/features/hyperv/{whole}")).is_some() {
            return None;
        }
        Some((json::at(&preferred.hyperv, &format!("/{field}"))?, &preferred.origin))
    }

    /// What it gives for a timer of a VM, and where from. Nothing as soon as the VM sets any timer itself.
    pub(super) fn timer(&self, domain: &Value, timer: &str) -> Option<(&Value, &str)> {
        let preferred = self.read()?;
        if json::at(domain, "/clock/timer").and_then(Value::as_object).is_some_and(|t| !t.is_empty()) {
            return None;
        }
        Some((json::at(&preferred.timers, &format!("/{timer}"))?, &preferred.origin))
    }

    /// What it gives at any other place of a domain, or of a disk, where the VM says nothing; and where from.
    pub(super) fn gives(&self, place: &str) -> Option<(&Value, &str)> {
        let preferred = self.read()?;
        let of_disk = place.strip_prefix("/devices/disks/name=").and_then(|rest| rest.split_once('/'));
        let value = match of_disk {
            Some((_, "disk/bus")) => json::at(&preferred.disk, "/bus"),
            Some((_, field)) => preferred.disk.get(field),
            None => json::at(&preferred.domain, place),
        };
        Some((value?, &preferred.origin))
    }

    /// The offset that it gives a VM that has none, and where from.
    pub(super) fn offset(&self, domain: &Value) -> Option<(&Value, &str)> {
        let preferred = self.read()?;
        let own = json::at(domain, "/clock/utc").or_else(|| json::at(domain, "/clock/timezone"));
        if own.is_some() || preferred.offset.is_null() {
            return None;
        }
        Some((&preferred.offset, &preferred.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn windows() -> Preference {
        let object = json!({"kind": "VirtualMachineClusterPreference", "spec": {
            "features": {"preferredHyperv": {"vapic": {}, "synictimer": {"direct": {}}}},
            "clock": {"preferredTimer": {"hpet": {"present": false}}, "preferredClockOffset": {"utc": {}}}}});
        Preference::Read(Box::new(Preferred::from_object("windows", &object).unwrap()))
    }

    #[test]
    fn it_fills_only_what_the_vm_leaves_open() {
        let preference = windows();
        let empty = json!({});
        assert_eq!(preference.hyperv(&empty, "vapic"), Some((&json!({}), "windows")));
        assert_eq!(preference.hyperv(&empty, "synictimer/direct"), Some((&json!({}), "windows")));
        assert_eq!(preference.hyperv(&empty, "ipi"), None);
        assert_eq!(preference.timer(&empty, "hpet").unwrap().0, &json!({"present": false}));
        assert!(preference.offset(&empty).is_some());
        let own =
            json!({"features": {"hyperv": {"synictimer": {}}}, "clock": {"timezone": "UTC", "timer": {"rtc": {}}}});
        assert_eq!(preference.hyperv(&own, "synictimer/direct"), None, "a struct is not merged");
        assert_eq!(preference.timer(&own, "hpet"), None, "one timer of the VM drops all preferred ones");
        assert_eq!(preference.offset(&own), None);
    }

    #[test]
    fn it_speaks_of_devices_and_of_every_disk() {
        let object = json!({"spec": {"devices": {"preferredDiskBus": "virtio", "preferredDiskCache": "none",
            "preferredBlockMultiQueue": true, "preferredInterfaceModel": "e1000e"},
            "cpu": {"preferredCPUFeatures": [{"name": "vmx", "policy": "disable"}]}}});
        let preference = Preference::Read(Box::new(Preferred::from_object("p", &object).unwrap()));
        let gives = |place: &str| preference.gives(place).map(|(v, _)| v.clone());
        assert_eq!(gives("/devices/disks/name=a/disk/bus"), Some(json!("virtio")));
        assert_eq!(gives("/devices/disks/name=a/cache"), Some(json!("none")));
        assert_eq!(gives("/devices/disks/name=a/io"), None);
        assert_eq!(gives("/devices/blockMultiQueue"), Some(json!(true)));
        assert_eq!(gives("/cpu/features/name=vmx/policy"), Some(json!("disable")));
    }

    #[test]
    fn another_kind_or_shape_is_not_guessed_at() {
        assert!(Preferred::from_object("x", &json!({"kind": "VirtualMachineInstancetype"})).is_err());
        let list = json!({"spec": {"features": {"preferredHyperv": []}}});
        assert!(Preferred::from_object("x", &list).unwrap_err().contains("preferredHyperv"));
        assert_eq!(Preference::None.hyperv(&json!({}), "vapic"), None);
    }
}
