//! `/healthz`, `/readyz` and `/metrics`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{OperatorError, Readiness};
use crate::controller::metrics::Metrics;

#[derive(Clone)]
struct Shared {
    ready: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
}

/// Serves until the process ends. Binding fails at once, so that a taken port is an error and not a silent absence.
pub(super) async fn serve(
    address: SocketAddr,
    ready: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
) -> Result<JoinHandle<()>, OperatorError> {
    let listener = match TcpListener::bind(address).await {
        // A kernel without IPv6 knows no `[::]`.
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
    .map_err(|cause| OperatorError::Listen { address, cause })?;
    let router = Router::new()
        // Alive as long as it answers: being restarted would not bring a missing CRD.
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Shared { ready, metrics });
    Ok(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "health server ended");
        }
    }))
}

async fn readyz(State(shared): State<Shared>) -> (StatusCode, String) {
    match &*shared.ready.borrow() {
        Readiness::Ready => (StatusCode::OK, "ok\n".to_owned()),
        Readiness::Waiting(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics_text(State(shared): State<Shared>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], shared.metrics.text())
}
