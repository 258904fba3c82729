//! Which kinds the API server serves.

use std::time::Duration;

use kube::Client;

/// A kind that the operator cannot work without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Group and version.
    pub group_version: &'static str,
    /// Plural name of the resource; a label of metrics, so from this closed list.
    pub plural: &'static str,
    /// What to do when it is missing.
    pub remedy: &'static str,
}

/// Every kind that the operator cannot work without.
pub const NEEDED: [Needed; 5] = [
    Needed { group_version: "kubevirt.io/v1", plural: "virtualmachines", remedy: "install KubeVirt" },
    Needed { group_version: "kubevirt.io/v1", plural: "virtualmachineinstances", remedy: "install KubeVirt" },
    Needed { group_version: "wintune.dev/v1alpha1", plural: "windowstunings", remedy: "install wintune's CRDs" },
    Needed { group_version: "wintune.dev/v1alpha1", plural: "clusterwindowstunings", remedy: "install wintune's CRDs" },
    Needed { group_version: "wintune.dev/v1alpha1", plural: "tunedvirtualmachines", remedy: "install wintune's CRDs" },
];

/// What is missing, each with the reason.
pub async fn missing(client: &Client) -> Vec<(Needed, String)> {
    let mut missing = Vec::new();
    let mut asked: Option<(&str, Result<Vec<String>, String>)> = None;
    for needed in NEEDED {
        let known = match &asked {
            Some((group_version, answer)) if *group_version == needed.group_version => answer.clone(),
            _ => resources(client, needed.group_version).await,
        };
        match &known {
            Ok(names) if names.iter().any(|n| n == needed.plural) => {}
            Ok(_) => missing.push((needed, "not served".to_owned())),
            Err(why) => missing.push((needed, why.clone())),
        }
        asked = Some((needed.group_version, known));
    }
    missing
}

async fn resources(client: &Client, group_version: &str) -> Result<Vec<String>, String> {
    let answer = tokio::time::timeout(Duration::from_secs(10), client.list_api_group_resources(group_version));
    match answer.await {
        Ok(Ok(list)) => Ok(list.resources.into_iter().map(|r| r.name).collect()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err("not served".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer within 10 s".to_owned()),
    }
}
