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
    let mut settings: Vec<(ClockField, Setting)> = profile
        .clock
        .iter()
        .map(|(field, value)| {
            let setting = match field {
                ClockField::Utc => offset(facts, *field, value),
                _ => timer(facts, *field, value),
            };
            let setting = match (field, setting.is_write()) {
                (ClockField::Hyperv, true) => match node_has(facts, TIME) {
                    Ok(()) => setting,
                    Err(refused) => setting.outcome(refused),
                },
                _ => setting,
            };
            (*field, setting)
        })
        .collect();
    keep_preferred(facts, &mut settings);
    let hyperv_timer = settings.iter().any(|(field, setting)| {
        *field == ClockField::Hyperv
            && matches!(setting.outcome, Outcome::Write | Outcome::Satisfied)
            && json::state(Some(&setting.desired), "present") == State::On
    });
    (settings.into_iter().map(|(_, setting)| setting).collect(), ClockWillBe { hyperv_timer })
}

/// A preference's timers vanish as soon as the VM sets one. So where one has to be written, those that the
/// preference gives are written with it, as they are.
fn keep_preferred(facts: &Facts, settings: &mut [(ClockField, Setting)]) {
    let domain = facts.vm.domain();
    if !settings.iter().any(|(field, setting)| *field != ClockField::Utc && setting.is_write()) {
        return;
    }
    // The one timer of the API that no profile speaks of.
    const OTHER: &str = "kvm";
    if facts.preference.timer(domain, OTHER).is_some() {
        let refused = Outcome::Refused {
            rule: "preference-timers",
            why: format!(
                "the preference gives the timer {OTHER}, which would vanish with the first timer of the VM's own"
            ),
            unblock: "write the whole clock into the VM".to_owned(),
        };
        for (_, setting) in settings.iter_mut().filter(|(f, s)| *f != ClockField::Utc && s.is_write()) {
            setting.outcome = refused.clone();
        }
        return;
    }
    for (field, setting) in settings.iter_mut() {
        let name = field.pointer().rsplit('/').next().unwrap_or_default();
        if *field != ClockField::Utc
            && let Some((value, origin)) = facts.preference.timer(domain, name)
        {
            setting.pointer = field.pointer().to_owned();
            setting.current = None;
            // Where our part was missing in it, it is completed; otherwise it goes in as it is.
            let mut whole = value.clone();
            if let (true, Some(map)) = (setting.is_write(), whole.as_object_mut()) {
                map.insert("tickPolicy".to_owned(), setting.desired.clone());
            }
            setting.desired = whole;
            setting.reason = format!("{}; given by {origin}, whose timers vanish once the VM has one", setting.reason);
            setting.outcome = Outcome::Write;
        }
    }
}

/// utc goes in only where neither utc nor a time zone stands.
fn offset(facts: &Facts, field: ClockField, value: &ClockValue) -> Setting {
    let domain = facts.vm.domain();
    let setting = of(field, domain, value);
    if let Some((given, origin)) = facts.preference.offset(domain) {
        let mut setting = setting.outcome(Outcome::Satisfied);
        setting.current = Some(given.clone());
        setting.reason = format!("{}; given by {origin}", setting.reason);
        return setting;
    }
    match (json::at(domain, field.pointer()), json::at(domain, "/clock/timezone")) {
        (Some(_), _) => setting.outcome(Outcome::Satisfied),
        (None, Some(zone)) => setting.outcome(Outcome::Kept {
            why: format!("its owner set the time zone {zone}; Windows may expect its hardware clock in local time"),
        }),
        (None, None) => setting.outcome(Outcome::Write),
    }
}

/// A timer goes in where it is missing. Where it stands, a missing tick policy is added and anything else stays.
fn timer(facts: &Facts, field: ClockField, value: &ClockValue) -> Setting {
    let domain = facts.vm.domain();
    let mut setting = of(field, domain, value);
    let name = field.pointer().rsplit('/').next().unwrap_or_default();
    let preferred = facts.preference.timer(domain, name);
    if let Some((given, origin)) = preferred {
        setting.current = Some(given.clone());
        setting.reason = format!("{}; given by {origin}", setting.reason);
    }
    let current = json::at(domain, field.pointer()).or(preferred.map(|(value, _)| value));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::facts::{NodePool, NodeView, Nodes, Vm};
    use crate::plan::profile::named;
    use serde_json::json;
    use std::sync::Arc;

    fn facts(clock: &Value) -> Facts {
        let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"template": {"spec": {"domain": {"clock": clock}}}}});
        Facts::offline(Vm::from_object(&object).unwrap())
    }

    fn settings(facts: &Facts) -> (Vec<Setting>, bool) {
        let (settings, will_be) = plan(facts, named("migration-safe").unwrap().unwrap());
        (settings, will_be.hyperv_timer)
    }

    fn writes(clock: &Value) -> Vec<String> {
        let (settings, _) = settings(&facts(clock));
        settings.iter().filter(|s| s.is_write()).map(|s| format!("{} {}", s.pointer, s.desired)).collect()
    }

    #[track_caller]
    fn kept(clock: &Value, field: &str, words: &str) {
        let (settings, _) = settings(&facts(clock));
        let setting = settings.iter().find(|s| s.field == field).unwrap();
        let Outcome::Kept { why } = &setting.outcome else { panic!("{setting:?}") };
        assert!(why.contains(words), "{why}");
    }

    #[test]
    fn the_whole_block_goes_in_where_nothing_stands() {
        let all = [
            "/clock/utc {}",
            "/clock/timer/hyperv {\"present\":true}",
            "/clock/timer/hpet {\"present\":false}",
            "/clock/timer/pit {\"tickPolicy\":\"delay\"}",
            "/clock/timer/rtc {\"tickPolicy\":\"catchup\"}",
        ];
        for nothing in [json!(null), json!({}), json!({"timer": {}}), json!({"utc": null, "timer": {"pit": null}})] {
            assert_eq!(writes(&nothing), all, "{nothing}");
        }
    }

    #[test]
    fn a_complete_block_is_left_as_it_is() {
        let done = json!({"utc": {"offsetSeconds": 3600}, "timer": {"hyperv": {}, "hpet": {"present": false},
            "pit": {"present": true, "tickPolicy": "delay"}, "rtc": {"tickPolicy": "catchup", "track": "guest"}}});
        assert_eq!(writes(&done), Vec::<String>::new());
        let (settings, hyperv) = settings(&facts(&done));
        assert!(hyperv && settings.iter().all(|s| s.outcome == Outcome::Satisfied), "{settings:?}");
    }

    #[test]
    fn a_time_zone_is_kept_and_the_timers_still_go_in() {
        let zone = json!({"timezone": "Europe/Berlin"});
        kept(&zone, "clock.utc", "\"Europe/Berlin\"");
        assert_eq!(writes(&zone).len(), 4);
    }

    #[test]
    fn an_owners_timers_stay() {
        kept(&json!({"timer": {"hpet": {}}}), "clock.timer.hpet", "on");
        kept(&json!({"timer": {"hpet": {"present": true}}}), "clock.timer.hpet", "on");
        kept(&json!({"timer": {"pit": {"present": false}}}), "clock.timer.pit", "off");
        kept(&json!({"timer": {"rtc": {"tickPolicy": "discard"}}}), "clock.timer.rtc", "\"discard\"");
        kept(&json!({"timer": {"hyperv": {"present": false}}}), "clock.timer.hyperv", "off");
        assert!(!settings(&facts(&json!({"timer": {"hyperv": {"present": false}}}))).1);
    }

    #[test]
    fn a_missing_tick_policy_is_added_beside_what_is_there() {
        let written = writes(
            &json!({"utc": {}, "timer": {"hyperv": {}, "hpet": {"present": false}, "pit": {}, "rtc": {"present": true}}}),
        );
        assert_eq!(written, ["/clock/timer/pit/tickPolicy \"delay\"", "/clock/timer/rtc/tickPolicy \"catchup\""]);
    }

    #[test]
    fn the_hyperv_timer_needs_every_node() {
        let labels = [("kubevirt.io/schedulable", "true"), ("hyperv.node.kubevirt.io/base", "true")];
        let labels = labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let pool = NodePool::new([NodeView { name: "a".to_owned(), labels }]);
        let nodes = Nodes::Known(Arc::new(pool));
        let (found, hyperv) = settings(&Facts { nodes: nodes.clone(), ..facts(&json!(null)) });
        let refused = found.iter().find(|s| s.field == "clock.timer.hyperv").unwrap();
        assert!(matches!(refused.outcome, Outcome::Refused { rule: "node-lacks-feature", .. }), "{refused:?}");
        assert!(!hyperv);
        assert_eq!(found.iter().filter(|s| s.is_write()).count(), 4);
        // On already: nobody asks the nodes.
        assert!(settings(&Facts { nodes, ..facts(&json!({"timer": {"hyperv": {}}})) }).1);
    }

    /// Found by the property tests: synthetic timers went in, and the clock that they need did not.
    #[test]
    fn a_hyperv_timer_that_is_refused_or_off_is_not_counted_on() {
        use crate::plan::preference::{Preference, Preferred};
        let preferring = |timers: Value| {
            let object = json!({"kind": "VirtualMachinePreference", "spec": {"clock": {"preferredTimer": timers}}});
            let preferred = Preferred::from_object("preference windows", &object).unwrap();
            settings(&Facts { preference: Preference::Read(Box::new(preferred)), ..facts(&json!(null)) })
        };
        let (found, hyperv) = preferring(json!({"kvm": {"present": true}}));
        assert!(!hyperv && !found.iter().any(|s| s.is_write() && s.field.contains("timer")), "{found:?}");
        assert!(!preferring(json!({"hyperv": {"present": false}})).1);
        assert!(preferring(json!({"hyperv": {}})).1);
    }
}
