//! What is generated: VMs in every shape that people write, wishes, clusters, preferences, other writers.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use wintune::api::tuning::{Enlightenment, Overrides, Switch};
use wintune::plan::capabilities::Capabilities;
use wintune::plan::facts::{Nodes, Running, Wanted};
use wintune::plan::instancetype::Owned;
use wintune::plan::nodes::{NodePool, NodeView};
use wintune::plan::preference::{Preference, Preferred};
use wintune::plan::profile::enlightenments;

pub type Field = BoxedStrategy<Option<Value>>;

/// A switch in every shape that people write: `{}`, on, off, null inside, fields that we do not know, null itself.
pub fn switch(key: &'static str) -> Field {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(Value::Null)),
        2 => Just(Some(json!({}))),
        2 => Just(Some(json!({key: true}))),
        2 => Just(Some(json!({key: false}))),
        1 => Just(Some(json!({key: null}))),
        1 => Just(Some(json!({key: true, "unknown": {"a": [1, 2]}}))),
        1 => Just(Some(json!({"unknown": "b"}))),
    ]
    .boxed()
}

pub fn timer() -> Field {
    prop_oneof![
        3 => switch("present"),
        1 => Just(Some(json!({"tickPolicy": "delay"}))),
        1 => Just(Some(json!({"tickPolicy": "catchup", "present": true}))),
        1 => Just(Some(json!({"tickPolicy": null}))),
        1 => Just(Some(json!({"present": false, "tickPolicy": "discard"}))),
    ]
    .boxed()
}

/// An object of fields that are there or not.
pub fn object(fields: Vec<(&'static str, Field)>) -> BoxedStrategy<Value> {
    let (names, fields): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    fields
        .prop_map(move |values| {
            let there = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            Value::Object(there.collect())
        })
        .boxed()
}

/// A holder in every shape: absent, null, empty, or with its fields.
pub fn holder(fields: Vec<(&'static str, Field)>) -> Field {
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(Value::Null)),
        1 => Just(Some(json!({}))),
        8 => object(fields).prop_map(Some),
    ]
    .boxed()
}

pub fn rarely(value: Value) -> Field {
    prop_oneof![12 => Just(None), 1 => Just(Some(value))].boxed()
}

pub fn sometimes(value: Value) -> Field {
    prop_oneof![Just(None), Just(Some(value))].boxed()
}

pub fn hyperv() -> Field {
    let synictimer = prop_oneof![
        1 => switch("enabled"),
        1 => (switch("enabled"), switch("enabled")).prop_map(|(own, direct)| {
            let mut own = own.filter(|o| !o.is_null())?;
            own["direct"] = direct?;
            Some(own)
        }),
    ];
    let mut fields: Vec<(&'static str, Field)> = [
        "relaxed",
        "vapic",
        "vpindex",
        "synic",
        "ipi",
        "runtime",
        "reset",
        "frequencies",
        "reenlightenment",
        "tlbflush",
    ]
    .into_iter()
    .map(|name| (name, switch("enabled")))
    .collect();
    fields.push(("synictimer", synictimer.boxed()));
    fields.push(("spinlocks", prop_oneof![switch("enabled"), sometimes(json!({"spinlocks": 4096}))].boxed()));
    fields.push(("vendorid", sometimes(json!({"vendorid": "somebody"}))));
    fields.push(("evmcs", rarely(json!({}))));
    fields.push(("unknown", rarely(json!({"enabled": true}))));
    holder(fields)
}

pub fn features() -> Field {
    holder(vec![
        ("acpi", switch("enabled")),
        ("smm", switch("enabled")),
        ("kvm", sometimes(json!({"hidden": true}))),
        ("hypervPassthrough", rarely(json!({"enabled": true}))),
        ("unknown", rarely(json!([1]))),
        ("hyperv", hyperv()),
    ])
}

pub fn clock() -> Field {
    holder(vec![
        (
            "utc",
            prop_oneof![
                switch("offsetSeconds").prop_map(|_| None),
                sometimes(json!({})),
                sometimes(json!({"offsetSeconds": 3600})),
                rarely(Value::Null)
            ]
            .boxed(),
        ),
        (
            "timezone",
            prop_oneof![4 => Just(None), 1 => Just(Some(json!("Europe/Berlin"))), 1 => Just(Some(Value::Null))].boxed(),
        ),
        (
            "timer",
            holder(vec![
                ("hpet", timer()),
                ("pit", timer()),
                ("rtc", timer()),
                ("hyperv", timer()),
                ("kvm", timer()),
                ("unknown", rarely(json!({}))),
            ]),
        ),
    ])
}

pub fn labels() -> Field {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(json!({}))),
        6 => Just(Some(json!({"harvesterhci.io/os": "windows"}))),
        1 => Just(Some(json!({"harvesterhci.io/os": "linux", "a": "b"}))),
        1 => Just(Some(json!({"kubevirt.io/os": "win2k22", "vm.kubevirt.io/template": "rhel9"}))),
    ]
    .boxed()
}

/// A disk as people write it: kind, and what else stands in its entry.
fn disk() -> BoxedStrategy<Value> {
    let bus = prop_oneof![
        1 => Just(json!({"bus": "sata"})),
        1 => Just(json!({"bus": "scsi"})),
        3 => Just(json!({"bus": "virtio"})),
        1 => Just(json!({})),
        1 => Just(json!({"bus": null})),
    ];
    let kind = prop_oneof![
        6 => bus.prop_map(|bus| ("disk", bus)),
        1 => Just(("cdrom", json!({"bus": "sata"}))),
        1 => Just(("lun", json!({"bus": "scsi"}))),
    ];
    let extra = object(vec![
        ("cache", prop_oneof![4 => Just(None), 1 => Just(Some(json!("none"))), 1 => Just(Some(json!("writeback"))), 1 => Just(Some(Value::Null))].boxed()),
        ("io", prop_oneof![4 => Just(None), 1 => Just(Some(json!("native"))), 1 => Just(Some(json!("threads")))].boxed()),
        ("dedicatedIOThread", prop_oneof![5 => Just(None), 1 => Just(Some(json!(false)))].boxed()),
        ("shareable", rarely(json!(true))),
        ("serial", sometimes(json!("S1"))),
    ]);
    (kind, extra)
        .prop_map(|((kind, device), mut extra)| {
            extra[kind] = device;
            extra
        })
        .boxed()
}

pub fn disks() -> BoxedStrategy<(Value, Value)> {
    vec((disk(), 0..6_u8), 0..4)
        .prop_map(|disks| {
            let name = |i: usize| format!("disk{i}");
            let volume = |i: usize, kind: u8| match kind {
                0 => json!({"name": name(i), "containerDisk": {"image": "registry.example/virtio-win:1"}}),
                1 => json!({"name": name(i), "sysprep": {"configMap": {"name": "answers"}}}),
                2 => json!({"name": name(i), "cloudInitNoCloud": {"userData": "#cloud-config"}}),
                _ => json!({"name": name(i), "persistentVolumeClaim": {"claimName": format!("claim{i}")}}),
            };
            let entry = |(i, (entry, _)): (usize, &(Value, u8))| {
                let mut entry = entry.clone();
                entry["name"] = json!(name(i));
                entry
            };
            let devices = disks.iter().enumerate().map(entry).collect();
            let volumes = disks.iter().enumerate().map(|(i, (_, kind))| volume(i, *kind)).collect();
            (Value::Array(devices), Value::Array(volumes))
        })
        .boxed()
}

fn cpu() -> Field {
    let count = |n: u32| prop_oneof![2 => Just(None), 3 => (1..=n).prop_map(|n| Some(json!(n)))].boxed();
    let features = prop_oneof![
        4 => Just(None),
        1 => Just(Some(json!([]))),
        1 => Just(Some(json!([{"name": "vmx", "policy": "require"}, {"name": "aes"}]))),
        1 => Just(Some(json!([{"name": "svm", "policy": "disable"}]))),
        1 => Just(Some(json!([{"name": "topoext"}]))),
    ];
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(json!({"cores": 4, "model": null}))),
        6 => object(vec![
            ("cores", count(8)),
            ("sockets", count(8)),
            ("threads", prop_oneof![4 => Just(None), 1 => Just(Some(json!(2)))].boxed()),
            ("model", prop_oneof![3 => Just(None), 1 => Just(Some(json!("host-model"))), 1 => Just(Some(json!("host-passthrough")))].boxed()),
            ("features", features.boxed()),
            ("dedicatedCpuPlacement", prop_oneof![4 => Just(None), 1 => Just(Some(json!(true))), 1 => Just(Some(json!(false)))].boxed()),
        ])
        .prop_map(Some),
    ]
    .boxed()
}

/// What stands beside the disks.
fn devices() -> BoxedStrategy<Value> {
    let flag = || prop_oneof![4 => Just(None), 1 => Just(Some(json!(true))), 1 => Just(Some(json!(false)))].boxed();
    object(vec![
        ("blockMultiQueue", flag()),
        ("networkInterfaceMultiqueue", flag()),
        ("autoattachMemBalloon", flag()),
        (
            "interfaces",
            prop_oneof![
                Just(Some(json!([{"name": "net0", "model": "e1000e", "masquerade": {}}]))),
                Just(Some(json!([{"name": "net0", "model": "virtio", "bridge": {}}]))),
                Just(Some(json!([{"name": "net0", "masquerade": {}}]))),
            ]
            .boxed(),
        ),
    ])
}

pub fn domain() -> BoxedStrategy<Value> {
    let quota = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "16"}});
    object(vec![
        ("features", features()),
        ("clock", clock()),
        ("cpu", cpu()),
        ("devices", devices().prop_map(Some).boxed()),
        ("ioThreadsPolicy", prop_oneof![8 => Just(None), 1 => Just(Some(json!("auto")))].boxed()),
        ("memory", prop_oneof![20 => Just(Some(json!({"guest": "4Gi"}))), 1 => Just(None)].boxed()),
        ("machine", sometimes(json!({"type": "q35"}))),
        ("firmware", prop_oneof![8 => Just(None), 1 => Just(Some(json!({"bootloader": {"efi": {}}}))), 1 => Just(Some(json!({"bootloader": {"efi": {"secureBoot": false}}})))].boxed()),
        ("resources", prop_oneof![4 => Just(None), 4 => Just(Some(quota)), 1 => Just(Some(json!({}))), 1 => Just(Some(json!({"clock": {"timer": {"hyperv": {}}}, "features": null})))].boxed()),
    ])
}

/// A VirtualMachine as it lies in a file, nulls and all.
pub fn manifest() -> BoxedStrategy<Value> {
    let strategy = prop_oneof![
        Just(json!({"runStrategy": "Halted"})),
        Just(json!({"runStrategy": "RerunOnFailure"})),
        Just(json!({"running": false})),
        Just(json!({})),
    ];
    let annotations = prop_oneof![2 => Just(None), 1 => Just(Some(json!({}))), 2 => Just(Some(json!({"a/b~c": "d"})))];
    let architecture = prop_oneof![6 => Just(None), 6 => Just(Some(json!("amd64"))), 1 => Just(Some(json!("arm64")))];
    let preference = prop_oneof![
        6 => Just(None),
        1 => Just(Some(json!({"name": "windows.2k25"}))),
        1 => Just(Some(json!({"name": "windows.10"}))),
        1 => Just(Some(json!({"name": "windows.2k8"}))),
    ];
    let instancetype = rarely(json!({"name": "u1.large"}));
    let preference = (preference, instancetype);
    (domain(), disks(), strategy, labels(), labels(), annotations, architecture, preference, 1..90_i64)
        .prop_map(
            |(
                mut domain,
                (disks, volumes),
                mut spec,
                labels,
                inner,
                annotations,
                architecture,
                preference,
                generation,
            )| {
                domain["devices"]["disks"] = disks;
                let mut pod = json!({"domain": domain, "volumes": volumes, "terminationGracePeriodSeconds": 180});
                if let Some(architecture) = architecture {
                    pod["architecture"] = architecture;
                }
                let mut template = json!({"spec": pod});
                if let Some(inner) = inner {
                    template["metadata"] = json!({"labels": inner});
                }
                spec["template"] = template;
                let (preference, instancetype) = preference;
                for (name, value) in [("preference", preference), ("instancetype", instancetype)] {
                    if let Some(value) = value {
                        spec[name] = value;
                    }
                }
                let mut meta = json!({"name": "vm", "namespace": "erp", "uid": UID, "generation": generation,
                "resourceVersion": (generation * 7).to_string()});
                for (name, value) in [("labels", labels), ("annotations", annotations)] {
                    if let Some(value) = value {
                        meta[name] = value;
                    }
                }
                json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": meta, "spec": spec})
            },
        )
        .boxed()
}

pub fn offline() -> World {
    World {
        nodes: Nodes::Assumed,
        preference: Preference::None,
        capabilities: Capabilities::assumed(),
        running: None,
        block: None,
        instancetype: None,
    }
}
pub const UID: &str = "0b5a2f34-9a5c-4f0e-8b7a-3f1d5c7e9a11";

/// The same VM as an API server keeps it: it prunes nulls, and an empty map of annotations is none. Tried on a real
/// one with KubeVirt's own definitions.
pub fn stored() -> BoxedStrategy<Value> {
    manifest()
        .prop_map(|mut object| {
            prune(&mut object);
            object
        })
        .boxed()
}

pub fn prune(value: &mut Value) {
    fn nulls(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|_, v| !v.is_null());
                map.values_mut().for_each(nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(nulls),
            _ => {}
        }
    }
    nulls(value);
    if value.pointer("/metadata/annotations").and_then(Value::as_object).is_some_and(Map::is_empty) {
        value["metadata"].as_object_mut().unwrap().remove("annotations");
    }
}

/// Overrides of everything but hyperv, in the words of a policy.
fn other_overrides() -> BoxedStrategy<Value> {
    let one_of = |words: &[&str]| {
        let words: Vec<Value> = words.iter().map(|w| json!(w)).collect();
        prop_oneof![6 => Just(None), 1 => proptest::sample::select(words).prop_map(Some)].boxed()
    };
    let switch = || one_of(&["Enabled", "Disabled", "Leave"]);
    object(vec![
        (
            "clock",
            object(vec![
                ("utc", switch()),
                ("hyperv", switch()),
                ("hpet", switch()),
                ("kvm", switch()),
                ("pit", one_of(&["delay", "catchup", "discard", "Leave"])),
                ("rtc", one_of(&["delay", "catchup", "Leave"])),
            ])
            .prop_map(Some)
            .boxed(),
        ),
        (
            "disks",
            object(vec![
                ("cache", one_of(&["none", "writethrough", "writeback", "Leave"])),
                ("io", one_of(&["native", "threads", "Leave"])),
            ])
            .prop_map(Some)
            .boxed(),
        ),
        (
            "ioThreads",
            object(vec![
                ("policy", one_of(&["SupplementalPool", "Dedicated", "Leave"])),
                ("poolSize", prop_oneof![8 => Just(None), 1 => (1..9_u32).prop_map(|n| Some(json!(n)))].boxed()),
            ])
            .prop_map(Some)
            .boxed(),
        ),
        (
            "cpu",
            object(vec![
                ("model", one_of(&["host-passthrough", "host-model", "Leave"])),
                ("topology", switch()),
                ("threads", switch()),
                ("nested", switch()),
                ("dedicatedCpuPlacement", switch()),
                ("isolateEmulatorThread", switch()),
                ("guestMappingPassthrough", switch()),
            ])
            .prop_map(Some)
            .boxed(),
        ),
        (
            "devices",
            object(vec![("memBalloon", switch()), ("blockMultiQueue", switch()), ("networkMultiqueue", switch())])
                .prop_map(Some)
                .boxed(),
        ),
        ("hook", object(vec![("avic", switch()), ("ioUring", switch())]).prop_map(Some).boxed()),
    ])
}

pub fn wanted() -> BoxedStrategy<Wanted> {
    let names: Vec<Enlightenment> = enlightenments().unwrap().iter().map(|k| k.name).collect();
    let any = prop_oneof![Just(Switch::On), Just(Switch::Off), Just(Switch::Leave)];
    let some =
        (btree_map(proptest::sample::select(names), any, 0..6), other_overrides()).prop_map(|(hyperv, others)| {
            let others: Overrides = serde_json::from_value(others).unwrap();
            Overrides { hyperv, ..others }
        });
    let profile = prop_oneof![Just("migration-safe"), Just("performance"), Just("legacy"), Just("latency")];
    (prop_oneof![1 => Just(Overrides::default()), 2 => some], profile, any_bool())
        .prop_map(|(overrides, profile, allow_unmigratable)| Wanted {
            overrides,
            profile: profile.to_owned(),
            allow_unmigratable,
        })
        .boxed()
}

fn any_bool() -> BoxedStrategy<bool> {
    any::<bool>().boxed()
}

/// The plain profile and some overrides: making a VM costs more than planning it.
pub fn wishes() -> BoxedStrategy<Vec<Wanted>> {
    vec(wanted(), 2..4).prop_map(|wishes| [Wanted::default()].into_iter().chain(wishes).collect()).boxed()
}

/// What is known beside the VM itself.
#[derive(Clone, Debug)]
pub struct World {
    pub nodes: Nodes,
    pub preference: Preference,
    pub capabilities: Arc<Capabilities>,
    pub running: Option<Running>,
    /// Claims on block devices.
    pub block: Option<Vec<String>>,
    pub instancetype: Option<Owned>,
}

/// Offline, or a cluster of one to three nodes, most of them capable; with a preference that was read, or without.
pub fn world() -> BoxedStrategy<World> {
    let all = ["base", "vpindex", "synic", "synictimer", "ipi", "runtime", "reset", "frequencies", "time", "tlbflush"];
    let lacking = prop_oneof![3 => Just(Default::default()), 1 => btree_set(0..all.len(), 0..3)];
    let known = vec(lacking, 1..4).prop_map(move |nodes| {
        let view = |(number, lacking): (usize, std::collections::BTreeSet<usize>)| {
            let has = all.iter().enumerate().filter(|(i, _)| !lacking.contains(i));
            let mut labels: BTreeMap<String, String> =
                has.map(|(_, f)| (format!("hyperv.node.kubevirt.io/{f}"), "true".to_owned())).collect();
            labels.insert("kubevirt.io/schedulable".to_owned(), "true".to_owned());
            let odd = !lacking.is_empty();
            let vendor = if odd { "AMD" } else { "Intel" };
            labels.insert(format!("cpu-vendor.node.kubevirt.io/{vendor}"), "true".to_owned());
            labels.insert(format!("host-model-cpu.node.kubevirt.io/{vendor}-model"), "true".to_owned());
            labels.insert("cpu-timer.node.kubevirt.io/tsc-frequency".to_owned(), "2000000000".to_owned());
            labels.insert("cpu-timer.node.kubevirt.io/tsc-scalable".to_owned(), (!odd).to_string());
            labels.insert("cpumanager".to_owned(), (number < 2).to_string());
            labels.insert("node.wintune.dev/smt".to_owned(), "true".to_owned());
            NodeView { name: format!("node{number}"), labels, taints: Vec::new() }
        };
        Nodes::Known(Arc::new(NodePool::new(nodes.into_iter().enumerate().map(view))))
    });
    let nodes = prop_oneof![Just(Nodes::Assumed), known];
    let preference =
        prop_oneof![2 => Just(Preference::None), 1 => preferred().prop_map(|p| Preference::Read(Box::new(p)))];
    let capabilities = prop_oneof![
        Just(Capabilities::assumed()),
        Just(Arc::new(Capabilities::of_kubevirt("1.9").unwrap())),
        Just(Arc::new(Capabilities::of_harvester("1.8").unwrap())),
        Just(Arc::new(Capabilities {
            kubevirt: Some("1.7.0".parse().unwrap()),
            ..Capabilities::of_kubevirt("1.7").unwrap()
        })),
    ];
    let running = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Running { node: Some("node0".to_owned()), domain: json!({"cpu": {"cores": 2}}) })),
    ];
    let block = prop_oneof![1 => Just(None), 3 => Just(Some((0..3).map(|i| format!("claim{i}")).collect()))];
    let instancetype = prop_oneof![
        Just(None),
        Just(Some(Owned::from_object("u1", &json!({"spec": {"cpu": {"guest": 4, "model": "host-model"}}})).unwrap())),
    ];
    (nodes, preference, capabilities, running, block, instancetype)
        .prop_map(|(nodes, preference, capabilities, running, block, instancetype)| World {
            nodes,
            preference,
            capabilities,
            running,
            block,
            instancetype,
        })
        .boxed()
}

/// What a preference may give, as an API server keeps it.
pub fn preferred() -> BoxedStrategy<Preferred> {
    let timers = holder(vec![
        ("hpet", timer()),
        ("pit", timer()),
        ("rtc", timer()),
        ("hyperv", timer()),
        ("kvm", rarely(json!({"present": true}))),
    ]);
    let offset = prop_oneof![
        2 => Just(Value::Null),
        1 => Just(json!({"utc": {}})),
        1 => Just(json!({"utc": {"offsetSeconds": 60}})),
        1 => Just(json!({"timezone": "Europe/Berlin"})),
    ];
    (hyperv(), timers, offset)
        .prop_map(|(hyperv, timers, offset)| {
            let spec = json!({"features": {"preferredHyperv": hyperv}, "clock": {"preferredTimer": timers, "preferredClockOffset": offset}});
            let mut object = json!({"kind": "VirtualMachinePreference", "spec": spec});
            prune(&mut object);
            Preferred::from_object("preference windows", &object).unwrap()
        })
        .boxed()
}

/// A change by somebody else beside ours: where, and what. `+` at the end appends to a list.
pub fn theirs() -> BoxedStrategy<Vec<(&'static str, Value)>> {
    let changes: Vec<(&'static str, Value)> = vec![
        ("/metadata/labels/theirs", json!("yes")),
        ("/metadata/annotations/theirs", json!("yes")),
        ("/spec/runStrategy", json!("Manual")),
        ("/spec/template/spec/domain/cpu/maxSockets", json!(16)),
        ("/spec/template/spec/domain/devices/disks/+", json!({"name": "new", "disk": {"bus": "virtio"}})),
        ("/spec/template/spec/domain/features/smm", json!({"enabled": true})),
        ("/spec/template/spec/domain/features/kvm", json!({"hidden": false})),
        ("/spec/template/spec/domain/clock/timezone", json!("Asia/Tokyo")),
    ];
    proptest::sample::subsequence(changes, 1..4).boxed()
}
