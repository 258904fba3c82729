//! `make demo`: six VMs on a real API server, an operator under the chart's own account, and what comes of it.
//!
//! Everything that it prints of the cluster is read back from the API server. KubeVirt itself is stood in for by
//! simvirt, a test double; no guest runs.

// Indexing JSON never panics: what is not there is null.
#![allow(clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::{ControlPlane, Install, Operator};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use similar::TextDiff;
use simvirt::Simvirt;
use wintune::api::record::{Phase, TunedVirtualMachine};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let program: PathBuf = std::env::args_os().nth(1).context("usage: demo PATH-OF-WINTUNE")?.into();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    say("Starting etcd and kube-apiserver (the first run on a machine builds them, which takes minutes)");
    let plane = ControlPlane::start().await?;
    let crds = plane.install_kubevirt_crds().await?;
    println!("  {} with {crds}", plane.url());
    let client = plane.admin();
    node(&client).await?;
    say("Starting simvirt, a test double that stands in for KubeVirt");
    let simvirt = Simvirt::start(client.clone(), simvirt::Options::default()).await?;
    say("Installing the chart's definitions, account and rules; starting the operator under that account");
    let install = Install::chart(&plane, &root.join("charts/wintune"), "wintune-system", Some).await?;
    let mut operator = Operator::start(&plane, &install, &program, "demo").await?;

    say("Making six VMs in two namespaces, and one policy in the first");
    let vms = VMS.map(vm);
    for namespace in ["erp", "lab"] {
        harness::create_namespace(&client, namespace).await?;
    }
    for vm in &vms {
        let object: DynamicObject = serde_json::from_value(vm.clone())?;
        api(&client, vm).create(&PostParams::default(), &object).await?;
    }
    let before = get(&client, "erp", "sql-2016").await?;
    let policy = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "WindowsTuning",
        "metadata": {"name": "all", "namespace": "erp"},
        "spec": {"selector": {}, "apply": {"mode": "WhenStopped"}, "onWithdrawal": "Restore"}});
    let policies: Api<wintune::api::tuning::WindowsTuning> = Api::namespaced(client.clone(), "erp");
    policies.patch("all", &PatchParams::apply("demo"), &Patch::Apply(&policy)).await?;

    for (namespace, name, phase) in [
        ("erp", "sql-2016", Phase::Tuned),
        ("erp", "files-2019", Phase::Tuned),
        ("erp", "app-2022", Phase::Waiting),
        ("erp", "web-from-git", Phase::Proposed),
        ("lab", "desktop-11", Phase::Tuned),
    ] {
        until_phase(&client, namespace, name, phase).await?;
    }
    kubectl(&plane, &["get", "tvm", "--all-namespaces"], "").await?;
    println!("  (lab/proxy-linux is not Windows, and nobody asked for it: no record)");
    kubectl(
        &plane,
        &["get", "tvm", "--all-namespaces", "-o", "custom-columns=NAME:.metadata.name,NEXT:.status.next"],
        "",
    )
    .await?;

    say("One plan with its reasons: the VM as the API server has it, through `wintune explain`");
    let manifest = kubectl_output(&plane, &["get", "vm", "app-2022", "--namespace", "erp", "-o", "yaml"]).await?;
    explain(&program, &plane, &manifest, "synic").await?;

    say("One diff: erp/sql-2016 before and after, both read from the API server");
    diff(&before, &get(&client, "erp", "sql-2016").await?)?;

    say("The guest of erp/app-2022 shuts down: a stopped VM is a moment to write");
    simvirt.guest().shutdown("erp", "app-2022").await?;
    until_phase(&client, "erp", "app-2022", Phase::Tuned).await?;
    println!("  erp/app-2022 is tuned");
    say("The policy is deleted, and says onWithdrawal: Restore");
    policies.delete("all", &DeleteParams::default()).await?;
    until_phase(&client, "erp", "sql-2016", Phase::Reverted).await?;
    let restored = get(&client, "erp", "sql-2016").await?;
    let bytes = |vm: &Value| vm["spec"].to_string();
    ensure!(bytes(&restored) == bytes(&before), "sql-2016 is not what it was");
    println!("  erp/sql-2016 is what it was, byte for byte");
    kubectl(&plane, &["get", "tvm", "--all-namespaces"], "").await?;
    kubectl(
        &plane,
        &[
            "get",
            "events",
            "--namespace",
            "erp",
            "--field-selector",
            "involvedObject.kind=VirtualMachine",
            "-o",
            "custom-columns=VM:.involvedObject.name,TYPE:.type,REASON:.reason",
        ],
        "",
    )
    .await?;

    say("Taking it all down");
    operator.terminate().await?;
    simvirt.stop().await;
    plane.stop().await?;
    println!("  done");
    Ok(())
}

fn say(what: &str) {
    println!("\n==> {what}");
}

/// Namespace, name, run strategy, labels, annotations, and what is peculiar.
type Vm = (&'static str, &'static str, &'static str, &'static str);

/// Six shapes that people run.
const VMS: [Vm; 6] = [
    ("erp", "sql-2016", "Halted", "old"),
    ("erp", "files-2019", "Halted", "relaxed"),
    ("erp", "app-2022", "RerunOnFailure", "old"),
    ("erp", "web-from-git", "Halted", "git"),
    ("lab", "desktop-11", "Halted", "annotated"),
    ("lab", "proxy-linux", "Halted", "linux"),
];

fn vm((namespace, name, strategy, shape): Vm) -> Value {
    let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace, "labels": {"harvesterhci.io/os": "windows"}, "annotations": {}},
        "spec": {"runStrategy": strategy, "template": {"metadata": {"annotations": {simvirt::GUEST_ANNOTATION: "windows-2022"}}, "spec": {
            "domain": {"cpu": {"cores": 4}, "memory": {"guest": "8Gi"}, "features": {"acpi": {"enabled": true}},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "sata"}}],
                            "interfaces": [{"name": "default", "model": "e1000e", "masquerade": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": name}}]}}}});
    match shape {
        "relaxed" => vm["spec"]["template"]["spec"]["domain"]["features"]["hyperv"] = json!({"relaxed": {}}),
        "git" => {
            vm["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] =
                json!("shop:kubevirt.io/VirtualMachine:erp/web-from-git")
        }
        "annotated" => vm["metadata"]["annotations"]["wintune.dev/tune"] = json!("true"),
        "linux" => {
            vm["metadata"]["labels"] = json!({"harvesterhci.io/os": "linux"});
            vm["spec"]["template"]["metadata"]["annotations"] = json!({});
        }
        _ => {}
    }
    vm
}

async fn node(client: &Client) -> Result<()> {
    let mut labels = json!({"kubevirt.io/schedulable": "true"});
    for feature in ["base", "time", "vpindex", "synic", "synic2", "synictimer", "ipi", "runtime", "reset"] {
        labels[format!("hyperv.node.kubevirt.io/{feature}")] = json!("true");
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node01", "labels": labels}});
    let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    api.patch("node01", &PatchParams::apply("demo"), &Patch::Apply(&node)).await?;
    Ok(())
}

fn vms(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine"));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

fn api(client: &Client, vm: &Value) -> Api<DynamicObject> {
    vms(client, vm["metadata"]["namespace"].as_str().unwrap_or("default"))
}

async fn get(client: &Client, namespace: &str, name: &str) -> Result<Value> {
    Ok(serde_json::to_value(vms(client, namespace).get(name).await?)?)
}

async fn until_phase(client: &Client, namespace: &str, name: &str, phase: Phase) -> Result<()> {
    let records: Api<TunedVirtualMachine> = Api::namespaced(client.clone(), namespace);
    let end = Instant::now() + PATIENCE;
    loop {
        let record = records.get_opt(name).await?;
        if record.as_ref().and_then(|r| r.status.as_ref()).is_some_and(|s| s.phase == phase) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!(
                "{namespace}/{name} is not {phase:?} after {PATIENCE:?}: {:?}",
                record.map(|r| (r.name_any(), r.status))
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn kubectl_output(plane: &ControlPlane, args: &[&str]) -> Result<String> {
    let output = plane.kubectl()?.args(args).output().await.context("run kubectl")?;
    ensure!(output.status.success(), "kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

async fn kubectl(plane: &ControlPlane, args: &[&str], indent: &str) -> Result<()> {
    println!("\n$ kubectl {}", args.join(" "));
    for line in kubectl_output(plane, args).await?.lines() {
        println!("{indent}{line}");
    }
    Ok(())
}

async fn explain(program: &Path, plane: &ControlPlane, manifest: &str, field: &str) -> Result<()> {
    let file = plane.dir().join("app-2022.yaml");
    std::fs::write(&file, manifest)?;
    println!("\n$ kubectl get vm app-2022 --namespace erp -o yaml | wintune explain -f - {field}");
    let output = tokio::process::Command::new(program).args(["explain", "-f"]).arg(&file).arg(field).output().await?;
    ensure!(output.status.success(), "wintune explain: {}", String::from_utf8_lossy(&output.stderr));
    print!("{}", String::from_utf8(output.stdout)?);
    Ok(())
}

fn diff(before: &Value, after: &Value) -> Result<()> {
    let text = |vm: &Value| serde_saphyr::to_string(&vm["spec"]["template"]["spec"]["domain"]);
    let (old, new) = (text(before)?, text(after)?);
    let diff = TextDiff::from_lines(&old, &new);
    print!("{}", diff.unified_diff().context_radius(2).header("domain before", "domain after"));
    Ok(())
}
