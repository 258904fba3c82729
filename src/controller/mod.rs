//! Wiring: client, lease, watches, queue, reconcile, health, shutdown.
//!
//! Every replica watches and keeps its stores warm; only the one that holds the lease reconciles and writes. Losing
//! the lease ends the process, so that no write of an old leader is ever under way beside a new one.

mod backoff;
mod capabilities;
mod health;
mod leader;
pub mod metrics;
mod policy_status;
mod reconcile;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt};
use kube::Client;
use kube::runtime::controller::{Config, applier};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::watch;

use crate::api::kubevirt::VirtualMachine;
use crate::apply::events::Events;
use crate::apply::writer::Writer;
use crate::observe::claims::Claims;
use crate::observe::preference::Preferences;
use crate::observe::served;
use crate::observe::watches::{self, Stores, Watches};
use metrics::Metrics;
use reconcile::Context;

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// Namespace of the lease.
    pub lease_namespace: String,
    /// Name of this replica, unique among them.
    pub identity: String,
    /// How often the status of policies is written at most.
    pub status_interval: Duration,
    /// Writes a second at most, over all kinds.
    pub writes_per_second: u32,
}

/// VMs that are reconciled at the same time. The API server's writes are the limit, not this process: at 32 a full
/// pass keeps two cores of an API server busy without crowding others out (facts/rust-operators.md 3b).
const CONCURRENCY: u16 = 32;
/// How often missing definitions are looked for.
const MISSING_RETRY: Duration = Duration::from_secs(5);

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No configuration for a client.
    #[error("no cluster to talk to: {0}")]
    Client(String),
    /// The port is taken or not allowed.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Another replica took the lease, or it could not be renewed.
    #[error("the lease was lost; ending, so that a new start can compete for it")]
    LeaseLost,
    /// A watch or the queue ended by itself.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

/// What the readiness probe says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Kinds are missing, or stores are not filled.
    Waiting(String),
    /// Everything is watched.
    Ready,
}

/// Runs until a signal ends it.
///
/// # Errors
/// One of [`OperatorError`].
pub async fn run(options: Options) -> Result<(), OperatorError> {
    let mut config = kube::Config::infer().await.map_err(|e| OperatorError::Client(e.to_string()))?;
    // The client's own retries pass our rate gate by and can hold one call for minutes; each VM has its own back-off.
    config.default_retry = false;
    let client = Client::try_from(config).map_err(|e| OperatorError::Client(e.to_string()))?;
    let metrics = Arc::new(Metrics::new());
    let (ready, is_ready) = watch::channel(Readiness::Waiting("starting".to_owned()));
    let health = health::serve(options.listen, is_ready, metrics.clone()).await?;
    let shutdown = shutdown()?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), listen = %options.listen, identity = %options.identity, "starting");
    let work = async {
        tokio::select! {
            () = wait_for_kinds(&client, &ready, &metrics) => {}
            () = stopped(shutdown.clone()) => return Ok(()),
        }
        operate(client.clone(), &options, &ready, metrics.clone(), shutdown.clone()).await
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        _ = health => Err(OperatorError::Ended("the health server")),
    };
    tracing::info!("ended");
    outcome
}

/// Says what is missing until nothing is.
async fn wait_for_kinds(client: &Client, ready: &watch::Sender<Readiness>, metrics: &Metrics) {
    let mut said = String::new();
    loop {
        let missing = served::missing(client).await;
        for needed in served::NEEDED {
            metrics.missing(needed.plural, missing.iter().any(|(m, _)| m.plural == needed.plural));
        }
        if missing.is_empty() {
            ready.send_replace(Readiness::Waiting("filling the stores".to_owned()));
            return;
        }
        let words = missing
            .iter()
            .map(|(m, why)| format!("{}.{} ({why}; {})", m.plural, m.group_version, m.remedy))
            .collect::<Vec<_>>()
            .join(", ");
        if words != said {
            tracing::warn!("waiting for kinds that are not there: {words}");
            said.clone_from(&words);
        }
        ready.send_replace(Readiness::Waiting(format!("waiting for {words}")));
        tokio::time::sleep(MISSING_RETRY).await;
    }
}

async fn operate(
    client: Client,
    options: &Options,
    ready: &watch::Sender<Readiness>,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) -> Result<(), OperatorError> {
    let Watches { stores, queue, sender, drivers } = watches::start(&client);
    let (lead, leads) = watch::channel(false);
    let writer = Writer::new(leads.clone(), options.writes_per_second, metrics.clone());
    let context = Arc::new(Context {
        client: client.clone(),
        stores: stores.clone(),
        writer: writer.clone(),
        events: Events::new(client.clone(), writer.clone(), &options.identity),
        metrics: metrics.clone(),
        failures: backoff::Failures::default(),
        preferences: Preferences::new(client.clone()),
        claims: Claims::new(client.clone()),
    });
    let election = leader::election(&client, options);
    let leading = {
        let (stores, sender, metrics) = (stores.clone(), sender.clone(), metrics.clone());
        let client = client.clone();
        leader::hold(election.clone(), async move {
            stores.wait_until_synced().await;
            // Before anything is planned: a plan that learns later what the cluster can do would be a second write.
            capabilities::learn(&client, &stores).await;
            lead.send_replace(true);
            metrics.leader(true);
            // Everything that happened while another replica led.
            sender.all(&stores, None);
            std::future::pending::<()>().await;
        })
    };
    let synced = async {
        stores.wait_until_synced().await;
        ready.send_replace(Readiness::Ready);
        tracing::info!(vms = stores.vms.len(), "watching");
        std::future::pending::<()>().await;
    };
    let reconciling = reconciling(context.clone(), stores.clone(), queue, shutdown.clone());
    let learning = capabilities::keep_learning(client.clone(), stores.clone(), sender.clone());
    let statuses = policy_status::run(client, stores.clone(), writer, metrics, options.status_interval);
    let outcome = tokio::select! {
        biased;
        () = leading => Err(OperatorError::LeaseLost),
        () = reconciling => if *shutdown.borrow() { Ok(()) } else { Err(OperatorError::Ended("the queue")) },
        () = learning => Err(OperatorError::Ended("the reading of capabilities")),
        () = drivers => Err(OperatorError::Ended("a watch")),
        () = statuses => Err(OperatorError::Ended("the status writer")),
        () = synced => Err(OperatorError::Ended("the readiness")),
    };
    if *leads.borrow() && !matches!(outcome, Err(OperatorError::LeaseLost)) {
        // Hands over at once instead of letting the next replica wait for the lease to run out.
        election.release().await;
    }
    outcome
}

/// Reconciles until the shutdown signal, then lets what is under way finish.
async fn reconciling(
    context: Arc<Context>,
    stores: Arc<Stores>,
    queue: futures::channel::mpsc::UnboundedReceiver<ObjectRef<VirtualMachine>>,
    shutdown: watch::Receiver<bool>,
) {
    tokio::select! {
        () = stores.wait_until_synced() => {}
        () = stopped(shutdown.clone()) => return,
    }
    let queue = queue.take_until(stopped(shutdown)).map(Ok::<_, std::convert::Infallible>);
    let config = Config::default().concurrency(CONCURRENCY);
    let failures = context.clone();
    applier(
        |vm, context| reconcile::reconcile(vm, context).boxed(),
        reconcile::on_error,
        context,
        stores.vms.clone(),
        queue,
        config,
    )
    .map_err(|error| match error {
        // The VM was deleted while it waited in the queue.
        kube::runtime::controller::Error::ObjectNotFound(vm) => {
            failures.failures.forget(&reconcile::key(vm.namespace.as_deref(), &vm.name));
        }
        error => tracing::debug!(%error, "reconcile failed"),
    })
    .for_each(|_| futures::future::ready(()))
    .await;
}

/// Becomes true on SIGTERM or SIGINT.
fn shutdown() -> Result<watch::Receiver<bool>, OperatorError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(OperatorError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(OperatorError::Signals)?;
    let (tell, told) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end; finishing what is under way");
        tell.send_replace(true);
        // Kept alive, so that receivers see the value and not a closed channel.
        std::future::pending::<()>().await;
    });
    Ok(told)
}

async fn stopped(mut shutdown: watch::Receiver<bool>) {
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
