//! The life of a control plane: start, outage, stop. What a test does with it is in `usage`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use tempfile::TempDir;

use crate::apiserver::{Launch, stop, wait_until_ready};
use crate::binaries::binary;
use crate::process::Daemon;
use crate::{kubeconfig, pki, ports};

/// How often a start is tried when another process took a port between its choice and its use.
const START_TRIES: usize = 5;
/// How Linux words a taken port, in the logs of both servers.
const PORT_TAKEN: &str = "address already in use";
/// How long to wait for a port that cannot be exchanged for another one.
const PORT_PAUSE: Duration = Duration::from_secs(1);

/// A running etcd and kube-apiserver with a folder of their own. Dropping it kills both and removes the folder.
///
/// The API server listens on 127.0.0.1 with a certificate of its own CA, authorizes by RBAC, audits every request
/// at level Metadata and serves the aggregation layer; an APIService whose Service is of type ExternalName is
/// reached under that name.
pub struct ControlPlane {
    // Dropped from top to bottom: the API server before its store, the folder with their files last.
    apiserver: Option<Daemon>,
    etcd: Daemon,
    /// The administrator's, on the runtime of the start.
    pub(crate) client: Client,
    pub(crate) url: String,
    pub(crate) ca_pem: String,
    /// The administrator's.
    pub(crate) kubeconfig: PathBuf,
    /// How to start the API server again.
    pub(crate) launch: Launch,
    pub(crate) dir: TempDir,
}

impl ControlPlane {
    /// Starts both servers and returns when `/readyz` is ok and the namespaces `default` and `kube-system` exist.
    ///
    /// That takes about 3 s on two idle cores once the programs are built (see [`binary`]). It also makes rustls'
    /// `ring` provider the default of the process when there is none yet.
    ///
    /// # Errors
    /// When a program is missing or a server does not come up; the error carries the end of its log.
    pub async fn start() -> Result<Self> {
        // An Err says that a provider is installed already, which is as good.
        rustls::crypto::ring::default_provider().install_default().ok();
        let programs = || anyhow::Ok((binary("etcd")?, binary("kube-apiserver")?));
        let (etcd, kube_apiserver) =
            tokio::task::spawn_blocking(programs).await.context("look for etcd and kube-apiserver")??;
        let mut tries = 1;
        loop {
            match Self::try_start(etcd.clone(), kube_apiserver.clone()).await {
                Err(error) if tries < START_TRIES && port_taken(&error) => {
                    tracing::info!(tries, "a port was taken by another process, starting again with new ones");
                    tries += 1;
                }
                result => return result.context("start a control plane"),
            }
        }
    }

    async fn try_start(etcd: PathBuf, kube_apiserver: PathBuf) -> Result<Self> {
        let dir = TempDir::with_prefix("wintune-control-plane-").context("make a folder for the control plane")?;
        let launch = Launch {
            etcd,
            kube_apiserver,
            etcd_port: ports::free()?,
            secure_port: ports::free()?,
            dir: dir.path().to_owned(),
        };
        let ca_pem = pki::write(dir.path())?;
        let token = random_token()?;
        launch.write_files(&token)?;
        let url = launch.url();
        let kubeconfig = dir.path().join("admin.kubeconfig");
        kubeconfig::write(&kubeconfig, &url, &ca_pem, "default", "admin", &token)?;
        let client = kubeconfig::client(&kubeconfig).await?;

        let mut etcd = launch.start_etcd().await?;
        let mut apiserver = launch.start_apiserver()?;
        wait_until_ready(&client, &mut apiserver, &mut etcd).await?;
        Ok(Self { apiserver: Some(apiserver), etcd, client, url, ca_pem, kubeconfig, launch, dir })
    }

    /// Ends the API server with SIGTERM and waits for its end (about 2 s); etcd keeps the data. Watches are cut and
    /// connections refused from then on. Does nothing when it is stopped already.
    ///
    /// # Errors
    /// When it does not end within 30 s; it is killed then.
    pub async fn stop_apiserver(&mut self) -> Result<()> {
        match self.apiserver.take() {
            Some(mut apiserver) => stop(&mut apiserver).await,
            None => Ok(()),
        }
    }

    /// Starts the API server again, on the same port and data, and waits until it is ready. Does nothing when it
    /// runs already.
    ///
    /// # Errors
    /// When it does not come up; the error carries the end of its log.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        if let Some(running) = &mut self.apiserver {
            return running.check_running();
        }
        let mut tries = 1;
        loop {
            let mut apiserver = self.launch.start_apiserver()?;
            let admin = kubeconfig::client(&self.kubeconfig).await?;
            match wait_until_ready(&admin, &mut apiserver, &mut self.etcd).await {
                Ok(()) => {
                    self.apiserver = Some(apiserver);
                    return Ok(());
                }
                // The port cannot change, so all that helps is to wait for it.
                Err(error) if tries < START_TRIES && port_taken(&error) => {
                    tries += 1;
                    tokio::time::sleep(PORT_PAUSE).await;
                }
                Err(error) => return Err(error.context("start kube-apiserver again")),
            }
        }
    }

    /// Ends both servers in order and removes the folder. Dropping does the same at once and in silence.
    ///
    /// # Errors
    /// When a server does not end or the folder cannot be removed; nothing of it runs on even then.
    pub async fn stop(mut self) -> Result<()> {
        self.stop_apiserver().await?;
        stop(&mut self.etcd).await?;
        let path = self.dir.path().to_owned();
        self.dir.close().with_context(|| format!("remove {}", path.display()))
    }
}

fn port_taken(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains(PORT_TAKEN)
}

/// The kernel's random UUID; the token is worth something only on this machine and while the server runs.
fn random_token() -> Result<String> {
    let source = "/proc/sys/kernel/random/uuid";
    let token = std::fs::read_to_string(source).with_context(|| format!("read {source}"))?;
    Ok(token.trim().to_owned())
}
