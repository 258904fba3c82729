//! How long to wait after a failure: for each VM by itself, doubling, with jitter.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// Failures in a row of each VM, by namespace and name. Forgotten on success and when the VM is gone.
#[derive(Default)]
pub(super) struct Failures(Mutex<HashMap<String, Failure>>);

struct Failure {
    /// How many in a row.
    count: u32,
    /// Nothing is written before.
    until: Instant,
}

impl Failures {
    /// Counts one more, and says how long to wait.
    pub(super) fn next(&self, vm: &str) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let failure = failures.entry(vm.to_owned()).or_insert(Failure { count: 0, until: now });
        failure.count = failure.count.saturating_add(1);
        let wait = delay(failure.count, random());
        failure.until = now + wait;
        wait
    }

    /// How long a VM still has to wait. Any event wakes a VM, and our own record of a failure is one: without this a
    /// write that fails would be tried again at the rate of its own records.
    pub(super) fn holds(&self, vm: &str) -> Option<Duration> {
        let failures = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let left = failures.get(vm)?.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn forget(&self, vm: &str) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(vm);
    }
}

/// 1 s, 2 s, 4 s, ... 300 s, each between 75 % and 125 % of that by `chance` in 0..=1.
fn delay(count: u32, chance: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << count.saturating_sub(1).min(16)).min(LONGEST);
    doubled.mul_f64(0.75 + chance / 2.0)
}

/// A number in 0..=1 from the seed that the standard library draws for each hash map.
pub(super) fn random() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes_and_spread() {
        assert_eq!(delay(1, 0.5), Duration::from_secs(1));
        assert_eq!(delay(3, 0.5), Duration::from_secs(4));
        assert_eq!(delay(100, 0.5), Duration::from_secs(300));
        assert_eq!(delay(2, 0.0), Duration::from_millis(1500));
        assert_eq!(delay(2, 1.0), Duration::from_millis(2500));
    }

    #[test]
    fn success_starts_afresh() {
        let failures = Failures::default();
        failures.next("a");
        failures.next("a");
        assert!(failures.holds("a").is_some_and(|left| left > Duration::from_secs(1)));
        assert_eq!(failures.holds("b"), None);
        failures.forget("a");
        assert_eq!(failures.holds("a"), None);
        assert!(failures.next("a") <= Duration::from_millis(1250));
        assert!((0.0..=1.0).contains(&random()));
    }
}
