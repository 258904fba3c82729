//! What a VM's preference gives it where the VM itself says nothing.
//!
//! KubeVirt copies a preferred Hyper-V feature only where the VM has none, whole struct by whole struct; preferred
//! timers only where the VM sets no timer at all; a preferred offset only where the VM has none (KubeVirt
//! pkg/instancetype/preference/apply/{features,clock}.go).

use serde_json::Value;

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
}

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
        Ok(Self {
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
    fn another_kind_or_shape_is_not_guessed_at() {
        assert!(Preferred::from_object("x", &json!({"kind": "VirtualMachineInstancetype"})).is_err());
        let list = json!({"spec": {"features": {"preferredHyperv": []}}});
        assert!(Preferred::from_object("x", &list).unwrap_err().contains("preferredHyperv"));
        assert_eq!(Preference::None.hyperv(&json!({}), "vapic"), None);
    }
}
