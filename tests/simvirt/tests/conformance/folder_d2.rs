//! What follows when a VMI ends, and until when a patch is in the next one. The bodies of this folder are not stored:
//! a patch is one that cannot be made live, a VM is the common one.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use simvirt::Guest;

use crate::compare::differs;
use crate::folder_d4::condition;
use crate::report::Report;
use crate::traces::{Traces, text};
use crate::wire::{PATIENCE, User, Wire, subresource_path, vm_path, vmi_path};

const FOLDER: &str = "d2-vmi-ends";
const NAMESPACE: &str = "scen-d2";
const FIELD: &str = "/spec/template/spec/domain/ioThreadsPolicy";
/// After this time no other VMI comes any more: many times what the simulation waits before it makes one.
const NO_NEXT: Duration = Duration::from_millis(1500);

pub(crate) async fn replay(traces: &Traces, wire: &Wire, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let mut compared = 0;
    for (number, row) in traces.rows(&format!("{FOLDER}/table.json"))?.iter().enumerate() {
        let vm = Vm { wire, name: format!("row{number}") };
        let (what, difference) = if row.get("note").is_some() || row.get("backoff").is_some() {
            report.unsupported(FOLDER, "start failures and back-off are not simulated; rows that went wrong", 1);
            compared += 1;
            continue;
        } else if let Some(how) = text(row, "/how") {
            let name = format!("{} {how}", text(row, "/vm").unwrap_or_default());
            (name, end(traces, &vm, guest, row, how).await?)
        } else if let Some(present) = row.get("oldVmiPresentAtPatch") {
            let present = present.as_bool() == Some(true);
            (format!("window {}", row["window"]), window(traces, &vm, row, present).await?)
        } else if row.get("race").is_some() {
            (format!("race {}", row["race"]), race(traces, &vm, row).await?)
        } else {
            ("halted, patched, started".to_owned(), halted(traces, &vm, row).await?)
        };
        report.compared(FOLDER, &what, difference);
        compared += 1;
    }
    let rest = traces.requests(FOLDER)?.saturating_sub(compared);
    report.unsupported(FOLDER, "steps of the compared rows, whose bodies are not stored", rest);
    Ok(())
}

/// One VM of this replay.
struct Vm<'a> {
    wire: &'a Wire,
    name: String,
}

impl Vm<'_> {
    async fn run(&self, traces: &Traces, strategy: &str) -> anyhow::Result<String> {
        let vm = traces.manifest(NAMESPACE, &self.name, strategy)?;
        let collection = vm_path(NAMESPACE, "");
        self.wire.json(User::Admin, "POST", collection.trim_end_matches('/'), &vm).await?;
        if strategy == "Manual" {
            self.call("start").await?;
        }
        let missed = self
            .wire
            .settle(&vm_path(NAMESPACE, &self.name), |vm| {
                (condition(vm, "Ready") != Some(true)).then(|| "does not run".to_owned())
            })
            .await?;
        anyhow::ensure!(missed.is_none(), "{} {missed:?}", self.name);
        let vmi = self.vmi().await?;
        Ok(text(&vmi, "/metadata/uid").unwrap_or_default().to_owned())
    }

    async fn vmi(&self) -> anyhow::Result<Value> {
        self.wire.get(&vmi_path(NAMESPACE, &self.name)).await
    }

    async fn call(&self, sub: &str) -> anyhow::Result<()> {
        let path = subresource_path(NAMESPACE, &self.name, sub);
        let answer = self.wire.json(User::Operator, "PUT", &path, &json!({})).await?;
        anyhow::ensure!(answer.status == 202, "{sub}: {}", answer.message());
        Ok(())
    }

    async fn patch(&self) -> anyhow::Result<u16> {
        let change = json!([{"op": "add", "path": FIELD, "value": "auto"}]);
        let answer = self.wire.patch(User::Operator, &vm_path(NAMESPACE, &self.name), &change).await?;
        Ok(answer.status)
    }

    async fn set_strategy(&self, strategy: &str) -> anyhow::Result<()> {
        let change = json!([{"op": "add", "path": "/spec/runStrategy", "value": strategy}]);
        self.wire.patch(User::Operator, &vm_path(NAMESPACE, &self.name), &change).await?;
        Ok(())
    }

    /// Waits until the VMI is as wanted; null means that there is none.
    async fn until(&self, time: Duration, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Option<Value>> {
        let start = Instant::now();
        while start.elapsed() < time {
            let vmi = self.vmi().await?;
            if wanted(&vmi) {
                return Ok(Some(vmi));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(None)
    }

    /// The VMI that follows the one with this UID.
    async fn next(&self, old: &str, time: Duration) -> anyhow::Result<Option<Value>> {
        self.until(time, |vmi| !vmi.is_null() && text(vmi, "/metadata/uid") != Some(old)).await
    }

    /// Whether RestartRequired is there once the next VMI runs.
    async fn restart_required(&self) -> anyhow::Result<bool> {
        let path = vm_path(NAMESPACE, &self.name);
        let ready = |vm: &Value| (condition(vm, "Ready") != Some(true)).then(String::new);
        self.wire.settle(&path, ready).await?;
        Ok(condition(&self.wire.get(&path).await?, "RestartRequired") == Some(true))
    }
}

fn patched(vmi: &Value) -> bool {
    text(vmi, "/spec/domain/ioThreadsPolicy") == Some("auto")
}

/// A VMI ends by itself or is deleted, and a patch comes right after.
async fn end(traces: &Traces, vm: &Vm<'_>, guest: &Guest, row: &Value, how: &str) -> anyhow::Result<Option<String>> {
    let strategy = text(row, "/runStrategy").unwrap_or_default();
    let old = vm.run(traces, strategy).await?;
    match how {
        "Succeeded" => guest.shutdown(NAMESPACE, &vm.name).await?,
        "Failed" => guest.crash(NAMESPACE, &vm.name).await?,
        _ => {
            let force = if how == "deleted-force" { "?gracePeriodSeconds=0" } else { "" };
            let path = format!("{}{force}", vmi_path(NAMESPACE, &vm.name));
            vm.wire.json(User::Admin, "DELETE", &path, &Value::Null).await?;
        }
    }
    let status = vm.patch().await?;
    let expects_next = !row["secondsToNextVMI"].is_null();
    let time = if expects_next { PATIENCE } else { NO_NEXT };
    let next = vm.next(&old, time).await?;
    let object = vm.wire.get(&vm_path(NAMESPACE, &vm.name)).await?;
    let vmi = vm.vmi().await?;
    let mut ours = json!({
        "patchStatus": status,
        "next": next.is_some(),
        "patchInNextVMI": next.as_ref().map(patched),
        "runStrategy": object["spec"]["runStrategy"],
    });
    let mut recorded = json!({
        "patchStatus": row["patchStatus"],
        "next": expects_next,
        "patchInNextVMI": row["patchInNextVMI"],
        "runStrategy": row["runStrategy"],
    });
    if !expects_next {
        // With a next VMI the recording's look is at some moment of its start.
        ours["printable"] = object["status"]["printableStatus"].clone();
        recorded["printable"] = row["printable"].clone();
        ours["vmiPhase"] = vmi["status"]["phase"].clone();
        recorded["vmiPhase"] = row["vmiPhase"].clone();
        ours["vmiUidSame"] = json!(text(&vmi, "/metadata/uid") == Some(old.as_str()));
        recorded["vmiUidSame"] = row["vmiUidSame"].clone();
    }
    Ok(differs("end", &recorded, &ours))
}

/// A restart, and a patch while the old VMI is still there or when it has gone.
async fn window(traces: &Traces, vm: &Vm<'_>, row: &Value, present: bool) -> anyhow::Result<Option<String>> {
    let old = vm.run(traces, "Always").await?;
    vm.call("restart").await?;
    if present {
        let leaving = |vmi: &Value| vmi.pointer("/metadata/deletionTimestamp").is_some();
        anyhow::ensure!(vm.until(PATIENCE, leaving).await?.is_some(), "the VMI is not deleted");
    } else {
        let gone = |vmi: &Value| text(vmi, "/metadata/uid") != Some(old.as_str());
        anyhow::ensure!(vm.until(PATIENCE, gone).await?.is_some(), "the VMI does not go");
    }
    vm.patch().await?;
    let next = vm.next(&old, PATIENCE).await?;
    let ours = json!({
        "inNextVMI": next.as_ref().map(patched),
        "restartRequired": vm.restart_required().await?,
    });
    let recorded = json!({"inNextVMI": row["inNextVMI"], "restartRequired": row["restartRequired"]});
    Ok(differs("window", &recorded, &ours))
}

/// A patch sent at the DELETED event.
async fn race(traces: &Traces, vm: &Vm<'_>, row: &Value) -> anyhow::Result<Option<String>> {
    let old = vm.run(traces, "Always").await?;
    vm.wire.json(User::Admin, "DELETE", &vmi_path(NAMESPACE, &vm.name), &Value::Null).await?;
    let gone = |vmi: &Value| text(vmi, "/metadata/uid") != Some(old.as_str());
    anyhow::ensure!(vm.until(PATIENCE, gone).await?.is_some(), "the VMI does not go");
    let status = vm.patch().await?;
    let next = vm.next(&old, PATIENCE).await?;
    let ours = json!({"patchStatus": status, "patchInNextVMI": next.as_ref().map(patched)});
    let recorded = json!({"patchStatus": row["patchStatus"], "patchInNextVMI": row["patchInNextVMI"]});
    Ok(differs("race", &recorded, &ours))
}

/// The sure way: halt, patch, start.
async fn halted(traces: &Traces, vm: &Vm<'_>, row: &Value) -> anyhow::Result<Option<String>> {
    let old = vm.run(traces, "Always").await?;
    vm.set_strategy("Halted").await?;
    anyhow::ensure!(vm.until(PATIENCE, Value::is_null).await?.is_some(), "the VMI does not go");
    vm.patch().await?;
    vm.set_strategy("Always").await?;
    let next = vm.next(&old, PATIENCE).await?;
    let recorded = json!({"patchInVMI": row["patchInVMI"]});
    let ours = json!({"patchInVMI": next.as_ref().map(patched)});
    Ok(differs("route", &recorded, &ours))
}
