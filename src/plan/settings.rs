//! The settings of a plan: what is there, what is wanted, and what comes of it.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::json::BY_NAME;

/// One setting: a place in the VM's domain, what stands there, what the profile wants.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    /// The field in words that users know: `features.hyperv.vapic`.
    pub field: String,
    /// Place below the domain at which `desired` is written: a JSON pointer in which an item of a list is called by
    /// its name (`/devices/disks/name=rootdisk/cache`). Empty where KubeVirt's API has no field for it.
    pub pointer: String,
    /// What stands there now; absent where nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<Value>,
    /// What the running instance has there; absent where it has nothing, or where it was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Value>,
    /// What the preference or instancetype gives there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<Value>,
    /// What the profile or an override wants there.
    pub desired: Value,
    /// What comes of it.
    pub outcome: Outcome,
    /// Why the profile wants it.
    pub reason: Cow<'static, str>,
    /// Where a reader can check the reason.
    pub source: Cow<'static, str>,
    /// What it takes to have an effect in the guest.
    pub effect: Effect,
    /// Places that must be written with it or be there already: it goes only where they go.
    #[serde(skip)]
    pub needs: Vec<String>,
}

/// What comes of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "is", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// It is to be written.
    Write,
    /// It is so already.
    Satisfied,
    /// The owner chose otherwise, and that stays.
    Kept {
        /// What the owner chose, and how to change it.
        why: String,
    },
    /// It is wanted, and waits for something that is not there.
    Waits {
        /// What it waits for.
        evidence: String,
        /// What brings that about.
        unblock: String,
    },
    /// It is never written for this VM, and nobody has to do anything.
    Stays {
        /// Name of the rule.
        rule: &'static str,
        /// Why.
        why: String,
    },
    /// It must not be written.
    Refused {
        /// Name of the rule that refuses.
        rule: Cow<'static, str>,
        /// Why.
        why: String,
        /// What would unblock it.
        unblock: String,
    },
}

/// What it takes for a setting to reach the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// A full stop and start of the VM; a reboot inside Windows keeps the old QEMU.
    PowerCycle,
    /// The same, and a driver in the guest that is proven to be bound: without it Windows does not start.
    Driver,
}

impl Setting {
    /// A setting named by its pointer; the field's name follows from it.
    pub fn new(
        pointer: String,
        current: Option<&Value>,
        desired: Value,
        reason: impl Into<Cow<'static, str>>,
        source: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            field: field(&pointer),
            pointer,
            current: current.cloned(),
            running: None,
            preferred: None,
            desired,
            outcome: Outcome::Satisfied,
            reason: reason.into(),
            source: source.into(),
            effect: Effect::PowerCycle,
            needs: Vec::new(),
        }
    }

    /// The same setting, which goes only where these places go.
    pub fn needs(mut self, places: impl IntoIterator<Item = String>) -> Self {
        self.needs.extend(places);
        self
    }

    /// The same setting with another outcome.
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// Whether it is to be written.
    pub fn is_write(&self) -> bool {
        self.outcome == Outcome::Write
    }
}

/// A place in words that users know: `devices.disks[rootdisk].cache`.
pub fn field(place: &str) -> String {
    let mut words = String::with_capacity(place.len());
    for token in place.split('/').skip(1) {
        match token.strip_prefix(BY_NAME) {
            Some(name) => {
                words.push('[');
                words.push_str(name);
                words.push(']');
            }
            None => {
                if !words.is_empty() {
                    words.push('.');
                }
                words.push_str(token);
            }
        }
    }
    words
}

impl Outcome {
    /// A refusal.
    pub fn refused(rule: &'static str, why: impl Into<String>, unblock: impl Into<String>) -> Self {
        Self::Refused { rule: Cow::Borrowed(rule), why: why.into(), unblock: unblock.into() }
    }
}

/// Something that a reader should know, and that changes no setting by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the finding.
    pub id: Cow<'static, str>,
    /// How bad it is.
    pub severity: Severity,
    /// What was found and what to do about it.
    pub text: String,
    /// Where a reader can check it.
    pub source: Cow<'static, str>,
}

impl Finding {
    /// A finding.
    pub fn new(id: &'static str, severity: Severity, text: impl Into<String>, source: &'static str) -> Self {
        Self { id: Cow::Borrowed(id), severity, text: text.into(), source: Cow::Borrowed(source) }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// KubeVirt or the node will fail because of it.
    Error,
    /// Not what the owner believes.
    Warning,
    /// Good to know.
    Note,
}

/// A reason for which a plan with changes is shown but never written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Name of the rule.
    pub rule: &'static str,
    /// Why.
    pub why: String,
    /// What would unblock it.
    pub unblock: String,
}
