//! The Hyper-V enlightenments of a plan.
//!
//! On is written where nothing stands; an owner's explicit choice stays and is reported, unless an override asks for
//! the opposite. A feature goes in only with its prerequisites and only if every node that may host the VM has it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::facts::{Facts, Nodes, Wanted};
use super::json::{self, State};
use super::profile::{DataError, HypervValue, Knowledge, Profile, enlightenments};
use super::settings::{Outcome, Setting};
use crate::api::tuning::{Enlightenment, Switch};

/// What the clock settings of the same plan come to.
pub(super) struct ClockWillBe {
    /// The Hyper-V clock timer is on, or goes on together with this.
    pub(super) hyperv_timer: bool,
}

/// Plans every enlightenment.
pub(super) fn plan(
    facts: &Facts,
    wanted: &Wanted,
    profile: &Profile,
    clock: &ClockWillBe,
) -> Result<Vec<Setting>, DataError> {
    let domain = facts.vm.domain();
    let mut on: BTreeSet<Enlightenment> = BTreeSet::new();
    let mut refused: BTreeMap<Enlightenment, &'static str> = BTreeMap::new();
    let mut settings = Vec::new();
    for known in enlightenments()? {
        let Some(value) = profile.hyperv.get(&known.name) else { continue };
        let override_ = wanted.overrides.hyperv.get(&known.name).copied();
        let pointer = known.pointer();
        let current = json::at(domain, &pointer);
        let state = json::state(current, "enabled");
        let setting = |desired: Value| {
            let reason = match override_ {
                Some(_) => format!("override of the policy; profile: {}", value.reason),
                None => value.reason.clone(),
            };
            Setting::new(pointer.clone(), current, desired, &reason, &value.source)
        };
        let switch = |to: bool| {
            let mut setting = setting(Value::Bool(to));
            setting.pointer = format!("{pointer}/enabled");
            setting.field = format!("{}.enabled", setting.field);
            setting.current = json::at(domain, &setting.pointer).cloned();
            setting
        };
        match (override_.unwrap_or(value.value), state) {
            (Switch::On, State::On) => {
                on.insert(known.name);
                settings.push(setting(on_value(known, value)).outcome(Outcome::Satisfied));
            }
            (Switch::On, State::Off) if override_.is_none() => {
                refused.insert(known.name, "off by its owner");
                settings.push(setting(on_value(known, value)).outcome(Outcome::Kept {
                    why: format!(
                        "its owner set enabled: false; to change it, set overrides.hyperv.{}: Enabled in a policy",
                        name(known)
                    ),
                }));
            }
            (Switch::On, before) => {
                let outcome = admit(facts, known, clock, &on, &refused);
                match outcome {
                    Outcome::Write => on.insert(known.name),
                    _ => refused.insert(known.name, "refused").is_none(),
                };
                let setting = if before == State::Off { switch(true) } else { setting(on_value(known, value)) };
                settings.push(setting.outcome(outcome));
            }
            (Switch::Off, State::On) if override_.is_some() => settings.push(switch(false).outcome(Outcome::Write)),
            (Switch::Off | Switch::Leave, State::On) => {
                on.insert(known.name);
                settings.push(setting(current.cloned().unwrap_or_default()).outcome(Outcome::Kept {
                    why: format!(
                        "its owner set it, and the profile leaves it alone ({}); to change it, set overrides.hyperv.{}: Disabled in a policy",
                        value.reason,
                        name(known)
                    ),
                }));
            }
            (Switch::Off | Switch::Leave, State::Absent | State::Off) => {}
        }
    }
    Ok(settings)
}

fn on_value(known: &Knowledge, value: &HypervValue) -> Value {
    match value.retries {
        Some(retries) if known.name == Enlightenment::Spinlocks => json!({"enabled": true, "spinlocks": retries}),
        _ => json!({"enabled": true}),
    }
}

/// The name that overrides use.
fn name(known: &Knowledge) -> String {
    serde_json::to_value(known.name).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Whether a feature that is missing may go in.
fn admit(
    facts: &Facts,
    known: &Knowledge,
    clock: &ClockWillBe,
    on: &BTreeSet<Enlightenment>,
    refused: &BTreeMap<Enlightenment, &'static str>,
) -> Outcome {
    if let Some(missing) = known.requires.iter().find(|r| !on.contains(r)) {
        let state = refused.get(missing).copied().unwrap_or("not asked for");
        return Outcome::Refused {
            rule: "prerequisite",
            why: format!("it needs {missing:?}, which is {state}"),
            unblock: format!("turn {missing:?} on first"),
        };
    }
    if known.clock && !clock.hyperv_timer {
        return Outcome::Refused {
            rule: "prerequisite",
            why: "it needs clock.timer.hyperv, which is off; QEMU would not start".to_owned(),
            unblock: "remove clock.timer.hyperv.present: false from the VM".to_owned(),
        };
    }
    match node_has(facts, &known.node) {
        Ok(()) => Outcome::Write,
        Err(outcome) => outcome,
    }
}

/// Whether every node that may host the VM carries a label `hyperv.node.kubevirt.io/<feature>`.
pub(super) fn node_has(facts: &Facts, feature: &str) -> Result<(), Outcome> {
    let Nodes::Known(pool) = &facts.nodes else { return Ok(()) };
    let eligible = pool.eligible(&facts.vm);
    if eligible.count == 0 {
        return Err(Outcome::Refused {
            rule: "no-eligible-node",
            why: "no schedulable KubeVirt node fits this VM's nodeSelector, so nothing is known of where it would run"
                .to_owned(),
            unblock: "check the node selector and the label kubevirt.io/schedulable of the nodes".to_owned(),
        });
    }
    if !eligible.features.contains(feature) {
        return Err(Outcome::Refused {
            rule: "node-lacks-feature",
            why: format!(
                "not every one of the {} eligible nodes carries hyperv.node.kubevirt.io/{feature}",
                eligible.count
            ),
            unblock: "keep the VM off such nodes with a nodeSelector, or upgrade their kernel".to_owned(),
        });
    }
    Ok(())
}
