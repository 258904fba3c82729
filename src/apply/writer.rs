//! The gate that every write passes: lease, rate, time limit, counters.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::controller::metrics::Metrics;

/// No write takes longer; kube's own retries could otherwise hold a reconcile for minutes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is written; a label of metrics, so from this closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A VirtualMachine, for real.
    Vm,
    /// A VirtualMachine, with `dryRun=All`.
    VmDryRun,
    /// A TunedVirtualMachine or its status.
    Record,
    /// The status of a policy.
    PolicyStatus,
    /// An Event.
    Event,
}

impl Target {
    /// Label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::VmDryRun => "vm-dry-run",
            Self::Record => "record",
            Self::PolicyStatus => "policy-status",
            Self::Event => "event",
        }
    }
}

/// Why a write did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another replica leads.
    #[error("not the leader")]
    NotLeader,
    /// No answer in time: the write may have happened.
    #[error("no answer within {} s to the write of: {target}", TIMEOUT.as_secs())]
    TimedOut {
        /// Label of what was written.
        target: &'static str,
    },
    /// Someone else wrote in between, or a `test` of the patch failed: read again.
    #[error("changed meanwhile: {0}")]
    Changed(String),
    /// The object is gone.
    #[error("gone: {0}")]
    Gone(String),
    /// A webhook or the schema refused, in these words.
    #[error("{0}")]
    Refused(String),
    /// Our account may not.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// Anything else; worth another try.
    #[error("{0}")]
    Failed(String),
}

impl WriteError {
    /// Label of metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotLeader => "not-leader",
            Self::TimedOut { .. } => "timed-out",
            Self::Changed(_) => "changed",
            Self::Gone(_) => "gone",
            Self::Refused(_) => "refused",
            Self::Forbidden(_) => "forbidden",
            Self::Failed(_) => "failed",
        }
    }

    /// Sorts an answer of the API server.
    ///
    /// A JSON Patch whose `test` failed is answered by 422 with a fixed sentence and nothing else
    /// (`kubevirt-live.md` 7); a webhook's refusal carries its own words.
    pub fn from_kube(error: kube::Error) -> Self {
        const FAILED_TEST: &str = "the server rejected our request due to an error in our request";
        let kube::Error::Api(status) = error else { return Self::Failed(error.to_string()) };
        let words = status.message.clone();
        let by_webhook = words.contains("admission webhook") || words.contains("ValidatingAdmissionPolicy");
        match status.code {
            // A webhook may deny with any code; its words tell it from the API server's own.
            400..=499 if by_webhook && status.code != 429 => Self::Refused(words),
            409 => Self::Changed(words),
            422 if words.contains(FAILED_TEST) => Self::Changed(words),
            404 => Self::Gone(words),
            400 | 422 => Self::Refused(words),
            401 | 403 => Self::Forbidden(words),
            _ => Self::Failed(words),
        }
    }
}

/// Lets writes through, one after the other in time but not one at a time.
#[derive(Clone)]
pub struct Writer {
    leader: watch::Receiver<bool>,
    rate: Arc<Mutex<Interval>>,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// A gate that lets `per_second` writes through while `leader` is true.
    pub fn new(leader: watch::Receiver<bool>, per_second: u32, metrics: Arc<Metrics>) -> Self {
        let mut rate = interval(Duration::from_secs(1) / per_second.max(1));
        rate.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { leader, rate: Arc::new(Mutex::new(rate)), metrics }
    }

    /// Whether this replica holds the lease.
    pub fn leads(&self) -> bool {
        *self.leader.borrow()
    }

    /// Carries a write out.
    ///
    /// # Errors
    /// One of [`WriteError`]; each is counted.
    pub async fn write<T>(
        &self,
        target: Target,
        write: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WriteError> {
        let result = self.gated(target, write).await;
        self.metrics.write(target.label(), result.as_ref().map_or_else(WriteError::label, |_| "ok"));
        result
    }

    async fn gated<T>(&self, target: Target, write: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        if !self.leads() {
            return Err(WriteError::NotLeader);
        }
        self.rate.lock().await.tick().await;
        // The wait for our turn may have been long.
        if !self.leads() {
            return Err(WriteError::NotLeader);
        }
        match timeout(TIMEOUT, write).await {
            Ok(answer) => answer.map_err(WriteError::from_kube),
            Err(_) => Err(WriteError::TimedOut { target: target.label() }),
        }
    }
}
