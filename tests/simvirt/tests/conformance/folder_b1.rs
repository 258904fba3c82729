//! Patches of a stopped VM: what depends on the API server and on virt-api's webhooks.

use serde_json::Value;

use crate::compare::{Names, answers, differs, normal, status_and_message};
use crate::report::Report;
use crate::traces::{Traces, text};
use crate::wire::{User, Wire};

const FOLDER: &str = "b1-patch-stopped-vm";

pub(crate) async fn replay(traces: &Traces, wire: &Wire, report: &mut Report) -> anyhow::Result<()> {
    let mut names = Names::default();
    for exchange in traces.exchanges(FOLDER)? {
        let user = if exchange.admin { User::Admin } else { User::Operator };
        if exchange.method == "GET" {
            // The controller's own writes arrive a moment later.
            let recorded = normal(&exchange.answer);
            let difference = wire.settle(&exchange.path, |vm| differs("VM", &recorded, &normal(vm))).await?;
            names.learn(&exchange.answer, &wire.get(&exchange.path).await?);
            report.compared(FOLDER, &exchange.name, difference);
            continue;
        }
        let body = names.translate(&exchange.body);
        let content = exchange.content_type.as_deref();
        let ours =
            wire.send(user, &exchange.method, &exchange.path, content, Some("application/json, */*"), &body).await?;
        let difference = if exchange.name == "jp-avic-strict" {
            strict(&exchange.answer, exchange.status, &ours)
        } else {
            answers(&exchange, &ours).or_else(|| {
                let spec = |vm: &Value| normal(vm).get("spec").cloned().unwrap_or_default();
                (exchange.status < 300).then(|| differs("spec", &spec(&exchange.answer), &spec(&ours.body))).flatten()
            })
        };
        names.learn(&exchange.answer, &ours.body);
        report.compared(FOLDER, &exchange.name, difference);
    }
    Ok(())
}

/// This message contains the whole object with times and UIDs: its end is compared.
fn strict(recorded: &Value, status: u16, ours: &crate::wire::Answer) -> Option<String> {
    const END: &str = "strict decoding error:";
    let message = text(recorded, "/message").unwrap_or_default();
    let end = message.find(END).and_then(|at| message.get(at..)).unwrap_or(message);
    if ours.status == status && ours.message().ends_with(end) {
        return None;
    }
    status_and_message(status, end, ours)
}
