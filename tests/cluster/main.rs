//! The operator on a real API server: what it writes, what it leaves alone, and what it survives.
//!
//! All tests share one control plane and take turns, since an operator sees the whole cluster. Each starts its own
//! operator under the chart's ServiceAccount, in a namespace of VMs of its own.

// Tests end with the first thing that is not as expected, and say where.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod capabilities;
mod cases;
mod consent;
mod crash;
mod hostile;
mod kubevirt;
mod preference;
mod rbac;
mod refusals;
mod restore;
mod schema;
mod support;
mod tuning;
mod webhook;
mod withdrawal;
