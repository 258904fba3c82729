//! The record's status, worked out from what was observed and decided; the clock is passed in.

use k8s_openapi::jiff::Timestamp;

use super::{Input, Next};
use crate::api::conditions::{self, condition, reason};
use crate::api::record::{Phase, RecordStatus};
use crate::plan::consent::Consent;
use crate::plan::detect::Confidence;
use crate::plan::{Plan, PlanError};

/// The status that a decision leads to. Equal to the former one where nothing but the time differs.
pub fn status(input: &Input<'_>, next: &Next, now: Timestamp) -> RecordStatus {
    let mut status = input.record.cloned().unwrap_or_default();
    let generation = input.vm.generation;
    status.observed_generation = generation;
    if status.phase != next.phase || status.since.is_none() {
        status.since = Some(conditions::whole_seconds(now));
    }
    status.phase = next.phase;
    status.next = Some(conditions::truncate(&next.next, 500).to_owned());
    if let Consent::Given(given) = input.consent {
        status.policy = Some(given.by.clone());
        status.profile = Some(given.wanted.profile.clone());
    }
    if let Some(Ok(plan)) = input.plan {
        planned(&mut status, plan, generation, now);
    } else if let Some(Err(PlanError::UnknownProfile(..))) = input.plan {
        status.plan = None;
        status.profile_revision = None;
    }
    status.applied = input.preimage.applied.clone();
    let ready = next.phase == Phase::Tuned;
    conditions::set(&mut status.conditions, condition::READY, ready, next.reason, &next.next, generation, now);
    intact(&mut status, input.preimage.fault.as_deref(), generation, now);
    status
}

fn planned(status: &mut RecordStatus, plan: &Plan, generation: Option<i64>, now: Timestamp) {
    status.profile_revision = Some(plan.profile_revision);
    status.plan = Some(plan.summary());
    status.detection = Some(plan.detection_summary());
    let signs = plan.detection_summary().signs.join("; ");
    let (is, why) = match plan.detection.confidence {
        Confidence::Certain | Confidence::Sure => (true, reason::SIGNS_FOUND),
        Confidence::Unsure | Confidence::No => (false, reason::SIGNS_UNSURE),
    };
    let text = match plan.detection.contradiction() {
        Some(contradiction) => format!("contradicting signs: {contradiction}"),
        None => signs,
    };
    conditions::set(&mut status.conditions, condition::WINDOWS, is, why, &text, generation, now);
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
    conditions::set(&mut status.conditions, condition::APPLIED_INTACT, is, why, text, generation, now);
}
