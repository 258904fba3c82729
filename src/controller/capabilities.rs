//! Keeps what is known of the cluster up to date.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;

use crate::observe::capabilities::read;
use crate::observe::watches::{Sender, Stores};

/// An upgrade of KubeVirt is seen within this.
const EVERY: Duration = Duration::from_secs(300);
const TRIES: u32 = 3;
const BETWEEN: Duration = Duration::from_secs(2);

/// Asks the cluster. Where it does not answer, only what every supported version has is planned until it does.
pub(super) async fn learn(client: &Client, stores: &Stores) {
    for _ in 0..TRIES {
        match read(client).await {
            Ok(capabilities) => {
                tracing::info!(
                    kubevirt = capabilities.kubevirt.as_ref().map(ToString::to_string),
                    harvester = capabilities.harvester.is_some(),
                    missing = ?capabilities.missing,
                    gates = ?capabilities.gates,
                    "capabilities of the cluster"
                );
                stores.learn(capabilities);
                return;
            }
            Err(error) => tracing::warn!(%error, "the cluster does not say what it can do, trying again"),
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Asks again and again, and has every VM looked at when something changed.
pub(super) async fn keep_learning(client: Client, stores: Arc<Stores>, sender: Sender) {
    loop {
        tokio::time::sleep(EVERY).await;
        match read(&client).await {
            Ok(capabilities) => {
                if stores.learn(capabilities) {
                    sender.all(&stores, None);
                }
            }
            Err(error) => tracing::warn!(%error, "the cluster does not say what it can do; what it said last counts"),
        }
    }
}
