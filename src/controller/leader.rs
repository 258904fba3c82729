//! One active writer, by a Lease.
//!
//! The protocol and its timing are client-go's, from the crate `k8s-controller`, which decides on its own monotonic
//! clock: skewed clocks of two nodes cannot make two leaders.

use std::time::Duration;

use k8s_controller::LeaderElection;
use kube::Client;

use super::Options;

/// Name of the lease.
pub(super) const LEASE: &str = "wintune-operator";

pub(super) fn election(client: &Client, options: &Options) -> LeaderElection {
    LeaderElection::new(client.clone(), &options.lease_namespace, LEASE, &options.identity)
        .with_lease_duration(Duration::from_secs(15))
        .with_renew_deadline(Duration::from_secs(10))
        .with_retry_period(Duration::from_secs(2))
}

/// Drives `leading` while the lease is held; ends when it is lost.
pub(super) async fn hold(election: LeaderElection, leading: impl Future<Output = ()>) {
    election.with_lease(leading).await;
}
