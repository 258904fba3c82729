//! What a policy asks of one VM: one pure function from facts to a plan.
//!
//! No client, no clock, no file, no environment, no async: a test enforces it. The controller, the command line and
//! the tests all call [`plan`], so what `wintune plan` shows is what the operator does.

pub mod capabilities;
mod clock;
pub mod consent;
mod context;
mod cpu;
pub mod detect;
mod devices;
mod disks;
pub mod facts;
mod findings;
pub mod guest;
pub mod harvester;
mod hook;
mod hyperv;
pub mod instancetype;
mod iothreads;
pub mod json;
pub mod known_bad;
pub mod migration;
pub mod nodes;
pub mod owners;
pub mod patch;
pub mod preference;
pub mod profile;
pub mod settings;
mod settle;
mod sizing;
pub mod validate;
pub mod volumes;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::api::conditions::truncate;
use crate::api::record::{DetectionSummary, PlanSummary};
use context::Context;
use detect::{Confidence, Detection};
use facts::{Facts, Nodes, VmRef, Wanted};
use migration::Migration;
use preference::Preference;
use profile::DataError;
use settings::{Finding, Hold, Outcome, Setting, Severity};

/// Bytes of a sign in the record.
const MAX_SIGN: usize = 60;
/// Bytes of a list of fields in the record.
const MAX_FIELDS: usize = 360;
/// Bytes of a warning in the record.
const MAX_WARNING: usize = 130;

/// What a policy asks of one VM, and what comes of it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The VM.
    pub vm: VmRef,
    /// Name of the profile.
    pub profile: String,
    /// Its revision.
    pub profile_revision: i32,
    /// Whether this is Windows.
    pub detection: Detection,
    /// Which version of Windows, where a mark says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Every setting that the profile or the VM speaks of, in the order of their pointers.
    pub settings: Vec<Setting>,
    /// Reasons for which the changes are shown but not written.
    pub holds: Vec<Hold>,
    /// What else a reader should know.
    pub findings: Vec<Finding>,
    /// What it does to the nodes that can take the VM; absent where no nodes are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// What was taken for granted.
    pub assumptions: Vec<String>,
    /// The change itself. Not part of the output: the settings say it.
    #[serde(skip)]
    pub change: patch::Change,
}

/// Why no plan can be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A profile that this build does not have.
    #[error("profile {0:?} is not known; known are: {1}")]
    UnknownProfile(String, String),
    /// The embedded data is invalid.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl Plan {
    /// Whether there is anything to write.
    pub fn has_changes(&self) -> bool {
        self.settings.iter().any(Setting::is_write)
    }

    /// Whether the guest is taken for Windows at all.
    pub fn is_windows(&self) -> bool {
        self.detection.confidence != Confidence::No
    }

    /// Figures and digest for the record.
    pub fn summary(&self) -> PlanSummary {
        let count = |f: fn(&Outcome) -> bool| {
            i32::try_from(self.settings.iter().filter(|s| f(&s.outcome)).count()).unwrap_or(i32::MAX)
        };
        let fields = |f: fn(&Outcome) -> bool| {
            let short =
                |s: &Setting| s.field.trim_start_matches("features.hyperv.").trim_start_matches("devices.").to_owned();
            let all = self.settings.iter().filter(|s| f(&s.outcome)).map(short).collect::<Vec<_>>().join(" ");
            match truncate(&all, MAX_FIELDS) {
                whole if whole.len() == all.len() => all,
                cut => format!("{cut}... (wintune explain has all of them)"),
            }
        };
        PlanSummary {
            digest: self.digest(),
            changes: count(|o| matches!(o, Outcome::Write)),
            satisfied: count(|o| matches!(o, Outcome::Satisfied)),
            kept: count(|o| matches!(o, Outcome::Kept { .. })),
            refused: count(|o| matches!(o, Outcome::Refused { .. })),
            change: fields(|o| matches!(o, Outcome::Write)),
            keep: fields(|o| matches!(o, Outcome::Kept { .. })),
            refuse: fields(|o| matches!(o, Outcome::Refused { .. })),
        }
    }

    /// Signs for the record: the six strongest, so that the record stays small.
    pub fn detection_summary(&self) -> DetectionSummary {
        DetectionSummary {
            confidence: format!("{:?}", self.detection.confidence),
            signs: self.detection.signs.iter().take(6).map(|s| truncate(&s.found, MAX_SIGN).to_owned()).collect(),
        }
    }

    /// Findings for the record: the three worst, so that the record stays small.
    pub fn warnings(&self) -> Vec<String> {
        let mut worst: Vec<&Finding> = self.findings.iter().filter(|f| f.severity != Severity::Note).collect();
        worst.sort_by_key(|f| f.severity);
        worst.iter().take(3).map(|f| truncate(&f.text, MAX_WARNING).to_owned()).collect()
    }

    /// The first finding that KubeVirt or a node will fail by, as [`Plan::warnings`] words it.
    pub fn danger(&self) -> Option<String> {
        let first = self.findings.iter().find(|f| f.severity == Severity::Error)?;
        Some(truncate(&first.text, MAX_WARNING).to_owned())
    }

    /// The same for equal changes, another for others: 16 hexadecimal digits.
    pub fn digest(&self) -> String {
        let text = serde_json::to_string(&(&self.profile, &self.change.entries)).unwrap_or_default();
        // FNV-1a, which never changes; nobody gains from forging a digest that only says "same plan as before".
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("{hash:016x}")
    }
}

/// Works out what `wanted` asks of one VM.
///
/// # Errors
/// When the profile is not known.
pub fn plan(facts: &Facts, wanted: &Wanted) -> Result<Plan, PlanError> {
    let Some(profile) = profile::named(&wanted.profile)? else {
        let known: Vec<&str> = profile::profiles()?.iter().map(|p| p.name.as_str()).collect();
        return Err(PlanError::UnknownProfile(wanted.profile.clone(), known.join(", ")));
    };
    let vm = &facts.vm;
    let detection = detect::detect(facts)?;
    let mut plan = Plan {
        vm: VmRef { namespace: vm.namespace.clone(), name: vm.name.clone() },
        profile: profile.name.clone(),
        profile_revision: profile.revision,
        settings: Vec::new(),
        holds: Vec::new(),
        findings: findings::of_vm(facts, &detection)?,
        migration: None,
        assumptions: Vec::new(),
        change: patch::Change { domain: Value::Null, entries: Vec::new(), created: Vec::new() },
        guest: None,
        detection,
    };
    if !plan.is_windows() {
        plan.findings.extend(findings::of_other_systems(facts));
        plan.change.domain = vm.domain().clone();
        return Ok(plan);
    }
    let cx = Context::new(facts, wanted, profile)?;
    plan.guest = cx.guest.as_ref().map(|(guest, _)| guest.name.clone());
    let disks = disks::disks(&cx);
    let mut settings = every_setting(&cx, &disks)?;
    settings.sort_by(|a, b| (&a.pointer, &a.field).cmp(&(&b.pointer, &b.field)));
    let settled = settle::settle(&cx, wanted, &mut settings)?;
    plan.findings.extend(findings::of_plan(&cx, &disks, &settings, &settled)?);
    settle::four_ways(&cx, &mut settings);
    plan.settings = settings;
    plan.change = settled.change;
    plan.migration = settled.migration;
    if plan.has_changes() {
        plan.holds = holds(facts, &plan.detection)?;
        if matches!(facts.nodes, Nodes::Assumed) {
            plan.assumptions.push("no nodes were given: every node is taken to have the Hyper-V features".to_owned());
        }
    }
    // A table of versions is no cluster, changes or not.
    let bundled = !matches!(facts.capabilities.origin, capabilities::Origin::Assumed);
    plan.assumptions.extend(facts.capabilities.origin.assumption().filter(|_| bundled || plan.has_changes()));
    Ok(plan)
}

/// Every setting of every group.
fn every_setting(cx: &Context<'_>, disks: &[disks::Disk<'_>]) -> Result<Vec<Setting>, DataError> {
    let (clock, will_be) = clock::plan(cx);
    let mut settings = hyperv::plan(cx, &will_be)?;
    settings.extend(clock);
    settings.extend(disks::plan(cx, disks)?);
    let (cpu, placed) = cpu::plan(cx)?;
    settings.extend(cpu);
    settings.extend(iothreads::plan(cx, disks, placed)?);
    settings.extend(devices::plan(cx));
    settings.extend(hook::plan(cx));
    Ok(settings)
}

/// What keeps changes from being written, whatever the policy says.
fn holds(facts: &Facts, detection: &Detection) -> Result<Vec<Hold>, DataError> {
    let mut holds = Vec::new();
    if detection.confidence == Confidence::Unsure {
        let (why, unblock) = match detection.contradiction() {
            Some(contradiction) => (
                format!("strong signs contradict each other: {contradiction}"),
                "take the wrong mark away, or annotate the VM wintune.dev/tune=true, which decides",
            ),
            None => (
                "only weak signs say that this is Windows".to_owned(),
                "label the VM harvesterhci.io/os=windows, or annotate it wintune.dev/tune=true",
            ),
        };
        holds.push(Hold { rule: "unsure-windows", why, unblock: unblock.to_owned() });
    }
    if let Preference::Unread { why } = &facts.preference {
        holds.push(Hold {
            rule: "preference-unread",
            why: format!(
                "the VM has a preference, which may already give these settings or contradict them, and it was not read: {why}"
            ),
            unblock: "compare with the preference; `kubectl get vm NAME -o yaml | wintune plan -f - -o patch` prints the patch".to_owned(),
        });
    }
    if let Some(controller) = &facts.vm.controller {
        holds.push(Hold {
            rule: "controlled",
            why: format!("{} controls this VM and would take a change back", detect::printable(controller)),
            unblock: "change the template there".to_owned(),
        });
    }
    if let Some(owner) = owners::gitops(&facts.vm)? {
        holds.push(Hold {
            rule: "gitops-owner",
            why: format!("{} writes this VM ({})", owner.tool, owner.mark),
            unblock: "put the change into its repository; `kubectl get vm NAME -o yaml | wintune plan -f - -o diff` prints it".to_owned(),
        });
    }
    Ok(holds)
}

#[cfg(test)]
mod tests;
