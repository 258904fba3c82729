//! The policies: `WindowsTuning` for one namespace, `ClusterWindowsTuning` as the cluster's default.
//!
//! The schema holds every field of the design. What this release does not act on is refused by a validation rule
//! instead of being stored and ignored, so nobody believes that a window or a canary protects them when it does not.

// Several columns of one type are not a mistake.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::overrides::{Enlightenment, Overrides, Switch};

/// Which profile a policy gets when it names none.
pub const DEFAULT_PROFILE: &str = "migration-safe";

/// Tunes the Windows virtual machines of one namespace that its selector matches.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "wintune.dev",
    version = "v1alpha1",
    kind = "WindowsTuning",
    namespaced,
    status = "TuningStatus",
    shortname = "wt",
    category = "wintune",
    derive = "PartialEq",
    printcolumn(name = "Profile", type_ = "string", json_path = ".spec.profile"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.apply.mode"),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.matched"),
    printcolumn(name = "Tuned", type_ = "integer", json_path = ".status.tuned"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct WindowsTuningSpec {
    /// Which VirtualMachines of this namespace, by their labels. `{}` matches every one of them.
    pub selector: LabelSelector,
    /// What the policy wants and how it may bring it about.
    #[serde(flatten)]
    pub tuning: Tuning,
}

/// Tunes Windows virtual machines in every namespace that `namespaceSelector` matches, where no annotation and no
/// `WindowsTuning` says otherwise, and sets limits for all of them.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "wintune.dev",
    version = "v1alpha1",
    kind = "ClusterWindowsTuning",
    status = "TuningStatus",
    shortname = "cwt",
    category = "wintune",
    derive = "PartialEq",
    printcolumn(name = "Profile", type_ = "string", json_path = ".spec.profile"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.apply.mode"),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.matched"),
    printcolumn(name = "Tuned", type_ = "integer", json_path = ".status.tuned"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterWindowsTuningSpec {
    /// Which namespaces, by their labels. `{}` or absent matches every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Which VirtualMachines of those namespaces, by their labels. `{}` matches every one of them.
    pub selector: LabelSelector,
    /// What every policy and annotation in those namespaces is narrowed to. Limits never widen anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What the policy wants and how it may bring it about.
    #[serde(flatten)]
    pub tuning: Tuning,
}

/// The part that both kinds of policy share.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Tuning {
    /// Of several policies of one kind that match a VM the highest priority wins; among equals the oldest.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Which profile of desired settings.
    #[serde(default = "default_profile")]
    #[schemars(extend("enum" = ["migration-safe", "performance", "legacy", "latency"]))]
    pub profile: String,
    /// Settings that differ from the profile, in the profile's own shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Overrides>,
    /// Whether a setting may leave a VM with fewer than two nodes that can take it, where it had two or more: it could
    /// not migrate any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_unmigratable: bool,
    /// When and how settings are written.
    #[serde(default)]
    pub apply: Apply,
    /// What happens to a VM when this policy no longer covers it.
    #[serde(default)]
    pub on_withdrawal: OnWithdrawal,
    /// What may happen to disk buses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(
        validation = Rule::new("!has(self.bus) || self.bus == 'Keep'")
            .message("only Keep is acted on by this release: disks are never moved")
            .field_path(".bus"),
        validation = Rule::new("!has(self.from)").message("not acted on by this release; leave it out").field_path(".from"),
        validation = Rule::new("!has(self.driverMedia)").message("not acted on by this release; leave it out").field_path(".driverMedia"),
        validation = Rule::new("!has(self.guestExec) || !self.guestExec").message("not acted on by this release; leave it out").field_path(".guestExec"),
        validation = Rule::new("!has(self.guestChanges) || !self.guestChanges").message("not acted on by this release; leave it out").field_path(".guestChanges")
    )]
    pub disks: Option<Disks>,
    /// Baseline, soak and rollback. Not acted on by this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("false").message("measure is not acted on by this release; leave it out"))]
    pub measure: Option<Measure>,
}

fn default_profile() -> String {
    DEFAULT_PROFILE.to_owned()
}

impl Tuning {
    /// The first field that this release does not act on, with what to do about it. The same as the schema's rules:
    /// for files, which no API server has checked, and for policies stored under an older schema.
    pub fn not_acted_on(&self) -> Option<&'static str> {
        let apply = &self.apply;
        let disks = self.disks.clone().unwrap_or_default();
        [
            (
                !matches!(apply.mode, Mode::Propose | Mode::WhenStopped),
                "apply.mode: Stage, Restart and Inject are not acted on by this release; use Propose or WhenStopped",
            ),
            (apply.git_ops != GitOps::Propose, "apply.gitOps: only Propose is acted on by this release"),
            (apply.windows.is_some(), "apply.windows is not acted on by this release; leave it out"),
            (apply.max_unavailable.is_some(), "apply.maxUnavailable is not acted on by this release; leave it out"),
            (apply.canary.is_some(), "apply.canary is not acted on by this release; leave it out"),
            (self.measure.is_some(), "measure is not acted on by this release; leave it out"),
            (disks.bus.is_some_and(|b| b != DiskBus::Keep), "disks.bus: only Keep is acted on by this release"),
            (disks.from.is_some(), "disks.from is not acted on by this release; leave it out"),
            (disks.driver_media.is_some(), "disks.driverMedia is not acted on by this release; leave it out"),
            (disks.guest_exec == Some(true), "disks.guestExec is not acted on by this release; leave it out"),
            (disks.guest_changes == Some(true), "disks.guestChanges is not acted on by this release; leave it out"),
        ]
        .into_iter()
        .find_map(|(broken, text)| broken.then_some(text))
    }
}

impl Limits {
    /// The first limit that this release does not act on.
    pub fn not_acted_on(&self) -> Option<&'static str> {
        [
            (self.guest_exec == Some(true), "limits.guestExec is not acted on by this release; leave it out"),
            (self.guest_changes == Some(true), "limits.guestChanges is not acted on by this release; leave it out"),
            (self.hook_routes.is_some(), "limits.hookRoutes is not acted on by this release; leave it out"),
            (self.max_unavailable.is_some(), "limits.maxUnavailable is not acted on by this release; leave it out"),
        ]
        .into_iter()
        .find_map(|(broken, text)| broken.then_some(text))
    }
}

/// When and how settings are written.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Apply {
    /// `Propose` writes only the record; `WhenStopped` writes to VMs that have no running instance.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self in ['Propose', 'WhenStopped']")
        .message("Stage, Restart and Inject are not acted on by this release; use Propose or WhenStopped"))]
    pub mode: Mode,
    /// What to do with VMs that a GitOps tool owns.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == 'Propose'")
        .message("only Propose is acted on by this release: a VM that GitOps owns is never written"))]
    pub git_ops: GitOps,
    /// When restarts may happen. Not acted on by this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("false").message("windows are not acted on by this release; leave them out"))]
    pub windows: Option<Vec<Window>>,
    /// How many VMs may be down at once. Not acted on by this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    #[x_kube(validation = Rule::new("false").message("maxUnavailable is not acted on by this release; leave it out"))]
    pub max_unavailable: Option<i32>,
    /// How many VMs go first. Not acted on by this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("false").message("canary is not acted on by this release; leave it out"))]
    pub canary: Option<Canary>,
}

/// The moment at which a VM is written.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mode {
    /// Never: the record shows what would be written.
    #[default]
    Propose,
    /// While the VM is stopped.
    WhenStopped,
    /// At once, leaving KubeVirt's RestartRequired. Not acted on by this release.
    Stage,
    /// Together with a restart inside a window. Not acted on by this release.
    Restart,
    /// At each start, through a webhook. Not acted on by this release.
    Inject,
}

/// What to do with VMs whose manifest lives in Git.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GitOps {
    /// Show a patch for the owner to take over.
    #[default]
    Propose,
    /// Tune the running instance, leave the VM as Git wrote it. Not acted on by this release.
    Inject,
    /// Write anyway, as `mode` says. Not acted on by this release.
    AsMode,
}

/// A recurring time span.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Cron expression of the start.
    pub schedule: String,
    /// How long it stays open, such as `3h`.
    pub duration: String,
    /// IANA name; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// VMs that go first, and how long they are watched.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// How many VMs.
    #[schemars(range(min = 1, max = 1_000))]
    pub count: i32,
    /// For how long, such as `24h`.
    pub soak: String,
}

/// What happens when a policy is deleted or no longer selects a VM.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnWithdrawal {
    /// The VM stays as it is.
    #[default]
    Keep,
    /// Every value that we wrote and nobody changed since goes back to what it was.
    Restore,
}

/// Where disks may go.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Disks {
    /// Which bus a proven guest may be moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<DiskBus>,
    /// From which buses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<String>>,
    /// Driver CD for guests that lack the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_media: Option<DriverMedia>,
    /// May read-only commands run in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_exec: Option<bool>,
    /// May SAN policy, disk state and BitLocker suspension be changed in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_changes: Option<bool>,
}

/// Whether disks move.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DiskBus {
    /// Disks stay where they are.
    #[default]
    Keep,
    /// To virtio-scsi once the guest is proven ready.
    ScsiWhenReady,
    /// To virtio-blk once the guest is proven ready.
    VirtioWhenReady,
}

/// Where a driver CD comes from.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DriverMedia {
    /// Container disk image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// PersistentVolumeClaim of the VM's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<String>,
}

/// How results are measured.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Measure {
    /// How long to measure before, such as `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// How long to measure after, such as `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak: Option<String>,
    /// Whether a worse result is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_on_worse: Option<bool>,
}

/// What a cluster administrator narrows every policy and annotation to.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.guestExec) || !self.guestExec").message("not acted on by this release; leave it out").field_path(".guestExec"),
    validation = Rule::new("!has(self.guestChanges) || !self.guestChanges").message("not acted on by this release; leave it out").field_path(".guestChanges"),
    validation = Rule::new("!has(self.hookRoutes)").message("not acted on by this release; leave it out").field_path(".hookRoutes"),
    validation = Rule::new("!has(self.maxUnavailable)").message("not acted on by this release; leave it out").field_path(".maxUnavailable")
)]
pub struct Limits {
    /// Modes that may be used. A policy with another mode only proposes. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<Vec<Mode>>,
    /// Profiles that may be used. A policy with another profile only proposes. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<String>>,
    /// Whether an annotation on a VM counts as consent. Opting out by annotation always counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<AnnotationConsent>,
    /// Whether policies may ask for commands in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_exec: Option<bool>,
    /// Whether policies may ask for changes in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_changes: Option<bool>,
    /// Which routes a domain hook may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_routes: Option<Vec<String>>,
    /// How many VMs of the cluster may be down at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<i32>,
}

/// Whether annotations on VMs count as consent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AnnotationConsent {
    /// They do.
    #[default]
    Allow,
    /// They do not; only policies do.
    Deny,
}

/// What a policy covers and how far it is. Written by the operator, at most every 30 seconds.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TuningStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// VMs that this policy decides for.
    #[serde(default)]
    pub matched: i32,
    /// Of those, VMs that have everything the policy asks for.
    #[serde(default)]
    pub tuned: i32,
    /// Of those, VMs for which the record holds a proposal.
    #[serde(default)]
    pub proposed: i32,
    /// Of those, VMs that wait for a moment to be written.
    #[serde(default)]
    pub waiting: i32,
    /// Of those, VMs that nothing is or can be done for: refused, opted out or in need of a person.
    #[serde(default)]
    pub refused: i32,
    /// `Ready`: the policy was understood and decides for its VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
