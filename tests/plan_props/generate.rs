//! What is generated: VMs in every shape that people write, wishes, clusters, preferences, other writers.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use wintune::api::tuning::{Enlightenment, Overrides, Switch};
use wintune::plan::facts::{NodePool, NodeView, Nodes, Wanted};
use wintune::plan::preference::{Preference, Preferred};

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

pub fn disks() -> BoxedStrategy<(Value, Value)> {
    let bus = prop_oneof![Just("sata"), Just("scsi"), Just("virtio"), Just("usb")];
    vec((bus, any::<bool>(), 0..4_u8), 0..4)
        .prop_map(|disks| {
            let name = |i: usize| format!("disk{i}");
            let device = |i: usize, bus: &str, cdrom: bool| {
                if cdrom {
                    json!({"name": name(i), "cdrom": {"bus": "sata"}})
                } else {
                    json!({"name": name(i), "disk": {"bus": bus}})
                }
            };
            let volume = |i: usize, kind: u8| match kind {
                0 => json!({"name": name(i), "containerDisk": {"image": "registry.example/virtio-win:1"}}),
                1 => json!({"name": name(i), "sysprep": {"configMap": {"name": "answers"}}}),
                2 => json!({"name": name(i), "cloudInitNoCloud": {"userData": "#cloud-config"}}),
                _ => json!({"name": name(i), "persistentVolumeClaim": {"claimName": "claim"}}),
            };
            let devices = disks.iter().enumerate().map(|(i, (bus, cdrom, _))| device(i, bus, *cdrom)).collect();
            let volumes = disks.iter().enumerate().map(|(i, (_, _, kind))| volume(i, *kind)).collect();
            (Value::Array(devices), Value::Array(volumes))
        })
        .boxed()
}

pub fn domain() -> BoxedStrategy<Value> {
    object(vec![
        ("features", features()),
        ("clock", clock()),
        ("cpu", prop_oneof![Just(None), Just(Some(json!({"cores": 4, "model": null}))), Just(Some(json!({"threads": 2})))].boxed()),
        ("memory", prop_oneof![20 => Just(Some(json!({"guest": "4Gi"}))), 1 => Just(None)].boxed()),
        ("machine", sometimes(json!({"type": "q35"}))),
        ("firmware", prop_oneof![8 => Just(None), 1 => Just(Some(json!({"bootloader": {"efi": {}}}))), 1 => Just(Some(json!({"bootloader": {"efi": {"secureBoot": false}}})))].boxed()),
        ("resources", prop_oneof![8 => Just(None), 1 => Just(Some(json!({}))), 1 => Just(Some(json!({"clock": {"timer": {"hyperv": {}}}, "features": null})))].boxed()),
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
    let preference = rarely(json!({"name": "windows.2k25"}));
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
                domain["devices"] =
                    json!({"disks": disks, "interfaces": [{"name": "net0", "model": "e1000e", "masquerade": {}}]});
                let mut pod = json!({"domain": domain, "volumes": volumes, "terminationGracePeriodSeconds": 180});
                if let Some(architecture) = architecture {
                    pod["architecture"] = architecture;
                }
                let mut template = json!({"spec": pod});
                if let Some(inner) = inner {
                    template["metadata"] = json!({"labels": inner});
                }
                spec["template"] = template;
                if let Some(preference) = preference {
                    spec["preference"] = preference;
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

pub const OFFLINE: World = World { nodes: Nodes::Assumed, preference: Preference::None };
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

pub fn wanted() -> BoxedStrategy<Wanted> {
    use Enlightenment::*;
    let switchable = prop_oneof![
        Just(Relaxed),
        Just(Vapic),
        Just(Spinlocks),
        Just(Vpindex),
        Just(Synic),
        Just(Synictimer),
        Just(SynictimerDirect),
        Just(Ipi),
        Just(Runtime),
        Just(Reset)
    ];
    let any = prop_oneof![Just(Switch::On), Just(Switch::Off), Just(Switch::Leave)];
    let reported = prop_oneof![Just(Frequencies), Just(Reenlightenment), Just(Tlbflush)];
    let no_on = prop_oneof![Just(Switch::Off), Just(Switch::Leave)];
    let some = (btree_map(switchable, any, 0..5), btree_map(reported, no_on, 0..3))
        .prop_map(|(a, b)| Overrides { hyperv: a.into_iter().chain(b).collect() });
    prop_oneof![1 => Just(Overrides::default()), 2 => some]
        .prop_map(|overrides| Wanted { overrides, ..Wanted::default() })
        .boxed()
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
            NodeView { name: format!("node{number}"), labels }
        };
        Nodes::Known(Arc::new(NodePool::new(nodes.into_iter().enumerate().map(view))))
    });
    let nodes = prop_oneof![Just(Nodes::Assumed), known];
    let preference =
        prop_oneof![2 => Just(Preference::None), 1 => preferred().prop_map(|p| Preference::Read(Box::new(p)))];
    (nodes, preference).prop_map(|(nodes, preference)| World { nodes, preference }).boxed()
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
        ("/spec/template/spec/domain/cpu/cores", json!(16)),
        ("/spec/template/spec/domain/devices/disks/+", json!({"name": "new", "disk": {"bus": "virtio"}})),
        ("/spec/template/spec/domain/features/smm", json!({"enabled": true})),
        ("/spec/template/spec/domain/features/kvm", json!({"hidden": false})),
        ("/spec/template/spec/domain/features/hyperv/vendorid", json!({"vendorid": "theirs"})),
        ("/spec/template/spec/domain/clock/timer/kvm", json!({"present": false})),
        ("/spec/template/spec/domain/clock/timezone", json!("Asia/Tokyo")),
    ];
    proptest::sample::subsequence(changes, 1..4).boxed()
}
