//! What the API server itself refuses of our kinds, so that nothing is stored and then ignored.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Cluster, when_stopped};

async fn refusal(cluster: &Cluster, spec: Value) -> String {
    let policy = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "WindowsTuning",
        "metadata": {"name": "bad", "namespace": cluster.namespace}, "spec": spec});
    let params = PatchParams::apply("test").force().dry_run().validation_strict();
    match cluster.policies().patch("bad", &params, &Patch::Apply(&policy)).await {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn what_is_not_acted_on_is_refused_and_named() {
    let cluster = Cluster::turn().await;
    let cases = [
        (json!({}), "spec.selector"),
        (json!({"selector": {}, "apply": {"mode": "Restart"}}), "use Propose or WhenStopped"),
        (json!({"selector": {}, "apply": {"mode": "Stage"}}), "spec.apply.mode"),
        (json!({"selector": {}, "apply": {"mode": "Bogus"}}), "Unsupported value"),
        (json!({"selector": {}, "apply": {"gitOps": "Inject"}}), "a VM that GitOps owns is never written"),
        (
            json!({"selector": {}, "apply": {"windows": [{"schedule": "* * * * *", "duration": "1h"}]}}),
            "windows are not acted on",
        ),
        (json!({"selector": {}, "apply": {"maxUnavailable": 1}}), "maxUnavailable is not acted on"),
        (json!({"selector": {}, "apply": {"canary": {"count": 1, "soak": "1h"}}}), "canary is not acted on"),
        (json!({"selector": {}, "measure": {"baseline": "24h"}}), "measure is not acted on"),
        (json!({"selector": {}, "disks": {"bus": "VirtioWhenReady"}}), "disks are never moved"),
        (json!({"selector": {}, "disks": {"guestExec": true}}), "spec.disks.guestExec"),
        (json!({"selector": {}, "disks": {"from": ["sata"]}}), "spec.disks.from"),
        (json!({"selector": {}, "profile": "fast"}), "spec.profile"),
        (json!({"selector": {}, "priority": 2_000_000}), "spec.priority"),
        (json!({"selector": {}, "overrides": {"hyperv": {"turbo": "Enabled"}}}), "unknown enlightenment"),
        (json!({"selector": {}, "overrides": {"cpu": {"model": "qemu64"}}}), "overrides.cpu.model"),
        (json!({"selector": {}, "overrides": {"ioThreads": {"poolSize": 0}}}), "overrides.ioThreads.poolSize"),
        (json!({"selector": {}, "overrides": {"hyperv": {"synic": "Perhaps"}}}), "Unsupported value"),
        (json!({"selector": {}, "overrides": {"disks": {"speed": 9}}}), "overrides.disks"),
        (json!({"selector": {}, "nonsense": 1}), "nonsense"),
    ];
    for (spec, words) in cases {
        let refusal = refusal(&cluster, spec.clone()).await;
        assert!(refusal.contains(words), "{spec}: {words:?} is not in {refusal:?}");
    }
    assert_eq!(refusal(&cluster, when_stopped()).await, "");
    assert_eq!(refusal(&cluster, json!({"selector": {}, "disks": {"bus": "Keep", "guestExec": false}})).await, "");
    let overrides = json!({"hyperv": {"tlbflush": "Enabled", "synictimerDirect": "Leave"}, "clock": {"pit": "discard"},
        "disks": {"cache": "none"}, "ioThreads": {"policy": "SupplementalPool", "poolSize": 4}, "cpu": {"nested": "Disabled"}});
    assert_eq!(refusal(&cluster, json!({"selector": {}, "overrides": overrides})).await, "");
}

#[tokio::test]
async fn defaults_are_filled_in_and_limits_are_checked() {
    let cluster = Cluster::turn().await;
    let policy = cluster.policy("defaults", json!({"selector": {}})).await;
    let spec = serde_json::to_value(&policy.spec).unwrap();
    assert_eq!((&spec["profile"], &spec["apply"]["mode"]), (&json!("migration-safe"), &json!("Propose")));
    assert_eq!(spec["onWithdrawal"], "Keep");
    let api = cluster.all("wintune.dev", "v1alpha1", "ClusterWindowsTuning");
    for (limits, words) in [
        (json!({"guestExec": true}), "spec.limits.guestExec"),
        (json!({"maxUnavailable": 3}), "spec.limits.maxUnavailable"),
        (json!({"hookRoutes": ["Sidecar"]}), "spec.limits.hookRoutes"),
    ] {
        let object = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "ClusterWindowsTuning",
            "metadata": {"name": "limits"}, "spec": {"selector": {}, "limits": limits}});
        let params = PatchParams::apply("test").force().dry_run();
        let error = api.patch("limits", &params, &Patch::Apply(&object)).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn a_record_belongs_to_one_vm_for_ever() {
    let cluster = Cluster::turn().await;
    let record = json!({"apiVersion": "wintune.dev/v1alpha1", "kind": "TunedVirtualMachine",
        "metadata": {"name": "fixed", "namespace": cluster.namespace}, "spec": {"vmUid": "a"}});
    let params = PatchParams::apply("test").force();
    cluster.records().patch("fixed", &params, &Patch::Apply(&record)).await.unwrap();
    let moved = json!({"spec": {"vmUid": "b"}});
    let error = cluster.records().patch("fixed", &PatchParams::default(), &Patch::Merge(&moved)).await.unwrap_err();
    assert!(error.to_string().contains("a record belongs to one VM for ever"), "{error}");
}
