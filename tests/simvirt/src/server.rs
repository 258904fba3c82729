//! The HTTPS server on 127.0.0.1 that stands for virt-api.

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A socket with its certificate, ready to serve.
pub struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// The port on 127.0.0.1.
    pub port: u16,
    /// The self-signed certificate, for `caBundle`.
    pub certificate: String,
}

impl Server {
    /// Binds a free port; the certificate is good for the Service in `namespace` and for 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound or no certificate be made.
    pub async fn bind(namespace: &str) -> anyhow::Result<Server> {
        let names = vec![format!("virt-api.{namespace}.svc"), "localhost".to_owned(), "127.0.0.1".to_owned()];
        let key = rcgen::generate_simple_self_signed(names).context("make a certificate")?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
        // The provider is named because a process-wide default may be missing or set by somebody else.
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], private)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("bind 127.0.0.1")?;
        Ok(Server {
            port: listener.local_addr()?.port(),
            listener,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate: key.cert.pem(),
        })
    }

    /// Serves until it is aborted; its connections end with it.
    pub async fn run(self, router: Router) {
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                continue;
            };
            let acceptor = self.acceptor.clone();
            let service = TowerToHyperService::new(router.clone());
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let connection = Builder::new(TokioExecutor::new());
                if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!(%error, "connection to the simulated virt-api ended");
                }
            });
            while connections.try_join_next().is_some() {}
        }
    }
}
