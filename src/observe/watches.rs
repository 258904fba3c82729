//! One watch for each kind, the stores that they fill, and which VMs each event concerns.
//!
//! Every replica keeps its stores warm. Nothing is decided before all of them have been filled once: an empty store
//! is not an empty cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector as reflect};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{PoisonError, RwLock};

use super::index::PolicyIndex;
use crate::api::kubevirt::{self, Namespace, Node, VirtualMachine, VirtualMachineInstance};
use crate::api::record::TunedVirtualMachine;
use crate::api::tuning::{ClusterWindowsTuning, OnWithdrawal, WindowsTuning};
use crate::plan::capabilities::Capabilities;
use crate::plan::nodes::{NodePool, NodeView, Taint};

/// Objects in one answer while listing; keeps the peak small when a cluster has thousands of VMs.
const PAGE_SIZE: u32 = 100;

/// Everything that is watched.
pub struct Stores {
    /// VirtualMachines.
    pub vms: Store<VirtualMachine>,
    /// VirtualMachineInstances.
    pub instances: Store<VirtualMachineInstance>,
    /// Namespaces.
    pub namespaces: Store<Namespace>,
    /// Nodes.
    pub nodes: Store<Node>,
    /// Records.
    pub records: Store<DeserializeGuard<TunedVirtualMachine>>,
    /// Policies of namespaces.
    pub tunings: Store<DeserializeGuard<WindowsTuning>>,
    /// Policies of the cluster.
    pub cluster_tunings: Store<DeserializeGuard<ClusterWindowsTuning>>,
    policies: RwLock<Arc<PolicyIndex>>,
    pool: RwLock<Arc<NodePool>>,
    capabilities: RwLock<Arc<Capabilities>>,
    /// What each policy that was ever seen said of its withdrawal, by UID: its deletion carries its last words, and
    /// records follow only at the rate of writes.
    last_words: RwLock<HashMap<String, OnWithdrawal>>,
    synced: AtomicBool,
}

/// The watches as futures that run until the process ends, and the queue of VMs to look at.
pub struct Watches {
    /// What the watches fill.
    pub stores: Arc<Stores>,
    /// VMs that an event concerns.
    pub queue: mpsc::UnboundedReceiver<ObjectRef<VirtualMachine>>,
    /// Puts a VM into the queue.
    pub sender: Sender,
    /// To be driven for as long as the operator runs.
    pub drivers: BoxFuture<'static, ()>,
}

/// Puts VMs into the queue. The scheduler behind it keeps one entry for each VM.
#[derive(Clone)]
pub struct Sender(mpsc::UnboundedSender<ObjectRef<VirtualMachine>>);

impl Sender {
    fn send(&self, name: &str, namespace: Option<&str>) {
        let mut vm = ObjectRef::new(name);
        vm.namespace = namespace.map(str::to_owned);
        // Fails only once the operator is going down.
        let _ = self.0.unbounded_send(vm);
    }

    /// Every VM that the store knows, or those of one namespace.
    pub fn all(&self, stores: &Stores, namespace: Option<&str>) {
        for vm in stores.vms.state() {
            if namespace.is_none() || vm.metadata.namespace.as_deref() == namespace {
                self.send(&vm.name_any(), vm.metadata.namespace.as_deref());
            }
        }
    }
}

impl Stores {
    /// Whether every store has been filled once.
    pub fn synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Waits until every store has been filled once.
    pub async fn wait_until_synced(&self) {
        // Fails only when a watch is dropped, and then the operator is going down.
        let _ = futures::join!(
            self.vms.wait_until_ready(),
            self.instances.wait_until_ready(),
            self.namespaces.wait_until_ready(),
            self.nodes.wait_until_ready(),
            self.records.wait_until_ready(),
            self.tunings.wait_until_ready(),
            self.cluster_tunings.wait_until_ready(),
        );
        self.rebuild_policies();
        self.rebuild_pool();
        self.synced.store(true, Ordering::Release);
    }

    /// The policies as they are now.
    pub fn policies(&self) -> Arc<PolicyIndex> {
        self.policies.read().map(|p| p.clone()).unwrap_or_else(|poisoned| poisoned.into_inner().clone())
    }

    /// The nodes as they are now.
    pub fn pool(&self) -> Arc<NodePool> {
        self.pool.read().map(|p| p.clone()).unwrap_or_else(|poisoned| poisoned.into_inner().clone())
    }

    /// What the cluster can do, as it was last asked.
    pub fn capabilities(&self) -> Arc<Capabilities> {
        self.capabilities.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over what the cluster said. Returns whether that differs from before.
    pub fn learn(&self, capabilities: Capabilities) -> bool {
        let mut known = self.capabilities.write().unwrap_or_else(PoisonError::into_inner);
        let changed = **known != capabilities;
        *known = Arc::new(capabilities);
        changed
    }

    /// What a policy said of its withdrawal when it was last seen, alive or in its deletion.
    pub fn last_words(&self, uid: &str) -> Option<OnWithdrawal> {
        self.last_words.read().unwrap_or_else(PoisonError::into_inner).get(uid).copied()
    }

    fn hear(&self, uid: Option<&String>, on_withdrawal: OnWithdrawal) {
        if let Some(uid) = uid {
            self.last_words.write().unwrap_or_else(PoisonError::into_inner).insert(uid.clone(), on_withdrawal);
        }
    }

    /// Returns whether the policies differ from before in a way that a decision can see: their status does not count.
    fn rebuild_policies(&self) -> bool {
        let index = Arc::new(PolicyIndex::build(&self.tunings, &self.cluster_tunings));
        let changed = *index != *self.policies();
        match self.policies.write() {
            Ok(mut slot) => *slot = index,
            Err(poisoned) => *poisoned.into_inner() = index,
        }
        changed
    }

    /// Returns whether the nodes differ from before in a way that a plan can see.
    fn rebuild_pool(&self) -> bool {
        let views = self.nodes.state().into_iter().map(|n| NodeView {
            name: n.name_any(),
            labels: n.metadata.labels.clone().unwrap_or_default(),
            taints: n.spec.taints.iter().map(taint).collect(),
        });
        let pool = Arc::new(NodePool::new(views));
        let changed = *pool != *self.pool();
        match self.pool.write() {
            Ok(mut slot) => *slot = pool,
            Err(poisoned) => *poisoned.into_inner() = pool,
        }
        changed
    }
}

/// Starts every watch. The queue holds VMs only; other kinds are translated into the VMs that they concern.
pub fn start(client: &Client) -> Watches {
    let (vms, vm_writer) = reflector::store();
    let (instances, instance_writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let (records, record_writer) = reflector::store();
    let (tunings, tuning_writer) = reflector::store();
    let (cluster_tunings, cluster_writer) = reflector::store();
    let stores = Arc::new(Stores {
        vms,
        instances,
        namespaces,
        nodes,
        records,
        tunings,
        cluster_tunings,
        policies: RwLock::default(),
        pool: RwLock::default(),
        capabilities: RwLock::new(Capabilities::assumed()),
        last_words: RwLock::default(),
        synced: AtomicBool::new(false),
    });
    let (sender, queue) = mpsc::unbounded();
    let sender = Sender(sender);
    // Of the same name and namespace as the VM.
    let same = |sender: &Sender, _: &Stores, namespace: Option<&str>, name: &str| sender.send(name, namespace);
    let of_namespace = |sender: &Sender, stores: &Stores, _: Option<&str>, name: &str| sender.all(stores, Some(name));
    let policy = |sender: &Sender, stores: &Stores, namespace: Option<&str>, _: &str| {
        if stores.rebuild_policies() {
            sender.all(stores, namespace);
        }
    };
    let node = |sender: &Sender, stores: &Stores, _: Option<&str>, _: &str| {
        // Kubelets touch their node every few seconds; only what a plan reads may cost a pass over every VM.
        if stores.rebuild_pool() {
            sender.all(stores, None);
        }
    };
    let drivers = futures::future::join_all([
        drive(Api::all(client.clone()), vm_writer, &sender, &stores, same, |_, _| {}),
        drive(Api::all(client.clone()), instance_writer, &sender, &stores, same, |_, _| {}),
        drive(Api::all(client.clone()), record_writer, &sender, &stores, same, |_, _| {}),
        drive(Api::all(client.clone()), namespace_writer, &sender, &stores, of_namespace, |_, _| {}),
        drive(Api::all(client.clone()), node_writer, &sender, &stores, node, |_, _| {}),
        drive(Api::all(client.clone()), tuning_writer, &sender, &stores, policy, own_words),
        drive(Api::all(client.clone()), cluster_writer, &sender, &stores, policy, cluster_words),
    ]);
    Watches { stores, queue, sender, drivers: drivers.map(|_| ()).boxed() }
}

/// A node's taint as the planner sees it.
pub fn taint(taint: &kubevirt::Taint) -> Taint {
    Taint { key: taint.key.clone(), value: taint.value.clone(), effect: taint.effect.clone() }
}

fn own_words(stores: &Stores, policy: &DeserializeGuard<WindowsTuning>) {
    if let DeserializeGuard(Ok(policy)) = policy {
        stores.hear(policy.metadata.uid.as_ref(), policy.spec.tuning.on_withdrawal);
    }
}

fn cluster_words(stores: &Stores, policy: &DeserializeGuard<ClusterWindowsTuning>) {
    if let DeserializeGuard(Ok(policy)) = policy {
        stores.hear(policy.metadata.uid.as_ref(), policy.spec.tuning.on_withdrawal);
    }
}

/// What one kind's events mean for VMs: sender, stores, namespace and name of the object.
type Concerns = fn(&Sender, &Stores, Option<&str>, &str);

/// What is remembered of an object itself, deleted ones included.
type Remember<K> = fn(&Stores, &K);

/// Fills one store and tells the queue.
fn drive<K>(
    api: Api<K>,
    writer: reflector::store::Writer<K>,
    sender: &Sender,
    stores: &Arc<Stores>,
    concerns: Concerns,
    remember: Remember<K>,
) -> BoxFuture<'static, ()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync + Unpin,
{
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let (sender, stores) = (sender.clone(), stores.clone());
    let mut events = reflect(writer, watcher::watcher(api, config).default_backoff()).boxed();
    async move {
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::InitApply(object)) => remember(&stores, &object),
                Ok(Event::Apply(object) | Event::Delete(object)) => {
                    remember(&stores, &object);
                    concerns(&sender, &stores, object.meta().namespace.as_deref(), &object.name_any());
                }
                // A list that was made anew may lack objects whose deletion was never seen: look at every VM once.
                Ok(Event::InitDone) if stores.synced() => {
                    stores.rebuild_policies();
                    stores.rebuild_pool();
                    sender.all(&stores, None);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&K::DynamicType::default()), %error, "watch failed, trying again")
                }
            }
        }
    }
    .boxed()
}
