//! The record's status, worked out from what was observed and decided; the clock is passed in.

use k8s_openapi::jiff::Timestamp;

use super::{Input, Next};
use crate::api::conditions::{self, condition, reason};
use crate::api::record::{Applied, Phase, RecordStatus};
use crate::plan::consent::Consent;
use crate::plan::detect::Confidence;
use crate::plan::{Plan, PlanError};

/// Bytes of what happens next. The event has more of it, and the `Ready` condition its beginning.
const MAX_NEXT: usize = 300;
const MAX_READY: usize = 150;
/// Bytes of the message of each other condition. With these a status stays below the design's 4 kB.
const MAX_MESSAGE: usize = 100;

/// The status that a decision leads to. Equal to the former one where nothing but the time differs.
pub fn status(input: &Input<'_>, next: &Next, now: Timestamp) -> RecordStatus {
    let mut status = input.record.cloned().unwrap_or_default();
    let generation = input.vm.generation;
    status.observed_generation = generation;
    if status.phase != next.phase || status.since.is_none() {
        status.since = Some(conditions::whole_seconds(now));
    }
    status.phase = next.phase;
    let words = conditions::truncate(&next.next, MAX_NEXT);
    status.next = Some(words.to_owned());
    if let Consent::Given(given) = input.consent {
        status.policy = Some(given.by.clone());
        status.profile = Some(given.wanted.profile.clone());
    }
    if *input.consent == Consent::None {
        // Nobody asks any more: the figures of the last plan would read as if somebody did.
        status.plan = None;
        status.warnings = Vec::new();
        status.profile = None;
        status.profile_revision = None;
    }
    if let Some(Ok(plan)) = input.plan {
        planned(&mut status, plan, generation, now);
    } else if let Some(Err(PlanError::UnknownProfile(..))) = input.plan {
        status.plan = None;
        status.profile_revision = None;
    }
    status.applied = input.preimage.applied.clone();
    // Everything is back, and nobody asks for it now: whoever asks next asks anew, and is not told of a fight.
    if input.preimage.spent && !matches!(input.consent, Consent::Given(_)) {
        status.applied = None;
    }
    if *input.consent == Consent::None {
        if status.applied.is_none() {
            status.policy = None;
        }
        // Whoever asks again asks anew.
        status.applied = status.applied.map(|a| Applied { asked_by: None, ..a });
    }
    let ready = next.phase == Phase::Tuned;
    conditions::set(
        &mut status.conditions,
        condition::READY,
        ready,
        next.reason,
        conditions::truncate(words, MAX_READY),
        generation,
        now,
    );
    intact(&mut status, input.preimage.fault.as_deref(), generation, now);
    status
}

fn planned(status: &mut RecordStatus, plan: &Plan, generation: Option<i64>, now: Timestamp) {
    status.profile_revision = Some(plan.profile_revision);
    status.plan = Some(plan.summary());
    status.detection = Some(plan.detection_summary());
    status.warnings = plan.warnings();
    let signs = plan.detection_summary().signs.join("; ");
    let (is, why) = match plan.detection.confidence {
        Confidence::Certain | Confidence::Sure => (true, reason::SIGNS_FOUND),
        Confidence::Unsure | Confidence::No => (false, reason::SIGNS_UNSURE),
    };
    let text = match plan.detection.contradiction() {
        Some(contradiction) => format!("contradicting signs: {contradiction}"),
        None => signs,
    };
    let text = conditions::truncate(&text, MAX_MESSAGE);
    conditions::set(&mut status.conditions, condition::WINDOWS, is, why, text, generation, now);
}

/// Whether the annotation is what we wrote; the condition exists only where there is or was something to compare.
fn intact(status: &mut RecordStatus, fault: Option<&str>, generation: Option<i64>, now: Timestamp) {
    let known = status.conditions.iter().any(|c| c.type_ == condition::APPLIED_INTACT);
    let (is, why, text) = match fault {
        Some(fault) => (false, reason::APPLIED_FORGED, fault),
        None if known || status.applied.is_some() => {
            (true, reason::APPLIED_INTACT, "the annotation is what wintune wrote")
        }
        None => return,
    };
    let text = conditions::truncate(text, MAX_MESSAGE);
    conditions::set(&mut status.conditions, condition::APPLIED_INTACT, is, why, text, generation, now);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{UID, announced, given, plan_for, vm};
    use super::super::{Preimage, Run};
    use super::*;
    use crate::api::record::{Applied, AppliedState, Entry, PolicyRef};
    use crate::api::tuning::Mode;
    use crate::plan::facts::Vm;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn next(phase: Phase, reason: &'static str, words: &str) -> Next {
        Next { phase, reason, next: words.to_owned() }
    }

    /// The status of a VM that a policy asks for.
    fn of(
        vm: &Vm,
        consent: &Consent,
        record: Option<&RecordStatus>,
        preimage: &Preimage,
        next: &Next,
        second: i64,
    ) -> RecordStatus {
        let plan = plan_for(vm);
        let input = Input {
            vm,
            run: Run::Stopped,
            consent,
            plan: Some(&plan),
            record,
            preimage,
            withdrawal: None,
            last_words: None,
            refusal_expired: false,
        };
        status(&input, next, at(second))
    }

    #[test]
    fn where_nothing_but_the_time_differs_the_status_is_equal() {
        let (vm, consent) = (vm(&json!({})), Consent::Given(Box::new(given(Mode::WhenStopped))));
        let written = Applied { state: AppliedState::Written, ..announced(&vm) };
        let faulty = Preimage { applied: Some(written.clone()), fault: Some("forged".to_owned()), spent: false };
        let whole = Preimage { applied: Some(written), ..Preimage::default() };
        let long = "word ".repeat(1000);
        for (preimage, words) in
            [(&Preimage::default(), "it runs"), (&whole, "it runs"), (&faulty, "it runs"), (&whole, &long)]
        {
            let waiting = next(Phase::Waiting, reason::WAITING, words);
            let first = of(&vm, &consent, None, preimage, &waiting, 0);
            assert_eq!(of(&vm, &consent, Some(&first), preimage, &waiting, 60), first);
            // What was cut once may come back as it was cut.
            let again = next(Phase::Waiting, reason::WAITING, first.next.as_deref().unwrap());
            assert_eq!(of(&vm, &consent, Some(&first), preimage, &again, 60), first);
        }
    }

    #[test]
    fn since_moves_with_the_phase_alone() {
        let (vm, consent) = (vm(&json!({})), Consent::Given(Box::new(given(Mode::WhenStopped))));
        let preimage = Preimage::default();
        let first = of(&vm, &consent, None, &preimage, &next(Phase::Waiting, reason::WAITING, "a"), 0);
        let second = of(&vm, &consent, Some(&first), &preimage, &next(Phase::Waiting, reason::WAITING, "b"), 60);
        let third = of(&vm, &consent, Some(&second), &preimage, &next(Phase::Tuned, reason::TUNED, "c"), 90);
        let seconds = |s: &RecordStatus| s.since.as_ref().unwrap().0.as_second() - 1_700_000_000;
        assert_eq!([seconds(&first), seconds(&second), seconds(&third)], [0, 0, 90]);
        let ready =
            |s: &RecordStatus| s.conditions.iter().find(|c| c.type_ == condition::READY).unwrap().status.clone();
        assert_eq!([ready(&first), ready(&third)], ["False", "True"]);
    }

    #[test]
    fn a_forged_annotation_is_a_condition_until_it_is_whole_again() {
        let (vm, consent) = (vm(&json!({})), Consent::Given(Box::new(given(Mode::WhenStopped))));
        let waiting = next(Phase::Waiting, reason::WAITING, "a");
        let intact = |s: &RecordStatus| {
            let found = s.conditions.iter().find(|c| c.type_ == condition::APPLIED_INTACT);
            found.map(|c| (c.status.clone(), c.reason.clone()))
        };
        let first = of(&vm, &consent, None, &Preimage::default(), &waiting, 0);
        assert_eq!(intact(&first), None);
        let forged = Preimage { fault: Some("forged".to_owned()), ..Preimage::default() };
        let second = of(&vm, &consent, Some(&first), &forged, &waiting, 1);
        assert_eq!(intact(&second), Some(("False".to_owned(), reason::APPLIED_FORGED.to_owned())));
        let third = of(&vm, &consent, Some(&second), &Preimage::default(), &waiting, 2);
        assert_eq!(intact(&third), Some(("True".to_owned(), reason::APPLIED_INTACT.to_owned())));
    }

    #[test]
    fn an_unknown_profile_leaves_no_plan_behind() {
        let (vm, consent) = (vm(&json!({})), Consent::Given(Box::new(given(Mode::WhenStopped))));
        let refused = next(Phase::Refused, reason::REFUSED, "a");
        let first = of(&vm, &consent, None, &Preimage::default(), &refused, 0);
        assert!(first.plan.is_some());
        let unknown = Err(PlanError::UnknownProfile("x".to_owned(), "y".to_owned()));
        let preimage = Preimage::default();
        let input = Input {
            vm: &vm,
            run: Run::Stopped,
            consent: &consent,
            plan: Some(&unknown),
            record: Some(&first),
            preimage: &preimage,
            withdrawal: None,
            last_words: None,
            refusal_expired: false,
        };
        let second = status(&input, &refused, at(1));
        assert_eq!((second.plan, second.profile_revision), (None, None));
    }

    /// Everything at its longest: every setting replaced, every text cut, the longest names that Kubernetes takes.
    #[test]
    fn a_status_stays_below_four_kilobytes() {
        let long = |n: usize| "\"ß".repeat(n);
        let mut marks = serde_json::Map::new();
        for n in 0..9 {
            marks.insert(format!("os.template.kubevirt.io/win{n}{}", "x".repeat(50)), Value::String("y".repeat(63)));
        }
        let mut applied = Applied { state: AppliedState::Announced, ..announced(&vm(&json!({}))) };
        let vm = vm(&json!({"metadata": {"labels": marks, "annotations": {"vm.kubevirt.io/os": long(200)}},
            "spec": {"runStrategy": null, "template": {"spec": {"domain": {"resources": {"clock": {}}, "cpu": {"thread": 1}}}}}}));
        assert_eq!(applied.entries.len(), 15);
        applied.entries.push(Entry { at: "/features/acpi".to_owned(), was: None, now: "{}".to_owned() });
        for entry in &mut applied.entries {
            entry.was = entry.at.ends_with("enabled").then(|| "false".to_owned());
        }
        assert_eq!((applied.vm_uid.as_str(), applied.created.len()), (UID, 4));
        let mut asked = given(Mode::WhenStopped);
        asked.by = PolicyRef {
            name: "p".repeat(253),
            uid: Some(UID.to_owned()),
            created: Some(conditions::whole_seconds(at(0))),
            ..asked.by
        };
        let consent = Consent::Given(Box::new(asked));
        let preimage = Preimage { applied: Some(applied), fault: Some(long(500)), spent: false };
        let refused = next(Phase::Refused, reason::CLUSTER_REFUSED, &long(5000));
        let status = of(&vm, &consent, None, &preimage, &refused, 0);
        assert_eq!((status.warnings.len(), status.conditions.len()), (3, 3));
        let bytes = serde_json::to_string(&status).unwrap().len();
        assert!(bytes < 4096, "{bytes} bytes");
    }
}
