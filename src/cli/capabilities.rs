//! `wintune capabilities`: what a cluster can do, as a file that `plan --capabilities` reads.

use std::process::ExitCode;

use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::{CliError, print, runtime};
use crate::api::kubevirt::Node;
use crate::observe::{capabilities, watches};
use crate::plan::capabilities::{Capabilities, CapabilitiesFile};
use crate::plan::nodes::{NodePool, NodeView, is_read};

pub(super) fn run() -> Result<ExitCode, CliError> {
    let file = runtime()?.block_on(read())?;
    let text = serde_saphyr::to_string(&file).map_err(|e| CliError::Print(e.to_string()))?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn read() -> Result<CapabilitiesFile, CliError> {
    let fault = |cause: String| CliError::Capabilities { what: "the cluster of the kubeconfig".to_owned(), cause };
    let client = Client::try_default().await.map_err(|e| fault(e.to_string()))?;
    let own = capabilities::read(&client).await.map_err(|e| fault(e.to_string()))?;
    let nodes: Api<Node> = Api::all(client);
    let nodes = nodes.list(&ListParams::default()).await.map_err(|e| fault(format!("cannot list nodes: {e}")))?;
    let views = nodes.items.iter().map(|node| NodeView {
        name: node.name_any(),
        labels: node.labels().clone(),
        taints: node.spec.taints.iter().map(watches::taint).collect(),
    });
    // Only what a plan asks for: names of zones and racks are nobody's business in a file that is passed around. A VM's
    // own nodeSelector may need more; then the file wants those labels added.
    let lean = |node: &NodeView| {
        let mut node = node.clone();
        node.labels.retain(|key, _| is_read(key) || key == "kubernetes.io/hostname");
        node
    };
    let nodes = NodePool::new(views).nodes().iter().map(lean).collect();
    let Capabilities { origin: _, kubevirt, harvester, missing, gates, cpu_model } = own;
    Ok(CapabilitiesFile {
        api_version: "wintune.dev/v1alpha1".to_owned(),
        kind: "Capabilities".to_owned(),
        kubevirt: kubevirt.map(|v| v.to_string()),
        harvester,
        missing,
        gates,
        cpu_model,
        nodes: Some(nodes),
    })
}
