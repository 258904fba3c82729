//! What the cluster says of itself decides: its claims, its instancetypes, its KubeVirt object.

use tokio::process::Command;

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use wintune::api::record::Phase;
use wintune::observe::capabilities::read;
use wintune::plan::capabilities::Origin;

use crate::support::{Cluster, domain, program, resource, spec_bytes, when_stopped, windows};

async fn claim(cluster: &Cluster, name: &str, mode: &str) {
    let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": mode, "resources": {"requests": {"storage": "1Gi"}}}});
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource("", "v1", "PersistentVolumeClaim"));
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap();
}

/// A VM with a disk for each claim.
fn with_disks(cluster: &Cluster, name: &str, claims: &[&str]) -> Value {
    let mut vm = windows(cluster, name);
    let spec = &mut vm["spec"]["template"]["spec"];
    let disk = |claim: &&str| json!({"name": claim, "disk": {"bus": "virtio"}});
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    spec["domain"]["devices"]["disks"] = claims.iter().map(disk).collect();
    spec["volumes"] = claims.iter().map(volume).collect();
    vm
}

/// Cache and I/O mode are made explicit on block volumes only, by the names of the disks, and go back.
#[tokio::test]
async fn a_block_volume_is_read_past_the_page_cache_and_a_file_is_left_to_kubevirt() {
    let cluster = Cluster::turn().await;
    for (name, mode) in [("block", "Block"), ("file", "Filesystem")] {
        claim(&cluster, name, mode).await;
    }
    let made = cluster.create(&with_disks(&cluster, "disks", &["file", "gone", "block"])).await;
    let _operator = cluster.operator().await;
    let mut policy = when_stopped();
    policy["onWithdrawal"] = json!("Restore");
    cluster.policy("all", policy).await;
    cluster.phase("disks", Phase::Tuned).await;
    let disks = domain(&cluster.vm("disks").await)["devices"]["disks"].clone();
    let expected = json!([{"name": "file", "disk": {"bus": "virtio"}}, {"name": "gone", "disk": {"bus": "virtio"}},
        {"name": "block", "disk": {"bus": "virtio"}, "cache": "none", "io": "native"}]);
    assert_eq!(disks, expected);
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    cluster.phase("disks", Phase::Reverted).await;
    assert_eq!(spec_bytes(&cluster.vm("disks").await), spec_bytes(&made));
}

/// KubeVirt refuses a VM that says anything of what its instancetype says.
#[tokio::test]
async fn what_an_instancetype_owns_is_not_written() {
    let cluster = Cluster::turn().await;
    let kind = "VirtualMachineInstancetype";
    let object = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": {"name": "own"},
        "spec": {"cpu": {"guest": 8}, "memory": {"guest": "8Gi"}, "ioThreadsPolicy": "auto"}});
    let api: Api<DynamicObject> = Api::namespaced_with(
        cluster.client.clone(),
        &cluster.namespace,
        &resource("instancetype.kubevirt.io", "v1beta1", kind),
    );
    api.patch("own", &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap();
    for (name, instancetype) in [("typed", Some(kind)), ("plain", None)] {
        let mut vm = with_disks(&cluster, name, &["root"]);
        let domain = &mut vm["spec"]["template"]["spec"]["domain"];
        domain["resources"] = json!({"requests": {"cpu": "8"}, "limits": {"cpu": "16"}});
        domain["cpu"] = json!({"cores": 8});
        if let Some(kind) = instancetype {
            domain.as_object_mut().unwrap().remove("cpu");
            vm["spec"]["instancetype"] = json!({"name": "own", "kind": kind});
        }
        cluster.create(&vm).await;
    }
    let _operator = cluster.operator().await;
    let mut policy = when_stopped();
    policy["profile"] = json!("performance");
    cluster.policy("all", policy).await;
    for name in ["typed", "plain"] {
        cluster.phase(name, Phase::Tuned).await;
    }
    assert_eq!(domain(&cluster.vm("plain").await)["ioThreadsPolicy"], "supplementalPool");
    assert_eq!(domain(&cluster.vm("typed").await)["ioThreadsPolicy"], Value::Null);
    assert_eq!(domain(&cluster.vm("typed").await)["devices"]["autoattachMemBalloon"], false);
}

#[tokio::test]
async fn gates_version_and_schema_are_asked_of_the_cluster() {
    let cluster = Cluster::turn().await;
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
        "spec": {"configuration": {"cpuModel": "host-passthrough",
            "developerConfiguration": {"featureGates": ["CPUManager", "Sidecar"], "disabledFeatureGates": ["Sidecar"]}}}});
    let resource = resource("kubevirt.io", "v1", "KubeVirt");
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource);
    api.patch("kubevirt", &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap();
    let found = read(&cluster.client).await.unwrap();
    // The same as a file, which the planner takes.
    let run = async |args: &[&str]| {
        let kubeconfig = cluster.plane().admin_kubeconfig();
        let output = Command::new(program()).args(args).env("KUBECONFIG", kubeconfig).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, file, err) = run(&["capabilities"]).await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("caps.yaml");
    std::fs::write(&path, &file).unwrap();
    let vm = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/vms/database.yaml");
    let (code, out, err) = run(&["plan", "-f", vm, "--capabilities", path.to_str().unwrap()]).await;
    assert!(matches!(code, Some(0 | 2)) && out.contains("caps.yaml"), "{file}{out}{err}");
    assert!(file.contains("CPUManager") && file.contains("kind: Capabilities"), "{file}");
    api.delete("kubevirt", &Default::default()).await.unwrap();
    assert_eq!((found.origin, found.harvester, found.kubevirt), (Origin::Cluster, None, None));
    assert_eq!(found.gates.into_iter().collect::<Vec<_>>(), ["CPUManager"]);
    assert_eq!(found.cpu_model.as_deref(), Some("host-passthrough"));
    assert!(!found.missing.contains("features.hyperv.vapic"), "{:?}", found.missing);
}
