//! Guest queries in every state of the VMI.

use simvirt::{Guest, Handler, Stage};

use crate::compare::answers;
use crate::report::Report;
use crate::traces::{Exchange, Traces, text};
use crate::unsupported;
use crate::wire::{User, Wire, vmi_path};

const FOLDER: &str = "f-guest-queries";
const NAMESPACE: &str = "scen-f";
const NAME: &str = "q";

/// How far the VMI has come, by the beginning of the request's name.
const STAGES: [(&str, Stage, &str); 5] = [
    ("vmi-scheduling", Stage::Scheduling, "Scheduling"),
    ("vmi-scheduled", Stage::Scheduled, "Scheduled"),
    ("running-no-agent", Stage::Running, "Running"),
    ("running-agent-no-handler-pod", Stage::Agent, "Running"),
    ("running-agent-handler-not-listening", Stage::Agent, "Running"),
];

pub(crate) async fn replay(traces: &Traces, wire: &Wire, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    guest.limit(NAMESPACE, NAME, Some(Stage::Scheduling));
    guest.set_guest_os(NAMESPACE, NAME, "windows-2022").await?;
    for exchange in traces.exchanges(FOLDER)? {
        if let Some(reason) = unsupported::request(FOLDER, &exchange.name) {
            report.unsupported(FOLDER, reason, 1);
            continue;
        }
        prepare(wire, guest, &exchange).await?;
        let user = if exchange.admin { User::Admin } else { User::Operator };
        let ours = wire.json(user, &exchange.method, &exchange.path, &exchange.body).await?;
        report.compared(FOLDER, &exchange.name, answers(&exchange, &ours));
    }
    Ok(())
}

/// Brings the VMI into the state that the request's name tells.
async fn prepare(wire: &Wire, guest: &Guest, exchange: &Exchange) -> anyhow::Result<()> {
    let Some((_, stage, phase)) = STAGES.iter().find(|(prefix, ..)| exchange.name.starts_with(prefix)) else {
        return Ok(());
    };
    guest.limit(NAMESPACE, NAME, Some(*stage));
    guest.set_handler(NAMESPACE, NAME, handler(exchange));
    let agent = *stage == Stage::Agent;
    let missed = wire
        .settle(&vmi_path(NAMESPACE, NAME), |vmi| {
            let reached = text(vmi, "/status/phase") == Some(phase)
                && (!agent
                    || vmi.pointer("/status/conditions").is_some_and(|c| c.to_string().contains("AgentConnected")));
            (!reached).then(|| format!("the VMI did not reach {phase}"))
        })
        .await?;
    anyhow::ensure!(missed.is_none(), "{missed:?}");
    Ok(())
}

/// The recording's virt-handler was never there: no pod first, then a pod on whose port nothing listens.
fn handler(exchange: &Exchange) -> Handler {
    let address =
        exchange.answer.as_str().and_then(|text| text.split("https://").nth(1)).and_then(|rest| rest.split('/').next());
    address.map_or(Handler::Missing, |address| Handler::Refuses { address: address.to_owned() })
}
