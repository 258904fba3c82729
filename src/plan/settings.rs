//! The settings of a plan: what is there, what is wanted, and what comes of it.

use serde::Serialize;
use serde_json::Value;

/// One setting: a place in the VM's domain, what stands there, what the profile wants.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    /// The field in words that users know: `features.hyperv.vapic`.
    pub field: String,
    /// JSON pointer below the domain, at which `desired` is written.
    pub pointer: String,
    /// What stands there now; absent where nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<Value>,
    /// What the profile or an override wants there.
    pub desired: Value,
    /// What comes of it.
    pub outcome: Outcome,
    /// Why the profile wants it.
    pub reason: String,
    /// Where a reader can check the reason.
    pub source: String,
    /// What it takes to have an effect in the guest.
    pub effect: Effect,
}

/// What comes of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// It must not be written.
    Refused {
        /// Name of the rule that refuses.
        rule: &'static str,
        /// Why.
        why: String,
        /// What would unblock it.
        unblock: String,
    },
}

/// What it takes for a setting to reach the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// A full stop and start of the VM; a reboot inside Windows keeps the old QEMU.
    PowerCycle,
}

impl Setting {
    /// A setting named by its pointer; the field's name follows from it.
    pub fn new(pointer: String, current: Option<&Value>, desired: Value, reason: &str, source: &str) -> Self {
        Self {
            field: pointer.trim_start_matches('/').replace('/', "."),
            pointer,
            current: current.cloned(),
            desired,
            outcome: Outcome::Satisfied,
            reason: reason.to_owned(),
            source: source.to_owned(),
            effect: Effect::PowerCycle,
        }
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

/// Something that a reader should know, and that changes no setting by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the finding.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found and what to do about it.
    pub text: String,
    /// Where a reader can check it.
    pub source: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Name of the rule.
    pub rule: &'static str,
    /// Why.
    pub why: String,
    /// What would unblock it.
    pub unblock: String,
}
