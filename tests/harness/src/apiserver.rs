//! How etcd and kube-apiserver are started, and when they count as ready.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::net::TcpStream;

use crate::pki::FRONT_PROXY;
use crate::process::Daemon;

/// Ready takes about 3 s on two idle cores; the rest is for a machine that compiles at the same time.
const READY_PATIENCE: Duration = Duration::from_secs(90);
/// A loaded API server takes 2 s to end.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// For one answer; the client alone would wait for minutes on a server that accepts and says nothing.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// Every request, without bodies, once it has been answered.
const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived", "ResponseStarted"],
  "rules": [{"level": "Metadata"}]
}
"#;

/// What it takes to start the same API server again: programs, ports and the folder with its files.
pub(crate) struct Launch {
    /// Path of the program etcd.
    pub(crate) etcd: PathBuf,
    /// Path of the program kube-apiserver.
    pub(crate) kube_apiserver: PathBuf,
    /// Where etcd listens.
    pub(crate) etcd_port: u16,
    /// Where kube-apiserver listens.
    pub(crate) secure_port: u16,
    /// Holds what [`crate::pki::write`] and [`Launch::write_files`] wrote, data and logs.
    pub(crate) dir: PathBuf,
}

impl Launch {
    /// Where the API server is reached.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.secure_port)
    }

    /// Where the audit events are.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// Writes the audit policy and the one static token.
    pub(crate) fn write_files(&self, admin_token: &str) -> Result<()> {
        let files = [
            ("audit-policy.json", AUDIT_POLICY.to_owned()),
            ("tokens.csv", format!("{admin_token},admin,admin,\"system:masters\"\n")),
        ];
        for (name, text) in files {
            let path = self.dir.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Starts etcd and waits until it takes connections.
    pub(crate) async fn start_etcd(&self) -> Result<Daemon> {
        let url = format!("http://127.0.0.1:{}", self.etcd_port);
        let args = [
            format!("--data-dir={}", path_text(&self.dir.join("etcd"))?),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            // A single member has no peers; the kernel picks a port that nobody needs to know.
            "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
        ];
        let mut etcd = Daemon::spawn("etcd", &self.etcd, &args, &self.dir.join("etcd.log"))?;
        let deadline = Instant::now() + READY_PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.etcd_port)).await.is_err() {
            etcd.check_running()?;
            if Instant::now() > deadline {
                bail!("etcd took no connection within {READY_PATIENCE:?}; the end of its log:\n{}", etcd.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(etcd)
    }

    /// Starts kube-apiserver, which is ready only after [`wait_until_ready`].
    pub(crate) fn start_apiserver(&self) -> Result<Daemon> {
        let file = |name: &str| path_text(&self.dir.join(name));
        let args = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.secure_port),
            // Without these two it wants a default route, to announce itself to pods that do not exist here.
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--tls-cert-file={}", file("apiserver.crt")?),
            format!("--tls-private-key-file={}", file("apiserver.key")?),
            format!("--token-auth-file={}", file("tokens.csv")?),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("service-account.pub")?),
            format!("--service-account-signing-key-file={}", file("service-account.key")?),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--audit-policy-file={}", file("audit-policy.json")?),
            format!("--audit-log-path={}", path_text(&self.audit_log())?),
            // An aggregated API server learns from these headers who is asking, and trusts them from this client.
            // Aggregator routing stays off: it would look for endpoints, which an ExternalName Service has none of.
            format!("--requestheader-client-ca-file={}", file("ca.crt")?),
            format!("--requestheader-allowed-names={FRONT_PROXY}"),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", file("front-proxy.crt")?),
            format!("--proxy-client-key-file={}", file("front-proxy.key")?),
        ];
        Daemon::spawn("kube-apiserver", &self.kube_apiserver, &args, &self.dir.join("kube-apiserver.log"))
    }
}

/// Returns once `/readyz` says ok and the namespaces exist that every cluster has.
///
/// # Errors
/// When either process ends or time runs out, with the end of its log.
pub(crate) async fn wait_until_ready(client: &Client, apiserver: &mut Daemon, etcd: &mut Daemon) -> Result<()> {
    let deadline = Instant::now() + READY_PATIENCE;
    while let Err(error) = ask_ready(client).await {
        // A port that somebody else took first shows here too: the loser of that race ends.
        etcd.check_running()?;
        apiserver.check_running()?;
        if Instant::now() > deadline {
            bail!(
                "kube-apiserver was not ready within {READY_PATIENCE:?}: {error:#}; the end of its log:\n{}",
                apiserver.log_tail()
            );
        }
        tokio::time::sleep(POLL).await;
    }
    apiserver.check_running()
}

/// Ends a server as an administrator would.
pub(crate) async fn stop(daemon: &mut Daemon) -> Result<()> {
    daemon.terminate(STOP_PATIENCE).await
}

async fn ask_ready(client: &Client) -> Result<()> {
    tokio::time::timeout(ANSWER_PATIENCE, ask_ready_once(client)).await.context("ask /readyz")?
}

async fn ask_ready_once(client: &Client) -> Result<()> {
    client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
    let namespaces = Api::<Namespace>::all(client.clone());
    for name in ["default", "kube-system"] {
        namespaces.get(name).await?;
    }
    Ok(())
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| anyhow!("the path {} is not UTF-8", path.display()))
}
