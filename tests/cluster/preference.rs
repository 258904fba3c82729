//! VMs with a preference: what it gives is not written again, what it lacks is, and its timers do not get lost.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use wintune::api::record::Phase;

use crate::support::{Cluster, condition, domain, resource, spec_bytes, until, when_stopped, windows};

/// Where a preference can lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Cluster,
    Namespace,
    Revision,
}

pub const PLACES: [Place; 3] = [Place::Cluster, Place::Namespace, Place::Revision];

/// What a VM says of a preference in that place.
pub fn place(place: Place, name: &str) -> Value {
    match place {
        Place::Cluster => json!({"name": name}),
        Place::Namespace => json!({"name": name, "kind": "VirtualMachinePreference"}),
        Place::Revision => json!({"name": name, "revisionName": format!("{name}-frozen")}),
    }
}

/// Three features of the nine, and a clock without the Hyper-V timer.
fn preference(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": {
        "features": {"preferredHyperv": {"vapic": {}, "relaxed": {}, "synic": {"enabled": true}}},
        "clock": {"preferredTimer": {"hpet": {"present": false}, "pit": {"tickPolicy": "discard"}},
                  "preferredClockOffset": {"timezone": "Europe/Berlin"}}}})
}

/// Makes it in every place.
pub async fn make(cluster: &Cluster, name: &str) {
    let params = PatchParams::apply("test").force();
    let group = "instancetype.kubevirt.io";
    let kind = "VirtualMachineClusterPreference";
    let object = preference(kind, name);
    cluster.all(group, "v1beta1", kind).patch(name, &params, &Patch::Apply(&object)).await.unwrap();
    let kind = "VirtualMachinePreference";
    let own = kube::api::Api::<kube::api::DynamicObject>::namespaced_with(
        cluster.client.clone(),
        &cluster.namespace,
        &resource(group, "v1beta1", kind),
    );
    own.patch(name, &params, &Patch::Apply(&preference(kind, name))).await.unwrap();
    let revisions = kube::api::Api::<kube::api::DynamicObject>::namespaced_with(
        cluster.client.clone(),
        &cluster.namespace,
        &resource("apps", "v1", "ControllerRevision"),
    );
    let frozen = format!("{name}-frozen");
    let object = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": frozen},
        "revision": 1, "data": preference("VirtualMachineClusterPreference", name)});
    revisions.patch(&frozen, &params, &Patch::Apply(&object)).await.unwrap();
}

#[tokio::test]
async fn what_a_preference_gives_is_not_written_and_what_it_lacks_is() {
    let cluster = Cluster::turn().await;
    make(&cluster, "windows-mine").await;
    let mut before = Vec::new();
    for at in PLACES {
        let name = format!("{at:?}").to_lowercase();
        let mut vm = windows(&cluster, &name);
        vm["spec"]["preference"] = place(at, "windows-mine");
        before.push((name, cluster.create(&vm).await));
    }
    let _operator = cluster.operator().await;
    cluster.policy("all", json!({"selector": {}, "onWithdrawal": "Restore", "apply": {"mode": "WhenStopped"}})).await;
    for (name, _) in &before {
        let record = cluster.phase(name, Phase::Tuned).await;
        let vm = cluster.vm(name).await;
        let hyperv = domain(&vm)["features"]["hyperv"].as_object().unwrap();
        let written: Vec<&str> = hyperv.keys().map(String::as_str).collect();
        assert_eq!(written, ["ipi", "reset", "runtime", "spinlocks", "synictimer", "vpindex"], "{name}");
        // One timer is missing, so all go in: the preference's as they are, since they vanish otherwise.
        assert_eq!(
            domain(&vm)["clock"],
            json!({"timer": {"hpet": {"present": false}, "hyperv": {"present": true},
                "pit": {"tickPolicy": "discard"}, "rtc": {"tickPolicy": "catchup"}}}),
            "{name}: and the offset is the preference's"
        );
        assert_eq!(condition(&record, "Ready").1, "Tuned");
        cluster.stays(name).await;
    }
    cluster.policies().delete("all", &Default::default()).await.unwrap();
    for (name, before) in &before {
        cluster.phase(name, Phase::Reverted).await;
        assert_eq!(spec_bytes(&cluster.vm(name).await), spec_bytes(before), "{name}");
    }
}

#[tokio::test]
async fn a_preference_that_is_not_there_is_proposed_only() {
    let cluster = Cluster::turn().await;
    let mut vm = windows(&cluster, "dangling");
    vm["spec"]["preference"] = json!({"name": "windows-gone"});
    cluster.create(&vm).await;
    let _operator = cluster.operator().await;
    cluster.policy("all", when_stopped()).await;
    let record = cluster.phase("dangling", Phase::Proposed).await;
    let next = record.status.unwrap().next.unwrap();
    assert!(next.contains("VirtualMachineClusterPreference windows-gone is not there"), "{next}");
    cluster.stays("dangling").await;
    // It is made, and the VM is looked at again for whatever reason.
    make(&cluster, "windows-gone").await;
    cluster.edit("dangling", json!({"metadata": {"labels": {"seen": "again"}}})).await;
    cluster.phase("dangling", Phase::Tuned).await;
    until("written", async || domain(&cluster.vm("dangling").await)["features"]["hyperv"].is_object()).await;
}
