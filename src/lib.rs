//! Tunes Windows virtual machines on KubeVirt and Harvester, says why, and puts every field back exactly.
//!
//! Data flows one way, and the modules are named for the steps:
//!
//! 1. [`observe`] holds the only readers: watches, discovery, snapshots of one VM.
//! 2. [`plan`] turns what was observed into settings, refusals and findings. It is pure: values in, values out.
//! 3. [`rollout`] decides whether this is the moment to write. Pure as well.
//! 4. [`apply`] holds the only writers: patches, records, events.
//!
//! [`controller`] wires these together, [`cli`] calls the same functions without a cluster, and [`api`] holds our
//! own kinds and lean views of KubeVirt's. A test fails when `plan` or `rollout` touches a client, the clock, the
//! environment or the file system.

pub mod api;
pub mod apply;
pub mod cli;
pub mod controller;
pub mod observe;
pub mod plan;
pub mod rollout;
