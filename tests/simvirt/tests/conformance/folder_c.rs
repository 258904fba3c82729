//! Patches of running VMs: when RestartRequired comes and goes, what reaches the VMI, how the generations move.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::compare::{diff, differs, sorted, status_and_message};
use crate::folder_d4::condition;
use crate::report::Report;
use crate::traces::{Traces, text};
use crate::wire::{CALM, User, Wire, subresource_path, vm_path, vmi_path};

pub(crate) async fn replay(
    folder: &str,
    namespace: &str,
    traces: &Traces,
    wire: &Wire,
    report: &mut Report,
) -> anyhow::Result<()> {
    let rows = traces.rows(&format!("{folder}/table.json"))?;
    let mut made = HashSet::new();
    let mut compared = 0;
    for row in &rows {
        let vm = text(row, "/vm").unwrap_or_default();
        let step = text(row, "/step").unwrap_or_default();
        if made.insert(vm) {
            make(namespace, vm, traces, wire).await?;
        }
        let name = format!("{vm} {step}");
        let difference = one(namespace, vm, row, wire).await?;
        report.compared(folder, &name, difference);
        compared += 1;
    }
    let rest = traces.requests(folder)?.saturating_sub(compared);
    report.unsupported(
        folder,
        "looks at VM and VMI around the rows (in the rows), and creations, whose bodies are not stored",
        rest,
    );
    Ok(())
}

/// The manifests of these scenarios are not stored. What the patches need is added to the common one: `onefeature`
/// has features already, `sockets` a socket count.
async fn make(namespace: &str, name: &str, traces: &Traces, wire: &Wire) -> anyhow::Result<()> {
    let strategy = match name {
        "rerun" => "RerunOnFailure",
        "manual" => "Manual",
        _ => "Always",
    };
    let mut vm = traces.manifest(namespace, name, strategy)?;
    let domain = &mut vm["spec"]["template"]["spec"]["domain"];
    match name {
        "onefeature" => domain["features"]["hyperv"] = json!({"relaxed": {}, "spinlocks": {"spinlocks": 8191}}),
        "sockets" => domain["cpu"] = json!({"cores": 2, "sockets": 2, "threads": 1}),
        _ => {}
    }
    let collection = vm_path(namespace, "");
    wire.json(User::Admin, "POST", collection.trim_end_matches('/'), &vm).await?;
    if strategy == "Manual" {
        wire.json(User::Operator, "PUT", &subresource_path(namespace, name, "start"), &json!({})).await?;
    }
    let missed = wire
        .settle(&vm_path(namespace, name), |vm| {
            (condition(vm, "Ready") != Some(true)).then(|| format!("{name} does not run: {}", vm["status"]))
        })
        .await?;
    anyhow::ensure!(missed.is_none(), "{missed:?}");
    Ok(())
}

async fn one(namespace: &str, name: &str, row: &Value, wire: &Wire) -> anyhow::Result<Option<String>> {
    let path = vm_path(namespace, name);
    let before = wire.get(&vmi_path(namespace, name)).await?;
    let ours = wire.patch(User::Operator, &path, &row["patch"]).await?;
    let status = row["status"].as_u64().unwrap_or_default().try_into()?;
    if let Some(difference) = status_and_message(status, text(row, "/message").unwrap_or_default(), &ours) {
        return Ok(Some(difference));
    }
    // Where nothing is to change, it must stay so for a while.
    if row["restartRequiredBefore"] == row["restartRequiredAfter"] {
        tokio::time::sleep(CALM).await;
    }
    let wanted = json!({
        "restartRequired": row["restartRequiredAfter"],
        "message": row["condition"]["message"],
        "printableStatus": row["printableStatus"],
        "generation": row["generation"],
        "observedGeneration": row["observedGeneration"],
        "desiredGeneration": row["desiredGeneration"],
    });
    let difference = wire.settle(&path, |vm| differs("VM", &wanted, &outcome(vm))).await?;
    if difference.is_some() {
        return Ok(difference);
    }
    let recorded = row["vmiSpecDiff"].as_array().cloned().unwrap_or_default();
    let recorded = sorted(recorded);
    wire.settle(&vmi_path(namespace, name), |vmi| {
        differs("VMI spec", &recorded, &sorted(diff(&before["spec"], &vmi["spec"])))
    })
    .await
}

fn outcome(vm: &Value) -> Value {
    let restart = vm["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "RestartRequired");
    json!({
        "restartRequired": restart.is_some_and(|c| c["status"] == "True"),
        "message": restart.map(|c| &c["message"]),
        "printableStatus": vm["status"]["printableStatus"],
        "generation": vm["metadata"]["generation"],
        "observedGeneration": vm["status"]["observedGeneration"],
        "desiredGeneration": vm["status"]["desiredGeneration"],
    })
}
