//! Is this the moment to write: a pure decision over what was observed, planned and recorded.
//!
//! The rules that it keeps: a running VM is never written; nothing is written without consent; withdrawal is
//! something that was observed, and what is unknown freezes; nobody's change is fought over.

pub mod status;

use crate::api::annotation;
use crate::api::conditions::reason;
use crate::api::record::{Applied, AppliedState, Phase, PolicyKind, PolicyRef, RecordStatus};
use crate::api::tuning::{Mode, OnWithdrawal};
use crate::plan::consent::{Consent, Given};
use crate::plan::detect::Says;
use crate::plan::facts::Vm;
use crate::plan::patch::{self, AppliedError};
use crate::plan::settings::Outcome;
use crate::plan::{Plan, PlanError};

/// Whether a VM may be written now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// No instance, none coming.
    Stopped,
    /// Not now, and why.
    Busy(String),
}

/// What the objects say about a VM's instance.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// A VMI of this name exists.
    pub exists: bool,
    /// The VM's status says that one was created.
    pub created: bool,
    /// Start or stop requests that are not carried out yet.
    pub pending: bool,
    /// The VM is being deleted.
    pub deleting: bool,
}

/// Whether a VM is stopped for good, so that a write reaches its next instance and raises nothing.
///
/// An `Always` VM without an instance gets a new one within 50 to 220 ms (`kubevirt-live.md` 3), and `Once` runs only
/// once: neither is a moment to write.
pub fn run(vm: &Vm, instance: &Instance) -> Run {
    let busy = |why: &str| Run::Busy(why.to_owned());
    if instance.deleting {
        return busy("the VM is being deleted");
    }
    if instance.exists || instance.created {
        return busy("the VM has a running instance; stop it first");
    }
    if instance.pending {
        return busy("a start or stop was asked for and is not carried out yet");
    }
    match vm.run_strategy() {
        Some("Halted" | "Manual" | "RerunOnFailure") => Run::Stopped,
        Some("Always") => busy("run strategy Always starts the VM again at once; set it to Halted first"),
        Some(other) => Run::Busy(format!("a VM with run strategy {other} is not written by this release")),
        None => busy("neither runStrategy nor running is set"),
    }
}

/// What is known of the end of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Its deletion, or that it no longer selects this VM, was seen.
    Observed,
    /// It cannot be told.
    Unknown(String),
}

/// The pre-image as far as record and annotation agree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preimage {
    /// What an undo goes by; absent where nothing was written.
    pub applied: Option<Applied>,
    /// What is wrong with the annotation; the record goes on deciding.
    pub fault: Option<String>,
    /// Nothing of it is in the VM any more: somebody put everything back, `wintune restore` or another writer.
    pub spent: bool,
}

impl Preimage {
    fn whole(applied: Applied) -> Self {
        Self { applied: Some(applied), ..Self::default() }
    }
}

/// Joins record and annotation. The record decides; the annotation stands in only where the record has nothing, and
/// only if it names this VM and nothing outside the planner's closed list.
pub fn preimage(vm: &Vm, record: Option<&RecordStatus>) -> Preimage {
    let Some(uid) = vm.uid.as_deref() else { return Preimage::default() };
    let mirror = vm.annotations.get(annotation::APPLIED);
    let read = mirror.map(|text| patch::from_annotation(text, uid));
    let recorded = record.and_then(|r| r.applied.as_ref()).filter(|a| a.vm_uid == uid);
    let refused = |e: &AppliedError| format!("annotation {} is refused: {e}", annotation::APPLIED);
    let same = |a: &Applied| mirror == Some(&patch::to_annotation(a));
    let faulty = |applied, fault| Preimage { applied, fault: Some(fault), spent: false };
    match (recorded, read) {
        (None, None) => Preimage::default(),
        (None, Some(Ok(applied))) => Preimage::whole(applied),
        (None, Some(Err(e))) => faulty(None, refused(&e)),
        // The write was announced; the annotation, which goes in with it, says whether it happened.
        (Some(a), _) if same(a) => Preimage::whole(Applied { state: AppliedState::Written, ..a.clone() }),
        (Some(a), Some(Ok(earlier))) if a.state == AppliedState::Announced => Preimage::whole(earlier),
        (Some(a), Some(Err(e))) => faulty(written(vm, a), refused(&e)),
        (Some(a), Some(Ok(_))) => faulty(
            written(vm, a),
            format!("annotation {} is not what wintune wrote; the record decides", annotation::APPLIED),
        ),
        (Some(a), None) => match written(vm, a) {
            None => Preimage::default(),
            Some(applied) if patch::undo(vm.domain(), a).restored.is_empty() => {
                Preimage { applied: Some(applied), fault: None, spent: true }
            }
            applied => faulty(applied, format!("annotation {} was removed; the record decides", annotation::APPLIED)),
        },
    }
}

/// The recorded pre-image, where its write happened. Of a write that was only announced the annotation would tell;
/// without it only a VM that has every announced value does. One alone may be the owner's.
fn written(vm: &Vm, applied: &Applied) -> Option<Applied> {
    let all = || patch::undo(vm.domain(), applied).restored.len() == applied.entries.len();
    let happened = applied.state == AppliedState::Written || all();
    happened.then(|| Applied { state: AppliedState::Written, ..applied.clone() })
}

/// Whom a write is for, as the record keeps it.
pub fn stamp(by: &PolicyRef) -> String {
    match (&by.uid, by.generation) {
        (Some(uid), Some(generation)) => format!("{uid}/{generation}"),
        _ => "annotation".to_owned(),
    }
}

/// Everything that the decision depends on.
#[derive(Debug)]
pub struct Input<'a> {
    /// The VM.
    pub vm: &'a Vm,
    /// Whether it may be written now.
    pub run: Run,
    /// Who asked for what.
    pub consent: &'a Consent,
    /// The plan, where somebody asked.
    pub plan: Option<&'a Result<Plan, PlanError>>,
    /// The record so far.
    pub record: Option<&'a RecordStatus>,
    /// What an undo would go by.
    pub preimage: &'a Preimage,
    /// What is known of the recorded policy's end, where nobody asks any more.
    pub withdrawal: Option<&'a Withdrawal>,
    /// What that policy said of its withdrawal at the very end, where that was seen; newer than the record.
    pub last_words: Option<OnWithdrawal>,
    /// The cluster's last refusal is old enough to ask again.
    pub refusal_expired: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, not even a record.
    Nothing,
    /// Keep the record up to date.
    Record(Next),
    /// Write the plan into the VM.
    Write,
    /// Undo what was written.
    Restore,
}

/// What the record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where the VM stands.
    pub phase: Phase,
    /// Reason of the Ready condition, and of an event.
    pub reason: &'static str,
    /// What happens next, in words.
    pub next: String,
}

impl Next {
    fn step(phase: Phase, reason: &'static str, next: impl Into<String>) -> Step {
        Step::Record(Self { phase, reason, next: next.into() })
    }
}

/// Decides what to do about one VM.
pub fn decide(input: &Input<'_>) -> Step {
    match input.consent {
        Consent::OptedOut { .. } if input.record.is_none() => Step::Nothing,
        Consent::OptedOut { reason: words } => {
            let words = words.as_ref().map(|w| format!(" ({w})")).unwrap_or_default();
            let next = format!("opted out by annotation{words}: nothing is written or restored");
            Next::step(Phase::OptedOut, reason::OPTED_OUT, next)
        }
        Consent::Frozen { why } => {
            let by_annotation = input.vm.annotations.contains_key(annotation::TUNE);
            if input.record.is_none() && !by_annotation {
                return Step::Nothing;
            }
            Next::step(Phase::NeedsHuman, reason::FROZEN, format!("nothing is written or restored: {why}"))
        }
        Consent::None => withdrawn(input),
        Consent::Given(given) => asked(input, given),
    }
}

fn asked(input: &Input<'_>, given: &Given) -> Step {
    let plan = match input.plan {
        None => return Step::Nothing,
        Some(Err(error)) => return Next::step(Phase::Refused, reason::REFUSED, error.to_string()),
        Some(Ok(plan)) => plan,
    };
    if !plan.is_windows() {
        // Where marks say Windows and the guest agent does not, the record has to remember what the agent said: it
        // is silent when the VM is stopped and could be written.
        let marked = plan.detection.signs.iter().any(|s| s.says == Says::Windows);
        let nothing = input.record.is_none() && given.by.kind != PolicyKind::Annotation && !marked;
        let next = "the guest is not Windows: nothing to tune";
        return if nothing { Step::Nothing } else { Next::step(Phase::Refused, reason::REFUSED, next) };
    }
    if !plan.has_changes() {
        return settled(plan);
    }
    if let Some(hold) = plan.holds.first() {
        return Next::step(Phase::Proposed, reason::PROPOSED, format!("proposed only: {}; {}", hold.why, hold.unblock));
    }
    if given.mode != Mode::WhenStopped {
        let why = given.narrowed.first().cloned().unwrap_or_else(|| format!("mode {:?} never writes", given.mode));
        return Next::step(Phase::Proposed, reason::PROPOSED, format!("proposed only: {why}"));
    }
    if let Some(fields) = taken_back(input, given, plan) {
        let again = match given.by.kind {
            PolicyKind::Annotation => "remove the annotation, and set it again later, to try again",
            PolicyKind::WindowsTuning | PolicyKind::ClusterWindowsTuning => "change the policy to try again",
        };
        // The fields come last: a record cuts long texts.
        let next = format!("another writer took back what was written, and it is left alone; {again}: {fields}");
        return Next::step(Phase::Refused, reason::REVERTED_BY_OTHER, next);
    }
    if let Some(words) = refused_before(input, given, plan) {
        return Next::step(Phase::Refused, reason::CLUSTER_REFUSED, words);
    }
    match &input.run {
        Run::Stopped => Step::Write,
        Run::Busy(why) => {
            let next = format!("{} settings wait to be written: {why}", plan.summary().changes);
            Next::step(Phase::Waiting, reason::WAITING, next)
        }
    }
}

/// Nothing is left to write: tuned, or refused altogether.
fn settled(plan: &Plan) -> Step {
    let refusals = || {
        plan.settings.iter().filter_map(|s| match &s.outcome {
            Outcome::Refused { why, unblock, .. } => Some(format!("{}: {why}; {unblock}", s.field)),
            _ => None,
        })
    };
    let summary = plan.summary();
    match refusals().next() {
        Some(first) if summary.satisfied == 0 => {
            let next = format!("{} settings are refused; {first}", summary.refused);
            Next::step(Phase::Refused, reason::REFUSED, next)
        }
        Some(first) => {
            let next = format!("tuned as far as allowed; {} settings are refused; {first}", summary.refused);
            Next::step(Phase::Tuned, reason::TUNED, next)
        }
        None => Next::step(Phase::Tuned, reason::TUNED, "nothing to do"),
    }
}

/// The cluster's words, where it refused this very plan for this very spec and policy: asking again would be a retry
/// loop.
fn refused_before(input: &Input<'_>, given: &Given, plan: &Plan) -> Option<String> {
    let record = input.record?;
    let same =
        record.policy.as_ref() == Some(&given.by) && record.plan.as_ref().is_some_and(|p| p.digest == plan.digest());
    refusal_stands(input, record).filter(|_| same)
}

/// The cluster's words, where it refused a write to this very spec and not too long ago.
fn refusal_stands(input: &Input<'_>, record: &RecordStatus) -> Option<String> {
    let ready = record.conditions.iter().find(|c| c.type_ == crate::api::conditions::condition::READY)?;
    let stands = ready.reason == reason::CLUSTER_REFUSED
        && record.observed_generation == input.vm.generation
        && !input.refusal_expired;
    stands.then(|| record.next.clone().unwrap_or_default())
}

/// Fields of the plan that we had written for this very policy, and that somebody has changed since.
fn taken_back(input: &Input<'_>, given: &Given, plan: &Plan) -> Option<String> {
    let applied = input.preimage.applied.as_ref()?;
    if applied.asked_by.as_ref() != Some(&stamp(&given.by)) {
        return None;
    }
    let again = plan.change.entries.iter().filter(|e| applied.entries.iter().any(|o| o.at == e.at));
    let fields: Vec<String> = again.map(|e| e.at.trim_start_matches('/').replace('/', ".")).collect();
    (!fields.is_empty()).then(|| fields.join(", "))
}

fn withdrawn(input: &Input<'_>) -> Step {
    let Some(record) = input.record else { return Step::Nothing };
    let nothing_written = input.preimage.applied.is_none() || input.preimage.spent;
    if record.phase == Phase::Reverted && nothing_written {
        return Next::step(Phase::Reverted, reason::RESTORED, record.next.clone().unwrap_or_default());
    }
    if input.preimage.spent {
        return Next::step(Phase::Reverted, reason::RESTORED, "everything that wintune wrote is back as it was");
    }
    let Some(policy) = &record.policy else {
        if nothing_written {
            return uncovered();
        }
        let next = "no policy or annotation covers this VM; `wintune restore` takes back what wintune wrote";
        return Next::step(Phase::Observed, reason::WITHDRAWN, next);
    };
    let unknown = match input.withdrawal {
        Some(Withdrawal::Observed) => None,
        Some(Withdrawal::Unknown(why)) => Some(why.as_str()),
        None => (!nothing_written).then_some("it was not looked up"),
    };
    if let Some(why) = unknown {
        let next = format!(
            "{} {} cannot be found, and it is not certain that it was withdrawn: {why}",
            kind(policy.kind),
            policy.name
        );
        return Next::step(Phase::NeedsHuman, reason::FROZEN, next);
    }
    if nothing_written {
        return uncovered();
    }
    match (input.last_words.unwrap_or(policy.on_withdrawal), &input.run) {
        (OnWithdrawal::Keep, _) => {
            let next = format!(
                "{} {} no longer covers this VM; onWithdrawal: Keep leaves it as it is; `wintune restore` takes it back",
                kind(policy.kind),
                policy.name
            );
            Next::step(Phase::Observed, reason::WITHDRAWN, next)
        }
        (OnWithdrawal::Restore, Run::Stopped) => match refusal_stands(input, record) {
            Some(words) => Next::step(Phase::NeedsHuman, reason::CLUSTER_REFUSED, words),
            None => Step::Restore,
        },
        (OnWithdrawal::Restore, Run::Busy(why)) => Next::step(
            Phase::Waiting,
            reason::WAITING,
            format!("to be restored, since its policy was withdrawn: {why}"),
        ),
    }
}

fn uncovered() -> Step {
    let next = "no policy or annotation covers this VM, and nothing of wintune's is in it";
    Next::step(Phase::Observed, reason::WITHDRAWN, next)
}

fn kind(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::WindowsTuning => "WindowsTuning",
        PolicyKind::ClusterWindowsTuning => "ClusterWindowsTuning",
        PolicyKind::Annotation => "annotation",
    }
}

#[cfg(test)]
mod tests;
