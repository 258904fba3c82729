//! The only writers: VMs, records, policy status, events.
//!
//! A VM is written by one atomic patch, after the same patch with `dryRun=All`, and after the pre-image lies in the
//! record. Every write has a time limit, is counted by target and outcome, and goes out only while this replica
//! holds the lease.

pub mod events;
pub mod policy;
pub mod record;
pub mod vm;
pub mod writer;
