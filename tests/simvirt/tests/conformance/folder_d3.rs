//! The field `spec.running`, and answers to an account without rights. Bodies are not stored in this folder: the VM is
//! made from the manifest of b1, calls carry an empty object.

use serde_json::{Value, json};

use crate::compare::status_and_message;
use crate::report::Report;
use crate::traces::{Traces, text};
use crate::unsupported;
use crate::wire::{User, Wire, vm_path};

const FOLDER: &str = "d3-running-field-and-rights";
const NAMESPACE: &str = "scen-d3";

pub(crate) async fn replay(traces: &Traces, wire: &Wire, report: &mut Report) -> anyhow::Result<()> {
    for row in traces.rows(&format!("{FOLDER}/index.json"))? {
        let Some(name) = text(&row, "/name") else {
            continue;
        };
        if let Some(reason) = unsupported::request(FOLDER, name) {
            report.unsupported(FOLDER, reason, 1);
            continue;
        }
        let method = text(&row, "/method").unwrap_or_default();
        let path = text(&row, "/path").unwrap_or_default();
        let status = row.get("status").and_then(Value::as_u64).unwrap_or_default().try_into()?;
        let message = text(&row, "/message").unwrap_or_default();
        let user = if name.starts_with("nobody") { User::Nobody } else { User::Operator };
        let mut body = json!({});
        let mut running = None;
        match name {
            "running-true-create" => {
                body = traces.manifest(NAMESPACE, "old", "Halted")?;
                if let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.remove("runStrategy");
                    spec.insert("running".to_owned(), json!(true));
                }
                running = Some(true);
            }
            "old-restart" | "old-start" => running = Some(true),
            "old-stop" => running = Some(false),
            _ => {}
        }
        if method == "GET" {
            body = Value::Null;
        }
        let ours = if method == "PATCH" {
            wire.patch(user, path, &json!([])).await?
        } else {
            wire.json(user, method, path, &body).await?
        };
        let mut difference = status_and_message(status, message, &ours);
        if let Some(running) = running.filter(|_| difference.is_none()) {
            difference = effect(wire, running).await?;
        }
        report.compared(FOLDER, name, difference);
    }
    Ok(())
}

/// `running` is the field that start and stop write, and the VM follows it.
async fn effect(wire: &Wire, running: bool) -> anyhow::Result<Option<String>> {
    let state = if running { "Running" } else { "Stopped" };
    wire.settle(&vm_path(NAMESPACE, "old"), |vm| {
        let reached = vm.pointer("/spec/running") == Some(&json!(running))
            && vm.pointer("/spec/runStrategy").is_none()
            && text(vm, "/status/printableStatus") == Some(state)
            && vm.pointer("/status/ready").is_some() == running
            && vm.pointer("/status/stateChangeRequests").is_none()
            && vm.pointer("/status/created").is_some() == running;
        (!reached).then(|| format!("the VM is not {state} with running {running}: {}", vm["status"]))
    })
    .await
}
