//! Each rule, hit and not hit, through whole plans.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::plan::capabilities::Capabilities;
use crate::plan::facts::{Facts, Nodes, Vm, Wanted};
use crate::plan::nodes::{NodePool, NodeView};
use crate::plan::{Plan, plan};

/// What a rule is tried with.
#[derive(Clone, Default)]
struct Try {
    /// Merged into the VM's domain.
    domain: Value,
    /// Name of the VM's preference mark: the version of Windows.
    os: &'static str,
    profile: &'static str,
    overrides: Value,
    /// CPU vendor of two nodes; empty where none are known.
    vendor: &'static str,
    /// Labels of the nodes beside those.
    labels: &'static [(&'static str, &'static str)],
    kubevirt: &'static str,
    today: &'static str,
}

fn facts(of: &Try) -> Facts {
    let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
    "metadata": {"name": "vm", "labels": {"kubevirt.io/os": if of.os.is_empty() { "windows" } else { of.os }}},
    "spec": {"runStrategy": "Halted", "template": {"spec": {
        "domain": {"memory": {"guest": "4Gi"}, "devices": {}}
    }}}});
    if !of.domain.is_null() {
        json_patch::merge(&mut object["spec"]["template"]["spec"]["domain"], &of.domain);
    }
    let disks = json::list(&of.domain, "/devices/disks");
    let volume = |d: &Value| json!({"name": d["name"], "persistentVolumeClaim": {"claimName": d["name"]}});
    object["spec"]["template"]["spec"]["volumes"] = disks.iter().map(volume).collect();
    let mut facts = Facts::offline(Vm::from_object(&object).unwrap());
    if !of.vendor.is_empty() {
        let features = [
            "base",
            "time",
            "vpindex",
            "synic",
            "synictimer",
            "ipi",
            "runtime",
            "reset",
            "frequencies",
            "tlbflush",
            "reenlightenment",
        ];
        let node = |name: &str| {
            let own = features.iter().map(|f| (format!("hyperv.node.kubevirt.io/{f}"), "true".to_owned()));
            let vendor = [
                ("kubevirt.io/schedulable".to_owned(), "true".to_owned()),
                (format!("cpu-vendor.node.kubevirt.io/{}", of.vendor), "true".to_owned()),
            ];
            let more = of.labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            NodeView { name: name.to_owned(), labels: own.chain(vendor).chain(more).collect(), taints: Vec::new() }
        };
        facts.nodes = Nodes::Known(Arc::new(NodePool::new([node("a"), node("b")])));
    }
    if !of.kubevirt.is_empty() {
        facts.capabilities = Arc::new(Capabilities::of_kubevirt(of.kubevirt).unwrap());
    }
    facts.today = (!of.today.is_empty()).then(|| of.today.parse().unwrap());
    facts
}

fn planned(of: &Try) -> Plan {
    let profile = if of.profile.is_empty() { "migration-safe" } else { of.profile };
    let overrides = if of.overrides.is_null() { json!({}) } else { of.overrides.clone() };
    let wanted = Wanted {
        profile: profile.to_owned(),
        overrides: serde_json::from_value(overrides).unwrap(),
        allow_unmigratable: true,
    };
    plan(&facts(of), &wanted).unwrap()
}

/// Every rule that a plan speaks of, in a refusal or a finding.
fn said(plan: &Plan) -> BTreeSet<String> {
    let refused = plan.settings.iter().filter_map(|s| match &s.outcome {
        Outcome::Refused { rule, .. } => Some(rule.to_string()),
        _ => None,
    });
    refused.chain(plan.findings.iter().map(|f| f.id.to_string())).collect()
}

fn domain(domain: Value) -> Try {
    Try { domain, ..Try::default() }
}

fn hook(name: &str) -> Value {
    json!({"hook": {name: "Enabled"}})
}

const TSC: &[(&str, &str)] = &[
    ("cpu-timer.node.kubevirt.io/tsc-frequency", "2000000000"),
    ("cpu-timer.node.kubevirt.io/tsc-scalable", "true"),
    ("cpumanager", "true"),
];

fn disk(more: Value) -> Value {
    let mut disk = json!({"name": "a", "disk": {"bus": "virtio"}});
    json_patch::merge(&mut disk, &more);
    json!({"devices": {"disks": [disk]}})
}

fn hyperv(features: Value) -> Value {
    json!({"features": {"hyperv": features}})
}

/// A rule, what hits it, and what is nearest to that and does not.
fn table() -> Vec<(&'static str, Try, Try)> {
    let efi = |mut value: Value| {
        value["firmware"] = json!({"bootloader": {"efi": {"secureBoot": false}}});
        value
    };
    let passthrough = json!({"features": {"hypervPassthrough": {"enabled": true}}});
    let pool = |more: Value| {
        let mut all = json!({"ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": 2}});
        json_patch::merge(&mut all, &more);
        all
    };
    let on = |vendor: &'static str, of: Try| Try { vendor, ..of };
    let os = |os: &'static str, of: Try| Try { os, ..of };
    let with = |overrides: Value, of: Try| Try { overrides, ..of };
    let dedicated = json!({"cpu": {"cores": 4, "dedicatedCpuPlacement": true}});
    let with_dedicated = |mut value: Value| {
        json_patch::merge(&mut value, &dedicated);
        value
    };
    let vmx = |policy: &str| json!({"cpu": {"features": [{"name": "vmx", "policy": policy}]}});
    vec![
        ("hyperv-passthrough", domain(passthrough.clone()), domain(json!({}))),
        (
            "hyperv-passthrough-empty",
            domain(json!({"features": {"hypervPassthrough": {}}})),
            domain(passthrough.clone()),
        ),
        ("hyperv-passthrough-on-bios", domain(passthrough.clone()), domain(efi(passthrough.clone()))),
        (
            "evmcs-on-amd",
            on("AMD", domain(hyperv(json!({"evmcs": {}})))),
            on("Intel", domain(hyperv(json!({"evmcs": {}})))),
        ),
        (
            "evmcs-without-nesting",
            domain(hyperv(json!({"evmcs": {}}))),
            domain(hyperv(json!({"evmcs": {"enabled": false}}))),
        ),
        (
            "tlbflush-on-amd",
            os("win2k22", on("AMD", Try { profile: "performance", ..Try::default() })),
            os("win2k19", on("AMD", Try { profile: "performance", ..Try::default() })),
        ),
        (
            "reenlightenment-without-tsc",
            on("Intel", domain(hyperv(json!({"reenlightenment": {}})))),
            Try { labels: TSC, ..on("Intel", domain(hyperv(json!({"reenlightenment": {}})))) },
        ),
        (
            "synictimer-without-clock",
            domain(
                json!({"features": {"hyperv": {"synictimer": {}}}, "clock": {"timer": {"hyperv": {"present": false}}}}),
            ),
            domain(hyperv(json!({"synictimer": {}}))),
        ),
        ("hyperv-with-efi-before-windows-8", os("win7", domain(efi(json!({})))), os("win7", domain(json!({})))),
        (
            "spinlocks-too-few",
            domain(hyperv(json!({"spinlocks": {"spinlocks": 100}}))),
            domain(hyperv(json!({"spinlocks": {"spinlocks": 4096}}))),
        ),
        (
            "vendorid-too-long",
            domain(hyperv(json!({"vendorid": {"vendorid": "thirteen-char"}}))),
            domain(hyperv(json!({"vendorid": {"vendorid": "twelve-chars"}}))),
        ),
        (
            "native-io-with-host-cache",
            domain(disk(json!({"io": "native", "cache": "writeback"}))),
            domain(disk(json!({"io": "native", "cache": "none"}))),
        ),
        (
            "shareable-with-host-cache",
            domain(disk(json!({"shareable": true}))),
            domain(disk(json!({"shareable": true, "cache": "none"}))),
        ),
        (
            "io-threads-with-dedicated-cpus",
            Try { kubevirt: "1.7.0", ..domain(with_dedicated(json!({"ioThreadsPolicy": "auto"}))) },
            Try { kubevirt: "1.7.4", ..domain(with_dedicated(json!({"ioThreadsPolicy": "auto"}))) },
        ),
        (
            "dedicated-io-thread-with-dedicated-cpus",
            Try { kubevirt: "1.7.0", ..domain(with_dedicated(disk(json!({"dedicatedIOThread": true})))) },
            Try { kubevirt: "1.7", ..domain(with_dedicated(disk(json!({"dedicatedIOThread": true})))) },
        ),
        (
            "pool-with-isolated-emulator-thread",
            domain(pool(with_dedicated(json!({"cpu": {"isolateEmulatorThread": true}})))),
            domain(pool(with_dedicated(json!({})))),
        ),
        ("pool-without-queues", domain(pool(json!({}))), domain(pool(json!({"devices": {"blockMultiQueue": true}})))),
        ("vmx-with-credential-guard", os("win11", domain(vmx("require"))), os("win7", domain(vmx("require")))),
        (
            "host-passthrough-exposes-vmx",
            os("win2k19", on("Intel", domain(json!({"cpu": {"model": "host-passthrough"}})))),
            os("win2k19", on("AMD", domain(json!({"cpu": {"model": "host-passthrough"}})))),
        ),
        (
            "credential-guard-with-virtio-scsi",
            os("win2k25", domain(disk(json!({"disk": {"bus": "scsi"}})))),
            os("win2k25", domain(disk(json!({})))),
        ),
        (
            "netkvm-queues-on-2025",
            os("win2k25", domain(json!({"devices": {"networkInterfaceMultiqueue": true}}))),
            os("win2k22", domain(json!({"devices": {"networkInterfaceMultiqueue": true}}))),
        ),
        (
            "cpu-hotplug-with-virtio-disks",
            domain(
                json!({"cpu": {"maxSockets": 4}, "devices": {"disks": [{"name": "a", "disk": {"bus": "virtio"}}, {"name": "b", "disk": {"bus": "virtio"}}]}}),
            ),
            domain(json!({"cpu": {"maxSockets": 4}, "devices": {"disks": [{"name": "a", "disk": {"bus": "virtio"}}]}})),
        ),
        (
            "cpu-too-old-for-windows-11",
            os("win11", domain(json!({"cpu": {"model": "Penryn"}}))),
            os("win11", domain(json!({"cpu": {"model": "Nehalem"}}))),
        ),
        (
            "avic-on-amd-against-pit-delay",
            on("AMD", with(hook("avic"), Try::default())),
            on("AMD", with(json!({"hook": {"avic": "Enabled"}, "clock": {"pit": "discard"}}), Try::default())),
        ),
        ("pit-discard-untested", with(json!({"clock": {"pit": "discard"}}), Try::default()), Try::default()),
        (
            "emsr-bitmap-without-evmcs",
            on("Intel", with(hook("emsrBitmap"), Try::default())),
            on("AMD", with(hook("emsrBitmap"), Try::default())),
        ),
        (
            "io-uring-on-sata",
            with(hook("ioUring"), domain(disk(json!({"disk": {"bus": "sata"}})))),
            with(hook("ioUring"), domain(disk(json!({})))),
        ),
        (
            "tlbflush-direct-without-evmcs",
            on("Intel", domain(hyperv(json!({"tlbflush": {"direct": {}}})))),
            on("AMD", domain(hyperv(json!({"tlbflush": {"direct": {}}})))),
        ),
        (
            "nested-off-beside-evmcs",
            domain(
                json!({"features": {"hyperv": {"evmcs": {}}}, "cpu": {"features": [{"name": "vmx", "policy": "disable"}]}}),
            ),
            domain(vmx("disable")),
        ),
    ]
}

#[test]
fn every_rule_is_hit_by_its_case_and_not_by_the_nearest_other() {
    let table = table();
    let known: BTreeSet<&str> = rules().unwrap().iter().map(|r| r.id.as_str()).collect();
    assert_eq!(table.iter().map(|(id, _, _)| *id).collect::<BTreeSet<_>>(), known, "the table and the rules differ");
    for (id, hit, miss) in table {
        let plan = planned(&hit);
        assert!(said(&plan).contains(id), "{id} is not hit: {:?}", said(&plan));
        assert!(!said(&planned(&miss)).contains(id), "{id} is hit where it should not");
    }
}

#[test]
fn what_a_rule_refuses_is_not_written_and_the_rest_is() {
    let amd = Try { os: "win2k22", profile: "performance", vendor: "AMD", ..Try::default() };
    let plan = planned(&amd);
    let of = |field: &str| plan.settings.iter().find(|s| s.field == field).unwrap();
    let Outcome::Refused { rule, why, unblock } = &of("features.hyperv.tlbflush").outcome else { panic!("{plan:?}") };
    assert!(rule == "tlbflush-on-amd" && why.contains("0xA") && unblock.contains("microcode"));
    assert!(of("features.hyperv.frequencies").is_write() && of("features.hyperv.vapic").is_write());
}

/// The delay of the interval timer wins over AVIC on AMD; only an explicit override makes room, with a warning.
#[test]
fn avic_on_amd_yields_to_pit_delay() {
    let amd = Try { vendor: "AMD", profile: "performance", ..Try::default() };
    let avic = |plan: &Plan| plan.settings.iter().find(|s| s.field == "hook.avic").unwrap().outcome.clone();
    assert!(matches!(avic(&planned(&amd)), Outcome::Refused { rule, .. } if rule == "avic-on-amd-against-pit-delay"));
    // An owner's own discard is not the word of a policy.
    let owner = Try { domain: json!({"clock": {"timer": {"pit": {"tickPolicy": "discard"}}}}), ..amd.clone() };
    assert!(matches!(avic(&planned(&owner)), Outcome::Refused { .. }));
    let discard = planned(&Try { overrides: json!({"clock": {"pit": "discard"}}), ..amd });
    assert!(matches!(avic(&discard), Outcome::Waits { .. }), "{:?}", avic(&discard));
    assert!(discard.findings.iter().any(|f| f.id == "pit-discard-untested" && f.text.contains("untested on Windows")));
    let intel = Try { vendor: "Intel", profile: "performance", ..Try::default() };
    assert!(matches!(avic(&planned(&intel)), Outcome::Waits { .. }));
}

/// What is wrong with one disk is no reason to leave another alone.
#[test]
fn a_rule_about_disks_speaks_of_those_that_fit() {
    let of = Try {
        domain: json!({"devices": {"disks": [
            {"name": "a", "disk": {"bus": "virtio"}, "cache": "writeback"}, {"name": "b", "disk": {"bus": "virtio"}}]}}),
        ..Try::default()
    };
    let mut facts = facts(&of);
    for claim in ["a", "b"] {
        let mode = Some(crate::plan::volumes::Mode::Block);
        facts.volumes.insert(claim, crate::plan::volumes::Claim { mode, thick: false });
    }
    let plan = plan(&facts, &Wanted::default()).unwrap();
    let is_write = |field: &str| plan.settings.iter().find(|s| s.field == field).unwrap().is_write();
    assert!(is_write("devices.disks[b].io") && is_write("devices.disks[b].cache") && !is_write("devices.disks[a].io"));
}

#[test]
fn a_review_that_is_due_shows_as_such() {
    let words = |today: &'static str| {
        let plan = planned(&Try { today, ..domain(hyperv(json!({"evmcs": {}}))) });
        plan.findings.iter().find(|f| f.id == "evmcs-without-nesting").unwrap().text.clone()
    };
    let review = rules().unwrap().iter().find(|r| r.id == "evmcs-without-nesting").unwrap().review;
    assert!(words("2090-01-01").contains(&format!("this rule was to be reviewed by {review}")));
    assert!(!words("2026-12-01").contains("reviewed") && !words("").contains("reviewed"));
}

#[test]
fn rules_that_mean_nothing_are_refused() {
    let rule = |when: &str| {
        format!(
            "- {{id: a, severity: warn, when: {when}, refuse: [], effect: e, unblock: u, source: s, review: 2027-01-01}}\n"
        )
    };
    parse_rules(&rule("[{at: /cpu/model, is: present}]")).unwrap();
    for (text, words) in [
        (rule("[]"), "always hold"),
        (rule("[{at: /cpu/model}]"), "exactly one test"),
        (rule("[{at: cpu.model, is: present}]"), "starts with /"),
        (rule("[{vendor: AMD, firmware: efi}]"), "exactly one kind"),
        (rule("[{}]"), "exactly one kind"),
        (rule("[{vendor: AMD, count: 2}]"), "`count` goes with"),
        (rule("[{override: clock.pit}]"), "goes with `not`"),
        (rule("[{vender: AMD}]"), "vender"),
        (rule("[{vendor: AMD}]").repeat(2), "another rule has it"),
        (rule("[{vendor: AMD}]").replace("2027-01-01", "soon"), "soon"),
        (rule("[{vendor: AMD}]").replace("effect: e", "effect: ''"), "must say something"),
    ] {
        let error = parse_rules(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
