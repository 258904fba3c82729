//! `wintune explain`: every setting with its reason, source and effect.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::Value;

use super::plan::{Outcome as All, Planned, plan_all};
use super::{CliError, ExplainArgs, print, render};
use crate::plan::detect::printable;
use crate::plan::facts::DOMAIN;
use crate::plan::json;
use crate::plan::settings::{Effect, Outcome, Setting};

pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let All { planned, faults } = plan_all(&args.manifests)?;
    let mut text = String::new();
    let (vm, field) = target(args.field.as_deref(), &planned);
    let mut found = 0;
    for Planned { manifest, plan, says: _ } in planned.iter().filter(|p| vm.is_none_or(|vm| p.manifest.vm.name == vm)) {
        let plan = match plan {
            Ok(plan) => plan,
            Err(why) => {
                render::without_plan(&mut text, manifest, why);
                continue;
            }
        };
        render::heading(&mut text, plan);
        for sign in &plan.detection.signs {
            let _ = writeln!(text, "  sign: {} says {:?} ({:?})", sign.found, sign.says, sign.weight);
        }
        let wanted = |s: &&Setting| field.is_none_or(|f| s.field.contains(f));
        let mut shown = 0;
        for setting in plan.settings.iter().filter(wanted) {
            explain(&mut text, setting, &manifest.object);
            shown += 1;
        }
        found += shown;
        if let (0, Some(field)) = (shown, field) {
            let _ = writeln!(text, "  no setting of this plan has {field:?} in its name");
        }
        render::notes(&mut text, plan);
        text.push('\n');
    }
    print(&text)?;
    if let (Some(vm), Some(field), 0) = (vm, field, found) {
        return Err(CliError::NotFound(format!(
            "no setting of the plan of {vm} has {field:?} in its name; leave .{field} out to see all of them"
        )));
    }
    if faults.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(CliError::Input(faults)) }
}

/// `VM.FIELD` of a VM that was given, or a field alone. Names of VMs may have dots: the longest that fits counts.
fn target<'a>(given: Option<&'a str>, planned: &'a [Planned]) -> (Option<&'a str>, Option<&'a str>) {
    let Some(given) = given else { return (None, None) };
    let rest = |vm: &crate::plan::facts::Vm| {
        let own = given.strip_prefix(&format!("{}/", vm.namespace)).unwrap_or(given);
        let rest = own.strip_prefix(vm.name.as_str())?;
        rest.strip_prefix('.').or_else(|| rest.is_empty().then_some(""))
    };
    let fitting = planned.iter().filter_map(|p| Some((p.manifest.vm.name.as_str(), rest(&p.manifest.vm)?)));
    match fitting.max_by_key(|(name, _)| name.len()) {
        Some((name, field)) => (Some(name), Some(field).filter(|f| !f.is_empty())),
        None => (None, Some(given)),
    }
}

/// Who wrote a place of a VM last, by its managedFields. Lists are owned as a whole.
fn owner(object: &Value, place: &str) -> String {
    let managers = json::list(object, "/metadata/managedFields");
    if managers.is_empty() {
        return "not known: the manifest has no managedFields (kubectl get --show-managed-fields)".to_owned();
    }
    let owns = |entry: &&Value| {
        let mut fields = entry.get("fieldsV1");
        for token in DOMAIN.split('/').chain(place.split('/')).filter(|t| !t.is_empty()) {
            if token.starts_with(json::BY_NAME) {
                break;
            }
            fields = fields.and_then(|f| f.get(format!("f:{token}")));
        }
        fields.is_some()
    };
    let names: Vec<String> = managers
        .iter()
        .filter(owns)
        .map(|m| {
            let part = |p| printable(json::text(m, p).unwrap_or("?"));
            format!("{} ({})", part("/manager"), part("/operation"))
        })
        .collect();
    if names.is_empty() { "nobody: no manager has the field".to_owned() } else { names.join(", ") }
}

fn explain(text: &mut String, setting: &Setting, object: &Value) {
    let now = setting.current.as_ref().map_or_else(|| "absent".to_owned(), Value::to_string);
    let _ = writeln!(text, "\n  {}", setting.field);
    let _ = writeln!(text, "    now      {now}");
    let other = |value: &Option<Value>| value.as_ref().map(Value::to_string);
    if let Some(running) = other(&setting.running) {
        let _ = writeln!(text, "    running  {running}");
    }
    if let Some(preferred) = other(&setting.preferred) {
        let _ = writeln!(text, "    given    {preferred} by preference or instancetype");
    }
    let _ = writeln!(text, "    wanted   {}", setting.desired);
    if !setting.pointer.is_empty() {
        let _ = writeln!(text, "    owner    {}", owner(object, &setting.pointer));
    }
    let outcome = match &setting.outcome {
        Outcome::Write => "to be written".to_owned(),
        Outcome::Satisfied => "already so".to_owned(),
        Outcome::Kept { why } => format!("kept: {why}"),
        Outcome::Waits { evidence, unblock } => format!("waits for {evidence}; {unblock}"),
        Outcome::Stays { rule, why } => format!("stays, {rule}: {why}"),
        Outcome::Refused { rule, why, unblock } => format!("refused by {rule}: {why}; to unblock: {unblock}"),
    };
    let _ = writeln!(text, "    outcome  {outcome}");
    let _ = writeln!(text, "    reason   {}", setting.reason);
    let _ = writeln!(text, "    source   {}", setting.source);
    let effect = match setting.effect {
        Effect::Driver => {
            "after a stop and start of the VM, by a driver that Windows must have bound before: without it it does not start"
        }
        Effect::PowerCycle => "after a stop and start of the VM; a reboot inside Windows keeps the old machine",
    };
    let _ = writeln!(text, "    effect   {effect}");
}
