//! Plans as tables, YAML, JSON, patches and diffs.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use similar::TextDiff;
use tabled::builder::Builder;
use tabled::settings::{Alignment, Padding, Style, object::Columns};

use super::CliError;
use super::input::Manifest;
use super::plan::Planned;
use crate::plan::detect::Confidence;
use crate::plan::settings::{Effect, Outcome, Setting};
use crate::plan::{Plan, patch};

/// The published shape of `-o json` and `-o yaml`.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanList<'a> {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<&'a Plan>,
}

fn list<'a>(plans: impl Iterator<Item = &'a Plan>) -> PlanList<'a> {
    PlanList { api_version: "wintune.dev/v1alpha1", kind: "PlanList", items: plans.collect() }
}

/// The JSON Schema of `-o json`, as it is published in `schemas/`.
pub(super) fn schema() -> Result<String, CliError> {
    let mut schema = schemars::schema_for!(PlanList<'static>);
    schema.insert("$id".to_owned(), "https://wintune.dev/schemas/v1alpha1/plan.json".into());
    serde_json::to_string_pretty(&schema).map(|t| t + "\n").map_err(|e| CliError::Print(e.to_string()))
}

pub(super) fn json<'a>(plans: impl Iterator<Item = &'a Plan>) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(&list(plans)).map_err(|e| CliError::Print(e.to_string()))?;
    Ok(text + "\n")
}

pub(super) fn yaml<'a>(plans: impl Iterator<Item = &'a Plan>) -> Result<String, CliError> {
    to_yaml(&list(plans))
}

fn to_yaml(value: &impl Serialize) -> Result<String, CliError> {
    serde_saphyr::to_string(value).map_err(|e| CliError::Print(e.to_string()))
}

pub(super) fn patch(planned: &Planned) -> Result<String, CliError> {
    let patch = planned.plan.as_ref().map(|p| patch::manual_patch(&planned.manifest.vm, &p.change)).unwrap_or_default();
    let text = serde_json::to_string(&patch).map_err(|e| CliError::Print(e.to_string()))?;
    Ok(text + "\n")
}

pub(super) fn diff(planned: &[Planned]) -> Result<String, CliError> {
    let mut text = String::new();
    for Planned { manifest, plan, says: _ } in planned {
        let Ok(plan) = plan else { continue };
        let mut after = manifest.object.clone();
        if let Some(domain) = after.pointer_mut(crate::plan::facts::DOMAIN) {
            *domain = plan.change.domain.clone();
        }
        let (old, new) = (to_yaml(&manifest.object)?, to_yaml(&after)?);
        let name = format!("{}/{}", plan.vm.namespace, plan.vm.name);
        if old != new {
            let diff = TextDiff::from_lines(&old, &new);
            let mut unified = diff.unified_diff();
            text += &unified.context_radius(3).header(&format!("{name} now"), &format!("{name} planned")).to_string();
        }
    }
    Ok(text)
}

pub(super) fn table(planned: &[Planned]) -> String {
    let mut text = String::new();
    for (index, Planned { manifest, plan, says }) in planned.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        match plan {
            Ok(plan) => {
                one(&mut text, plan);
                operator(&mut text, says);
            }
            Err(why) => without_plan(&mut text, manifest, why),
        }
    }
    text
}

/// A VM that nothing is asked of.
pub(super) fn without_plan(text: &mut String, manifest: &Manifest, why: &str) {
    let _ = writeln!(text, "{}/{}: {why}", manifest.vm.namespace, manifest.vm.name);
}

fn one(text: &mut String, plan: &Plan) {
    heading(text, plan);
    for (title, shown) in groups(plan) {
        if shown.is_empty() {
            continue;
        }
        let _ = writeln!(text, "  {title}:");
        let mut builder = Builder::default();
        builder.push_record(["SETTING", "NOW", "WANTED", "OUTCOME"]);
        for setting in shown {
            let now = setting.current.as_ref().map_or_else(|| "-".to_owned(), Value::to_string);
            builder.push_record([setting.field.clone(), now, setting.desired.to_string(), outcome(setting)]);
        }
        indented(text, builder);
    }
    let satisfied: Vec<&str> =
        plan.settings.iter().filter(|s| s.outcome == Outcome::Satisfied).map(|s| s.field.as_str()).collect();
    if !satisfied.is_empty() {
        let _ = writeln!(text, "  already so: {}", satisfied.join(", "));
    }
    if let Some(migration) = &plan.migration {
        let _ = writeln!(text, "  nodes that can take it: {}", migration.words());
    }
    notes(text, plan);
}

/// Settings by what it takes to have them.
fn groups(plan: &Plan) -> [(&'static str, Vec<&Setting>); 4] {
    let of = |fits: fn(&Setting) -> bool| plan.settings.iter().filter(|s| fits(s)).collect();
    [
        ("no driver needed", of(|s| s.is_write() && s.effect == Effect::PowerCycle)),
        (
            "needs driver proof, or something that this release does not have",
            of(|s| matches!(s.outcome, Outcome::Waits { .. })),
        ),
        ("refused", of(|s| matches!(s.outcome, Outcome::Refused { .. }))),
        ("stays as it is", of(|s| matches!(s.outcome, Outcome::Kept { .. } | Outcome::Stays { .. }))),
    ]
}

/// One line that says which VM, whether it is Windows, and what comes of it.
pub(super) fn heading(text: &mut String, plan: &Plan) {
    let name = format!("{}/{}", plan.vm.namespace, plan.vm.name);
    let signs: Vec<&str> = plan.detection.signs.iter().take(2).map(|s| s.found.as_str()).collect();
    let signs = if signs.is_empty() { "no sign of it".to_owned() } else { signs.join(", ") };
    let verdict = match plan.detection.confidence {
        Confidence::No => "not Windows, nothing to do; if it is, label it harvesterhci.io/os=windows",
        Confidence::Certain => "Windows for certain",
        Confidence::Sure => "Windows",
        Confidence::Unsure => "perhaps Windows",
    };
    let summary = plan.summary();
    let version = plan.guest.as_ref().map(|g| format!(", {g}")).unwrap_or_default();
    let _ = write!(text, "{name}: {verdict}{version} ({signs})");
    if plan.is_windows() {
        let _ = write!(
            text,
            "; profile {} revision {}: {} to write, {} already so, {} kept as the owner chose, {} refused",
            plan.profile, plan.profile_revision, summary.changes, summary.satisfied, summary.kept, summary.refused
        );
    }
    text.push('\n');
}

/// Findings, holds and assumptions, a line each.
pub(super) fn notes(text: &mut String, plan: &Plan) {
    for finding in &plan.findings {
        let severity = format!("{:?}", finding.severity).to_lowercase();
        let _ = writeln!(text, "  {severity} {}: {} [{}]", finding.id, finding.text, finding.source);
    }
    let mut said: Vec<&str> = Vec::new();
    for setting in &plan.settings {
        if let Outcome::Refused { rule, why, unblock } = &setting.outcome
            && !said.contains(&why.as_str())
        {
            said.push(why);
            let _ = writeln!(text, "  refused, {rule}: {why}; {unblock}");
        }
    }
    for setting in &plan.settings {
        if let Outcome::Waits { evidence, unblock } = &setting.outcome
            && !said.contains(&evidence.as_str())
        {
            said.push(evidence);
            let _ = writeln!(text, "  waits for {evidence}; {unblock}");
        }
    }
    for hold in &plan.holds {
        let _ = writeln!(text, "  proposed only, {}: {}; {}", hold.rule, hold.why, hold.unblock);
    }
    for assumption in &plan.assumptions {
        let _ = writeln!(text, "  assumed: {assumption}");
    }
    if plan.has_changes() {
        let _ =
            writeln!(text, "  takes effect when the VM is stopped and started; a reboot inside Windows is not enough");
    }
}

/// What the operator would make of a plan with changes, as far as a manifest tells.
fn operator(text: &mut String, says: &[String]) {
    for line in says {
        let _ = writeln!(text, "  the operator {line}");
    }
}

pub(super) fn indented(text: &mut String, builder: Builder) {
    let mut table = builder.build();
    table.with(Style::empty()).with(Padding::new(0, 2, 0, 0)).modify(Columns::new(..), Alignment::left());
    for line in table.to_string().lines() {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
}

/// An outcome in a few words.
pub(super) fn outcome(setting: &Setting) -> String {
    match &setting.outcome {
        Outcome::Write => "write".to_owned(),
        Outcome::Satisfied => "already so".to_owned(),
        Outcome::Kept { .. } => "kept as the owner chose".to_owned(),
        Outcome::Waits { .. } => "waits for proof".to_owned(),
        Outcome::Stays { rule, .. } => format!("stays: {rule}"),
        Outcome::Refused { rule, .. } => format!("refused: {rule}"),
    }
}
