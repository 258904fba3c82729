//! RestartRequired after the VM has ended.

use serde_json::{Value, json};
use simvirt::Guest;

use crate::report::Report;
use crate::traces::{Traces, text};
use crate::wire::{CALM, User, Wire, subresource_path, vm_path, vmi_path};

const FOLDER: &str = "d4-restartrequired-after-the-vm-ends";
const NAMESPACE: &str = "scen-d4";
const RESTART_REQUIRED: &str = "RestartRequired";

pub(crate) async fn replay(traces: &Traces, wire: &Wire, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    for row in traces.rows(&format!("{FOLDER}/table.json"))? {
        let name = text(&row, "/vm").unwrap_or_default();
        let difference = one(traces, wire, guest, name, &row).await?;
        report.compared(FOLDER, name, difference);
    }
    // Per row: create (and start for Manual), patch, the ending call if there is one, and the look afterwards.
    let rest = traces.requests(FOLDER)?.saturating_sub(15);
    report.unsupported(FOLDER, "steps of the 15 compared rows, whose bodies are not stored", rest);
    Ok(())
}

async fn one(traces: &Traces, wire: &Wire, guest: &Guest, name: &str, row: &Value) -> anyhow::Result<Option<String>> {
    let (strategy, end) = name.split_once('-').unwrap_or((name, ""));
    let strategy = match strategy {
        "always" => "Always",
        "manual" => "Manual",
        _ => "RerunOnFailure",
    };
    guest.set_guest_os(NAMESPACE, name, "windows-2022").await?;
    let vm = traces.manifest(NAMESPACE, name, strategy)?;
    let collection = vm_path(NAMESPACE, "");
    wire.json(User::Admin, "POST", collection.trim_end_matches('/'), &vm).await?;
    if strategy == "Manual" {
        wire.json(User::Operator, "PUT", &subresource_path(NAMESPACE, name, "start"), &json!({})).await?;
    }
    let path = vm_path(NAMESPACE, name);
    wire.settle(&path, |vm| {
        let up = condition(vm, "Ready") == Some(true) && condition(vm, "AgentConnected") == Some(true);
        (!up).then(|| "not running".to_owned())
    })
    .await?;
    let change = json!([{"op": "add", "path": "/spec/template/spec/domain/ioThreadsPolicy", "value": "auto"}]);
    wire.patch(User::Operator, &path, &change).await?;
    let before = row.get("before").and_then(Value::as_bool) == Some(true);
    let raised = wire
        .settle(&path, |vm| {
            let is = condition(vm, RESTART_REQUIRED) == Some(true);
            (is != before).then(|| format!("RestartRequired is {is} before the end"))
        })
        .await?;
    if raised.is_some() {
        return Ok(raised);
    }
    match end {
        "stop" => {
            wire.json(User::Operator, "PUT", &subresource_path(NAMESPACE, name, "stop"), &json!({})).await?;
        }
        "succeeded" => guest.shutdown(NAMESPACE, name).await?,
        "failed" => guest.crash(NAMESPACE, name).await?,
        "vmi-deleted" => {
            wire.json(User::Admin, "DELETE", &vmi_path(NAMESPACE, name), &Value::Null).await?;
        }
        _ => {
            let halt = json!([{"op": "replace", "path": "/spec/runStrategy", "value": "Halted"}]);
            wire.patch(User::Operator, &path, &halt).await?;
        }
    }
    // Long enough that a state on the way cannot be taken for the end.
    tokio::time::sleep(CALM * 3).await;
    let wanted = wanted(row);
    let start = std::time::Instant::now();
    loop {
        let vm = wire.get(&path).await?;
        let vmi = wire.get(&vmi_path(NAMESPACE, name)).await?;
        let ours = outcome(&vm, &vmi);
        if ours == wanted {
            return Ok(None);
        }
        if start.elapsed() > crate::wire::PATIENCE {
            return Ok(Some(format!("{ours}, recorded {wanted}")));
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn wanted(row: &Value) -> Value {
    json!({
        "after": row["after"], "printable": row["printable"], "runStrategy": row["runStrategy"],
        "vmi": row["vmi"], "conditions": row["otherVMIConditionsLeft"],
    })
}

fn outcome(vm: &Value, vmi: &Value) -> Value {
    let types: Vec<&Value> = vm
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|c| c.get("type"))
        .collect();
    let vmi = if vmi.is_null() {
        Value::Null
    } else {
        json!([vmi.pointer("/status/phase"), condition(vmi, "Ready") == Some(true)])
    };
    json!({
        "after": condition(vm, RESTART_REQUIRED) == Some(true),
        "printable": vm.pointer("/status/printableStatus"),
        "runStrategy": vm.pointer("/spec/runStrategy"),
        "vmi": vmi,
        "conditions": types,
    })
}

/// Whether a condition is True; none if it is missing.
pub(crate) fn condition(object: &Value, kind: &str) -> Option<bool> {
    object
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|c| text(c, "/type") == Some(kind))
        .map(|c| text(c, "/status") == Some("True"))
}
