//! `TunedVirtualMachine`: the record of one Windows VM, of the same name and owned by it.
//!
//! The status is the only place that says what we replaced and how to put it back; only the operator may write it.
//! It stays below 4 kB: a digest stands for the plan, and `wintune explain` works the plan out again.

// Several columns of one type are not a mistake.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tuning::OnWithdrawal;

/// What wintune knows, plans and did for one Windows virtual machine.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "wintune.dev",
    version = "v1alpha1",
    kind = "TunedVirtualMachine",
    namespaced,
    status = "RecordStatus",
    shortname = "tvm",
    category = "wintune",
    derive = "PartialEq",
    printcolumn(name = "Profile", type_ = "string", json_path = ".status.profile"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Changes", type_ = "integer", json_path = ".status.plan.changes"),
    printcolumn(name = "Refused", type_ = "integer", json_path = ".status.plan.refused"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".status.policy.name"),
    printcolumn(name = "Next", type_ = "string", json_path = ".status.next", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TunedVirtualMachineSpec {
    /// UID of the VirtualMachine that this record speaks of. A VM made anew under the same name gets a new record.
    #[x_kube(validation = Rule::new("self == oldSelf").message("a record belongs to one VM for ever"))]
    pub vm_uid: String,
}

/// Where a VM stands.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// Seen, nothing decided yet.
    #[default]
    Observed,
    /// The plan is shown and will not be written.
    Proposed,
    /// The plan will be written at a moment that has not come.
    Waiting,
    /// A write has been announced and its result is not known yet.
    Applying,
    /// The VM has everything its policy asks for.
    Tuned,
    /// What we had written was put back.
    Reverted,
    /// Nothing of the plan may be written.
    Refused,
    /// A person has to decide.
    NeedsHuman,
    /// The VM carries the opt-out annotation.
    OptedOut,
}

/// What was observed, planned and done.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RecordStatus {
    /// Generation of the VirtualMachine that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the VM stands.
    #[serde(default)]
    pub phase: Phase,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What happens next, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Name of the profile that decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Revision of that profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_revision: Option<i32>,
    /// The policy or annotation that decides, as it was last read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// What the guest agent said last of the operating system: it is asked while the VM runs and needed when it does
    /// not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_os: Option<String>,
    /// The name that it gave last: `Windows Server 2022 Standard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_name: Option<String>,
    /// Whether this is Windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<DetectionSummary>,
    /// The plan, in figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSummary>,
    /// What endangers or misleads the VM's owner: up to three, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What we wrote and what stood there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// Pointers that a restore left alone, because somebody else changed them since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept_on_restore: Vec<String>,
    /// `Ready`, `Windows`, `AppliedIntact`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What gave consent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRef {
    /// `WindowsTuning`, `ClusterWindowsTuning` or `Annotation`.
    pub kind: PolicyKind,
    /// Name of the policy; for an annotation the annotation's name.
    pub name: String,
    /// UID of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Generation of the policy that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// When the policy was made. A definition that is younger was made anew, and took the policy with it: nobody
    /// withdrew that policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// What to do when the policy no longer covers this VM, as it was last read: the policy itself is gone by then.
    #[serde(default)]
    pub on_withdrawal: OnWithdrawal,
}

/// Kinds of consent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// A policy of the VM's namespace.
    WindowsTuning,
    /// A policy of the cluster.
    ClusterWindowsTuning,
    /// An annotation on the VM itself.
    Annotation,
}

/// Whether the guest is Windows, and why we think so.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DetectionSummary {
    /// `Certain`, `Sure`, `Unsure` or `No`.
    pub confidence: String,
    /// Up to six signs, strongest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signs: Vec<String>,
}

/// A plan in figures.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlanSummary {
    /// Digest over every change of the plan; equal plans have equal digests.
    pub digest: String,
    /// Settings that would be written.
    pub changes: i32,
    /// Settings that are already so.
    pub satisfied: i32,
    /// Settings in which the owner chose otherwise.
    pub kept: i32,
    /// Settings that may not be written.
    pub refused: i32,
    /// Fields that would be written, in one line, those of `features.hyperv` by their own name; `wintune explain` gives
    /// values and reasons.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub change: String,
    /// Fields in which the owner chose otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub keep: String,
    /// Fields that may not be written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refuse: String,
}

/// What one or several writes of ours replaced.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// UID of the VirtualMachine that was written.
    pub vm_uid: String,
    /// `Announced` before the write, `Written` after it. Announced alone means that the write may have happened.
    pub state: AppliedState,
    /// For whom it was written: UID and generation of the policy, or `annotation`. What another writer takes back is
    /// left alone for as long as the same asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
    /// One entry for each value, in the order of their pointers.
    pub entries: Vec<Entry>,
    /// Objects that did not exist before and that only hold our values, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub created: Vec<String>,
}

/// How far a write is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedState {
    /// Recorded before the write, so that a crash between the two loses nothing.
    Announced,
    /// The API server has answered.
    Written,
}

/// One value that we wrote.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// JSON pointer below `/spec/template/spec/domain`.
    pub at: String,
    /// The value before, as JSON text; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The value that we wrote, as JSON text.
    pub now: String,
}
