//! Figures that settings are worked out with.

use std::sync::LazyLock;

use serde::Deserialize;

use super::profile::{DataError, parse};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sizing {
    #[serde(rename = "ioThreads")]
    pub(super) io_threads: IoThreads,
    pub(super) pci: Pci,
    pub(super) desktop: Desktop,
    pub(super) record: Record,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IoThreads {
    threads_per_disk: u64,
    vcpus_per_thread: u64,
    most: u64,
    pub(super) least_vcpus: u64,
    #[serde(rename = "source")]
    _source: String,
}

impl IoThreads {
    /// Threads of a pool for so many virtio disks and vCPUs.
    pub(super) fn pool(&self, disks: u64, vcpus: u64) -> u64 {
        let by_cpu = vcpus / self.vcpus_per_thread.max(1);
        disks.saturating_mul(self.threads_per_disk).min(by_cpu).min(self.most).max(1)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pci {
    pub(super) slots: usize,
    pub(super) source: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Desktop {
    pub(super) sockets: u64,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) bytes: usize,
    #[serde(rename = "source")]
    _source: String,
}

static SIZING: LazyLock<Result<Sizing, DataError>> =
    LazyLock::new(|| parse("sizing.yaml", include_str!("data/sizing.yaml")));

/// The figures.
pub(super) fn sizing() -> Result<&'static Sizing, DataError> {
    SIZING.as_ref().map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_grows_with_disks_and_vcpus_up_to_a_limit() {
        let threads = &sizing().unwrap().io_threads;
        assert_eq!(threads.pool(1, 4), 2);
        assert_eq!(threads.pool(8, 4), 2);
        assert_eq!(threads.pool(2, 16), 4);
        assert_eq!(threads.pool(20, 64), 8);
        assert_eq!(threads.pool(u64::MAX, 1), 1);
    }
}
