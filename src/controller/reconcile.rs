//! One look at one VM: observe, plan, decide, apply, record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{Timestamp, Zoned};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};

use super::backoff::Failures;
use super::metrics::Metrics;
use crate::api::conditions::reason;
use crate::api::kubevirt::VirtualMachine;
use crate::api::record::{Applied, AppliedState, Phase, TunedVirtualMachine};
use crate::api::tuning::OnWithdrawal;
use crate::apply::events::Events;
use crate::apply::vm::{ApplyError, Change, Written};
use crate::apply::writer::{WriteError, Writer};
use crate::apply::{record, vm as vm_writer};
use crate::observe::claims::Claims;
use crate::observe::live::{self, ReadError};
use crate::observe::preference::Preferences;
use crate::observe::snapshot::Snapshot;
use crate::observe::watches::Stores;
use crate::plan::consent::Consent;
use crate::plan::facts::ManifestError;
use crate::plan::{self, Plan, PlanError, patch};
use crate::rollout::{self, Input, Next, Preimage, Step, Withdrawal, status};

/// What every look at a VM needs.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) stores: Arc<Stores>,
    pub(super) writer: Writer,
    pub(super) events: Events,
    pub(super) metrics: Arc<Metrics>,
    pub(super) failures: Failures,
    pub(super) preferences: Preferences,
    pub(super) claims: Claims,
}

/// Why a look at a VM failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Apply(ApplyError),
}

impl ReconcileError {
    /// Label of metrics.
    fn label(&self) -> &'static str {
        match self {
            Self::Manifest(_) => "undecodable",
            Self::Read(e) if e.is_forbidden() => "forbidden",
            Self::Read(_) => "read-failed",
            Self::Write(e) => e.label(),
            Self::Apply(ApplyError::Write(e)) => e.label(),
            Self::Apply(ApplyError::Dropped(_)) => "refused",
            Self::Apply(ApplyError::Answer(_)) => "failed",
        }
    }
}

/// What is known and decided of one VM.
struct Decided {
    snapshot: Snapshot,
    plan: Option<Result<Plan, PlanError>>,
    preimage: Preimage,
    step: Step,
}

/// A VM is looked at again after this long even if nothing happens, spread so that they do not come all at once.
const RESYNC: Duration = Duration::from_secs(3600);
/// When the caches are behind what was just read, they catch up within this.
const CATCH_UP: Duration = Duration::from_millis(500);

/// Looks at one VM.
pub(super) async fn reconcile(vm: Arc<VirtualMachine>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    if !context.writer.leads() {
        return Ok(Action::await_change());
    }
    let started = Instant::now();
    let result = look(&vm, &context).await;
    let label = result.as_ref().map_or_else(ReconcileError::label, |(label, _)| label);
    context.metrics.reconcile(label, started.elapsed().as_secs_f64());
    let (label, action) = result?;
    if label == BACKING_OFF {
        return Ok(action);
    }
    context.failures.forget(&key(vm.namespace().as_deref(), &vm.name_any()));
    Ok(action)
}

/// Names a VM among those that failed.
pub(super) fn key(namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

/// How long to wait after a failure.
pub(super) fn on_error(vm: Arc<VirtualMachine>, error: &ReconcileError, context: Arc<Context>) -> Action {
    let vm = key(vm.namespace().as_deref(), &vm.name_any());
    match error {
        ReconcileError::Write(WriteError::Gone(_) | WriteError::NotLeader)
        | ReconcileError::Apply(ApplyError::Write(WriteError::Gone(_) | WriteError::NotLeader)) => {
            context.failures.forget(&vm);
            Action::await_change()
        }
        error => {
            // Somebody else wrote first, mostly: then the watch brings the new object before the wait is over.
            let wait = context.failures.next(&vm);
            tracing::warn!(%vm, %error, ?wait, "trying again");
            Action::requeue(wait)
        }
    }
}

/// Label of a look that came before its time.
const BACKING_OFF: &str = "backing-off";

fn resync() -> Action {
    Action::requeue(RESYNC.mul_f64(0.8 + 0.4 * super::backoff::random()))
}

async fn look(vm: &VirtualMachine, context: &Context) -> Result<(&'static str, Action), ReconcileError> {
    let decided = decide(context.stores.snapshot(vm)?, context).await?;
    if let Some(why) = &decided.snapshot.foreign_record {
        if decided.step != Step::Nothing || matches!(decided.snapshot.consent, Consent::Frozen { .. }) {
            context.events.publish(&decided.snapshot.facts.vm, true, "Check", reason::FROZEN, why).await;
        }
        return Ok(("foreign-record", Action::requeue(Duration::from_secs(60))));
    }
    match &decided.step {
        Step::Nothing => Ok(("nothing", Action::await_change())),
        Step::Record(next) => {
            record_next(&decided, next, context).await?;
            Ok(("recorded", resync()))
        }
        Step::Write | Step::Restore => {
            if let Some(wait) = context.failures.holds(&key(vm.namespace().as_deref(), &vm.name_any())) {
                return Ok((BACKING_OFF, Action::requeue(wait)));
            }
            // Caches may be behind: what is written was read just now, policies and opt-outs of the VM included.
            let snapshot = &decided.snapshot.facts.vm;
            let Some(object) = live::vm(&context.client, &snapshot.namespace, &snapshot.name).await? else {
                return Ok(("gone", Action::await_change()));
            };
            let running = live::instance_exists(&context.client, &snapshot.namespace, &snapshot.name).await?;
            let fresh = context.stores.snapshot_of(&object, running)?;
            if fresh.facts.vm.uid != snapshot.uid {
                return Ok(("changed", Action::requeue(CATCH_UP)));
            }
            let fresh = decide(fresh, context).await?;
            if fresh.step != decided.step {
                return Ok(("changed", Action::requeue(CATCH_UP)));
            }
            // So is the policy: a watch that fails leaves its store as it was.
            if let Consent::Given(given) = &fresh.snapshot.consent
                && !live::unchanged(&context.client, &given.by, &fresh.snapshot.facts.vm.namespace).await?
            {
                return Ok(("changed", Action::requeue(CATCH_UP)));
            }
            let result = match fresh.step {
                Step::Restore => restore(&fresh, context).await,
                _ => write(&fresh, context).await,
            };
            if let Err(error) = &result {
                say_failed(&fresh, error, context).await;
            }
            result.map(|()| ("written", resync()))
        }
    }
}

/// Leaves a trace of a write that fails, for whoever looks at the VM and not at our log.
async fn say_failed(decided: &Decided, error: &ReconcileError, context: &Context) {
    // Read again and planned again at once, or nobody is there to read it.
    if let ReconcileError::Write(WriteError::Changed(_) | WriteError::Gone(_) | WriteError::NotLeader)
    | ReconcileError::Apply(ApplyError::Write(
        WriteError::Changed(_) | WriteError::Gone(_) | WriteError::NotLeader,
    )) = error
    {
        return;
    }
    let next = format!("a write failed and is tried again: {error}");
    let next = Next { phase: Phase::Waiting, reason: reason::WRITE_FAILED, next };
    if let Err(error) = record_next(decided, &next, context).await {
        tracing::debug!(%error, "the failure is not recorded either");
    }
}

/// Plans and decides for a snapshot.
async fn decide(mut snapshot: Snapshot, context: &Context) -> Result<Decided, ReconcileError> {
    if matches!(snapshot.consent, Consent::Given(_)) {
        let namespace = &snapshot.facts.vm.namespace;
        if let Some(reference) = &snapshot.preference {
            snapshot.facts.preference = context.preferences.preference(namespace, reference).await?;
        }
        if let Some(reference) = &snapshot.instancetype {
            snapshot.facts.instancetype = context.preferences.instancetype(namespace, reference).await?;
        }
        context.claims.put_into(&mut snapshot.facts).await;
        snapshot.facts.today = Some(Zoned::now().date());
    }
    let plan = match &snapshot.consent {
        Consent::Given(given) => Some(plan::plan(&snapshot.facts, &given.wanted)),
        _ => None,
    };
    let preimage = rollout::preimage(&snapshot.facts.vm, snapshot.status());
    let withdrawal = withdrawal(&snapshot, &preimage, context).await;
    let step = rollout::decide(&Input {
        vm: &snapshot.facts.vm,
        run: rollout::run(&snapshot.facts.vm, &snapshot.instance),
        consent: &snapshot.consent,
        plan: plan.as_ref(),
        record: snapshot.status(),
        preimage: &preimage,
        withdrawal: withdrawal.as_ref(),
        last_words: last_words(&snapshot, context),
        refusal_expired: refusal_expired(&snapshot),
    });
    Ok(Decided { snapshot, plan, preimage, step })
}

/// Asks the cluster itself whether a policy is gone, but only where it matters: nobody asks any more, and something
/// was written.
async fn withdrawal(snapshot: &Snapshot, preimage: &Preimage, context: &Context) -> Option<Withdrawal> {
    let policy = snapshot.status()?.policy.as_ref()?;
    if snapshot.consent != Consent::None || preimage.applied.is_none() {
        return None;
    }
    // Nothing is restored then, so nothing has to be certain.
    if last_words(snapshot, context).unwrap_or(policy.on_withdrawal) == OnWithdrawal::Keep {
        return Some(Withdrawal::Observed);
    }
    // Readable and in force, and yet it does not select this VM: that is a withdrawal as seen.
    if policy.uid.as_ref().is_some_and(|uid| context.stores.policies().has(uid)) {
        return Some(Withdrawal::Observed);
    }
    Some(live::withdrawal(&context.client, policy, &snapshot.facts.vm.namespace).await)
}

fn input<'a>(decided: &'a Decided) -> Input<'a> {
    Input {
        vm: &decided.snapshot.facts.vm,
        run: rollout::run(&decided.snapshot.facts.vm, &decided.snapshot.instance),
        consent: &decided.snapshot.consent,
        plan: decided.plan.as_ref(),
        record: decided.snapshot.status(),
        preimage: &decided.preimage,
        withdrawal: None,
        last_words: None,
        refusal_expired: false,
    }
}

/// What the recorded policy said of its withdrawal when it was last seen.
fn last_words(snapshot: &Snapshot, context: &Context) -> Option<OnWithdrawal> {
    context.stores.last_words(snapshot.status()?.policy.as_ref()?.uid.as_ref()?)
}

/// A refusal is asked again after this long: the webhook's reason may be gone without a trace on the VM.
const REFUSAL_HOLDS: i64 = 3600;

fn refusal_expired(snapshot: &Snapshot) -> bool {
    let since = snapshot.status().and_then(|s| s.since.as_ref());
    since.is_some_and(|t| Timestamp::now().as_second() - t.0.as_second() > REFUSAL_HOLDS)
}

/// Brings the record up to date, and tells of a change of phase.
async fn record_next(decided: &Decided, next: &Next, context: &Context) -> Result<TunedVirtualMachine, ReconcileError> {
    let mut status = status::status(&input(decided), next, Timestamp::now());
    status.guest_os.clone_from(&decided.snapshot.facts.guest_os);
    status.guest_name.clone_from(&decided.snapshot.facts.guest_name);
    let vm = &decided.snapshot.facts.vm;
    let before = decided.snapshot.status();
    let news = before.is_none_or(|b| b.phase != next.phase || b.next != status.next);
    let danger = decided.plan.as_ref().and_then(|p| p.as_ref().ok()).and_then(Plan::danger);
    let new_danger = danger.filter(|d| !before.is_some_and(|b| b.warnings.contains(d)));
    let forged = decided
        .preimage
        .fault
        .clone()
        .filter(|_| before.is_none_or(|b| !b.conditions.iter().any(|c| c.reason == reason::APPLIED_FORGED)));
    let known = decided.snapshot.record.clone();
    let record = record::ensure(&context.client, &context.writer, vm, known).await?;
    let record = record::update(&context.client, &context.writer, record, status).await?;
    if news {
        let warning = matches!(next.phase, Phase::Refused | Phase::NeedsHuman);
        tracing::info!(namespace = %vm.namespace, name = %vm.name, phase = ?next.phase, reason = next.reason, next = %next.next, "recorded");
        if next.phase != Phase::Observed {
            context.events.publish(vm, warning, "Decide", next.reason, &next.next).await;
        }
    }
    if let Some(danger) = new_danger {
        context.events.publish(vm, true, "Check", reason::DANGEROUS, &danger).await;
    }
    if let Some(fault) = forged {
        context.events.publish(vm, true, "Check", reason::APPLIED_FORGED, &fault).await;
    }
    Ok(record)
}

const REFUSED: &str = "the cluster refuses, and is asked again when the VM or its policy changes, or in an hour: ";

/// Writes the plan into the VM, and says what came of it.
async fn write(decided: &Decided, context: &Context) -> Result<(), ReconcileError> {
    let (Some(Ok(plan)), Consent::Given(given)) = (&decided.plan, &decided.snapshot.consent) else { return Ok(()) };
    let vm = &decided.snapshot.facts.vm;
    let announce = Next { phase: Phase::Applying, reason: reason::WAITING, next: "being written".to_owned() };
    let change = Change {
        vm,
        change: &plan.change,
        earlier: decided.preimage.applied.as_ref(),
        asked_by: rollout::stamp(&given.by),
        announce: status::status(&input(decided), &announce, Timestamp::now()),
        record: decided.snapshot.record.clone(),
    };
    let Written { object, record, applied, beside } =
        match vm_writer::write(&context.client, &context.writer, change).await {
            Ok(written) => written,
            Err(error @ (ApplyError::Write(WriteError::Refused(_)) | ApplyError::Dropped(_))) => {
                let next =
                    Next { phase: Phase::Refused, reason: reason::CLUSTER_REFUSED, next: format!("{REFUSED}{error}") };
                record_next(decided, &next, context).await?;
                return Ok(());
            }
            Err(error) => return Err(ReconcileError::Apply(error)),
        };
    let fields: Vec<String> =
        plan.change.entries.iter().map(|e| e.at.trim_start_matches('/').replace('/', ".")).collect();
    let mut note = format!("wrote {} settings of profile {}: {}", fields.len(), plan.profile, fields.join(", "));
    if !beside.is_empty() {
        note += &format!("; the cluster's own webhooks also changed {}", beside.join(", "));
    }
    tracing::info!(namespace = %vm.namespace, name = %vm.name, settings = fields.len(), "VM written");
    context.events.publish(vm, false, "Tune", reason::TUNED, &note).await;
    settle(&object, record, Some(applied), Vec::new(), None, context).await
}

/// Undoes what was written, and says what stayed.
async fn restore(decided: &Decided, context: &Context) -> Result<(), ReconcileError> {
    let vm = &decided.snapshot.facts.vm;
    let Some(applied) = &decided.preimage.applied else { return Ok(()) };
    if let Err(error) = patch::check(applied, vm.uid.as_deref().unwrap_or_default()) {
        let next = Next {
            phase: Phase::NeedsHuman,
            reason: reason::NEEDS_HUMAN,
            next: format!("the pre-image is refused: {error}"),
        };
        record_next(decided, &next, context).await?;
        return Ok(());
    }
    let undo = patch::undo(vm.domain(), applied);
    let object = match vm_writer::restore(&context.client, &context.writer, vm, &undo, applied).await {
        Err(WriteError::Refused(words)) => {
            let next = format!("to be restored, but {REFUSED}{words}");
            let next = Next { phase: Phase::NeedsHuman, reason: reason::CLUSTER_REFUSED, next };
            record_next(decided, &next, context).await?;
            return Ok(());
        }
        object => object?,
    };
    let kept = match undo.kept.as_slice() {
        [] => String::new(),
        kept => format!("; changed by others since, and left alone: {}", kept.join(", ")),
    };
    let words = format!("its policy was withdrawn; {} values were put back{kept}", undo.restored.len());
    tracing::info!(namespace = %vm.namespace, name = %vm.name, restored = undo.restored.len(), kept = undo.kept.len(), "VM restored");
    context.events.publish(vm, false, "Restore", reason::RESTORED, &words).await;
    let record = record::ensure(&context.client, &context.writer, vm, decided.snapshot.record.clone()).await?;
    let next = Next { phase: Phase::Reverted, reason: reason::RESTORED, next: words };
    settle(&object, record, None, undo.kept, Some(next), context).await
}

/// Records the VM as it is after our write, from the answer itself: the caches do not have it yet.
async fn settle(
    object: &serde_json::Value,
    record: TunedVirtualMachine,
    applied: Option<Applied>,
    kept: Vec<String>,
    next: Option<Next>,
    context: &Context,
) -> Result<(), ReconcileError> {
    let mut snapshot = context.stores.snapshot_of(object, false)?;
    let mut record = record;
    if let Some(status) = record.status.as_mut() {
        status.applied = applied.map(|a| Applied { state: AppliedState::Written, ..a });
        status.kept_on_restore = kept;
    }
    snapshot.record = Some(record);
    let decided = decide(snapshot, context).await?;
    let next = match (next, &decided.step) {
        (Some(next), _) => next,
        (None, Step::Record(next)) => next.clone(),
        // The cluster changed a value of ours in the real write and not in the dry run: the next look decides.
        (None, _) => return Ok(()),
    };
    let status = status::status(&input(&decided), &next, Timestamp::now());
    if let Some(record) = decided.snapshot.record.clone() {
        // The server's copy still says Announced; comparing with our own changed copy would skip the write.
        let server = TunedVirtualMachine { status: None, ..record };
        record::update(&context.client, &context.writer, server, status).await?;
    }
    Ok(())
}
