//! `wintune operator`: arguments and logging, then the controller.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tracing_subscriber::EnvFilter;

use super::{CliError, runtime};
use crate::controller::{self, Options};

/// Arguments of the operator.
#[derive(Debug, Args)]
pub struct OperatorArgs {
    /// Where /healthz, /readyz and /metrics are served. `[::]` falls back to `0.0.0.0` where there is no IPv6.
    #[arg(long, default_value = "[::]:8080", env = "WINTUNE_LISTEN")]
    listen: SocketAddr,
    /// Namespace of the lease.
    #[arg(long, default_value = "wintune-system", env = "WINTUNE_NAMESPACE")]
    lease_namespace: String,
    /// Name of this replica, unique among them; the pod's name.
    #[arg(long, env = "HOSTNAME", default_value = "wintune")]
    identity: String,
    /// Seconds between two writes of a policy's status.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600), env = "WINTUNE_STATUS_INTERVAL")]
    status_interval: u64,
    /// Writes a second at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000), env = "WINTUNE_WRITES_PER_SECOND")]
    writes_per_second: u32,
    /// What to log, as tracing's filter: `info`, `wintune=debug`, ...
    #[arg(long, default_value = "info,kube_client=warn", env = "WINTUNE_LOG")]
    log: String,
    /// Log as JSON, a line each.
    #[arg(long, env = "WINTUNE_LOG_JSON")]
    log_json: bool,
}

pub(super) fn run(args: OperatorArgs) -> Result<ExitCode, CliError> {
    let filter = EnvFilter::try_new(&args.log).map_err(|e| CliError::LogFilter(args.log.clone(), e.to_string()))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if args.log_json {
        log.json().init();
    } else {
        log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
    let options = Options {
        listen: args.listen,
        lease_namespace: args.lease_namespace,
        identity: if args.identity.is_empty() { "wintune".to_owned() } else { args.identity },
        status_interval: Duration::from_secs(args.status_interval),
        writes_per_second: args.writes_per_second,
    };
    runtime()?.block_on(controller::run(options))?;
    Ok(ExitCode::SUCCESS)
}
