//! `wintune explain`: every setting with its reason, source and effect.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::Value;

use super::plan::{Outcome as All, Planned, plan_all};
use super::{CliError, ExplainArgs, print, render};
use crate::plan::settings::{Effect, Outcome, Setting};

pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode, CliError> {
    let All { planned, faults } = plan_all(&args.manifests)?;
    let mut text = String::new();
    for Planned { manifest, plan, says: _ } in &planned {
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
        let wanted = |s: &&Setting| args.field.as_ref().is_none_or(|f| s.field.contains(f.as_str()));
        let mut shown = 0;
        for setting in plan.settings.iter().filter(wanted) {
            explain(&mut text, setting);
            shown += 1;
        }
        if let (0, Some(field)) = (shown, &args.field) {
            let _ = writeln!(text, "  no setting of this plan has {field:?} in its name");
        }
        render::notes(&mut text, plan);
        text.push('\n');
    }
    print(&text)?;
    if faults.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(CliError::Input(faults)) }
}

fn explain(text: &mut String, setting: &Setting) {
    let now = setting.current.as_ref().map_or_else(|| "absent".to_owned(), Value::to_string);
    let _ = writeln!(text, "\n  {}", setting.field);
    let _ = writeln!(text, "    now      {now}");
    let _ = writeln!(text, "    wanted   {}", setting.desired);
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
