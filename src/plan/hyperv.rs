//! The Hyper-V enlightenments of a plan.
//!
//! On is written where nothing stands; an owner's explicit choice stays and is reported, unless an override asks for
//! the opposite. A feature goes in only with its prerequisites and only if every node that may host the VM has it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::context::Context;
use super::json::{self, State};
use super::profile::{DataError, Knowledge, enlightenments};
use super::settings::{Outcome, Setting};
use crate::api::overrides::{Enlightenment, Switch};

/// What the clock settings of the same plan come to.
pub(super) struct ClockWillBe {
    /// The Hyper-V clock timer is on, or goes on together with this.
    pub(super) hyperv_timer: bool,
}

/// Plans every enlightenment.
pub(super) fn plan(cx: &Context<'_>, clock: &ClockWillBe) -> Result<Vec<Setting>, DataError> {
    let domain = cx.domain;
    let mut on: BTreeSet<Enlightenment> = BTreeSet::new();
    let mut refused: BTreeMap<Enlightenment, &'static str> = BTreeMap::new();
    let mut settings = Vec::new();
    for known in enlightenments()? {
        let picked = cx.desired.pick(|o| o.hyperv.get(&known.name).copied());
        let override_ = picked.value.filter(|_| picked.overridden);
        let path = setting_name(known.name);
        let (reason, source) = cx.desired.said(path);
        let pointer = known.pointer();
        let own = json::at(domain, pointer);
        // Where the VM says nothing, its preference speaks for its owner, unless this very plan gives the VM the
        // struct that holds the field: the two are not merged.
        let holder = known.field.split_once('/').map(|(holder, _)| holder);
        let replaced = holder.is_some_and(|h| {
            settings.iter().any(|s: &Setting| s.is_write() && s.pointer == format!("/features/hyperv/{h}"))
        });
        let preferred = cx.facts.preference.hyperv(domain, &known.field).filter(|_| !replaced);
        let held = !replaced && holder.is_some_and(|h| cx.facts.preference.hyperv(domain, h).is_some());
        let current = own.or(preferred.map(|(value, _)| value));
        let state = json::state(current, "enabled");
        let setting = |desired: Value| {
            let reason: Cow<'static, str> = match (override_, preferred) {
                (Some(_), _) => format!("override of the policy; profile: {reason}").into(),
                (None, Some((_, origin))) => format!("{reason}; given by {origin}").into(),
                (None, None) => reason.into(),
            };
            let needs = known.requires.iter().map(|r| pointer_of(*r).to_owned());
            let clock = known.clock.then(|| "/clock/timer/hyperv".to_owned());
            Setting::new(pointer.to_owned(), current, desired, reason, source).needs(needs.chain(clock))
        };
        let switch = |to: bool| {
            if own.is_none() {
                let mut value = known.value.clone();
                if !to {
                    value = json!({"enabled": false});
                }
                return setting(value);
            }
            let mut setting = setting(Value::Bool(to));
            setting.pointer = format!("{pointer}/enabled");
            setting.field = format!("{}.enabled", setting.field);
            setting.current = json::at(domain, &setting.pointer).cloned();
            setting
        };
        match (picked.value.unwrap_or_default(), state) {
            (Switch::On, State::On) => {
                on.insert(known.name);
                let wanted = known.value.get("spinlocks");
                let retries = current.and_then(|c| json::at(c, "/spinlocks")).filter(|r| Some(*r) != wanted);
                let outcome = match retries {
                    Some(retries) if known.name == Enlightenment::Spinlocks => {
                        Outcome::Kept { why: format!("its owner chose spinlocks {retries}; change it in the VM") }
                    }
                    _ => Outcome::Satisfied,
                };
                settings.push(setting(known.value.clone()).outcome(outcome));
            }
            (Switch::On, State::Off) if override_.is_none() => {
                refused.insert(known.name, "off by its owner");
                settings.push(setting(known.value.clone()).outcome(Outcome::Kept {
                    why: format!(
                        "its owner set enabled: false; to change it, set overrides.{path}: Enabled in a policy"
                    ),
                }));
            }
            (Switch::On, State::Absent) if override_.is_none() && cx.unused(path).is_some() => {
                refused.insert(known.name, "of no use to this version of Windows");
                let outcome = cx.unused(path).unwrap_or(Outcome::Satisfied);
                settings.push(setting(known.value.clone()).outcome(outcome));
            }
            (Switch::On, State::Absent | State::Off) if held => {
                settings.push(setting(known.value.clone()).outcome(Outcome::Kept { why: HELD.to_owned() }));
            }
            (Switch::On, before) => {
                let outcome = admit(cx, known, clock, &on, &refused);
                match outcome {
                    Outcome::Write => on.insert(known.name),
                    _ => refused.insert(known.name, "refused").is_none(),
                };
                let written = before == State::Off && own.is_some();
                let setting = if written { switch(true) } else { setting(known.value.clone()) };
                settings.push(setting.outcome(outcome));
            }
            (Switch::Off, State::On) if override_.is_some() && held => {
                on.insert(known.name);
                settings.push(setting(json!({"enabled": false})).outcome(Outcome::Kept { why: HELD.to_owned() }));
            }
            (Switch::Off, State::On) if override_.is_some() => {
                let mut setting = switch(false).outcome(Outcome::Write);
                setting.needs.clear();
                settings.push(setting);
            }
            (Switch::Off | Switch::Leave, State::On) => {
                on.insert(known.name);
                settings.push(setting(current.cloned().unwrap_or_default()).outcome(Outcome::Kept {
                    why: format!(
                        "its owner set it, and the profile leaves it alone ({reason}); to change it, set overrides.{path}: Disabled in a policy"
                    ),
                }));
            }
            (Switch::Off | Switch::Leave, State::Absent | State::Off) => {}
        }
    }
    Ok(settings)
}

/// Of a field in a struct that the preference gives and the VM does not have.
const HELD: &str = "its preference gives the struct that holds it, and KubeVirt does not merge the two; set the whole struct in the VM to change it";

/// How profiles and overrides call an enlightenment: `hyperv.vapic`.
fn setting_name(enlightenment: Enlightenment) -> &'static str {
    static NAMES: LazyLock<BTreeMap<Enlightenment, String>> = LazyLock::new(|| {
        let all = enlightenments().unwrap_or_default().iter();
        all.map(|k| (k.name, format!("hyperv.{}", k.name.name()))).collect()
    });
    NAMES.get(&enlightenment).map_or("", String::as_str)
}

fn pointer_of(enlightenment: Enlightenment) -> &'static str {
    let known = enlightenments().unwrap_or_default().iter().find(|k| k.name == enlightenment);
    known.map_or("", |k| k.pointer())
}

/// Whether a feature that is missing may go in.
fn admit(
    cx: &Context<'_>,
    known: &Knowledge,
    clock: &ClockWillBe,
    on: &BTreeSet<Enlightenment>,
    refused: &BTreeMap<Enlightenment, &'static str>,
) -> Outcome {
    if let Some(missing) = known.requires.iter().find(|r| !on.contains(r)) {
        let (state, missing) = (refused.get(missing).copied().unwrap_or("not asked for"), missing.name());
        return Outcome::refused(
            "prerequisite",
            format!("it needs {missing}, which is {state}"),
            format!("turn {missing} on first"),
        );
    }
    if known.clock && !clock.hyperv_timer {
        return Outcome::refused(
            "prerequisite",
            "it needs clock.timer.hyperv, which is off; QEMU would not start",
            "remove clock.timer.hyperv.present: false from the VM",
        );
    }
    match nodes_have(cx, known) {
        Ok(()) => Outcome::Write,
        Err(outcome) => outcome,
    }
}

fn nodes_have(cx: &Context<'_>, known: &Knowledge) -> Result<(), Outcome> {
    match &known.node {
        Some(node) => node_has(cx, node)?,
        None if known.free || cx.eligible.is_none() => {}
        None => {
            return Err(Outcome::refused(
                "needs-canary",
                "no node label says which nodes have it, so one VM has to boot with it first, and this release starts none",
                "set it by hand in one VM and start it; what its owner has on stays",
            ));
        }
    }
    if known.tsc {
        cx.every_node("publishes its TSC frequency and scales it (cpu-timer.node.kubevirt.io)", |class| {
            class.tsc_scalable() && class.tsc_frequency().is_some()
        })?;
    }
    Ok(())
}

/// Whether every node that may host the VM carries a label `hyperv.node.kubevirt.io/<feature>`.
pub(super) fn node_has(cx: &Context<'_>, feature: &str) -> Result<(), Outcome> {
    cx.every_node(&format!("carries hyperv.node.kubevirt.io/{feature}"), |class| class.hyperv(feature))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::facts::{Facts, Nodes, Vm, Wanted};
    use crate::plan::nodes::{NodePool, NodeView};
    use crate::plan::preference::{Preference, Preferred};
    use crate::plan::profile::named;
    use std::sync::Arc;

    fn facts(hyperv: &Value) -> Facts {
        let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"template": {"spec": {"domain": {"features": {"hyperv": hyperv}}, "nodeSelector": {"disk": "fast"}}}}});
        Facts::offline(Vm::from_object(&object).unwrap())
    }

    /// Nodes that the VM's selector fits or not, each with the Hyper-V labels that it lacks.
    fn nodes(nodes: &[(&str, &[&str])]) -> Nodes {
        let view = |(disk, lacking): &(&str, &[&str])| {
            let all = ["base", "vpindex", "synic", "synictimer", "ipi", "runtime", "reset", "time"];
            let has = all.iter().filter(|f| !lacking.contains(f)).map(|f| format!("hyperv.node.kubevirt.io/{f}"));
            let mut labels: BTreeMap<String, String> =
                has.chain(["kubevirt.io/schedulable".to_owned()]).map(|l| (l, "true".to_owned())).collect();
            labels.insert("disk".to_owned(), (*disk).to_owned());
            NodeView { name: format!("{disk}-{}", lacking.len()), labels, taints: Vec::new() }
        };
        Nodes::Known(Arc::new(NodePool::new(nodes.iter().map(view))))
    }

    fn settings(facts: &Facts, overrides: &[(Enlightenment, Switch)], hyperv_timer: bool) -> Vec<Setting> {
        let mut wanted = Wanted::default();
        wanted.overrides.hyperv = overrides.iter().copied().collect();
        let profile = named("migration-safe").unwrap().unwrap();
        plan(&Context::new(facts, &wanted, profile).unwrap(), &ClockWillBe { hyperv_timer }).unwrap()
    }

    fn writes(settings: &[Setting]) -> Vec<String> {
        settings.iter().filter(|s| s.is_write()).map(|s| format!("{} {}", s.pointer, s.desired)).collect()
    }

    fn outcome<'a>(settings: &'a [Setting], field: &str) -> &'a Outcome {
        &settings.iter().find(|s| s.field == format!("features.hyperv.{field}")).unwrap().outcome
    }

    #[track_caller]
    fn refused(settings: &[Setting], field: &str, rule: &str, words: &str) {
        match outcome(settings, field) {
            Outcome::Refused { rule: found, why, unblock } => {
                assert_eq!(*found, rule, "{why}");
                assert!(why.contains(words) && !unblock.is_empty(), "{why}");
            }
            other => panic!("{field}: {other:?}"),
        }
    }

    #[test]
    fn the_whole_set_goes_in_where_nothing_stands() {
        let written = writes(&settings(&facts(&Value::Null), &[], true));
        assert_eq!(written.len(), 10);
        assert_eq!(written[2], "/features/hyperv/spinlocks {\"enabled\":true,\"spinlocks\":8191}");
        assert_eq!(written[6], "/features/hyperv/synictimer/direct {\"enabled\":true}");
    }

    #[test]
    fn on_in_any_spelling_is_left_as_it_is() {
        let all = json!({"relaxed": {}, "vapic": {"enabled": true}, "spinlocks": {"spinlocks": 8191}, "vpindex": {"enabled": null},
            "synic": {}, "synictimer": {"direct": {}}, "ipi": {}, "runtime": {}, "reset": {}});
        let settings = settings(&facts(&all), &[], false);
        assert_eq!(settings.len(), 10);
        assert!(settings.iter().all(|s| s.outcome == Outcome::Satisfied), "{settings:?}");
    }

    #[test]
    fn an_owners_number_of_spins_stays_and_is_reported() {
        let settings = settings(&facts(&json!({"spinlocks": {"spinlocks": 4096}})), &[], true);
        let Outcome::Kept { why } = outcome(&settings, "spinlocks") else { panic!("{settings:?}") };
        assert!(why.contains("spinlocks 4096"), "{why}");
    }

    #[test]
    fn an_owners_off_stays_and_takes_what_needs_it_along() {
        let settings = settings(&facts(&json!({"synic": {"enabled": false}})), &[], true);
        let Outcome::Kept { why } = outcome(&settings, "synic") else { panic!("{settings:?}") };
        assert!(why.contains("overrides.hyperv.synic: Enabled"), "{why}");
        refused(&settings, "synictimer", "prerequisite", "synic, which is off by its owner");
        refused(&settings, "synictimer.direct", "prerequisite", "synictimer, which is refused");
        assert_eq!(writes(&settings).len(), 7);
    }

    #[test]
    fn an_owners_on_that_the_profile_leaves_is_reported() {
        let settings = settings(&facts(&json!({"tlbflush": {}, "frequencies": {"enabled": false}})), &[], true);
        let Outcome::Kept { why } = outcome(&settings, "tlbflush") else { panic!("{settings:?}") };
        assert!(why.contains("overrides.hyperv.tlbflush: Disabled"), "{why}");
        assert!(!settings.iter().any(|s| s.field.contains("frequencies") || s.field.contains("reenlightenment")));
    }

    #[test]
    fn an_override_switches_and_touches_nothing_else() {
        let facts = facts(&json!({"vapic": {"enabled": false, "x": 1}, "ipi": {}, "tlbflush": {"enabled": true}}));
        let overrides = [
            (Enlightenment::Vapic, Switch::On),
            (Enlightenment::Ipi, Switch::Off),
            (Enlightenment::Tlbflush, Switch::Off),
            (Enlightenment::Relaxed, Switch::Leave),
            (Enlightenment::Reset, Switch::Off),
        ];
        let settings = settings(&facts, &overrides, true);
        let switches: Vec<String> = writes(&settings).into_iter().filter(|w| w.contains("/enabled ")).collect();
        assert_eq!(
            switches,
            [
                "/features/hyperv/vapic/enabled true",
                "/features/hyperv/ipi/enabled false",
                "/features/hyperv/tlbflush/enabled false"
            ]
        );
        // Off and Leave write nothing where nothing stands.
        assert!(!settings.iter().any(|s| s.field.ends_with("relaxed") || s.field.ends_with("reset")));
        let reason = &settings.iter().find(|s| s.field.contains("vapic")).unwrap().reason;
        assert!(reason.starts_with("override of the policy"), "{reason}");
    }

    #[test]
    fn a_feature_that_is_taken_out_takes_what_needs_it_along() {
        let settings = settings(&facts(&Value::Null), &[(Enlightenment::Vpindex, Switch::Off)], true);
        refused(&settings, "synic", "prerequisite", "vpindex, which is not asked for");
        refused(&settings, "ipi", "prerequisite", "vpindex, which is not asked for");
        refused(&settings, "synictimer.direct", "prerequisite", "synictimer, which is refused");
    }

    #[test]
    fn synthetic_timers_need_the_hyperv_clock() {
        let settings = settings(&facts(&Value::Null), &[], false);
        refused(&settings, "synictimer", "prerequisite", "clock.timer.hyperv");
        refused(&settings, "synictimer.direct", "prerequisite", "synictimer, which is refused");
        assert_eq!(writes(&settings).len(), 8);
    }

    #[test]
    fn every_node_that_may_host_the_vm_must_have_the_feature() {
        let on = |pool| Facts { nodes: pool, ..facts(&Value::Null) };
        let all = settings(&on(nodes(&[("fast", &[]), ("slow", &["base", "synic"])])), &[], true);
        assert_eq!(writes(&all).len(), 10);
        let some = settings(&on(nodes(&[("fast", &[]), ("fast", &["ipi", "synictimer"])])), &[], true);
        refused(&some, "ipi", "node-lacks-feature", "not every one of the 2 eligible nodes");
        refused(&some, "synictimer", "node-lacks-feature", "hyperv.node.kubevirt.io/synictimer");
        assert_eq!(writes(&some).len(), 7);
        let none = settings(&on(nodes(&[("slow", &[])])), &[], true);
        refused(&none, "relaxed", "no-eligible-node", "nodeSelector");
        assert_eq!(writes(&none), Vec::<String>::new());
        // What is on already is not taken away, whatever the nodes are.
        let facts = Facts { nodes: nodes(&[("slow", &[])]), ..facts(&json!({"relaxed": {}})) };
        assert_eq!(outcome(&settings(&facts, &[], true), "relaxed"), &Outcome::Satisfied);
    }

    fn with_preference(hyperv: &Value) -> Facts {
        let object = json!({"kind": "VirtualMachinePreference", "spec": {"features": {"preferredHyperv": hyperv}}});
        let preferred = Preferred::from_object("preference windows", &object).unwrap();
        Facts { preference: Preference::Read(Box::new(preferred)), ..facts(&Value::Null) }
    }

    /// Found by the property tests: half of such a struct in the VM would drop the other half, and its pre-image
    /// would name a place that no restore accepts.
    #[test]
    fn a_struct_that_the_preference_gives_is_never_written_in_part() {
        for preferred in [json!({"synictimer": {"direct": {}}}), json!({"synictimer": {"direct": {"enabled": false}}})]
        {
            for switch in [Switch::On, Switch::Off] {
                let settings =
                    settings(&with_preference(&preferred), &[(Enlightenment::SynictimerDirect, switch)], true);
                assert!(
                    !writes(&settings).iter().any(|w| w.contains("synictimer")),
                    "{preferred} {switch:?}: {settings:?}"
                );
            }
        }
    }

    /// Found by the property tests: the second half came only with the next plan.
    #[test]
    fn a_struct_that_replaces_the_preferred_one_is_whole_at_once() {
        let preferred = json!({"vpindex": {}, "synic": {}, "synictimer": {"enabled": false}});
        let written = writes(&settings(&with_preference(&preferred), &[(Enlightenment::Synictimer, Switch::On)], true));
        assert!(written.contains(&"/features/hyperv/synictimer {\"enabled\":true}".to_owned()), "{written:?}");
        assert!(written.contains(&"/features/hyperv/synictimer/direct {\"enabled\":true}".to_owned()), "{written:?}");
    }
}
