//! One control plane for all tests, and the words in which they speak of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use harness::{ControlPlane, Install, Operator};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use wintune::api::record::{Phase, TunedVirtualMachine};
use wintune::api::tuning::{ClusterWindowsTuning, WindowsTuning};

/// How long anything may take; what takes longer did not happen. Machines are slow and noisy.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long nothing must happen before we believe that nothing will.
pub const QUIET: Duration = Duration::from_millis(2500);

static PLANE: Mutex<Option<Shared>> = Mutex::const_new(None);
static NAMESPACES: AtomicU32 = AtomicU32::new(1);

/// What lives as long as the test process.
pub struct Shared {
    pub plane: ControlPlane,
    pub install: Install,
}

/// One test's turn on the control plane.
pub struct Cluster {
    shared: MutexGuard<'static, Option<Shared>>,
    pub client: Client,
    pub namespace: String,
}

pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_wintune"))
}

pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/wintune")
}

impl Cluster {
    /// Waits for its turn, and starts the control plane if it is the first.
    pub async fn turn() -> Self {
        let mut shared = PLANE.lock().await;
        if shared.is_none() {
            let plane = ControlPlane::start().await.unwrap();
            let source = plane.install_kubevirt_crds().await.unwrap();
            println!("KubeVirt's CRDs: {source}");
            let install = Install::chart(&plane, &chart(), "wintune-system", Some).await.unwrap();
            *shared = Some(Shared { plane, install });
        }
        let plane = &shared.as_ref().unwrap().plane;
        // A client belongs to the runtime of its test.
        let client = plane.client_from(plane.admin_kubeconfig()).await.unwrap();
        let namespace = format!("vms-{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
        harness::create_namespace(&client, &namespace).await.unwrap();
        let cluster = Self { shared, client, namespace };
        cluster.clean().await;
        cluster.node("node-1", &ALL_FEATURES).await;
        cluster
    }

    /// What earlier tests left that would decide for this one's VMs: policies of the cluster, nodes, webhooks.
    async fn clean(&self) {
        let everything = Default::default();
        let policies: Api<ClusterWindowsTuning> = Api::all(self.client.clone());
        let _ = policies.delete_collection(&DeleteParams::default(), &everything).await;
        for (group, version, kind) in
            [("", "v1", "Node"), ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration")]
        {
            let api = self.all(group, version, kind);
            let _ = api.delete_collection(&DeleteParams::default(), &everything).await;
        }
    }

    pub fn plane(&self) -> &ControlPlane {
        &self.shared.as_ref().unwrap().plane
    }

    pub fn plane_mut(&mut self) -> &mut ControlPlane {
        &mut self.shared.as_mut().unwrap().plane
    }

    pub fn install(&self) -> &Install {
        &self.shared.as_ref().unwrap().install
    }

    /// An operator. All tests use one name, so that each takes the lease of the one before it over at once.
    pub async fn operator(&self) -> Operator {
        let operator = Operator::start(self.plane(), self.install(), program(), "wintune-test").await.unwrap();
        until("the operator is ready", async || operator.get("/readyz").await.is_ok_and(|(code, _)| code == 200)).await;
        operator
    }

    pub fn all(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(group, version, kind))
    }

    pub fn vms(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource("kubevirt.io", "v1", "VirtualMachine"))
    }

    pub fn instances(&self) -> Api<DynamicObject> {
        let resource = resource("kubevirt.io", "v1", "VirtualMachineInstance");
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    pub fn records(&self) -> Api<TunedVirtualMachine> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn policies(&self) -> Api<WindowsTuning> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A node as KubeVirt's labeller leaves it.
    pub async fn node(&self, name: &str, features: &[&str]) {
        let mut labels = json!({"kubevirt.io/schedulable": "true"});
        for feature in features {
            labels[format!("hyperv.node.kubevirt.io/{feature}")] = json!("true");
        }
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        let params = PatchParams::apply("test").force();
        self.all("", "v1", "Node").patch(name, &params, &Patch::Apply(&node)).await.unwrap();
    }

    pub async fn create(&self, vm: &Value) -> Value {
        let object: DynamicObject = serde_json::from_value(vm.clone()).unwrap();
        whole(self.vms().create(&PostParams::default(), &object).await.unwrap())
    }

    pub async fn vm(&self, name: &str) -> Value {
        whole(self.vms().get(name).await.unwrap())
    }

    /// Another writer's change.
    pub async fn edit(&self, name: &str, merge: Value) -> Value {
        let params = PatchParams { field_manager: Some("somebody-else".to_owned()), ..PatchParams::default() };
        whole(self.vms().patch(name, &params, &Patch::Merge(merge)).await.unwrap())
    }

    pub async fn policy(&self, name: &str, spec: Value) -> WindowsTuning {
        let policy = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "WindowsTuning",
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec});
        let params = PatchParams::apply("test").force();
        self.policies().patch(name, &params, &Patch::Apply(&policy)).await.unwrap()
    }

    pub async fn cluster_policy(&self, name: &str, spec: Value) -> ClusterWindowsTuning {
        let policy = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "ClusterWindowsTuning",
            "metadata": {"name": name}, "spec": spec});
        let api: Api<ClusterWindowsTuning> = Api::all(self.client.clone());
        api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await.unwrap()
    }

    pub async fn record(&self, name: &str) -> Option<TunedVirtualMachine> {
        self.records().get_opt(name).await.unwrap()
    }

    /// Waits until a record is in a phase, and returns it.
    pub async fn phase(&self, name: &str, phase: Phase) -> TunedVirtualMachine {
        let end = Instant::now() + PATIENCE;
        loop {
            let record = self.record(name).await;
            if let Some(record) = &record
                && record.status.as_ref().is_some_and(|s| s.phase == phase)
            {
                return record.clone();
            }
            assert!(Instant::now() < end, "{name} is not {phase:?}: {:#?}", record.and_then(|r| r.status));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Reasons of the events on a VM.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource("events.k8s.io", "v1", "Event"));
        let all = api.list(&Default::default()).await.unwrap().items;
        all.iter()
            .filter(|e| e.data.pointer("/regarding/name").and_then(Value::as_str) == Some(name))
            .filter_map(|e| e.data.get("reason")?.as_str().map(str::to_owned))
            .collect()
    }

    /// Fails if a VM is written while nothing should happen.
    pub async fn stays(&self, name: &str) {
        let before = self.vm(name).await;
        tokio::time::sleep(QUIET).await;
        let after = self.vm(name).await;
        assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"], "{name} was written");
    }
}

pub const ALL_FEATURES: [&str; 9] =
    ["base", "time", "vpindex", "synic", "synic2", "synictimer", "ipi", "runtime", "reset"];

pub fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// The object as JSON, types included.
pub fn whole(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

/// A stopped Windows VM of Harvester before 1.9: no enlightenment, no clock.
pub fn windows(cluster: &Cluster, name: &str) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": cluster.namespace, "labels": {"harvesterhci.io/os": "windows"}},
        "spec": {"runStrategy": "Halted", "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "domain": {
                    "cpu": {"cores": 2}, "memory": {"guest": "4Gi"}, "features": {"acpi": {"enabled": true}},
                    "devices": {"disks": [{"name": "root", "disk": {"bus": "sata"}}],
                                "interfaces": [{"name": "default", "model": "e1000", "masquerade": {}}]}},
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}]}}}})
}

/// A policy that writes to every stopped Windows VM of its namespace.
pub fn when_stopped() -> Value {
    json!({"selector": {}, "apply": {"mode": "WhenStopped"}})
}

pub fn domain(vm: &Value) -> &Value {
    &vm["spec"]["template"]["spec"]["domain"]
}

/// The spec as the API server would print it: keys sorted, so equal text is equal content, byte for byte.
pub fn spec_bytes(vm: &Value) -> String {
    vm["spec"].to_string()
}

/// Waits until something is so.
pub async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn resource_version(vm: &Value) -> &str {
    vm["metadata"]["resourceVersion"].as_str().unwrap()
}

/// Status and reason of a condition; empty where the record has none, as between its creation and its first status.
pub fn condition(record: &TunedVirtualMachine, type_: &str) -> (String, String) {
    let mut conditions = record.status.iter().flat_map(|s| &s.conditions);
    conditions.find(|c| c.type_ == type_).map(|c| (c.status.clone(), c.reason.clone())).unwrap_or_default()
}
