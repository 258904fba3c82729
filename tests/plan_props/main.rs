//! Properties of plans over generated VMs: a plan is empty after its own write, a restore gives back every byte,
//! nobody else's field is touched, and a forged pre-image leads nowhere.
//!
//! `PROPTEST_CASES` makes the runs longer. The last test to end prints how many plans were made.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

mod generate;
mod steps;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};
use wintune::api::record::{Applied, AppliedState, Entry};
use wintune::plan::facts::{DOMAIN, Wanted};
use wintune::plan::preference::Preference;
use wintune::plan::{json, patch, validate};

use generate::*;
use steps::*;

static PLANS: AtomicUsize = AtomicUsize::new(0);
static WRITES: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);
/// Tests of this file that end with [`ended`].
const TESTS: usize = 11;

/// Cases of each property, unless `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(1000), failure_persistence: None, ..default }
}

/// The last one says how much was tried.
fn ended() {
    if ENDED.fetch_add(1, Ordering::SeqCst) + 1 == TESTS {
        let plans = PLANS.load(Ordering::SeqCst);
        let writes = WRITES.load(Ordering::SeqCst);
        assert!(plans >= 20_000, "only {plans} plans were made");
        // Otherwise the generated VMs have become too odd to say anything.
        assert!(writes * 3 > plans, "only {writes} of {plans} plans write something");
        println!("\nplans: {plans}");
    }
}

/// Runs a property over generated inputs.
fn check<S: Strategy>(inputs: S, property: impl Fn(S::Value)) {
    let mut runner = proptest::test_runner::TestRunner::new(config());
    let result = runner.run(&inputs, |input| {
        property(input);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    ended();
}

#[test]
fn a_plan_is_empty_after_its_own_write() {
    check((stored(), wishes(), world()), |(object, wishes, world)| {
        for wanted in wishes {
            let first = plan_for(&object, &wanted, &world);
            let (after, _) = write(&object, &first, None);
            let second = plan_for(&after, &wanted, &world);
            assert!(!second.has_changes(), "{:?}", second.change.entries);
            assert_eq!(second.change.entries, []);
            assert_eq!(second.change.domain, *domain_of(&after));
        }
    });
}

#[test]
fn a_restore_gives_back_every_byte() {
    check((stored(), wishes(), world()), |(object, wishes, world)| {
        for wanted in wishes {
            let plan = plan_for(&object, &wanted, &world);
            let (after, applied) = write(&object, &plan, None);
            let (restored, undo) = restore(&after);
            assert_eq!(bytes(&restored), bytes(&object));
            assert_eq!(undo.kept, Vec::<String>::new());
            assert_eq!(undo.restored.len(), applied.entries.len());
            // Once more changes nothing.
            assert_eq!(patch::undo(&undo.domain, &applied).domain, undo.domain);
        }
    });
}

/// KubeVirt's webhook writes `acpi: {}` into a `features` that we made.
#[test]
fn what_a_webhook_put_beside_ours_leaves_with_it() {
    check((stored(), wanted(), world()), |(object, wanted, world)| {
        let plan = plan_for(&object, &wanted, &world);
        let mut applied = patch::merge(None, UID, &plan.change);
        let with_webhook = |patch: &json_patch::Patch| {
            let mut after = send(&object, patch);
            if after.pointer(&format!("{DOMAIN}/features")).is_some_and(|f| f.get("acpi").is_none()) {
                after["spec"]["template"]["spec"]["domain"]["features"]["acpi"] = json!({});
            }
            after
        };
        let dry_run = with_webhook(&patch::apply_patch(&read(&object), &plan.change, &applied));
        applied.entries.extend(patch::companions(&plan.change.domain, domain_of(&dry_run), &plan.change.created));
        applied.entries.sort_by(|a, b| a.at.cmp(&b.at));
        let after = with_webhook(&patch::apply_patch(&read(&object), &plan.change, &applied));
        let (restored, _) = restore(&after);
        let mut expected = object.clone();
        // A `features` of the owner's own gets its `acpi` at any write of anybody; that is not ours to take back.
        if expected.pointer(&format!("{DOMAIN}/features")).is_some_and(|f| f.get("acpi").is_none()) {
            expected["spec"]["template"]["spec"]["domain"]["features"]["acpi"] = json!({});
        }
        assert_eq!(bytes(&restored), bytes(&expected));
    });
}

#[test]
fn what_somebody_else_added_stays_and_the_rest_goes_back() {
    check((stored(), wishes(), world(), theirs()), |(object, wishes, world, theirs)| {
        for wanted in wishes {
            let plan = plan_for(&object, &wanted, &world);
            let (after, _) = write(&object, &plan, None);
            let (restored, undo) = restore(&changed(&after, &theirs));
            assert_eq!(bytes(&restored), bytes(&changed(&object, &theirs)));
            assert_eq!(undo.kept, Vec::<String>::new());
        }
    });
}

#[test]
fn a_value_of_ours_that_somebody_else_changed_stays() {
    let how = prop_oneof![Just("replace"), Just("extend"), Just("remove")];
    check((stored(), wanted(), world(), any::<prop::sample::Index>(), how), |(object, wanted, world, which, how)| {
        let plan = plan_for(&object, &wanted, &world);
        let (after, applied) = write(&object, &plan, None);
        if applied.entries.is_empty() {
            return;
        }
        let entry = &applied.entries[which.index(applied.entries.len())];
        let place = format!("{DOMAIN}{}", entry.at);
        let mut theirs = after.clone();
        match how {
            "replace" => {
                let other = match serde_json::from_str(&entry.now).unwrap() {
                    Value::Bool(now) => json!(!now),
                    Value::String(_) => json!("theirs"),
                    Value::Number(_) => json!(77),
                    // An item keeps its name, or it would be another one.
                    Value::Object(item) if item.contains_key("name") => {
                        json!({"name": item["name"], "policy": "theirs"})
                    }
                    _ => json!({"enabled": false, "present": false, "theirs": true}),
                };
                put(&mut theirs, &place, &other);
            }
            "extend" if json::at(&after, &place).is_some_and(Value::is_object) => {
                put(&mut theirs, &format!("{place}/theirs"), &json!(1));
            }
            _ => {
                let (parent, key) = place.rsplit_once('/').unwrap();
                match json::at(&theirs, parent).unwrap() {
                    Value::Array(items) => {
                        let left = items.iter().enumerate().filter(|(i, _)| Some(*i) != json::index(items, key));
                        let left: Vec<Value> = left.map(|(_, item)| item.clone()).collect();
                        put(&mut theirs, parent, &json!(left));
                    }
                    holder => {
                        let mut holder = holder.clone();
                        holder.as_object_mut().unwrap().remove(key);
                        put(&mut theirs, parent, &holder);
                    }
                }
            }
        }
        bump(&mut theirs, &after);
        let (restored, undo) = restore(&theirs);
        let (restored, theirs, original) = (domain_of(&restored), domain_of(&theirs), domain_of(&object));
        for other in &applied.entries {
            let (mine, at) = (json::at(restored, &other.at), &other.at);
            if below(at, &entry.at) || below(&entry.at, at) {
                continue;
            }
            assert_eq!(mine, json::at(original, at), "{at} is not back");
        }
        let mut kept = json::at(theirs, &entry.at).cloned();
        for inner in applied.entries.iter().filter(|e| e.at != entry.at && below(&e.at, &entry.at)) {
            let within = inner.at.strip_prefix(&entry.at).unwrap().trim_start_matches('/');
            if how == "extend"
                && let Some(map) = kept.as_mut().and_then(Value::as_object_mut)
            {
                map.remove(within);
            }
        }
        assert_eq!(json::at(restored, &entry.at), kept.as_ref(), "theirs at {} is gone", entry.at);
        let is_back = json::at(theirs, &entry.at) == json::at(original, &entry.at);
        assert_eq!(undo.kept.contains(&entry.at), !is_back, "{:?}", undo.kept);
    });
}

#[test]
fn a_plan_changes_what_it_names_and_nothing_else() {
    check((stored(), wanted(), world()), |(object, wanted, world)| {
        let plan = plan_for(&object, &wanted, &world);
        let vm = read(&object);
        let applied = patch::merge(None, UID, &plan.change);
        let entries = &plan.change.entries;

        // Named: the settings to be written, each once, and only those.
        let writes: Vec<&str> = plan.settings.iter().filter(|s| s.is_write()).map(|s| s.pointer.as_str()).collect();
        let mut named: Vec<&str> = entries.iter().map(|e| e.at.as_str()).collect();
        named.sort_unstable();
        let mut writes = writes;
        writes.sort_unstable();
        assert_eq!(writes, named);

        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        leaves(vm.domain(), "", &mut before);
        leaves(&plan.change.domain, "", &mut after);
        for (pointer, value) in &after {
            let ours = entries.iter().any(|e| below(pointer, &e.at));
            assert!(ours || before.get(pointer) == Some(value), "{pointer} was touched");
        }
        for (pointer, value) in &before {
            let replaced = entries.iter().any(|e| {
                below(pointer, &e.at) || ((value == &json!({}) || value == &json!([])) && below(&e.at, pointer))
            });
            assert!(replaced || after.get(pointer) == Some(value), "{pointer} was lost");
        }

        // The patch stays where it may.
        let operations = serde_json::to_value(patch::apply_patch(&vm, &plan.change, &applied)).unwrap();
        let (mut tests, mut others) = (Vec::new(), 0);
        for operation in operations.as_array().unwrap() {
            let path = operation["path"].as_str().unwrap();
            match operation["op"].as_str().unwrap() {
                "test" => {
                    assert_eq!(others, 0, "a test behind a change");
                    tests.push(path.to_owned());
                }
                "add" | "replace" | "remove" => {
                    others += 1;
                    let domain = path.strip_prefix(DOMAIN).is_some_and(|rest| rest.starts_with('/'));
                    assert!(domain || below(path, "/metadata/annotations"), "{path}");
                }
                other => panic!("{other}"),
            }
        }
        assert_eq!(tests[..3], ["/metadata/uid", "/metadata/generation", "/metadata/resourceVersion"]);
        for test in &tests[3..] {
            let of_disk = test.starts_with(&format!("{DOMAIN}/devices/disks/")) && test.ends_with("/name");
            assert!(of_disk || *test == format!("{DOMAIN}/cpu/features"), "{test}");
        }

        // KubeVirt takes the result.
        if plan.has_changes() {
            assert_eq!(validate::violations(&vm, &plan.change.domain), []);
            let after = send(&object, &patch::apply_patch(&vm, &plan.change, &applied));
            assert_eq!(validate::violations(&read(&after), domain_of(&after)), []);
        }

        // The pre-image comes back from its annotation, and is small.
        let text = patch::to_annotation(&applied);
        assert!(text.len() < 4096, "{} bytes", text.len());
        patch::check(&applied, UID).unwrap();
        let read = patch::from_annotation(&text, UID).unwrap();
        assert_eq!(read, Applied { state: AppliedState::Written, ..applied });
    });
}

/// What a VM comes to with its preference: a feature of the VM's own as a whole or the preferred one; the timers of
/// the VM, if it has any, or all preferred ones; the offset likewise (KubeVirt pkg/instancetype/preference/apply).
fn effective(domain: &Value, preference: &Preference) -> Value {
    let own = |pointer: &str| domain.pointer(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut hyperv, mut timers) = (own("/features/hyperv"), own("/clock/timer"));
    let mut offset = own("/clock");
    offset.remove("timer");
    if let Preference::Read(preferred) = preference {
        for (name, value) in preferred.hyperv.as_object().into_iter().flatten() {
            hyperv.entry(name.clone()).or_insert_with(|| value.clone());
        }
        if timers.is_empty() {
            timers = preferred.timers.as_object().cloned().unwrap_or_default();
        }
        if offset.is_empty() {
            offset = preferred.offset.as_object().cloned().unwrap_or_default();
        }
    }
    json!({"hyperv": hyperv, "timers": timers, "offset": offset})
}

#[test]
fn a_profile_alone_takes_nothing_from_owner_or_preference() {
    check((stored(), world()), |(object, world)| {
        let plan = plan_for(&object, &Wanted::default(), &world);
        // Where the VM says that it has one and none was read, nothing is known of it.
        let (before, after) =
            (effective(domain_of(&object), &world.preference), effective(&plan.change.domain, &world.preference));
        let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
        leaves(&before, "", &mut old);
        leaves(&after, "", &mut new);
        for (pointer, value) in &old {
            let extended = value == &json!({}) && new.keys().any(|n| below(n, pointer));
            assert!(new.get(pointer) == Some(value) || extended, "{pointer} was {value}, is {:?}", new.get(pointer));
        }
        // QEMU does not start with synthetic timers and without Hyper-V's clock.
        let on = |at: &str, key: &str| json::state(after.pointer(at), key) == json::State::On;
        if plan.change.entries.iter().any(|e| e.at == "/features/hyperv/synictimer") {
            assert!(on("/timers/hyperv", "present"), "{after}");
            assert!(on("/hyperv/synic", "enabled") && on("/hyperv/vpindex", "enabled"), "{after}");
        }
    });
}

#[test]
fn several_writes_lead_back_to_the_first() {
    check((stored(), vec(wanted(), 2..4), world(), option::of(theirs())), |(object, wishes, world, theirs)| {
        let (mut now, mut earlier) = (object.clone(), None);
        for wanted in &wishes {
            let plan = plan_for(&now, wanted, &world);
            let (after, applied) = write(&now, &plan, earlier.as_ref());
            let text = patch::to_annotation(&applied);
            assert!(text.len() < 4096, "{} bytes", text.len());
            patch::check(&applied, UID).unwrap();
            assert!(!plan_for(&after, wanted, &world).has_changes());
            (now, earlier) = (after, Some(applied));
        }
        let theirs = theirs.unwrap_or_default();
        let (restored, _) = restore(&changed(&now, &theirs));
        assert_eq!(bytes(&restored), bytes(&changed(&object, &theirs)));
    });
}

/// A file may hold nulls and any order of keys; both plan as what an API server would keep.
#[test]
fn neither_nulls_nor_the_order_of_keys_matter() {
    fn backwards(value: &Value, text: &mut String) {
        match value {
            Value::Object(map) => {
                text.push('{');
                for (index, (key, value)) in map.iter().rev().enumerate() {
                    text.push_str(if index > 0 { "," } else { "" });
                    text.push_str(&Value::String(key.clone()).to_string());
                    text.push(':');
                    backwards(value, text);
                }
                text.push('}');
            }
            Value::Array(items) => {
                text.push('[');
                for (index, value) in items.iter().enumerate() {
                    text.push_str(if index > 0 { "," } else { "" });
                    backwards(value, text);
                }
                text.push(']');
            }
            leaf => text.push_str(&leaf.to_string()),
        }
    }
    check((manifest(), wanted(), world()), |(file, wanted, world)| {
        let from_file = plan_for(&file, &wanted, &world);
        let mut text = String::new();
        backwards(&file, &mut text);
        let turned = plan_for(&serde_json::from_str(&text).unwrap(), &wanted, &world);
        assert_eq!(serde_json::to_string(&turned).unwrap(), serde_json::to_string(&from_file).unwrap());
        assert_eq!(turned.digest(), from_file.digest());

        let mut pruned = file.clone();
        prune(&mut pruned);
        let from_server = plan_for(&pruned, &wanted, &world);
        assert_eq!(from_file.change.entries, from_server.change.entries);
        assert_eq!(from_file.summary(), from_server.summary());
        assert_eq!(from_file.holds, from_server.holds);
        // The patch that a person applies by hand fits the file as it is.
        let mut by_hand = file.clone();
        json_patch::patch(&mut by_hand, &patch::settings_patch(&read(&file), &from_file.change)).unwrap();
        assert_eq!(domain_of(&by_hand), &from_file.change.domain);
    });
}

#[test]
fn the_order_of_disks_does_not_matter() {
    check((stored(), wanted(), world()), |(object, wanted, world)| {
        let forth = plan_for(&object, &wanted, &world);
        let mut turned = object.clone();
        for list in ["/spec/template/spec/domain/devices/disks", "/spec/template/spec/volumes"] {
            if let Some(items) = turned.pointer_mut(list).and_then(Value::as_array_mut) {
                items.reverse();
            }
        }
        let back = plan_for(&turned, &wanted, &world);
        assert_eq!(forth.change.entries, back.change.entries);
        assert_eq!(forth.summary(), back.summary());
    });
}

#[test]
fn a_forged_pre_image_is_refused_or_harmless() {
    let pointer = prop_oneof![
        Just("/features/hyperv/vapic".to_owned()),
        Just("/features/hyperv/synictimer/direct/enabled".to_owned()),
        Just("/clock/timer/pit/tickPolicy".to_owned()),
        Just("/features/hypervPassthrough".to_owned()),
        Just("/features".to_owned()),
        Just("/devices/disks/0/disk/bus".to_owned()),
        Just("/../../metadata/uid".to_owned()),
        Just(String::new()),
        "/?(features|clock|cpu)(/[a-z~0-9./]{0,12}){0,3}",
    ];
    let value = prop_oneof![
        Just("{}".to_owned()),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("\"delay\"".to_owned()),
        Just("{\"enabled\":true}".to_owned()),
        Just("[".to_owned()),
        any::<String>(),
    ];
    let entry = (pointer.clone(), option::of(value.clone()), value).prop_map(|(at, was, now)| Entry { at, was, now });
    let uid = prop_oneof![9 => Just(UID.to_owned()), 1 => any::<String>()];
    let forged = (uid, vec(entry, 0..4), vec(pointer, 0..3)).prop_map(|(vm_uid, entries, created)| {
        patch::to_annotation(&Applied { vm_uid, state: AppliedState::Written, asked_by: None, entries, created })
    });
    let cut = (any::<prop::sample::Index>(), 0..3_u8, any::<char>());
    check((stored(), forged, any::<String>(), vec(cut, 1..4)), |(object, forged, any, cuts)| {
        let plan = plan_for(&object, &Wanted::default(), &offline());
        let (after, applied) = write(&object, &plan, None);
        let mut damaged: Vec<char> = patch::to_annotation(&applied).chars().collect();
        for (index, how, with) in cuts {
            if damaged.is_empty() {
                break;
            }
            let at = index.index(damaged.len());
            match how {
                0 => drop(damaged.remove(at)),
                1 => damaged.insert(at, with),
                _ => damaged.truncate(at),
            }
        }
        for text in [forged, any, damaged.into_iter().collect()] {
            let Ok(accepted) = patch::from_annotation(&text, UID) else { continue };
            assert_eq!(accepted.vm_uid, UID);
            let vm = read(&after);
            let undo = patch::undo(vm.domain(), &accepted);
            let listed = |pointer: &str| {
                let list = [
                    "/features/hyperv",
                    "/clock/utc",
                    "/clock/timer",
                    "/features/acpi",
                    "/cpu",
                    "/devices",
                    "/ioThreads",
                    "/ioThreadsPolicy",
                ];
                list.iter().any(|a| below(pointer, a))
            };
            let allowed = |pointer: &str| listed(pointer) || ["/features", "/clock"].contains(&pointer);
            assert!(accepted.entries.iter().all(|e| listed(&e.at)), "{text}");
            assert!(accepted.created.iter().all(|c| allowed(c)), "{text}");
            let (mut before, mut changed) = (BTreeMap::new(), BTreeMap::new());
            leaves(vm.domain(), "", &mut before);
            leaves(&undo.domain, "", &mut changed);
            for (pointer, value) in &before {
                assert!(changed.get(pointer) == Some(value) || allowed(pointer), "{text} takes {pointer}");
            }
            for (pointer, value) in &changed {
                assert!(before.get(pointer) == Some(value) || allowed(pointer), "{text} writes {pointer}");
            }
            send(&after, &patch::undo_patch(&vm, &undo, &accepted));
        }
        let other = applied.clone();
        assert!(patch::from_annotation(&patch::to_annotation(&other), "another UID").is_err());
    });
}
