//! Replays recorded requests to the real KubeVirt against a real API server with simvirt, and compares.
//!
//! The traces lie outside the repository: `../shared/kubevirt/traces` beside the workspace, or
//! `$WINTUNE_SHARED/kubevirt/traces`. Without them the test says that it was skipped.

#![allow(clippy::indexing_slicing, reason = "test code; a field that a JSON object lacks reads as null")]

mod compare;
mod folder_b1;
mod folder_b2;
mod folder_c;
mod folder_d1;
mod folder_d2;
mod folder_d3;
mod folder_d4;
mod folder_f;
mod report;
mod traces;
mod unsupported;
mod wire;

use std::time::Duration;

use harness::ControlPlane;
use simvirt::{Options, Rollout, Simvirt};

use crate::report::Report;
use crate::traces::Traces;
use crate::wire::Wire;

/// Slow enough that every state in between can be seen by polling, on a busy machine too.
fn options(rollout: Rollout) -> Options {
    Options {
        boot: Duration::from_millis(500),
        terminating: Duration::from_millis(500),
        admission: true,
        rollout,
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simvirt_answers_as_the_recorded_kubevirt() -> anyhow::Result<()> {
    let Some(traces) = Traces::find() else {
        println!("skipped: no recorded KubeVirt traces in {}", Traces::place().display());
        return Ok(());
    };
    let plane = ControlPlane::start().await?;
    plane.install_kubevirt_crds().await?;
    let wire = Wire::new(&plane, &traces).await?;

    let simvirt = Simvirt::start(plane.admin(), options(Rollout::LiveUpdate)).await?;
    let guest = simvirt.guest();
    // Each folder has a namespace of its own, and most of the time is waiting.
    let calls = async {
        let mut report = Report::default();
        folder_d1::replay(&traces, &wire, &guest, &mut report).await?;
        folder_d3::replay(&traces, &wire, &mut report).await?;
        anyhow::Ok(report)
    };
    let ends = async {
        let mut report = Report::default();
        folder_f::replay(&traces, &wire, &guest, &mut report).await?;
        folder_d2::replay(&traces, &wire, &guest, &mut report).await?;
        folder_d4::replay(&traces, &wire, &guest, &mut report).await?;
        anyhow::Ok(report)
    };
    let patches = async {
        let mut report = Report::default();
        folder_b1::replay(&traces, &wire, &mut report).await?;
        folder_b2::replay(&traces, &wire, &mut report).await?;
        folder_c::replay("c-running-vm-patches", "scen-c1", &traces, &wire, &mut report).await?;
        anyhow::Ok(report)
    };
    let (mut report, ends, patches) = tokio::try_join!(calls, ends, patches)?;
    report.add(ends);
    report.add(patches);
    simvirt.stop().await;

    let simvirt = Simvirt::start(plane.admin(), options(Rollout::Stage)).await?;
    folder_c::replay("c2-running-vm-patches-stage", "scen-c2", &traces, &wire, &mut report).await?;
    simvirt.stop().await;

    unsupported::folders(&traces, &mut report)?;
    report.finish()
}
