//! Free TCP ports of 127.0.0.1.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// Below this lie ports that people run things on.
const LOWEST: u16 = 20_000;
/// The usual start of the range from which the kernel takes ports for outgoing connections.
const USUAL_EPHEMERAL: u16 = 32_768;
const TRIES: usize = 50;

/// A port that was free a moment ago. Another process can take it before it is used, so its user must be ready to
/// fail and ask again.
///
/// It lies below the kernel's range for outgoing connections where that leaves room: a server that is stopped and
/// started again on the same port (an outage test) would otherwise lose it now and then to a client's connection.
pub(crate) fn free() -> Result<u16> {
    let end = ephemeral_start();
    if end > LOWEST + 1_000 {
        for _ in 0..TRIES {
            let port = LOWEST + u16::try_from(random() % u64::from(end - LOWEST)).unwrap_or(0);
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("ask the kernel for a free port")?;
    Ok(listener.local_addr().context("read the port that the kernel gave")?.port())
}

fn ephemeral_start() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(USUAL_EPHEMERAL)
}

/// The standard library keys every hash map at random; good enough to keep two test processes apart.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free().expect("a port");
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("bind it");
    }
}
