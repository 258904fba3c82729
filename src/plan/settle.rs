//! From what each group of settings wants to what is written: capabilities, prerequisites, known-bad rules, migration and
//! KubeVirt's own rules each take settings away until nothing more has to go.

use std::borrow::Cow;

use serde_json::Value;

use super::context::Context;
use super::facts::Wanted;
use super::json;
use super::known_bad::{self, Hit, Rule};
use super::migration::{self, ENOUGH, Migration};
use super::patch::{self, Change};
use super::profile::DataError;
use super::settings::{Outcome, Setting};
use super::sizing::sizing;
use super::{detect, validate};

/// What comes of the settings together.
pub(super) struct Settled {
    pub(super) change: Change,
    pub(super) migration: Option<Migration>,
    /// Known-bad rules that hold whatever is written.
    pub(super) bad: Vec<&'static Rule>,
}

/// Takes settings away until the rest may be written together.
pub(super) fn settle(cx: &Context<'_>, wanted: &Wanted, settings: &mut [Setting]) -> Result<Settled, DataError> {
    if let Some(refusal) = wrong_architecture(cx) {
        refuse_writes(settings, &refusal);
    }
    not_served(cx, settings);
    too_many(settings)?;
    // Each round takes at least one write away, so there are at most as many rounds as settings.
    loop {
        while forsaken(cx, settings) {}
        let change = patch::change(cx.domain, settings);
        let hits = known_bad::hits(cx, &change.domain, settings)?;
        // Every rule has its say before the next round: `|`, not `||`.
        if hits.iter().fold(false, |changed, hit| known_bad::refuse(cx, hit, settings) | changed) {
            continue;
        }
        let solved = migration::solve(cx, &change.domain)?;
        if let Some(migration) = &solved
            && !wanted.allow_unmigratable
            && migration.before >= ENOUGH
            && migration.after < ENOUGH
        {
            refuse_unmigratable(cx, migration, settings)?;
            continue;
        }
        let broken = validate::violations(&cx.facts.vm, &change.domain);
        let has_writes = settings.iter().any(Setting::is_write);
        if let (Some(first), true) = (broken.first(), has_writes) {
            let texts: Vec<&str> = broken.iter().map(|v| v.text.as_str()).collect();
            let why = format!("KubeVirt would refuse the VM or its start: {} ({})", texts.join("; "), first.source);
            refuse_writes(settings, &Outcome::refused("kubevirt-rules", why, "put the VM right first"));
            continue;
        }
        return Ok(Settled { change, migration: solved, bad: left_over(hits, settings) });
    }
}

/// Rules that no refusal speaks of already.
fn left_over(hits: Vec<Hit>, settings: &[Setting]) -> Vec<&'static Rule> {
    let said = |rule: &&'static Rule| {
        let refused = |s: &Setting| matches!(&s.outcome, Outcome::Refused { rule: by, .. } if *by == rule.id);
        !settings.iter().any(refused)
    };
    hits.iter().map(|hit| hit.rule).filter(|rule| said(rule)).collect()
}

fn refuse_writes(settings: &mut [Setting], refusal: &Outcome) {
    for setting in settings.iter_mut().filter(|s| s.is_write()) {
        setting.outcome = refusal.clone();
    }
}

/// Everything here is of the PC: enlightenments, its clock, its buses.
fn wrong_architecture(cx: &Context<'_>) -> Option<Outcome> {
    let architecture = json::text(&cx.facts.vm.spec, "/template/spec/architecture").unwrap_or("amd64");
    (architecture != "amd64" && !architecture.is_empty()).then(|| {
        let why = format!("Hyper-V features exist on amd64 only, this VM is {}", detect::printable(architecture));
        Outcome::refused("architecture", why, "nothing to do")
    })
}

/// A field that the cluster's schema does not have would be dropped.
fn not_served(cx: &Context<'_>, settings: &mut [Setting]) {
    let capabilities = &cx.facts.capabilities;
    if capabilities.missing.is_empty() {
        return;
    }
    for setting in settings.iter_mut().filter(|s| s.is_write() && !capabilities.serves(&s.pointer)) {
        setting.outcome = Outcome::refused(
            "not-served",
            "this KubeVirt's schema does not have the field, and would drop it",
            "upgrade KubeVirt; offline, name its version with --kubevirt or --harvester",
        );
    }
}

/// The record keeps what is replaced below 4 kB, so a VM with very many disks gets its settings for the first of them,
/// by name. What is so already counts as well: it may be ours, and the next plan must come to the same.
fn too_many(settings: &mut [Setting]) -> Result<(), DataError> {
    let most = sizing()?.record.bytes;
    let counts = |s: &Setting| matches!(s.outcome, Outcome::Write | Outcome::Satisfied) && !s.pointer.ends_with("/bus");
    let mut left = most;
    for setting in settings.iter_mut().filter(|s| of_disk(s) && counts(s)) {
        match left.checked_sub(cost(setting)) {
            Some(rest) => left = rest,
            None if setting.is_write() => {
                setting.outcome = Outcome::refused(
                    "record-full",
                    format!(
                        "the record keeps at most {most} bytes of former values of disks, and those before it take them"
                    ),
                    "set it by hand in the VM; what its owner has stays",
                );
            }
            None => {}
        }
    }
    Ok(())
}

/// Bytes of an entry in the record, about: its place, its value, a short former value, and what is around them.
fn cost(setting: &Setting) -> usize {
    const AROUND: usize = 34;
    setting.pointer.len() + setting.desired.to_string().len() + AROUND
}

fn of_disk(setting: &Setting) -> bool {
    setting.pointer.starts_with("/devices/disks/")
}

/// Refuses writes whose company was taken away. Whether there was one.
fn forsaken(cx: &Context<'_>, settings: &mut [Setting]) -> bool {
    let gone = |s: &Setting| matches!(s.outcome, Outcome::Refused { .. } | Outcome::Stays { .. });
    if !settings.iter().any(|s| gone(s) && !s.pointer.is_empty()) {
        return false;
    }
    let at = |s: &Setting, need: &str| {
        s.pointer.strip_prefix(need).is_some_and(|rest| matches!(rest, "" | "/enabled" | "/present"))
    };
    let missing = |need: &String| {
        let (mut taken, mut left) = (false, false);
        for setting in settings.iter().filter(|s| at(s, need)) {
            taken |= gone(setting);
            left |= !gone(setting);
        }
        taken && !left && json::at(cx.domain, need).is_none() && cx.facts.preference.gives(need).is_none()
    };
    let found = settings.iter().enumerate().filter(|(_, s)| s.is_write()).find_map(|(index, s)| {
        let need = s.needs.iter().find(|n| missing(n))?;
        Some((index, super::settings::field(need)))
    });
    let Some((index, need)) = found else { return false };
    if let Some(setting) = settings.get_mut(index) {
        let why = format!("it goes together with {need}, which is not written");
        setting.outcome = Outcome::refused("prerequisite", why, format!("see {need}"));
    }
    true
}

/// Refuses the settings that alone would leave the VM without a second node; where none does alone, all of them.
fn refuse_unmigratable(cx: &Context<'_>, all: &Migration, settings: &mut [Setting]) -> Result<(), DataError> {
    let refusal = |migration: &Migration| Outcome::Refused {
        rule: Cow::Borrowed("unmigratable"),
        why: format!("fewer than {ENOUGH} nodes could take the VM: {}", migration.words()),
        unblock: "set allowUnmigratable: true in the policy, or leave the setting out with an override".to_owned(),
    };
    let mut culprits = Vec::new();
    for (index, setting) in settings.iter().enumerate().filter(|(_, s)| s.is_write()) {
        let alone = patch::change(cx.domain, std::slice::from_ref(setting));
        if let Some(migration) = migration::solve(cx, &alone.domain)?
            && migration.after < ENOUGH
        {
            culprits.push((index, refusal(&migration)));
        }
    }
    if culprits.is_empty() {
        refuse_writes(settings, &refusal(all));
    }
    for (index, refusal) in culprits {
        if let Some(setting) = settings.get_mut(index) {
            setting.outcome = refusal;
        }
    }
    Ok(())
}

/// Puts what the running instance has, and what preference or instancetype gives, beside what the VM has.
pub(super) fn four_ways(cx: &Context<'_>, settings: &mut [Setting]) {
    let running = cx.facts.running.as_ref().map(|r| &r.domain);
    for setting in settings.iter_mut().filter(|s| !s.pointer.is_empty()) {
        setting.running = running.and_then(|domain| json::at(domain, &setting.pointer)).cloned();
        setting.preferred = preferred(cx, &setting.pointer).cloned();
    }
}

fn preferred<'a>(cx: &'a Context<'_>, place: &str) -> Option<&'a Value> {
    let facts = cx.facts;
    if let Some((Some(value), _)) = facts.instancetype.owns(place) {
        return Some(value);
    }
    let read = facts.preference.read()?;
    match (place.strip_prefix("/features/hyperv"), place.strip_prefix("/clock/timer"), place) {
        (Some(rest), _, _) => json::at(&read.hyperv, rest),
        (_, Some(rest), _) => json::at(&read.timers, rest),
        (_, _, "/clock/utc") => json::at(&read.offset, "/utc"),
        _ => facts.preference.gives(place).map(|(value, _)| value),
    }
}
