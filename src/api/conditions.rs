//! Conditions: their types and reasons, and the one function that changes them.
//!
//! Types and reasons are constants, because users and alerts select by them. Times are whole seconds, as the API
//! server stores them; otherwise what is read back would never equal what was written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Condition types.
pub mod condition {
    /// Policy: understood, and decides for the VMs that it matches. Record: the VM has what its policy asks for.
    pub const READY: &str = "Ready";
    /// Record: the guest is taken for Windows, and how sure that is.
    pub const WINDOWS: &str = "Windows";
    /// Record: the mirror of the pre-image on the VM is what we wrote.
    pub const APPLIED_INTACT: &str = "AppliedIntact";
    /// Policy: another policy with a higher priority decides for some of its VMs.
    pub const OVERLAPS: &str = "Overlaps";
}

/// Condition reasons, which are event reasons as well.
pub mod reason {
    /// A policy is valid and in force.
    pub const ACCEPTED: &str = "Accepted";
    /// A policy cannot be understood; nothing is written or restored because of it.
    pub const INVALID: &str = "Invalid";
    /// Another policy of the same kind wins for some VMs.
    pub const LOWER_PRIORITY: &str = "LowerPriority";
    /// No other policy takes any of its VMs.
    pub const NO_OVERLAP: &str = "NoOverlap";
    /// The VM has everything its policy asks for.
    pub const TUNED: &str = "Tuned";
    /// The record holds a proposal.
    pub const PROPOSED: &str = "Proposed";
    /// Waiting for a moment at which the VM may be written.
    pub const WAITING: &str = "Waiting";
    /// Nothing of the plan may be written.
    pub const REFUSED: &str = "Refused";
    /// A write failed for a reason that may pass; it is tried again.
    pub const WRITE_FAILED: &str = "WriteFailed";
    /// The cluster refused the dry run.
    pub const CLUSTER_REFUSED: &str = "ClusterRefused";
    /// Another writer took back what we had written; it is left alone.
    pub const REVERTED_BY_OTHER: &str = "RevertedByOther";
    /// The VM carries the opt-out annotation.
    pub const OPTED_OUT: &str = "OptedOut";
    /// The values that we had written were put back.
    pub const RESTORED: &str = "Restored";
    /// The policy is gone and its `onWithdrawal` says Keep.
    pub const WITHDRAWN: &str = "Withdrawn";
    /// Something is unreadable or unknown; nothing is written or restored until it is known again.
    pub const FROZEN: &str = "Frozen";
    /// A person has to decide.
    pub const NEEDS_HUMAN: &str = "NeedsHuman";
    /// The VM has a setting that endangers itself or others.
    pub const DANGEROUS: &str = "Dangerous";
    /// The annotation `wintune.dev/applied` is not what we wrote.
    pub const APPLIED_FORGED: &str = "AppliedForged";
    /// The annotation `wintune.dev/applied` is what we wrote.
    pub const APPLIED_INTACT: &str = "AppliedIntact";
    /// Signs of Windows were found.
    pub const SIGNS_FOUND: &str = "SignsFound";
    /// Signs contradict each other or are weak.
    pub const SIGNS_UNSURE: &str = "SignsUnsure";
}

/// Cuts a time to whole seconds.
pub fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Sets one condition. Returns whether anything but a time differs from before; the transition time moves only
/// when the status does.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: bool,
    reason: &str,
    message: &str,
    observed_generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let status = if status { "True" } else { "False" };
    // The API server refuses a message of more than 32 KiB; a kilobyte is what a person reads.
    let message = truncate(message, 1024);
    if let Some(existing) = conditions.iter_mut().find(|c| c.type_ == type_) {
        let same = existing.status == status
            && existing.reason == reason
            && existing.message == message
            && existing.observed_generation == observed_generation;
        if same {
            return false;
        }
        if existing.status != status {
            existing.last_transition_time = whole_seconds(now);
            existing.status = status.to_owned();
        }
        existing.reason = reason.to_owned();
        existing.message = message.to_owned();
        existing.observed_generation = observed_generation;
        return true;
    }
    conditions.push(Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation,
        last_transition_time: whole_seconds(now),
    });
    true
}

/// Cuts text to at most `max` bytes, at a character boundary.
pub fn truncate(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    text.get(..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        let first = Timestamp::from_millisecond(1_700_000_000_900).unwrap();
        assert!(set(&mut conditions, condition::READY, false, reason::WAITING, "a", Some(1), first));
        assert_eq!(conditions[0].last_transition_time.0.as_millisecond(), 1_700_000_000_000);
        let later = Timestamp::from_second(1_700_000_060).unwrap();
        assert!(!set(&mut conditions, condition::READY, false, reason::WAITING, "a", Some(1), later));
        assert!(set(&mut conditions, condition::READY, false, reason::WAITING, "b", Some(1), later));
        assert_eq!(conditions[0].last_transition_time.0.as_second(), 1_700_000_000);
        assert!(set(&mut conditions, condition::READY, true, reason::TUNED, "c", Some(2), later));
        assert_eq!(conditions[0].last_transition_time.0.as_second(), 1_700_000_060);
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(truncate("größe", 3), "gr");
        assert_eq!(truncate("abc", 3), "abc");
    }
}
