//! start, stop and restart in all run strategies and states.

use std::collections::HashMap;

use serde_json::{Value, json};
use simvirt::Guest;

use crate::compare::{answers, differs, normal};
use crate::report::Report;
use crate::traces::{Exchange, Traces, text};
use crate::wire::{CALM, PATIENCE, User, Wire, subresource_path, vm_path, vmi_path};

const FOLDER: &str = "d1-subresources";
const NAMESPACE: &str = "scen-d1";

/// Recorded VMI UIDs by their first eight characters, and our UIDs in their place.
type Uids = HashMap<String, String>;

pub(crate) async fn replay(traces: &Traces, wire: &Wire, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let rows = traces.rows(&format!("{FOLDER}/table.json"))?;
    let mut uids = Uids::new();
    // The table has the calls in their order, some names twice, and leaves a few calls out.
    let mut states = rows.iter().filter(|r| r.get("before").is_some()).peekable();
    for exchange in traces.exchanges(FOLDER)? {
        let row = states.next_if(|r| row_name(r).as_deref() == Some(exchange.name.as_str()));
        let difference = match (exchange.method.as_str(), row) {
            ("POST", None) if exchange.name.ends_with("-create") => create(wire, guest, &exchange).await?,
            ("GET", None) if exchange.name.ends_with("-vm-after") => {
                let recorded = normal(&exchange.answer);
                wire.settle(&exchange.path, |vm| differs("VM", &recorded, &normal(vm))).await?
            }
            (_, Some(row)) => operation(wire, &exchange, row, &mut uids).await?,
            (_, None) => alone(wire, &exchange).await?,
        };
        report.compared(FOLDER, &exchange.name, difference);
    }
    anyhow::ensure!(states.peek().is_none(), "a row of the table was not met: {:?}", states.peek());
    for row in rows.iter().filter(|r| text(r, "/acceptHeader").is_some()) {
        let difference = accept_header(wire, row).await?;
        let name = format!("{} Accept {}", text(row, "/op").unwrap_or_default(), row["acceptHeader"]);
        report.compared(FOLDER, &name, difference);
    }
    Ok(())
}

fn row_name(row: &Value) -> Option<String> {
    Some(format!("{}-{}", text(row, "/vm")?, text(row, "/op")?))
}

async fn send(wire: &Wire, exchange: &Exchange) -> anyhow::Result<crate::wire::Answer> {
    let user = if exchange.admin { User::Admin } else { User::Operator };
    let content = exchange.content_type.as_deref();
    let accept = Some("application/json, */*");
    wire.send(user, &exchange.method, &exchange.path, content, accept, &exchange.body).await
}

async fn create(wire: &Wire, guest: &Guest, exchange: &Exchange) -> anyhow::Result<Option<String>> {
    let name = text(&exchange.body, "/metadata/name").unwrap_or_default();
    guest.set_guest_os(NAMESPACE, name, "windows-2022").await?;
    Ok(answers(exchange, &send(wire, exchange).await?))
}

async fn alone(wire: &Wire, exchange: &Exchange) -> anyhow::Result<Option<String>> {
    if exchange.name == "always-restart-first" {
        // Not in the table, but the VM must run again before it.
        let vm = exchange.path.split('/').nth_back(1).unwrap_or_default();
        wire.settle(&vm_path(NAMESPACE, vm), |vm| {
            let ready = vm.pointer("/status/ready") == Some(&json!(true));
            (!ready).then(|| "not ready".to_owned())
        })
        .await?;
    }
    Ok(answers(exchange, &send(wire, exchange).await?))
}

async fn operation(wire: &Wire, exchange: &Exchange, row: &Value, uids: &mut Uids) -> anyhow::Result<Option<String>> {
    let vm = text(row, "/vm").unwrap_or_default();
    let before = row.get("before").cloned().unwrap_or_default();
    if let Some(difference) = reach(wire, vm, &before, uids).await? {
        return Ok(Some(format!("before it, {difference}")));
    }
    let ours = send(wire, exchange).await?;
    if let Some(difference) = answers(exchange, &ours) {
        return Ok(Some(difference));
    }
    let mut reached = None;
    for moment in row.get("after").and_then(Value::as_array).into_iter().flatten() {
        let wanted = moment.get(1).cloned().unwrap_or_default();
        if reached.as_ref() == Some(&wanted) {
            // Two looks at one state: seen once is enough.
            continue;
        }
        if wanted == before {
            tokio::time::sleep(CALM).await;
        }
        if let Some(difference) = reach(wire, vm, &wanted, uids).await? {
            return Ok(Some(format!("after it, {difference}")));
        }
        reached = Some(wanted);
    }
    Ok(None)
}

/// Waits until the VM and its VMI are in a recorded state.
async fn reach(wire: &Wire, vm: &str, wanted: &Value, uids: &mut Uids) -> anyhow::Result<Option<String>> {
    let start = std::time::Instant::now();
    loop {
        let object = wire.get(&vm_path(NAMESPACE, vm)).await?;
        let vmi = wire.get(&vmi_path(NAMESPACE, vm)).await?;
        let recorded_uid = text(wanted, "/vmi/0");
        let ours = text(&vmi, "/metadata/uid").unwrap_or_default().to_owned();
        let known = recorded_uid.and_then(|u| uids.get(u)).cloned();
        let is_new = known.is_none() && !uids.values().any(|u| *u == ours);
        let same_vmi = recorded_uid.is_none() || is_new || known.as_deref() == Some(ours.as_str());
        let state = state(&object, &vmi, recorded_uid, &ours);
        if same_vmi && state == short(wanted) {
            if let Some(recorded) = recorded_uid.filter(|_| is_new) {
                uids.insert(recorded.to_owned(), ours);
            }
            return Ok(None);
        }
        if start.elapsed() > PATIENCE {
            return Ok(Some(format!("{state}, recorded {wanted}")));
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// A recorded state with the short form of UIDs in its requests too.
fn short(state: &Value) -> Value {
    let mut state = state.clone();
    for request in state.pointer_mut("/scr").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(uid) = request.get_mut("uid") {
            *uid = uid.as_str().and_then(|u| u.get(..8)).map_or(Value::Null, Value::from);
        }
    }
    state
}

/// Our state in the table's words; our VMI's UID reads as the recorded one.
fn state(vm: &Value, vmi: &Value, recorded_uid: Option<&str>, ours: &str) -> Value {
    let mut requests = vm.pointer("/status/stateChangeRequests").cloned().unwrap_or_default();
    for request in requests.as_array_mut().into_iter().flatten() {
        if let Some(uid) = request.get_mut("uid").filter(|u| *u == ours) {
            *uid = json!(recorded_uid);
        }
    }
    let vmi = if vmi.is_null() {
        Value::Null
    } else {
        json!([
            recorded_uid,
            vmi.pointer("/status/phase"),
            vmi.pointer("/metadata/deletionTimestamp").is_some(),
            vmi.pointer("/spec/terminationGracePeriodSeconds"),
        ])
    };
    json!({
        "runStrategy": vm.pointer("/spec/runStrategy"),
        "printable": vm.pointer("/status/printableStatus"),
        "scr": requests,
        "gen": vm.pointer("/metadata/generation"),
        "vmi": vmi,
    })
}

/// These twelve calls are in the table only. Their VM is the halted one, and it stays halted although `start` is
/// accepted: they were dry runs.
async fn accept_header(wire: &Wire, row: &Value) -> anyhow::Result<Option<String>> {
    let accept = text(row, "/acceptHeader").filter(|a| *a != "(none)");
    let path = subresource_path(NAMESPACE, "halted", text(row, "/op").unwrap_or_default());
    let body = json!({"dryRun": ["All"]});
    let ours = wire.send(User::Operator, "PUT", &path, Some("application/json"), accept, &body).await?;
    let status = row.get("status").and_then(Value::as_u64);
    if status != Some(ours.status.into()) || text(row, "/contentType") != ours.content_type.as_deref() {
        return Ok(Some(format!("{} {:?}, recorded {row}", ours.status, ours.content_type)));
    }
    // The recorded text is cut off; it is pretty-printed, ours is not.
    let recorded = text(row, "/text").unwrap_or_default();
    let message = ours.message();
    let quoted = json!(message).to_string();
    let said = recorded == message || recorded.contains(&quoted);
    Ok((!said).then(|| format!("{message:?}, recorded {recorded:?}")))
}
