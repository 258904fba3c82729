//! Disks, I/O threads, CPU and devices, setting by setting.

use std::sync::Arc;

use super::*;
use crate::plan::capabilities::Capabilities;
use crate::plan::instancetype::{Instancetype, Owned};
use crate::plan::nodes::{NodePool, NodeView};
use crate::plan::preference::Preferred;
use crate::plan::volumes::{Claim, Mode};
use serde_json::Value;

/// A VM with these disks, each on a claim of its own name, and a domain.
fn facts_of(disks: &Value, domain: &Value) -> Facts {
    let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "labels": {"kubevirt.io/os": "windows"}},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"memory": {"guest": "4Gi"}, "devices": {}}}}}});
    json_patch::merge(&mut object["spec"]["template"]["spec"]["domain"], domain);
    let spec = &mut object["spec"]["template"]["spec"];
    spec["domain"]["devices"]["disks"] = disks.clone();
    let volume = |d: &Value| json!({"name": d["name"], "persistentVolumeClaim": {"claimName": d["name"]}});
    spec["volumes"] = disks.as_array().unwrap().iter().map(volume).collect();
    let mut facts = Facts::offline(Vm::from_object(&object).unwrap());
    facts.capabilities = Arc::new(Capabilities::of_kubevirt("1.9").unwrap());
    for disk in disks.as_array().unwrap() {
        facts.volumes.insert(disk["name"].as_str().unwrap(), Claim { mode: Some(Mode::Block), thick: false });
    }
    facts
}

fn edited(facts: &Facts, edit: &Value) -> Facts {
    let mut spec = json!({"spec": facts.vm.spec.clone()});
    json_patch::merge(&mut spec, edit);
    Facts { vm: Vm { spec: spec["spec"].take(), ..facts.vm.clone() }, ..facts.clone() }
}

fn marked(facts: Facts, os: &str) -> Facts {
    let labels = [("kubevirt.io/os".to_owned(), os.to_owned())].into();
    Facts { vm: Vm { labels, ..facts.vm.clone() }, ..facts }
}

fn with(facts: &Facts, profile: &str, overrides: &Value) -> Plan {
    let overrides = serde_json::from_value(overrides.clone()).unwrap();
    let wanted = Wanted { profile: profile.to_owned(), overrides, allow_unmigratable: true };
    let plan = plan(facts, &wanted).unwrap();
    // Whatever it is: planned again it is empty, and the undo gives it back.
    if plan.has_changes() {
        let mut after = facts.clone();
        after.vm.spec["template"]["spec"]["domain"] = plan.change.domain.clone();
        let again = super::super::plan(&after, &wanted).unwrap();
        assert!(!again.has_changes(), "{:?}", again.change.entries);
        let applied = patch::merge(None, "u", &plan.change);
        patch::check(&applied, "u").unwrap();
        let undo = patch::undo(&plan.change.domain, &applied);
        assert_eq!((&undo.domain, undo.kept), (facts.vm.domain(), Vec::new()));
    }
    plan
}

fn none() -> Value {
    json!({})
}

/// What comes of a field in a word: write VALUE, the rule of a refusal or of what stays, satisfied, kept, waits, absent.
fn of(plan: &Plan, field: &str) -> String {
    let Some(setting) = plan.settings.iter().find(|s| s.field == field) else { return "absent".to_owned() };
    match &setting.outcome {
        Outcome::Write => format!("write {}", setting.desired),
        Outcome::Satisfied => "satisfied".to_owned(),
        Outcome::Kept { .. } => "kept".to_owned(),
        Outcome::Waits { .. } => "waits".to_owned(),
        Outcome::Stays { rule, .. } => format!("stays {rule}"),
        Outcome::Refused { rule, .. } => format!("refused {rule}"),
    }
}

fn virtio(name: &str) -> Value {
    json!({"name": name, "disk": {"bus": "virtio"}})
}

fn room() -> Value {
    json!({"cpu": {"cores": 8}, "resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "16"}}})
}

#[test]
fn cache_and_io_are_made_explicit_on_block_volumes_only() {
    let disks = json!([virtio("a"), {"name": "b", "disk": {"bus": "sata"}, "cache": "writeback"}, {"name": "c", "disk": {"bus": "virtio"}, "io": "threads"}]);
    let mut facts = facts_of(&disks, &none());
    let plan = with(&facts, "migration-safe", &none());
    for (field, what) in [
        ("devices.disks[a].cache", "write \"none\""),
        ("devices.disks[a].io", "write \"native\""),
        ("devices.disks[b].cache", "kept"),
        ("devices.disks[b].io", "refused native-io-with-host-cache"),
        ("devices.disks[c].cache", "write \"none\""),
        ("devices.disks[c].io", "kept"),
    ] {
        assert_eq!(of(&plan, field), what, "{field}");
    }
    for claim in [Claim { mode: Some(Mode::File), thick: true }, Claim { mode: None, thick: true }] {
        facts.volumes.insert("a", claim);
        let plan = with(&facts, "migration-safe", &none());
        assert_eq!(
            (of(&plan, "devices.disks[a].cache"), of(&plan, "devices.disks[a].io")),
            ("absent".to_owned(), "absent".to_owned())
        );
        assert!(plan.findings.iter().any(|f| f.id == "no-discard" && f.text.contains("storage of a:")));
    }
    let plan = with(&facts, "migration-safe", &json!({"disks": {"cache": "none", "io": "threads"}}));
    assert_eq!(
        (of(&plan, "devices.disks[b].cache"), of(&plan, "devices.disks[b].io")),
        ("write \"none\"".to_owned(), "write \"threads\"".to_owned())
    );
}

#[test]
fn each_disk_says_whether_its_bus_may_move() {
    let disks = json!([
        {"name": "cd", "cdrom": {"bus": "sata"}, "bootOrder": 1}, {"name": "lun", "lun": {"bus": "scsi"}},
        {"name": "res", "lun": {"bus": "scsi", "reservation": true}}, {"name": "fd", "floppy": {}},
        {"name": "shared", "disk": {"bus": "sata"}, "shareable": true, "cache": "none"},
        {"name": "hot", "disk": {"bus": "scsi"}}, {"name": "root", "disk": {"bus": "sata"}, "bootOrder": 2},
        virtio("data"), {"name": "plain", "disk": {}, "bootOrder": 3}]);
    let facts = facts_of(&disks, &none());
    let mut spec = facts.vm.spec.clone();
    for volume in spec["template"]["spec"]["volumes"].as_array_mut().unwrap() {
        if volume["name"] == "hot" {
            volume["persistentVolumeClaim"]["hotpluggable"] = json!(true);
        }
    }
    spec["template"]["spec"]["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "loose", "persistentVolumeClaim": {"claimName": "loose"}}));
    let facts = Facts { vm: Vm { spec, ..facts.vm.clone() }, ..facts };
    let plan = with(&facts, "migration-safe", &none());
    for (field, what) in [
        ("devices.disks[cd].cdrom.bus", "stays cdrom"),
        ("devices.disks[lun].lun.bus", "stays lun"),
        ("devices.disks[res].lun.bus", "stays reservation"),
        ("devices.disks[fd].floppy", "stays floppy"),
        ("devices.disks[shared].disk.bus", "stays shareable-disk"),
        ("devices.disks[hot].disk.bus", "stays hotplugged-disk"),
        ("devices.disks[root].disk.bus", "waits"),
        ("devices.disks[plain].disk.bus", "waits"),
        ("devices.disks[data].disk.bus", "satisfied"),
        ("devices.disks[loose].disk.bus", "stays no-disk-entry"),
        ("devices.disks[shared].cache", "stays shareable-disk"),
        ("devices.disks[hot].cache", "absent"),
    ] {
        assert_eq!(of(&plan, field), what, "{field}");
    }
    let root = plan.settings.iter().find(|s| s.field == "devices.disks[root].disk.bus").unwrap();
    assert!(
        matches!(&root.outcome, Outcome::Waits { evidence, unblock } if evidence.contains("CD-ROM cd") && unblock.contains("detach"))
    );
    let mut many: Vec<Value> = (0..26).map(|i| virtio(&format!("d{i}"))).collect();
    many.push(json!({"name": "root", "disk": {"bus": "sata"}}));
    assert_eq!(
        of(&with(&facts_of(&json!(many), &none()), "migration-safe", &none()), "devices.disks[root].disk.bus"),
        "stays no-free-slot"
    );
}

/// The record has 4 kB for everything; what does not fit is refused, by name, and the next plan comes to the same.
#[test]
fn very_many_disks_do_not_overflow_the_record() {
    let disks: Vec<Value> = (10..40).map(|i| virtio(&format!("database-volume-{i}"))).collect();
    let plan = with(&facts_of(&json!(disks), &room()), "performance", &none());
    let applied =
        serde_json::to_string(&patch::merge(None, "0b5a2f34-9a5c-4f0e-8b7a-3f1d5c7e9a11", &plan.change)).unwrap();
    let summary = serde_json::to_string(&plan.summary()).unwrap();
    assert!(applied.len() < 3_000 && summary.len() < 1_500, "{} and {}", applied.len(), summary.len());
    assert_eq!(of(&plan, "devices.disks[database-volume-10].cache"), "write \"none\"");
    assert_eq!(of(&plan, "devices.disks[database-volume-39].cache"), "refused record-full");
    // Eight disks of a plain profile fit.
    let eight: Vec<Value> = (0..8).map(|i| virtio(&format!("data-{i}"))).collect();
    let plan = with(&facts_of(&json!(eight), &none()), "migration-safe", &none());
    assert_eq!(of(&plan, "devices.disks[data-7].io"), "write \"native\"");
}

#[test]
fn a_pool_goes_in_where_the_limits_leave_room_and_a_thread_for_each_disk_elsewhere() {
    const POLICY: &str = "ioThreadsPolicy";
    const COUNT: &str = "ioThreads.supplementalPoolThreadCount";
    const DEDICATED: &str = "devices.disks[a].dedicatedIOThread";
    const QUEUES: &str = "devices.blockMultiQueue";
    let disks = json!([virtio("a"), virtio("b")]);
    let plan = with(&facts_of(&disks, &room()), "performance", &none());
    assert_eq!(
        [POLICY, COUNT, DEDICATED, QUEUES].map(|f| of(&plan, f)),
        ["write \"supplementalPool\"", "write 4", "absent", "write true"]
    );
    let small = json!({"cpu": {"cores": 2}, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "8"}}});
    let plan = with(&facts_of(&disks, &small), "performance", &none());
    assert_eq!([POLICY, DEDICATED, QUEUES].map(|f| of(&plan, f)), ["absent", "write true", "absent"]);
    let tight = json!({"cpu": {"cores": 8}, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "8"}}});
    let plan = with(&facts_of(&disks, &tight), "performance", &none());
    assert_eq!([POLICY, DEDICATED, QUEUES].map(|f| of(&plan, f)), ["refused io-thread-room", "write true", "absent"]);
    assert!(
        plan.findings.iter().any(|f| f.id == "io-threads-in-quota")
            && plan.findings.iter().any(|f| f.id == "cpu-overcommit")
    );
    let mut old = facts_of(&disks, &room());
    old.capabilities = Arc::new(Capabilities::of_kubevirt("1.4").unwrap());
    let plan = with(&old, "performance", &none());
    assert_eq!([POLICY, DEDICATED, QUEUES].map(|f| of(&plan, f)), ["refused not-served", "write true", "absent"]);
    // In a cluster a pod without limits of its own would ask for more than anybody checked.
    let mut known = facts_of(&disks, &json!({"cpu": {"cores": 8}}));
    known.nodes = Nodes::Known(Arc::new(NodePool::new([NodeView {
        name: "n".to_owned(),
        labels: [("kubevirt.io/schedulable".to_owned(), "true".to_owned())].into(),
        taints: Vec::new(),
    }])));
    assert_eq!(of(&with(&known, "performance", &none()), POLICY), "refused io-thread-room");
    let isolated = json!({"cpu": {"cores": 8, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true}});
    assert_eq!(of(&with(&facts_of(&disks, &isolated), "performance", &none()), POLICY), "refused io-thread-room");
    assert_eq!(
        of(&with(&facts_of(&disks, &json!({"ioThreadsPolicy": "auto"})), "performance", &none()), POLICY),
        "kept"
    );
    let sized = with(&facts_of(&disks, &room()), "performance", &json!({"ioThreads": {"poolSize": 2}}));
    assert_eq!(of(&sized, COUNT), "write 2");
    // Only virtio disks have queues for it, and the safe profile has none of it.
    let sata = facts_of(&json!([{"name": "a", "disk": {"bus": "sata"}}]), &room());
    assert_eq!([POLICY, DEDICATED].map(|f| of(&with(&sata, "performance", &none()), f)), ["absent", "absent"]);
    assert_eq!(
        [POLICY, DEDICATED].map(|f| of(&with(&facts_of(&disks, &room()), "migration-safe", &none()), f)),
        ["absent", "absent"]
    );
}

#[test]
fn what_instancetype_and_preference_give_is_not_written() {
    let mut facts = facts_of(&json!([virtio("a")]), &json!({"resources": room()["resources"].clone()}));
    facts = edited(&facts, &json!({"spec": {"instancetype": {"name": "u1"}}}));
    let object = json!({"spec": {"cpu": {"guest": 8, "model": "host-model"}, "ioThreadsPolicy": "auto"}});
    facts.instancetype = Instancetype::Read(Box::new(Owned::from_object("u1", &object).unwrap()));
    let plan = with(&facts, "performance", &json!({"cpu": {"model": "host-passthrough"}}));
    assert_eq!([of(&plan, "cpu.model"), of(&plan, "ioThreadsPolicy")], ["stays instancetype", "stays instancetype"]);
    facts.instancetype = Instancetype::Unread { why: "offline".to_owned() };
    let plan = with(&facts, "performance", &json!({"cpu": {"model": "host-passthrough"}}));
    assert_eq!([of(&plan, "cpu.model"), of(&plan, "ioThreadsPolicy")], ["stays instancetype", "stays instancetype"]);
    let preference = json!({"spec": {"devices": {"preferredDiskCache": "none", "preferredDiskIO": "threads", "preferredAutoattachMemBalloon": false}}});
    let mut facts = facts_of(&json!([virtio("a")]), &none());
    facts.preference = Preference::Read(Box::new(Preferred::from_object("windows", &preference).unwrap()));
    let plan = with(&facts, "performance", &none());
    assert_eq!(
        ["devices.disks[a].cache", "devices.disks[a].io", "devices.autoattachMemBalloon"].map(|f| of(&plan, f)),
        ["satisfied", "kept", "satisfied"]
    );
    let preferred = plan.settings.iter().find(|s| s.field == "devices.disks[a].io").unwrap();
    assert_eq!(preferred.preferred, Some(json!("threads")), "one of the four ways");
}

/// Nodes with dedicated CPUs, of one vendor, with labels of their own.
fn nodes(vendor: &str, labels: &[&str]) -> Nodes {
    let node = |name: &str| {
        let own = [
            format!("cpu-vendor.node.kubevirt.io/{vendor}"),
            format!("host-model-cpu.node.kubevirt.io/{vendor}-1"),
            "kubevirt.io/schedulable".to_owned(),
        ];
        let all = own.into_iter().chain(labels.iter().map(|l| (*l).to_owned())).map(|l| (l, "true".to_owned()));
        NodeView { name: name.to_owned(), labels: all.collect(), taints: Vec::new() }
    };
    Nodes::Known(Arc::new(NodePool::new([node("a"), node("b")])))
}

#[test]
fn dedicated_cpus_threads_and_topoext_follow_from_the_nodes() {
    let all = ["cpumanager", "node.wintune.dev/smt", "cpu-feature.node.kubevirt.io/topoext"];
    let fields = [
        "cpu.dedicatedCpuPlacement",
        "cpu.isolateEmulatorThread",
        "cpu.threads",
        "cpu.cores",
        "cpu.features[topoext]",
        "cpu.numa.guestMappingPassthrough",
        "cpu.model",
    ];
    let mut facts = facts_of(&json!([virtio("a")]), &json!({"cpu": {"cores": 8}}));
    let mut on = |nodes: Nodes, gates: &[&str]| {
        facts.nodes = nodes;
        let gates = gates.iter().map(|g| (*g).to_owned()).collect();
        facts.capabilities = Arc::new(Capabilities { gates, ..Capabilities::of_kubevirt("1.9").unwrap() });
        let plan = with(&facts, "latency", &none());
        fields.map(|f| of(&plan, f))
    };
    let gates = ["CPUManager", "NUMA"];
    let topoext = "write {\"name\":\"topoext\",\"policy\":\"require\"}";
    assert_eq!(
        on(nodes("AMD", &all), &gates),
        [
            "write true",
            "write true",
            "write 2",
            "write 4",
            topoext,
            "refused no-hugepages",
            "write \"host-passthrough\""
        ]
    );
    assert_eq!(on(nodes("Intel", &all), &gates)[2..5], ["write 2", "write 4", "absent"]);
    assert_eq!(on(nodes("AMD", &all[..1]), &gates)[2..5], ["refused node-lacks-feature", "absent", "absent"]);
    assert_eq!(on(nodes("AMD", &all), &[])[..3], ["refused gate-off", "refused prerequisite", "absent"]);
    assert_eq!(on(nodes("AMD", &all[1..]), &gates)[..2], ["refused node-lacks-feature", "refused prerequisite"]);
    assert_eq!(on(Nodes::Assumed, &gates)[0], "refused nodes-unknown");
    let harvester = marked(facts_of(&json!([virtio("a")]), &json!({"cpu": {"cores": 8}})), "windows");
    let mut harvester = Facts { nodes: nodes("AMD", &all), ..harvester };
    harvester.capabilities = Arc::new(Capabilities::of_harvester("1.9").unwrap());
    assert_eq!(of(&with(&harvester, "latency", &none()), "cpu.threads"), "refused harvester-topology");
    let odd = Facts {
        nodes: nodes("AMD", &all),
        capabilities: Arc::new(Capabilities {
            gates: gates.map(str::to_owned).into(),
            ..Capabilities::of_kubevirt("1.9").unwrap()
        }),
        ..facts_of(&none_list(), &json!({"cpu": {"cores": 7}}))
    };
    assert_eq!(of(&with(&odd, "latency", &none()), "cpu.threads"), "refused odd-cores");
    let huge = json!({"cpu": {"cores": 8}, "memory": {"hugepages": {"pageSize": "2Mi"}}});
    let huge =
        Facts { nodes: nodes("AMD", &all), capabilities: odd.capabilities.clone(), ..facts_of(&none_list(), &huge) };
    assert_eq!(of(&with(&huge, "latency", &none()), "cpu.numa.guestMappingPassthrough"), "write {}");
    let fraction = json!({"cpu": {"cores": 8}, "resources": {"requests": {"cpu": "1500m"}}});
    let fraction = Facts {
        nodes: nodes("AMD", &all),
        capabilities: odd.capabilities.clone(),
        ..facts_of(&none_list(), &fraction)
    };
    assert_eq!(of(&with(&fraction, "latency", &none()), "cpu.dedicatedCpuPlacement"), "refused cpu-resources");
}

fn none_list() -> Value {
    json!([])
}

#[test]
fn a_desktop_gets_one_socket_and_keeps_its_vcpus() {
    let of_os = |os: &str, cpu: Value| {
        let plan = with(&marked(facts_of(&none_list(), &json!({"cpu": cpu})), os), "performance", &none());
        ["cpu.sockets", "cpu.cores"].map(|f| of(&plan, f))
    };
    assert_eq!(of_os("win11", json!({"sockets": 8, "cores": 2})), ["write 1", "write 16"]);
    assert_eq!(of_os("win11", json!({"sockets": 2, "cores": 2})), ["absent", "absent"]);
    assert_eq!(of_os("win2k22", json!({"sockets": 8, "cores": 2})), ["absent", "absent"]);
    assert_eq!(of_os("win10", json!({"sockets": 4, "maxSockets": 16})), ["refused cpu-hotplug", "refused cpu-hotplug"]);
}

#[test]
fn vmx_and_svm_are_hidden_only_when_a_policy_says_so() {
    let hide = json!({"cpu": {"nested": "Disabled"}});
    let fields = ["cpu.features[vmx]", "cpu.features[svm]", "cpu.features[vmx].policy"];
    let facts = facts_of(&none_list(), &none());
    assert_eq!(fields.map(|f| of(&with(&facts, "performance", &none()), f)), ["absent"; 3]);
    let both = ["vmx", "svm"].map(|name| format!("write {{\"name\":\"{name}\",\"policy\":\"disable\"}}"));
    assert_eq!(fields[..2].iter().map(|f| of(&with(&facts, "performance", &hide), f)).collect::<Vec<_>>(), both);
    let intel = Facts { nodes: nodes("Intel", &[]), ..facts };
    assert_eq!(fields.map(|f| of(&with(&intel, "migration-safe", &hide), f)), [both[0].as_str(), "absent", "absent"]);
    let required =
        facts_of(&none_list(), &json!({"cpu": {"features": [{"name": "aes"}, {"name": "vmx", "policy": "require"}]}}));
    assert_eq!(of(&with(&required, "migration-safe", &hide), "cpu.features[vmx].policy"), "write \"disable\"");
}

#[test]
fn queues_and_balloon() {
    let nic = |model: &str, cores: u32| json!({"cpu": {"cores": cores}, "devices": {"interfaces": [{"name": "n", "model": model, "masquerade": {}}]}});
    let queues = |domain: &Value, profile: &str| {
        of(&with(&facts_of(&none_list(), domain), profile, &none()), "devices.networkInterfaceMultiqueue")
    };
    assert_eq!(queues(&nic("virtio", 4), "migration-safe"), "write true");
    assert_eq!(queues(&nic("", 4), "migration-safe"), "write true", "KubeVirt's default is virtio");
    assert_eq!(queues(&nic("virtio", 1), "migration-safe"), "absent");
    assert_eq!(queues(&nic("e1000e", 4), "migration-safe"), "absent");
    assert_eq!(queues(&nic("virtio", 4), "legacy"), "absent");
    let balloon = |domain: &Value, profile: &str| {
        of(&with(&facts_of(&none_list(), domain), profile, &none()), "devices.autoattachMemBalloon")
    };
    assert_eq!([balloon(&none(), "performance"), balloon(&none(), "migration-safe")], ["write false", "absent"]);
    assert_eq!(balloon(&json!({"devices": {"autoattachMemBalloon": true}}), "performance"), "kept");
}

#[test]
fn an_old_version_caps_even_a_named_profile() {
    let writes = |os: &str| {
        let plan = with(
            &marked(facts_of(&json!([{"name": "a", "disk": {"bus": "sata"}}]), &none()), os),
            "performance",
            &none(),
        );
        let said = plan.findings.iter().find(|f| f.id == "guest-version").map(|f| f.text.clone());
        let fields: Vec<String> = plan.settings.iter().filter(|s| s.is_write()).map(|s| s.field.clone()).collect();
        (fields, said)
    };
    let (xp, said) = writes("winxp");
    assert!(!xp.iter().any(|f| f.contains("hyperv") || f.contains("clock")), "{xp:?}");
    assert!(said.unwrap().contains("whatever the profile says"));
    let (old, said) = writes("win2k8");
    assert!(
        old.contains(&"features.hyperv.vapic".to_owned()) && !old.contains(&"features.hyperv.synictimer".to_owned()),
        "{old:?}"
    );
    assert!(!old.contains(&"clock.timer.hpet".to_owned()) && said.unwrap().contains("Server 2008"));
    let (seven, said) = writes("win7");
    assert!(
        seven.contains(&"features.hyperv.synictimer".to_owned())
            && said.unwrap().contains("features.hyperv.reenlightenment")
    );
    assert_eq!(writes("win2k22").1, None);
    // An override is a policy's own word.
    let facts = marked(facts_of(&none_list(), &none()), "win2k8");
    let plan = with(&facts, "migration-safe", &json!({"hyperv": {"ipi": "Enabled"}}));
    assert_eq!(of(&plan, "features.hyperv.ipi"), "write {\"enabled\":true}");
}

#[test]
fn harvesters_own_faults_are_said_where_they_bite() {
    let on = |version: &str, annotations: Value, domain: &Value| {
        let mut facts = facts_of(&json!([virtio("a")]), domain);
        facts.capabilities = Arc::new(Capabilities::of_harvester(version).unwrap());
        facts.vm.annotations = serde_json::from_value(annotations).unwrap();
        let plan = with(&facts, "migration-safe", &none());
        plan.findings.iter().map(|f| f.id.to_string()).filter(|id| id != "cpu-overcommit").collect::<Vec<_>>()
    };
    let whole = json!({"cpu": {"cores": 2, "sockets": 1, "threads": 1}});
    assert_eq!(on("1.6", none(), &whole), ["harvester-form-drops"]);
    assert_eq!(on("1.7", none(), &whole), ["harvester-completes"]);
    assert_eq!(on("1.7", none(), &json!({"cpu": {"cores": 2, "sockets": 1, "threads": 2}}))[0], "harvester-threads");
    assert_eq!(on("1.7", none(), &json!({"cpu": {"cores": 2, "sockets": 4, "threads": 1}}))[0], "harvester-sockets");
    let importer = json!({"cpu": {"cores": 8, "sockets": 8}, "resources": {"limits": {"cpu": "8"}}});
    assert_eq!(on("1.7", none(), &importer)[0], "more-vcpus-than-limit");
    assert_eq!(on("1.7", json!({"harvesterhci.io/volumeClaimTemplates": "{"}), &whole)[0], "harvester-claim-templates");
    let memory = json!({"cpu": {"cores": 2, "sockets": 1, "threads": 1}, "memory": {"guest": "4Gi"}, "resources": {"limits": {"memory": "4Gi"}}});
    assert_eq!(on("1.7", json!({"harvesterhci.io/reservedMemory": "256Mi"}), &memory)[0], "harvester-reserved-memory");
}

#[test]
fn a_field_that_the_cluster_does_not_have_is_refused() {
    let direct = json!({"hyperv": {"tlbflush": "Enabled", "tlbflushDirect": "Enabled", "tlbflushExtended": "Enabled"}});
    let at = |version: &str| {
        let mut facts = facts_of(&none_list(), &none());
        facts.capabilities = Arc::new(Capabilities::of_kubevirt(version).unwrap());
        let plan = with(&facts, "migration-safe", &direct);
        ["features.hyperv.tlbflush", "features.hyperv.tlbflush.direct"].map(|f| of(&plan, f))
    };
    assert_eq!(at("1.7"), ["write {\"enabled\":true}", "refused not-served"]);
    assert_eq!(at("1.8"), ["write {\"enabled\":true}", "write {\"enabled\":true}"]);
    // In a cluster nothing says which nodes have it.
    let mut facts = Facts {
        nodes: nodes(
            "Intel",
            &["hyperv.node.kubevirt.io/tlbflush", "hyperv.node.kubevirt.io/vpindex", "hyperv.node.kubevirt.io/base"],
        ),
        ..facts_of(&none_list(), &none())
    };
    facts.capabilities = Arc::new(Capabilities::of_kubevirt("1.9").unwrap());
    let plan = with(&facts, "migration-safe", &direct);
    assert_eq!(of(&plan, "features.hyperv.tlbflush.direct"), "refused needs-canary");
}
