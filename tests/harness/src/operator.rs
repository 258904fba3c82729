//! The operator as a user runs it: under the chart's own ServiceAccount, with the chart's own rules.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::Daemon;
use crate::{ControlPlane, create_namespace, helm_template, ports};

static STARTS: AtomicU32 = AtomicU32::new(1);
/// How long the operator may take to answer its health probe; it takes milliseconds.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long a graceful end may take.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// A chart whose objects lie on an API server, all but those that need a kubelet.
pub struct Install {
    /// Where it was installed.
    pub namespace: String,
    /// The ServiceAccount of its Deployment.
    pub service_account: String,
}

impl Install {
    /// Renders a chart and applies what a control plane without nodes can use: definitions, account and rules.
    /// `edit` sees every rendered object first and may change it, or leave it out by answering `None`.
    ///
    /// # Errors
    /// When helm or the API server refuses, or when the chart has no Deployment.
    pub async fn chart(
        plane: &ControlPlane,
        chart: &Path,
        namespace: &str,
        edit: impl Fn(Value) -> Option<Value>,
    ) -> Result<Install> {
        create_namespace(&plane.client_from(plane.admin_kubeconfig()).await?, namespace).await?;
        let rendered = helm_template(chart, "wintune", namespace, &[])?;
        let mut service_account = None;
        let mut text = String::new();
        for object in rendered {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            if kind == "Deployment" {
                service_account =
                    object.pointer("/spec/template/spec/serviceAccountName").and_then(Value::as_str).map(str::to_owned);
            }
            let usable = [
                "CustomResourceDefinition",
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding",
            ];
            if usable.contains(&kind.as_str())
                && let Some(object) = edit(object)
            {
                text += &format!("---\n{object}\n");
            }
        }
        let service_account = service_account.context("the chart has no Deployment with a ServiceAccount")?;
        let file = plane.dir().join(format!("chart-{namespace}.yaml"));
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        plane.apply_files(&file).await?;
        Ok(Install { namespace: namespace.to_owned(), service_account })
    }
}

/// A running operator. Dropping it kills it, as a node that goes down would.
pub struct Operator {
    daemon: Daemon,
    address: SocketAddr,
    log: PathBuf,
}

impl Operator {
    /// Starts the program with a token of the chart's ServiceAccount. `identity` is the replica's name: a new one
    /// with the same name takes its own lease over at once, one with another name waits until it ran out.
    ///
    /// # Errors
    /// When the token is refused or the program ends at once.
    pub async fn start(plane: &ControlPlane, install: &Install, program: &Path, identity: &str) -> Result<Operator> {
        let file = format!("operator-{identity}.kubeconfig");
        let kubeconfig = plane.token_kubeconfig(&install.namespace, &install.service_account, &file).await?;
        let port = ports::free()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        // A log of its own for each start, so that nobody reads the words of an earlier one.
        let log = plane.dir().join(format!("operator-{identity}-{}.log", STARTS.fetch_add(1, Ordering::Relaxed)));
        let args = [
            "operator".to_owned(),
            format!("--listen={address}"),
            format!("--lease-namespace={}", install.namespace),
            format!("--identity={identity}"),
            "--status-interval=1".to_owned(),
        ];
        let kubeconfig = kubeconfig.display().to_string();
        let variables = [("KUBECONFIG", kubeconfig.as_str()), ("WINTUNE_LOG", "info,wintune=debug")];
        let daemon = Daemon::spawn_with("wintune", program, &args, &variables, &log)?;
        let mut operator = Operator { daemon, address, log };
        let deadline = tokio::time::Instant::now() + START_PATIENCE;
        loop {
            operator.daemon.check_running()?;
            match operator.get("/healthz").await {
                Ok((200, _)) => return Ok(operator),
                other if tokio::time::Instant::now() > deadline => {
                    bail!("the operator's health probe does not answer: {other:?}");
                }
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Status code and text of a path of its health server.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let talk = async {
            let mut stream = tokio::net::TcpStream::connect(self.address).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer)
        };
        let answer = tokio::time::timeout(Duration::from_secs(5), talk).await.context("no answer within 5 s")??;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
        let code = head.split_whitespace().nth(1).and_then(|c| c.parse().ok()).context("an answer without a code")?;
        Ok((code, body.to_owned()))
    }

    /// The sum of a metric's samples whose labels contain every one of `labels`; 0 where there is none.
    ///
    /// # Errors
    /// When the operator does not answer.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        Ok(text
            .lines()
            .filter(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|l| labels.iter().all(|label| l.contains(label)))
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn running(&mut self) -> Result<bool> {
        Ok(self.daemon.exited()?.is_none())
    }

    /// SIGKILL, as when its node goes down.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// SIGTERM, as when its pod is deleted, and a wait for its end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn terminate(&mut self) -> Result<()> {
        self.daemon.terminate(END_PATIENCE).await
    }

    /// Everything that it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }
}
