//! Combinations of settings: what the VM's webhooks refuse, what only the VMI's refuse, and what they fill in.

use serde_json::{Value, json};

use crate::compare::{diff, differs, sorted, status_and_message};
use crate::report::Report;
use crate::traces::{Traces, text};
use crate::wire::{User, Wire, vm_path, vmi_path};

const FOLDER: &str = "b2-combinations";
const NAMESPACE: &str = "scen-b2";

pub(crate) async fn replay(traces: &Traces, wire: &Wire, report: &mut Report) -> anyhow::Result<()> {
    let rows = traces.rows(&format!("{FOLDER}/table.json"))?;
    let index = traces.rows(&format!("{FOLDER}/index.json"))?;
    let mut compared = 0;
    for row in &rows {
        let name = &vm_name(&index, text(row, "/name").unwrap_or_default());
        let vm = traces.manifest(NAMESPACE, name, "Halted")?;
        let collection = vm_path(NAMESPACE, "");
        let made = wire.json(User::Admin, "POST", collection.trim_end_matches('/'), &vm).await?;
        report.compared(FOLDER, &format!("{name}-create"), status_and_message(201, "", &made));
        let (difference, template) = patch(wire, name, row, &made.body).await?;
        report.compared(FOLDER, &format!("{name}-patch"), difference);
        let difference = create_vmi(wire, name, row, &template).await?;
        report.compared(FOLDER, &format!("{name}-vmi-dryrun"), difference);
        compared += 3;
        if row.get("afterStart").is_some() {
            report.compared(FOLDER, &format!("{name}-start"), start(wire, name, row).await?);
            compared += 1;
        }
    }
    let rest = traces.requests(FOLDER)?.saturating_sub(compared);
    report.unsupported(FOLDER, "looks at and deletions of VMs between the rows, whose bodies are not stored", rest);
    Ok(())
}

/// The VM of a row. Row names may hold letters that no object name may; the path of the row's patch has the VM's.
fn vm_name(index: &[Value], row: &str) -> String {
    let patch = format!("{row}-patch");
    index
        .iter()
        .find(|r| text(r, "/name") == Some(patch.as_str()))
        .and_then(|r| text(r, "/path"))
        .and_then(|path| path.rsplit('/').next())
        .and_then(|last| last.split('?').next())
        .unwrap_or(row)
        .to_owned()
}

/// Patches the VM; returns its template afterwards, or the wanted one if the patch is refused.
async fn patch(wire: &Wire, name: &str, row: &Value, made: &Value) -> anyhow::Result<(Option<String>, Value)> {
    let operations = row.get("ops").cloned().unwrap_or_default();
    let ours = wire.patch(User::Operator, &vm_path(NAMESPACE, name), &operations).await?;
    let status = status(row, "/vmPatch/status");
    let message = text(row, "/vmPatch/message").unwrap_or_default();
    let mut difference = status_and_message(status, message, &ours);
    if ours.status == 200 {
        let recorded = spec_only(row.get("vmDiff"));
        let changed = diff(&json!({"spec": made["spec"]}), &json!({"spec": ours.body["spec"]}));
        difference = difference.or_else(|| differs("change of the VM", &recorded, &sorted(changed)));
        return Ok((difference, ours.body["spec"]["template"].clone()));
    }
    let mut wanted = made.clone();
    json_patch::patch(&mut wanted, &serde_json::from_value::<json_patch::Patch>(operations)?)?;
    Ok((difference, wanted["spec"]["template"].clone()))
}

fn spec_only(differences: Option<&Value>) -> Value {
    let differences = differences.and_then(Value::as_array).cloned().unwrap_or_default();
    let spec = |d: &Value| text(d, "/path").is_some_and(|p| p.starts_with("/spec"));
    sorted(differences.into_iter().filter(spec).collect())
}

fn status(row: &Value, pointer: &str) -> u16 {
    let status = row.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    status.try_into().unwrap_or_default()
}

async fn create_vmi(wire: &Wire, name: &str, row: &Value, template: &Value) -> anyhow::Result<Option<String>> {
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": format!("{name}-dry"), "namespace": NAMESPACE,
            "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
        },
        "spec": template["spec"],
    });
    let collection = vmi_path(NAMESPACE, "");
    let path = format!("{}?dryRun=All&fieldManager=virt-controller", collection.trim_end_matches('/'));
    let ours = wire.json(User::Admin, "POST", &path, &vmi).await?;
    let message = text(row, "/vmiCreate/message").unwrap_or_default();
    let difference = status_and_message(status(row, "/vmiCreate/status"), message, &ours);
    Ok(difference.or_else(|| {
        let recorded = row.get("vmiSpecDiff").and_then(Value::as_array).cloned()?;
        let changed = diff(&template["spec"], &ours.body["spec"]);
        differs("what the VMI got besides", &sorted(recorded), &sorted(changed))
    }))
}

/// Starts a VM whose VMI is refused; the VM says so in its conditions.
async fn start(wire: &Wire, name: &str, row: &Value) -> anyhow::Result<Option<String>> {
    let path = vm_path(NAMESPACE, name);
    let always = json!([{"op": "replace", "path": "/spec/runStrategy", "value": "Always"}]);
    wire.patch(User::Operator, &path, &always).await?;
    let recorded = essence(&row["afterStart"]);
    let difference = wire.settle(&path, |vm| differs("status", &recorded, &essence(&vm["status"]))).await?;
    let halt = json!([{"op": "replace", "path": "/spec/runStrategy", "value": "Halted"}]);
    wire.patch(User::Operator, &path, &halt).await?;
    Ok(difference)
}

fn essence(status: &Value) -> Value {
    let conditions: Vec<Value> = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| json!([c["type"], c["status"], c["reason"], c["message"]]))
        .collect();
    json!({"printableStatus": status["printableStatus"], "conditions": conditions})
}
