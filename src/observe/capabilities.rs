//! What the cluster can do: the schema that it serves for VirtualMachines, the gates of its KubeVirt object, and whether
//! it is Harvester. Asked at start and again every few minutes: an upgrade of KubeVirt changes all three.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::Value;

use super::live::{ReadError, bounded};
use crate::plan::capabilities::{Capabilities, Origin, fields_of_interest, parse_version};
use crate::plan::json;

const VMS: &str = "virtualmachines.kubevirt.io";
/// Where a VM's domain lies in its schema.
const DOMAIN_SCHEMA: [&str; 4] = ["spec", "template", "spec", "domain"];

/// Asks the cluster.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn read(client: &Client) -> Result<Capabilities, ReadError> {
    let missing = missing(client).await?;
    let (version, listed, disabled, cpu_model) = kubevirt(client).await?;
    let kubevirt = version.as_deref().and_then(parse_version);
    // What is on without being listed depends on the version; the newest row stands for what is newer than the table.
    let by_default = version.as_deref().map(Capabilities::of_kubevirt);
    let by_default = match by_default {
        Some(Ok(row)) => row.gates,
        Some(Err(_)) => Capabilities::newest().gates,
        None => BTreeSet::new(),
    };
    let gates = by_default.into_iter().chain(listed).filter(|g| !disabled.contains(g)).collect();
    let harvester = harvester(client).await?.then(String::new);
    Ok(Capabilities { origin: Origin::Cluster, kubevirt, harvester, missing, gates, cpu_model })
}

/// Fields that the served schema lacks. A definition that is not there lacks nothing: then there are no VMs either.
async fn missing(client: &Client) -> Result<BTreeSet<String>, ReadError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let Some(crd) = bounded("CustomResourceDefinition", api.get_opt(VMS)).await? else { return Ok(BTreeSet::new()) };
    let version = crd.spec.versions.into_iter().find(|v| v.name == "v1");
    let schema = version.and_then(|v| v.schema).and_then(|s| serde_json::to_value(s.open_api_v3_schema).ok());
    Ok(lacks(&schema.unwrap_or_default()))
}

fn lacks(schema: &Value) -> BTreeSet<String> {
    let domain = DOMAIN_SCHEMA.iter().try_fold(schema, |s, name| s.get("properties")?.get(name));
    // A schema that says nothing of the domain prunes nothing that we could name.
    let Some(domain) = domain else { return BTreeSet::new() };
    fields_of_interest().into_iter().filter(|field| !has(domain, field)).collect()
}

/// Whether a schema has a dotted field. Lists stand for their items.
fn has(schema: &Value, field: &str) -> bool {
    let mut at = schema;
    for name in field.split('.') {
        let within = at.get("items").unwrap_or(at);
        match within.get("properties").and_then(|p| p.get(name)) {
            Some(found) => at = found,
            // What keeps unknown fields and names none keeps this one too.
            None => {
                let keeps = within.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool) == Some(true);
                return keeps && within.get("properties").is_none();
            }
        }
    }
    true
}

type KubeVirt = (Option<String>, Vec<String>, Vec<String>, Option<String>);

/// Version, listed gates, disabled gates and default CPU model of the KubeVirt object. There is one.
async fn kubevirt(client: &Client) -> Result<KubeVirt, ReadError> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt"));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let first = match bounded("KubeVirt", api.list(&ListParams::default().limit(1))).await {
        Ok(list) => list.items.into_iter().next(),
        // Its definition is not there: a cluster with VMs of another distribution.
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let object = first.map(|o| o.data).unwrap_or_default();
    let strings = |place: &str| -> Vec<String> {
        json::list(&object, place).iter().filter_map(|g| g.as_str().map(str::to_owned)).collect()
    };
    let text = |place: &str| json::text(&object, place).map(str::to_owned);
    const DEVELOPER: &str = "/spec/configuration/developerConfiguration";
    Ok((
        text("/status/observedKubeVirtVersion"),
        strings(&format!("{DEVELOPER}/featureGates")),
        strings(&format!("{DEVELOPER}/disabledFeatureGates")),
        text("/spec/configuration/cpuModel"),
    ))
}

/// Whether Harvester's API group is served. Every account may ask (system:discovery).
async fn harvester(client: &Client) -> Result<bool, ReadError> {
    let groups = bounded("API groups", client.list_api_groups()).await?;
    Ok(groups.groups.iter().any(|g| g.name == "harvesterhci.io"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(domain: &Value) -> Value {
        DOMAIN_SCHEMA.iter().rev().fold(domain.clone(), |inner, name| json!({"properties": {*name: inner}}))
    }

    #[test]
    fn what_the_schema_does_not_name_is_missing_unless_it_keeps_everything() {
        let shared = std::env::var("WINTUNE_SHARED").unwrap_or_else(|_| "../shared".to_owned());
        let path = format!("{shared}/kubevirt/crds/virtualmachines.kubevirt.io.yaml");
        if let Ok(text) = std::fs::read_to_string(path) {
            let crd: Value = serde_saphyr::from_str(&text).unwrap();
            let v1 = json::list(&crd, "/spec/versions").iter().find(|v| v["name"] == "v1").unwrap().clone();
            assert_eq!(lacks(&v1["schema"]["openAPIV3Schema"]), BTreeSet::new());
        } else {
            println!("skipped: no definitions of KubeVirt in {shared}");
        }
        let old = json!({"properties": {"cpu": {"properties": {"model": {}}},
            "clock": {"x-kubernetes-preserve-unknown-fields": true},
            "devices": {"properties": {"disks": {"items": {"properties": {"cache": {}}}}}}}});
        let missing = lacks(&schema(&old));
        for (field, is) in [
            ("cpu.model", false),
            ("cpu.features", true),
            ("devices.disks.cache", false),
            ("devices.disks.io", true),
            ("clock.timer.pit", false),
            ("ioThreads.supplementalPoolThreadCount", true),
        ] {
            assert_eq!(missing.contains(field), is, "{field}");
        }
        assert_eq!(lacks(&json!({})), BTreeSet::new());
    }
}
