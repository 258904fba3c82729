//! What a test does with a running control plane: clients, credentials, objects, the audit log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::process::Command;
use tokio::time::Instant;

use crate::audit::{self, AuditEvent};
use crate::binaries::binary;
use crate::control_plane::ControlPlane;
use crate::crds::CrdSource;
use crate::{apply, kubeconfig};

const TOKEN_LIFETIME: Duration = Duration::from_secs(6 * 60 * 60);
const POLL: Duration = Duration::from_millis(50);

impl ControlPlane {
    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client of the cluster's administrator (group `system:masters`).
    ///
    /// It works on the runtime on which [`start`](Self::start) ran and as long as that lives. On another one, such
    /// as that of a second `#[tokio::test]`, use [`client_from`](Self::client_from) with
    /// [`admin_kubeconfig`](Self::admin_kubeconfig).
    pub fn admin(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig, for kubectl, helm and any client library.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The folder of this control plane, gone with it: logs (`etcd.log`, `kube-apiserver.log`, `audit.log`),
    /// keys and kubeconfigs. A test may put files of its own beside them.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Asks for a token of an existing ServiceAccount and writes a kubeconfig with it, in the context of
    /// `namespace`, as `file_name` into [`dir`](Self::dir). The token lives for six hours.
    ///
    /// # Errors
    /// When there is no such ServiceAccount or the file cannot be written.
    pub async fn token_kubeconfig(&self, namespace: &str, service_account: &str, file_name: &str) -> Result<PathBuf> {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_LIFETIME.as_secs().try_into()?),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        // Made anew, so that it works on whatever runtime the caller is on.
        let admin = self.client_from(&self.kubeconfig).await?;
        let answer = Api::<ServiceAccount>::namespaced(admin, namespace)
            .create_token_request(service_account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("ask for a token of the ServiceAccount {namespace}/{service_account}"))?;
        let token = answer.status.context("the TokenRequest was answered without a status")?.token;
        let path = self.dir.path().join(file_name);
        kubeconfig::write(&path, &self.url, &self.ca_pem, namespace, service_account, &token)?;
        Ok(path)
    }

    /// A client on the current runtime, as the user of `kubeconfig`.
    ///
    /// # Errors
    /// When the file cannot be read or used.
    pub async fn client_from(&self, kubeconfig: &Path) -> Result<Client> {
        kubeconfig::client(kubeconfig).await
    }

    /// Installs KubeVirt's CRDs ([`CrdSource::find`] says which) and returns when all of them are served.
    ///
    /// # Errors
    /// When the CRDs that the environment insists on are missing, or the API server refuses one.
    pub async fn install_kubevirt_crds(&self) -> Result<CrdSource> {
        let source = CrdSource::find()?;
        self.apply_files(source.path()).await.with_context(|| format!("install {source}"))?;
        Ok(source)
    }

    /// Applies every document of a YAML file, or of the YAML and JSON files directly in a folder, as the
    /// administrator: server-side, forced, field manager `wintune-harness`.
    ///
    /// CRDs go first and are waited for until they are established and served; then namespaces, each with its
    /// ServiceAccount `default`; then the rest, by file name and document. A namespaced object without a namespace
    /// goes to `default`. Where a kind has a status subresource, a document's status is ignored, as for kubectl.
    ///
    /// # Errors
    /// When a file cannot be read or parsed, or the API server refuses a document; the error names it.
    pub async fn apply_files(&self, dir_or_file: &Path) -> Result<()> {
        apply::files(&self.client_from(&self.kubeconfig).await?, dir_or_file).await
    }

    /// Every request that has been answered since the start, whoever sent it, in the order of the answers.
    ///
    /// The log is written right after the answer: a request's own event may be missing for some milliseconds. Use
    /// [`wait_for_audit_event`](Self::wait_for_audit_event) first where that matters. A watch appears when it ends.
    ///
    /// # Errors
    /// When the log cannot be read or parsed.
    pub fn audit_events(&self) -> Result<Vec<AuditEvent>> {
        audit::read(&self.launch.audit_log())
    }

    /// Waits for the first event that `wanted` accepts, among those there are and those that come.
    ///
    /// # Errors
    /// When there is none within `patience`, or the log cannot be read.
    pub async fn wait_for_audit_event(
        &self,
        patience: Duration,
        wanted: impl Fn(&AuditEvent) -> bool,
    ) -> Result<AuditEvent> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(event) = self.audit_events()?.into_iter().find(&wanted) {
                return Ok(event);
            }
            if Instant::now() > deadline {
                bail!("no such audit event within {patience:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// `kubectl` as the administrator, with a discovery cache of its own; killed when its handle is dropped.
    ///
    /// # Errors
    /// When kubectl is not there and cannot be built.
    pub fn kubectl(&self) -> Result<Command> {
        let mut kubectl = Command::new(binary("kubectl")?);
        kubectl
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(self.dir.path().join("kubectl-cache"))
            // A user's aliases and defaults (~/.kube/kuberc) are none of a test's business.
            .env("KUBERC", "off")
            .kill_on_drop(true);
        Ok(kubectl)
    }
}
