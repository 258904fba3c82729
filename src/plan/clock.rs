//! The clock block of a plan: each part is written where nothing stands, never over an owner's choice.
//!
//! The whole block is written, because a preference's timers vanish as soon as the VM itself sets one (KubeVirt
//! pkg/instancetype/preference/apply/clock.go:35-44).

use serde_json::Value;

use super::facts::Facts;
use super::hyperv::{ClockWillBe, node_has};
use super::json::{self, State};
use super::profile::{ClockField, ClockValue, Profile};
use super::settings::{Outcome, Setting};

/// Node label ending for Hyper-V's reference time.
const TIME: &str = "time";

/// Plans every part of the clock, and says what the Hyper-V timer comes to.
pub(super) fn plan(facts: &Facts, profile: &Profile) -> (Vec<Setting>, ClockWillBe) {
    let mut hyperv_timer = false;
    let settings: Vec<Setting> = profile
        .clock
        .iter()
        .map(|(field, value)| {
            let setting = match field {
                ClockField::Utc => offset(facts.vm.domain(), *field, value),
                _ => timer(facts.vm.domain(), *field, value),
            };
            let setting = match (field, setting.is_write()) {
                (ClockField::Hyperv, true) => match node_has(facts, TIME) {
                    Ok(()) => setting,
                    Err(refused) => setting.outcome(refused),
                },
                _ => setting,
            };
            if *field == ClockField::Hyperv {
                hyperv_timer = matches!(setting.outcome, Outcome::Write | Outcome::Satisfied);
            }
            setting
        })
        .collect();
    (settings, ClockWillBe { hyperv_timer })
}

/// utc goes in only where neither utc nor a time zone stands.
fn offset(domain: &Value, field: ClockField, value: &ClockValue) -> Setting {
    let setting = of(field, domain, value);
    match (json::at(domain, field.pointer()), json::at(domain, "/clock/timezone")) {
        (Some(_), _) => setting.outcome(Outcome::Satisfied),
        (None, Some(zone)) => setting.outcome(Outcome::Kept {
            why: format!("its owner set the time zone {zone}; Windows may expect its hardware clock in local time"),
        }),
        (None, None) => setting.outcome(Outcome::Write),
    }
}

/// A timer goes in where it is missing. Where it stands, a missing tick policy is added and anything else stays.
fn timer(domain: &Value, field: ClockField, value: &ClockValue) -> Setting {
    let setting = of(field, domain, value);
    let current = json::at(domain, field.pointer());
    let state = json::state(current, "present");
    if state == State::Absent {
        return setting.outcome(Outcome::Write);
    }
    let wants_present = value.value.get("present").and_then(Value::as_bool).unwrap_or(true);
    if wants_present != (state == State::On) {
        let is = if state == State::On { "on" } else { "off" };
        return setting.outcome(Outcome::Kept { why: format!("its owner has this timer {is}; change it in the VM") });
    }
    let Some(wanted) = value.value.get("tickPolicy") else { return setting.outcome(Outcome::Satisfied) };
    match current.and_then(|c| json::at(c, "/tickPolicy")) {
        Some(has) if has == wanted => setting.outcome(Outcome::Satisfied),
        Some(has) => {
            setting.outcome(Outcome::Kept { why: format!("its owner chose tickPolicy {has}; change it in the VM") })
        }
        None => {
            let pointer = format!("{}/tickPolicy", field.pointer());
            Setting::new(pointer, None, wanted.clone(), &value.reason, &value.source).outcome(Outcome::Write)
        }
    }
}

fn of(field: ClockField, domain: &Value, value: &ClockValue) -> Setting {
    let current = json::at(domain, field.pointer());
    Setting::new(field.pointer().to_owned(), current, value.value.clone(), &value.reason, &value.source)
}
