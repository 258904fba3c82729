//! The `wintune` binary: allocator, TLS provider, arguments, exit code, and nothing else.

use std::process::ExitCode;

use clap::Parser;
use wintune::cli::Cli;

// glibc's allocator keeps what a burst of watch events freed; jemalloc gives it back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Fails only if somebody installed one before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Cli::try_parse() {
        Ok(cli) => cli.run().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }),
        Err(usage) => {
            // clap's own code for bad arguments is 2, which here means "changes".
            let code = if usage.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            let _ = usage.print();
            code
        }
    }
}
