//! The clock block of a plan: each part is written where nothing stands, never over an owner's choice.
//!
//! The whole block is written, because a preference's timers vanish as soon as the VM itself sets one (KubeVirt
//! pkg/instancetype/preference/apply/clock.go:35-44).

use std::borrow::Cow;

use serde_json::{Value, json};

use super::context::Context;
use super::hyperv::{ClockWillBe, node_has};
use super::json::{self, State};
use super::settings::{Outcome, Setting};
use crate::api::overrides::{PitPolicy, RtcPolicy, Switch};

/// Node label ending for Hyper-V's reference time.
const TIME: &str = "time";

/// The parts of the clock block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockField {
    /// Offset of the hardware clock.
    Utc,
    /// Hyper-V's reference time.
    Hyperv,
    /// High precision event timer.
    Hpet,
    /// Programmable interval timer.
    Pit,
    /// Real-time clock.
    Rtc,
    /// KVM's own clock.
    Kvm,
}

impl ClockField {
    pub(super) const ALL: [Self; 6] = [Self::Utc, Self::Hyperv, Self::Hpet, Self::Pit, Self::Rtc, Self::Kvm];

    /// Pointer below the domain.
    pub(super) fn pointer(self) -> &'static str {
        match self {
            Self::Utc => "/clock/utc",
            Self::Hyperv => "/clock/timer/hyperv",
            Self::Hpet => "/clock/timer/hpet",
            Self::Pit => "/clock/timer/pit",
            Self::Rtc => "/clock/timer/rtc",
            Self::Kvm => "/clock/timer/kvm",
        }
    }

    /// How profiles and overrides call it.
    fn setting(self) -> &'static str {
        match self {
            Self::Utc => "clock.utc",
            Self::Hyperv => "clock.hyperv",
            Self::Hpet => "clock.hpet",
            Self::Pit => "clock.pit",
            Self::Rtc => "clock.rtc",
            Self::Kvm => "clock.kvm",
        }
    }

    fn name(self) -> &'static str {
        self.pointer().rsplit('/').next().unwrap_or_default()
    }

    /// What is wanted of it, and whether a policy overrides it. `None` where it is left alone.
    fn wanted(self, cx: &Context<'_>) -> Option<(Value, bool)> {
        let switch = |picked: super::profile::Picked<Switch>, off: bool| match picked.value? {
            Switch::On => Some((json!({"present": true}), picked.overridden)),
            Switch::Off if off || picked.overridden => Some((json!({"present": false}), picked.overridden)),
            Switch::Off | Switch::Leave => None,
        };
        match self {
            Self::Utc => {
                let picked = cx.desired.pick(|o| o.clock.utc);
                (picked.value == Some(Switch::On)).then(|| (json!({}), picked.overridden))
            }
            Self::Hyperv => switch(cx.desired.pick(|o| o.clock.hyperv), false),
            Self::Hpet => switch(cx.desired.pick(|o| o.clock.hpet), true),
            Self::Kvm => switch(cx.desired.pick(|o| o.clock.kvm), false),
            Self::Pit => {
                let picked = cx.desired.pick(|o| o.clock.pit);
                let policy = picked.value.filter(|p| *p != PitPolicy::Leave)?;
                Some((json!({"tickPolicy": policy}), picked.overridden))
            }
            Self::Rtc => {
                let picked = cx.desired.pick(|o| o.clock.rtc);
                let policy = picked.value.filter(|p| *p != RtcPolicy::Leave)?;
                Some((json!({"tickPolicy": policy}), picked.overridden))
            }
        }
    }
}

/// Plans every part of the clock, and says what the Hyper-V timer comes to.
pub(super) fn plan(cx: &Context<'_>) -> (Vec<Setting>, ClockWillBe) {
    let mut settings: Vec<(ClockField, Setting)> = Vec::new();
    for field in ClockField::ALL {
        let Some((value, overridden)) = field.wanted(cx) else { continue };
        let setting = match field {
            ClockField::Utc => offset(cx, value),
            _ => timer(cx, field, value, overridden),
        };
        let setting = match (setting.outcome == Outcome::Write && !overridden, cx.unused(field.setting())) {
            (true, Some(stays)) => setting.outcome(stays),
            _ => setting,
        };
        let setting = match (field, setting.is_write() && json::state(Some(&setting.desired), "present") == State::On) {
            (ClockField::Hyperv, true) => match node_has(cx, TIME) {
                Ok(()) => setting,
                Err(refused) => setting.outcome(refused),
            },
            _ => setting,
        };
        settings.push((field, setting));
    }
    keep_preferred(cx, &mut settings);
    let hyperv_timer = match settings.iter().find(|(field, _)| *field == ClockField::Hyperv) {
        Some((_, setting)) if setting.is_write() => {
            setting.desired != json!(false) && json::state(Some(&setting.desired), "present") == State::On
        }
        // Left alone, refused or as its owner has it: what is there counts.
        _ => json::state(timer_now(cx, ClockField::Hyperv), "present") == State::On,
    };
    (settings.into_iter().map(|(_, setting)| setting).collect(), ClockWillBe { hyperv_timer })
}

/// What stands there, in the VM or by its preference.
fn timer_now<'a>(cx: &Context<'a>, field: ClockField) -> Option<&'a Value> {
    let preferred = cx.facts.preference.timer(cx.domain, field.name()).map(|(value, _)| value);
    json::at(cx.domain, field.pointer()).or(preferred)
}

/// A preference's timers vanish as soon as the VM sets one. So where one has to be written, those that the
/// preference gives are written with it, as they are.
fn keep_preferred(cx: &Context<'_>, settings: &mut Vec<(ClockField, Setting)>) {
    if !settings.iter().any(|(field, setting)| *field != ClockField::Utc && setting.is_write()) {
        return;
    }
    let mut carried: Vec<&'static str> = Vec::new();
    for field in ClockField::ALL {
        let Some((value, origin)) = cx.facts.preference.timer(cx.domain, field.name()) else { continue };
        let at = settings.iter().position(|(f, _)| *f == field);
        let mut setting = match at {
            Some(at) => settings.remove(at).1,
            None => of(cx, field, value.clone()),
        };
        // Where our part was missing in it, or a policy overrides it, it is completed; otherwise it goes in as it is.
        let mut whole = value.clone();
        if let (true, Some(map)) = (setting.is_write(), whole.as_object_mut()) {
            match setting.desired.as_object() {
                Some(ours) => map.extend(ours.clone()),
                None => {
                    let part = setting.pointer.rsplit('/').next().unwrap_or_default().to_owned();
                    map.insert(part, setting.desired.clone());
                }
            }
        }
        setting.pointer = field.pointer().to_owned();
        setting.field = super::settings::field(&setting.pointer);
        setting.current = None;
        setting.desired = whole;
        setting.reason =
            Cow::Owned(format!("{}; given by {origin}, whose timers vanish once the VM has one", setting.reason));
        setting.outcome = Outcome::Write;
        settings.push((field, setting));
        carried.push(field.pointer());
    }
    // All or none of them: the first that is written drops what is not.
    for (_, setting) in settings.iter_mut().filter(|(field, s)| *field != ClockField::Utc && s.is_write()) {
        let others = carried.iter().filter(|c| **c != setting.pointer);
        setting.needs.extend(others.map(|c| (*c).to_owned()));
    }
}

/// utc goes in only where neither utc nor a time zone stands.
fn offset(cx: &Context<'_>, value: Value) -> Setting {
    let domain = cx.domain;
    let setting = of(cx, ClockField::Utc, value);
    if let Some((given, origin)) = cx.facts.preference.offset(domain) {
        let mut setting = setting.outcome(Outcome::Satisfied);
        setting.current = Some(given.clone());
        setting.reason = Cow::Owned(format!("{}; given by {origin}", setting.reason));
        return setting;
    }
    match (json::at(domain, ClockField::Utc.pointer()), json::at(domain, "/clock/timezone")) {
        (Some(_), _) => setting.outcome(Outcome::Satisfied),
        (None, Some(zone)) => setting.outcome(Outcome::Kept {
            why: format!("its owner set the time zone {zone}; Windows may expect its hardware clock in local time"),
        }),
        (None, None) => setting.outcome(Outcome::Write),
    }
}

/// A timer goes in where it is missing. Where it stands, a missing tick policy is added and anything else stays, unless
/// a policy overrides it.
fn timer(cx: &Context<'_>, field: ClockField, value: Value, overridden: bool) -> Setting {
    let mut setting = of(cx, field, value.clone());
    let preferred = cx.facts.preference.timer(cx.domain, field.name());
    if let Some((given, origin)) = preferred {
        setting.current = Some(given.clone());
        setting.reason = Cow::Owned(format!("{}; given by {origin}", setting.reason));
    }
    if overridden {
        setting.reason = Cow::Owned(format!("override of the policy; profile: {}", setting.reason));
    }
    let current = timer_now(cx, field);
    let state = json::state(current, "present");
    if state == State::Absent {
        return setting.outcome(Outcome::Write);
    }
    let part = |mut setting: Setting, key: &str, wanted: &Value| {
        setting.pointer = format!("{}/{key}", field.pointer());
        setting.field = super::settings::field(&setting.pointer);
        setting.current = json::at(cx.domain, &setting.pointer).cloned();
        setting.desired = wanted.clone();
        setting.outcome(Outcome::Write)
    };
    let wants_present = value.get("present").and_then(Value::as_bool).unwrap_or(true);
    if wants_present != (state == State::On) {
        // A policy that speaks of ticks only does not turn a timer on.
        if overridden && value.get("present").is_some() {
            return part(setting, "present", &json!(wants_present));
        }
        let is = if state == State::On { "on" } else { "off" };
        let why = format!("its owner has this timer {is}; to change it, set overrides.{} in a policy", field.setting());
        return setting.outcome(Outcome::Kept { why });
    }
    let Some(wanted) = value.get("tickPolicy") else { return setting.outcome(Outcome::Satisfied) };
    match current.and_then(|c| json::at(c, "/tickPolicy")) {
        Some(has) if has == wanted => setting.outcome(Outcome::Satisfied),
        Some(has) if !overridden => {
            let why = format!(
                "its owner chose tickPolicy {has}; to change it, set overrides.{} in a policy",
                field.setting()
            );
            setting.outcome(Outcome::Kept { why })
        }
        _ => part(setting, "tickPolicy", wanted),
    }
}

fn of(cx: &Context<'_>, field: ClockField, value: Value) -> Setting {
    let (reason, source) = cx.desired.said(field.setting());
    Setting::new(field.pointer().to_owned(), json::at(cx.domain, field.pointer()), value, reason, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::facts::{Facts, Nodes, Vm, Wanted};
    use crate::plan::nodes::{NodePool, NodeView};
    use crate::plan::profile::named;
    use serde_json::json;
    use std::sync::Arc;

    fn facts(clock: &Value) -> Facts {
        let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"template": {"spec": {"domain": {"clock": clock}}}}});
        Facts::offline(Vm::from_object(&object).unwrap())
    }

    fn settings(facts: &Facts) -> (Vec<Setting>, bool) {
        let wanted = Wanted::default();
        let cx = Context::new(facts, &wanted, named("migration-safe").unwrap().unwrap()).unwrap();
        let (settings, will_be) = plan(&cx);
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
        let pool = NodePool::new([NodeView { name: "a".to_owned(), labels, taints: Vec::new() }]);
        let nodes = Nodes::Known(Arc::new(pool));
        let (found, hyperv) = settings(&Facts { nodes: nodes.clone(), ..facts(&json!(null)) });
        let refused = found.iter().find(|s| s.field == "clock.timer.hyperv").unwrap();
        assert!(
            matches!(&refused.outcome, Outcome::Refused { rule, .. } if rule == "node-lacks-feature"),
            "{refused:?}"
        );
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
        // The one timer that no profile speaks of is carried over as well.
        let (found, hyperv) = preferring(json!({"kvm": {"present": true}}));
        assert!(hyperv && found.iter().any(|s| s.is_write() && s.field == "clock.timer.kvm"), "{found:?}");
        assert!(!preferring(json!({"hyperv": {"present": false}})).1);
        assert!(preferring(json!({"hyperv": {}})).1);
    }
}
