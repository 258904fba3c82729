//! YAML files, put on the API server as a user's `kubectl apply --server-side --force-conflicts` would.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::core::gvk::ParseGroupVersionError;
use kube::discovery::{ApiResource, Scope, pinned_kind};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::namespace::create_default_account;

/// The owner of the fields that the harness applies.
pub(crate) const FIELD_MANAGER: &str = "wintune-harness";
/// A new CRD is served within a second; this much is for a machine that compiles at the same time.
const CRD_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// One document of a file, and where it came from.
struct Document {
    file: PathBuf,
    number: usize,
    object: DynamicObject,
}

impl fmt::Display for Document {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.object.types.as_ref().map_or("(no kind)", |types| &types.kind);
        let name = self.object.name_any();
        write!(out, "{kind} {name} (document {} of {})", self.number, self.file.display())
    }
}

impl Document {
    fn is(&self, api_group: &str, kind: &str) -> bool {
        self.object.types.as_ref().is_some_and(|types| {
            let group = types.api_version.rsplit_once('/').map_or("", |(group, _)| group);
            group == api_group && types.kind == kind
        })
    }

    fn gvk(&self) -> Result<GroupVersionKind> {
        let types = self.object.types.as_ref().with_context(|| format!("{self} has no apiVersion or kind"))?;
        types.try_into().map_err(|error: ParseGroupVersionError| error.into())
    }
}

/// The documents of one YAML text; empty ones are left out.
///
/// The YAML is ours and large (KubeVirt's CRDs), so the parser's limits against hostile input are off.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple_with_options(text, serde_saphyr::options! { budget: None })?)
}

/// Applies every document: CRDs first, until each is established and served; then namespaces; then the rest in
/// the order of the files' names and of the documents in them.
pub(crate) async fn files(client: &Client, path: &Path) -> Result<()> {
    let (crds, rest): (Vec<_>, Vec<_>) =
        read(path)?.into_iter().partition(|document| document.is("apiextensions.k8s.io", "CustomResourceDefinition"));
    try_join_all(crds.iter().map(|document| apply_crd(client, document))).await?;
    let (namespaces, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|document| document.is("", "Namespace"));
    for document in &namespaces {
        apply(client, document).await?;
        create_default_account(client, &document.object.name_any()).await?;
    }
    for document in &rest {
        apply(client, document).await?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for file in yaml_files(path)? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let values = parse(&text).with_context(|| format!("parse {}", file.display()))?;
        for (index, value) in values.into_iter().enumerate() {
            let number = index + 1;
            let object = serde_json::from_value(value)
                .with_context(|| format!("document {number} of {} is no Kubernetes object", file.display()))?;
            documents.push(Document { file: file.clone(), number, object });
        }
    }
    if documents.is_empty() {
        bail!("{} holds no YAML document", path.display());
    }
    Ok(documents)
}

/// The file itself, or the YAML and JSON files that lie directly in the folder, by name.
pub(crate) fn yaml_files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("read the folder {}", path.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.with_context(|| format!("read the folder {}", path.display()))?.path();
        if file.is_file() && file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

async fn apply(client: &Client, document: &Document) -> Result<()> {
    let gvk = document.gvk()?;
    let (resource, capabilities) =
        pinned_kind(client, &gvk).await.with_context(|| format!("find the API of {document}"))?;
    let api = match capabilities.scope {
        Scope::Cluster => Api::<DynamicObject>::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = document.object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let Some(name) = &document.object.metadata.name else { bail!("{document} has no name, which apply needs") };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(name, &params, &Patch::Apply(&document.object)).await.with_context(|| format!("apply {document}"))?;
    Ok(())
}

async fn apply_crd(client: &Client, document: &Document) -> Result<()> {
    apply(client, document).await?;
    let served = async {
        let api = Api::<CustomResourceDefinition>::all(client.clone());
        let crd = await_condition(api, &document.object.name_any(), is_crd_established())
            .await?
            .context("it was deleted meanwhile")?;
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let gvk = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural);
            until_served(client, &gvk, &resource).await;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(CRD_PATIENCE, served).await {
        Ok(result) => result.with_context(|| format!("wait for {document}")),
        Err(_) => bail!("{document} was not established and served within {CRD_PATIENCE:?}"),
    }
}

/// Established comes before discovery and the first answer by a moment, and clients fail in that moment.
async fn until_served(client: &Client, gvk: &GroupVersionKind, resource: &ApiResource) {
    let objects = Api::<DynamicObject>::all_with(client.clone(), resource);
    while pinned_kind(client, gvk).await.is_err() || objects.list(&ListParams::default().limit(1)).await.is_err() {
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_apart_and_empty_ones_skipped() {
        let values = parse("---\n# only a comment\n---\na: 1\n---\nb: 'x'\n").expect("parse");
        assert_eq!(values, [serde_json::json!({"a": 1}), serde_json::json!({"b": "x"})]);
    }

    #[test]
    fn a_folder_without_yaml_is_an_error() {
        let dir = tempfile::tempdir().expect("temp dir");
        std::fs::write(dir.path().join("README.md"), "a: 1").expect("write");
        let error = read(dir.path()).err().expect("nothing to apply").to_string();
        assert!(error.contains("no YAML document"), "{error}");
    }

    #[test]
    fn an_error_names_file_and_document() {
        let dir = tempfile::tempdir().expect("temp dir");
        let file = dir.path().join("broken.yaml");
        std::fs::write(&file, "apiVersion: v1\nkind: Pod\n---\n[1, 2]\n").expect("write");
        let error = read(&file).err().expect("a list is no object").to_string();
        assert!(error.contains("document 2 of") && error.contains("broken.yaml"), "{error}");
    }
}
