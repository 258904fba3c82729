//! Decisions and pre-images: values in, values out.

use super::*;
use crate::api::conditions::condition;
use crate::api::record::{Entry, PolicyRef};
use crate::plan::facts::{Facts, Wanted};
use serde_json::{Value, json};

pub(super) const UID: &str = "0b5a2f34-9a5c-4f0e-8b7a-3f1d5c7e9a11";

/// A stopped Windows VM without any enlightenment, changed by a merge patch.
pub(super) fn object(edit: &Value) -> Value {
    let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "erp", "uid": UID, "generation": 3, "resourceVersion": "9",
            "labels": {"harvesterhci.io/os": "windows"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"memory": {"guest": "4Gi"}, "devices": {}}}}}});
    json_patch::merge(&mut object, edit);
    object
}

pub(super) fn vm(edit: &Value) -> Vm {
    Vm::from_object(&object(edit)).unwrap()
}

pub(super) fn plan_for(vm: &Vm) -> Result<Plan, PlanError> {
    crate::plan::plan(&Facts::offline(vm.clone()), &Wanted::default())
}

/// What the plan for a VM replaces, announced and not yet written.
pub(super) fn announced(vm: &Vm) -> Applied {
    patch::merge(None, UID, &plan_for(vm).unwrap().change)
}

/// The VM after its plan was written, with an annotation of this text or without one.
fn after(edit: &Value, annotation: Option<&str>) -> Vm {
    let mut object = object(edit);
    let before = Vm::from_object(&object).unwrap();
    let plan = plan_for(&before).unwrap();
    json_patch::patch(&mut object, &patch::apply_patch(&before, &plan.change, &announced(&before))).unwrap();
    object["metadata"]["annotations"] = annotation.map_or(json!({}), |text| json!({annotation::APPLIED: text}));
    Vm::from_object(&object).unwrap()
}

fn annotated(text: &str) -> Vm {
    vm(&json!({"metadata": {"annotations": {annotation::APPLIED: text}}}))
}

fn recorded(applied: &Applied, state: AppliedState) -> RecordStatus {
    RecordStatus { applied: Some(Applied { state, ..applied.clone() }), ..RecordStatus::default() }
}

pub(super) fn given(mode: Mode) -> Given {
    let by = PolicyRef {
        kind: PolicyKind::WindowsTuning,
        name: "databases".to_owned(),
        uid: Some("policy".to_owned()),
        generation: Some(1),
        created: None,
        on_withdrawal: OnWithdrawal::Keep,
    };
    Given { by, wanted: Wanted::default(), mode, narrowed: Vec::new(), losers: Vec::new() }
}

#[test]
fn only_a_vm_that_is_stopped_for_good_is_written() {
    let run_of = |spec: Value| run(&vm(&json!({"spec": spec})), &Instance::default());
    for strategy in ["Halted", "Manual", "RerunOnFailure"] {
        assert_eq!(run_of(json!({"runStrategy": strategy})), Run::Stopped, "{strategy}");
    }
    assert_eq!(run_of(json!({"runStrategy": null, "running": false})), Run::Stopped);
    for busy in [
        json!({"runStrategy": "Always"}),
        json!({"runStrategy": "Once"}),
        json!({"runStrategy": "WaitAsReceiver"}),
        json!({"runStrategy": null}),
        json!({"runStrategy": null, "running": true}),
    ] {
        assert!(matches!(run_of(busy.clone()), Run::Busy(_)), "{busy}");
    }
    for instance in [
        Instance { exists: true, ..Instance::default() },
        Instance { created: true, ..Instance::default() },
        Instance { pending: true, ..Instance::default() },
        Instance { deleting: true, ..Instance::default() },
    ] {
        assert!(matches!(run(&vm(&json!({})), &instance), Run::Busy(_)), "{instance:?}");
    }
}

#[test]
fn without_record_the_annotation_stands_in_if_it_is_ours() {
    assert_eq!(preimage(&vm(&json!({})), None), Preimage::default());
    let applied = announced(&vm(&json!({})));
    let text = patch::to_annotation(&applied);
    let read = preimage(&after(&json!({}), Some(&text)), None);
    assert_eq!(read, Preimage::whole(Applied { state: AppliedState::Written, ..applied.clone() }));
    // A file has no UID, so nothing can be bound to it.
    assert_eq!(
        preimage(&vm(&json!({"metadata": {"uid": null, "annotations": {annotation::APPLIED: text}}})), None),
        Preimage::default()
    );

    let foreign =
        Entry { at: "/devices/disks/0/disk/bus".to_owned(), was: Some("\"sata\"".to_owned()), now: "{}".to_owned() };
    for (forged, words) in [
        (patch::to_annotation(&Applied { entries: vec![foreign], ..applied.clone() }), "/devices/disks/0/disk/bus"),
        (patch::to_annotation(&Applied { vm_uid: "another".to_owned(), ..applied.clone() }), "another"),
        ("{}".to_owned(), "not a pre-image"),
        ("x".repeat(20_000), "20000 bytes"),
    ] {
        let read = preimage(&annotated(&forged), None);
        assert_eq!(read.applied, None);
        assert!(read.fault.as_ref().unwrap().contains(words), "{read:?}");
    }
}

#[test]
fn a_crash_around_the_write_loses_nothing() {
    let (before, applied) = (vm(&json!({})), announced(&vm(&json!({}))));
    let text = patch::to_annotation(&applied);
    let record = recorded(&applied, AppliedState::Announced);
    let written = Preimage::whole(Applied { state: AppliedState::Written, ..applied.clone() });
    // Between the announcement and the write: nothing happened.
    assert_eq!(preimage(&before, Some(&record)), Preimage::default());
    // Behind the write: it did, as the annotation tells.
    assert_eq!(preimage(&after(&json!({}), Some(&text)), Some(&record)), written);
    // Behind the write, and then somebody took the annotation away or wrote over it: the VM itself tells.
    for annotation in [None, Some("forged")] {
        let read = preimage(&after(&json!({}), annotation), Some(&record));
        assert_eq!(read.applied, written.applied);
        assert!(read.fault.is_some() && !read.spent);
    }
    // Between the announcement and the write, with a forged annotation.
    let read = preimage(&annotated("forged"), Some(&record));
    assert_eq!((read.applied, read.fault.is_some()), (None, true));
    // Between the announcement of a second write and that write: the first still stands.
    let first = after(&json!({}), Some(&text));
    let off = json!({"features": {"hyperv": {"vapic": {"enabled": false}}}});
    let mut domain = first.domain().clone();
    json_patch::merge(&mut domain, &off);
    let change = patch::Change {
        domain,
        entries: vec![Entry {
            at: "/features/hyperv/vapic/enabled".to_owned(),
            was: Some("true".to_owned()),
            now: "false".to_owned(),
        }],
        created: Vec::new(),
    };
    let second = patch::merge(written.applied.as_ref(), UID, &change);
    assert_eq!(preimage(&first, Some(&recorded(&second, AppliedState::Announced))), written);
}

#[test]
fn the_record_decides_and_a_changed_annotation_is_reported() {
    let applied = announced(&vm(&json!({})));
    let record = recorded(&applied, AppliedState::Written);
    let fewer = Applied { entries: applied.entries[..1].to_vec(), ..applied.clone() };
    for (annotation, words) in [
        (Some(patch::to_annotation(&fewer)), "is not what wintune wrote"),
        (Some("forged".to_owned()), "is refused"),
        (None, "was removed"),
    ] {
        let read = preimage(&after(&json!({}), annotation.as_deref()), Some(&record));
        assert_eq!(read.applied, record.applied);
        assert!(read.fault.as_ref().unwrap().contains(words), "{read:?}");
    }
    // Everything is back and the annotation gone: somebody restored it.
    let read = preimage(&vm(&json!({})), Some(&record));
    assert_eq!(read, Preimage { applied: record.applied.clone(), fault: None, spent: true });
    // A record that speaks of another VM of this name says nothing.
    let other = recorded(&Applied { vm_uid: "another".to_owned(), ..applied }, AppliedState::Written);
    assert_eq!(preimage(&after(&json!({}), None), Some(&other)), Preimage::default());
}

/// A decision, with everything it depends on.
struct Case {
    vm: Vm,
    run: Run,
    consent: Consent,
    record: Option<RecordStatus>,
    preimage: Preimage,
    withdrawal: Option<Withdrawal>,
    last_words: Option<OnWithdrawal>,
    refusal_expired: bool,
}

impl Case {
    fn new(edit: &Value, consent: Consent) -> Self {
        let vm = vm(edit);
        Self {
            vm,
            run: Run::Stopped,
            consent,
            record: None,
            preimage: Preimage::default(),
            withdrawal: None,
            last_words: None,
            refusal_expired: false,
        }
    }

    fn asked(edit: &Value) -> Self {
        Self::new(edit, Consent::Given(Box::new(given(Mode::WhenStopped))))
    }

    /// Nobody asks any more, and this policy had written everything.
    fn withdrawn(on_withdrawal: OnWithdrawal, withdrawal: Option<Withdrawal>) -> Self {
        let applied = announced(&vm(&json!({})));
        let policy = PolicyRef { on_withdrawal, ..given(Mode::WhenStopped).by };
        let record = RecordStatus { policy: Some(policy), ..recorded(&applied, AppliedState::Written) };
        let preimage = Preimage { applied: record.applied.clone(), ..Preimage::default() };
        Self { record: Some(record), preimage, withdrawal, ..Self::new(&json!({}), Consent::None) }
    }

    fn decide(&self) -> Step {
        let plan = matches!(self.consent, Consent::Given(_)).then(|| plan_for(&self.vm));
        decide(&Input {
            vm: &self.vm,
            run: self.run.clone(),
            consent: &self.consent,
            plan: plan.as_ref(),
            record: self.record.as_ref(),
            preimage: &self.preimage,
            withdrawal: self.withdrawal.as_ref(),
            last_words: self.last_words,
            refusal_expired: self.refusal_expired,
        })
    }

    #[track_caller]
    fn leads_to(&self, phase: Phase, reason: &str, words: &str) {
        let Step::Record(next) = self.decide() else { panic!("{:?}", self.decide()) };
        assert_eq!((next.phase, next.reason), (phase, reason), "{}", next.next);
        assert!(next.next.contains(words), "{}", next.next);
    }
}

#[test]
fn opting_out_and_freezing_write_nothing() {
    let out = || Consent::OptedOut { reason: Some("vendor says no".to_owned()) };
    assert_eq!(Case::new(&json!({}), out()).decide(), Step::Nothing);
    let applied = announced(&vm(&json!({})));
    let record = Some(recorded(&applied, AppliedState::Written));
    let preimage = Preimage::whole(applied);
    let case = Case { record: record.clone(), preimage, ..Case::new(&json!({}), out()) };
    case.leads_to(Phase::OptedOut, reason::OPTED_OUT, "(vendor says no)");

    let frozen = || Consent::Frozen { why: "policy x cannot be read".to_owned() };
    assert_eq!(Case::new(&json!({}), frozen()).decide(), Step::Nothing);
    let case = Case { record, ..Case::new(&json!({}), frozen()) };
    case.leads_to(Phase::NeedsHuman, reason::FROZEN, "policy x cannot be read");
    let tune = json!({"metadata": {"annotations": {annotation::TUNE: "yes"}}});
    Case::new(&tune, frozen()).leads_to(Phase::NeedsHuman, reason::FROZEN, "policy x cannot be read");
}

#[test]
fn without_consent_nothing_is_written() {
    assert_eq!(Case::new(&json!({}), Consent::None).decide(), Step::Nothing);
    let case = Case { record: Some(RecordStatus::default()), ..Case::new(&json!({}), Consent::None) };
    case.leads_to(Phase::Observed, reason::WITHDRAWN, "no policy or annotation");
}

#[test]
fn a_plan_is_written_when_everything_says_yes() {
    assert_eq!(Case::asked(&json!({})).decide(), Step::Write);
    let case = Case { run: Run::Busy("it runs".to_owned()), ..Case::asked(&json!({})) };
    case.leads_to(Phase::Waiting, reason::WAITING, "it runs");
    for mode in [Mode::Propose, Mode::Stage, Mode::Restart, Mode::Inject] {
        let case = Case::new(&json!({}), Consent::Given(Box::new(given(mode))));
        case.leads_to(Phase::Proposed, reason::PROPOSED, &format!("mode {mode:?}"));
    }
    let narrowed = Given { narrowed: vec!["limits say no".to_owned()], ..given(Mode::Propose) };
    let case = Case::new(&json!({}), Consent::Given(Box::new(narrowed)));
    case.leads_to(Phase::Proposed, reason::PROPOSED, "limits say no");
    // A hold outweighs the mode.
    let owned = json!({"metadata": {"labels": {"argocd.argoproj.io/instance": "erp"}}});
    Case::asked(&owned).leads_to(Phase::Proposed, reason::PROPOSED, "Argo CD");
    // Nothing left to do.
    let done = Case { vm: after(&json!({}), None), ..Case::asked(&json!({})) };
    done.leads_to(Phase::Tuned, reason::TUNED, "nothing to do");
    // Everything refused, or a part of it.
    let arm = json!({"spec": {"template": {"spec": {"architecture": "arm64"}}}});
    Case::asked(&arm).leads_to(Phase::Refused, reason::REFUSED, "15 settings are refused");
}

#[test]
fn another_system_gets_a_record_only_where_somebody_asked_for_this_vm() {
    let linux = json!({"metadata": {"labels": {"harvesterhci.io/os": "linux"}}});
    assert_eq!(Case::asked(&linux).decide(), Step::Nothing);
    let mut by_annotation = given(Mode::WhenStopped);
    by_annotation.by.kind = PolicyKind::Annotation;
    let case = Case::new(&linux, Consent::Given(Box::new(by_annotation)));
    case.leads_to(Phase::Refused, reason::REFUSED, "not Windows");
    let case = Case { record: Some(RecordStatus::default()), ..Case::asked(&linux) };
    case.leads_to(Phase::Refused, reason::REFUSED, "not Windows");
}

#[test]
fn what_the_cluster_refused_is_not_asked_again() {
    let plan = plan_for(&vm(&json!({}))).unwrap();
    let mut record = RecordStatus {
        observed_generation: Some(3),
        plan: Some(plan.summary()),
        next: Some("the cluster refused: quota".to_owned()),
        ..RecordStatus::default()
    };
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    crate::api::conditions::set(
        &mut record.conditions,
        condition::READY,
        false,
        reason::CLUSTER_REFUSED,
        "",
        None,
        now,
    );
    let case = |record: RecordStatus| Case { record: Some(record), ..Case::asked(&json!({})) };
    record.policy = Some(given(Mode::WhenStopped).by);
    case(record.clone()).leads_to(Phase::Refused, reason::CLUSTER_REFUSED, "the cluster refused: quota");
    // Another spec, another policy or another plan is another question, and so is the same an hour later.
    let edited = PolicyRef { generation: Some(99), ..given(Mode::WhenStopped).by };
    assert_eq!(case(RecordStatus { policy: Some(edited), ..record.clone() }).decide(), Step::Write);
    assert_eq!(Case { refusal_expired: true, ..case(record.clone()) }.decide(), Step::Write);
    assert_eq!(case(RecordStatus { observed_generation: Some(2), ..record.clone() }).decide(), Step::Write);
    record.plan.as_mut().unwrap().digest = "0".repeat(16);
    assert_eq!(case(record).decide(), Step::Write);
}

#[test]
fn what_another_writer_took_back_is_left_alone_until_the_policy_changes() {
    // What counts is whom the write was for, not whom the record saw last.
    let case = |asked_by: Option<String>| {
        let mut case = Case::withdrawn(OnWithdrawal::Keep, None);
        case.consent = Consent::Given(Box::new(given(Mode::WhenStopped)));
        case.preimage.applied.as_mut().unwrap().asked_by = asked_by;
        case
    };
    let by = given(Mode::WhenStopped).by;
    case(Some(stamp(&by))).leads_to(Phase::Refused, reason::REVERTED_BY_OTHER, "features.hyperv.vapic");
    let older = PolicyRef { generation: Some(0), ..by };
    assert_eq!(case(Some(stamp(&older))).decide(), Step::Write);
    assert_eq!(case(None).decide(), Step::Write);
}

#[test]
fn withdrawal_is_observed_or_nothing_happens() {
    let observed = || Some(Withdrawal::Observed);
    assert_eq!(Case::withdrawn(OnWithdrawal::Restore, observed()).decide(), Step::Restore);
    let keep = Case::withdrawn(OnWithdrawal::Keep, observed());
    keep.leads_to(Phase::Observed, reason::WITHDRAWN, "onWithdrawal: Keep");
    let busy = Case { run: Run::Busy("it runs".to_owned()), ..Case::withdrawn(OnWithdrawal::Restore, observed()) };
    busy.leads_to(Phase::Waiting, reason::WAITING, "to be restored");
    let unknown = Some(Withdrawal::Unknown("no answer".to_owned()));
    let case = Case::withdrawn(OnWithdrawal::Restore, unknown);
    case.leads_to(Phase::NeedsHuman, reason::FROZEN, "no answer");
    // Nobody looked: that is unknown too.
    Case::withdrawn(OnWithdrawal::Restore, None).leads_to(Phase::NeedsHuman, reason::FROZEN, "not looked up");
    // Nothing was written.
    let case = Case { preimage: Preimage::default(), ..Case::withdrawn(OnWithdrawal::Restore, observed()) };
    case.leads_to(Phase::Observed, reason::WITHDRAWN, "nothing of wintune's is in it");
    // Somebody put everything back, or we did and died before we could say so.
    let spent = Preimage { spent: true, ..Case::withdrawn(OnWithdrawal::Restore, None).preimage };
    let case = Case { preimage: spent, ..Case::withdrawn(OnWithdrawal::Restore, observed()) };
    case.leads_to(Phase::Reverted, reason::RESTORED, "is back as it was");
    // The policy's last words are newer than the record, either way.
    let keep = Some(OnWithdrawal::Keep);
    let case = Case { last_words: keep, ..Case::withdrawn(OnWithdrawal::Restore, observed()) };
    case.leads_to(Phase::Observed, reason::WITHDRAWN, "onWithdrawal: Keep");
    let restore = Some(OnWithdrawal::Restore);
    let case = Case { last_words: restore, ..Case::withdrawn(OnWithdrawal::Keep, observed()) };
    assert_eq!(case.decide(), Step::Restore);
    // Once restored it stays so.
    let mut case = Case { preimage: Preimage::default(), ..Case::withdrawn(OnWithdrawal::Restore, observed()) };
    let record = case.record.as_mut().unwrap();
    (record.phase, record.next) = (Phase::Reverted, Some("2 values were put back".to_owned()));
    case.leads_to(Phase::Reverted, reason::RESTORED, "2 values were put back");
}

#[test]
fn a_refused_restore_is_not_asked_again_at_once() {
    let mut case = Case::withdrawn(OnWithdrawal::Restore, Some(Withdrawal::Observed));
    let generation = case.vm.generation;
    let record = case.record.as_mut().unwrap();
    record.observed_generation = generation;
    record.next = Some("the cluster refuses: quota".to_owned());
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let refused = reason::CLUSTER_REFUSED;
    crate::api::conditions::set(&mut record.conditions, condition::READY, false, refused, "", None, now);
    case.leads_to(Phase::NeedsHuman, reason::CLUSTER_REFUSED, "quota");
    case.refusal_expired = true;
    assert_eq!(case.decide(), Step::Restore);
}

#[test]
fn one_value_of_the_owner_does_not_prove_an_announced_write() {
    let applied = announced(&vm(&json!({})));
    let record = recorded(&applied, AppliedState::Announced);
    let own =
        json!({"spec": {"template": {"spec": {"domain": {"features": {"hyperv": {"relaxed": {"enabled": true}}}}}}}});
    assert_eq!(preimage(&vm(&own), Some(&record)), Preimage::default());
}

#[test]
fn what_the_guest_agent_said_against_the_marks_is_remembered() {
    let mut case = Case::asked(&json!({}));
    let mut facts = Facts::offline(case.vm.clone());
    facts.guest_os = Some("ubuntu".to_owned());
    let plan = crate::plan::plan(&facts, &Wanted::default());
    let input = |case: &Case| -> Step {
        decide(&Input {
            vm: &case.vm,
            run: Run::Stopped,
            consent: &case.consent,
            plan: Some(&plan),
            record: case.record.as_ref(),
            preimage: &case.preimage,
            withdrawal: None,
            last_words: None,
            refusal_expired: false,
        })
    };
    // The label says Windows, so there has to be a record that keeps the agent's word.
    assert!(matches!(input(&case), Step::Record(next) if next.phase == Phase::Refused));
    case.record = Some(RecordStatus { guest_os: Some("ubuntu".to_owned()), ..RecordStatus::default() });
    assert!(matches!(input(&case), Step::Record(next) if next.phase == Phase::Refused));
}
