//! Everything that a plan is made from: values only.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::civil::Date;
use kube::core::ObjectMeta;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::capabilities::Capabilities;
use super::instancetype::Instancetype;
use super::json;
use super::nodes::NodePool;
use super::preference::Preference;
use super::volumes::Volumes;
use crate::api::tuning::Overrides;

/// Where a VM's domain lies in a VirtualMachine; every pointer of a plan is below it.
pub const DOMAIN: &str = "/spec/template/spec/domain";

/// The switches of a domain that are read, each an object with `enabled` or, in a clock, `present`.
const SWITCHES: [&str; 24] = [
    "features.smm",
    "features.hyperv.relaxed",
    "features.hyperv.vapic",
    "features.hyperv.spinlocks",
    "features.hyperv.vpindex",
    "features.hyperv.synic",
    "features.hyperv.synictimer",
    "features.hyperv.synictimer.direct",
    "features.hyperv.ipi",
    "features.hyperv.runtime",
    "features.hyperv.reset",
    "features.hyperv.frequencies",
    "features.hyperv.reenlightenment",
    "features.hyperv.tlbflush",
    "features.hyperv.tlbflush.direct",
    "features.hyperv.tlbflush.extended",
    "features.hyperv.evmcs",
    "features.hyperv.vendorid",
    "features.hypervPassthrough",
    "clock.timer.hpet",
    "clock.timer.hyperv",
    "clock.timer.pit",
    "clock.timer.rtc",
    "clock.timer.kvm",
];

/// Other places of a domain that are read, by their type.
const OBJECTS: [&str; 6] = ["devices", "cpu", "cpu.numa", "memory", "resources", "ioThreads"];
const LISTS: [&str; 3] = ["devices.disks", "devices.interfaces", "cpu.features"];
const FLAGS: [&str; 6] = [
    "devices.blockMultiQueue",
    "devices.networkInterfaceMultiqueue",
    "devices.autoattachMemBalloon",
    "cpu.dedicatedCpuPlacement",
    "cpu.isolateEmulatorThread",
    "devices.disableHotplug",
];
const COUNTS: [&str; 5] =
    ["cpu.cores", "cpu.sockets", "cpu.threads", "cpu.maxSockets", "ioThreads.supplementalPoolThreadCount"];
const TEXTS: [&str; 2] = ["cpu.model", "ioThreadsPolicy"];

/// Why a manifest cannot be planned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ManifestError {
    /// Another kind or API group.
    #[error("expected a VirtualMachine of kubevirt.io, found kind {kind:?} of apiVersion {api_version:?}")]
    WrongKind {
        /// The manifest's apiVersion.
        api_version: String,
        /// The manifest's kind.
        kind: String,
    },
    /// A field is missing or of another type.
    #[error("{field} is missing or is not {expected}")]
    Field {
        /// Path of the field.
        field: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// One VirtualMachine as it lies in the API server or in a file.
#[derive(Clone, Debug, Default)]
pub struct Vm {
    /// Namespace; `default` where a file names none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; absent in a file.
    pub uid: Option<String>,
    /// Generation, which moves with the spec only; absent in a file.
    pub generation: Option<i64>,
    /// Resource version, which moves with every write; absent in a file.
    pub resource_version: Option<String>,
    /// Labels of the VM itself.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the VM itself.
    pub annotations: BTreeMap<String, String>,
    /// Whether the object has an annotations map at all: a patch must create it otherwise.
    pub has_annotations: bool,
    /// Field managers that have written it; empty in a file without them.
    pub managers: Vec<String>,
    /// Kind and name of the object that controls it, such as a pool.
    pub controller: Option<String>,
    /// The spec as it is.
    pub spec: Value,
}

impl Vm {
    /// Reads a whole VirtualMachine object.
    ///
    /// # Errors
    /// When it is another kind or lacks name, spec or template.
    pub fn from_object(object: &Value) -> Result<Self, ManifestError> {
        let api_version = json::text(object, "/apiVersion").unwrap_or_default();
        let kind = json::text(object, "/kind").unwrap_or_default();
        if kind != "VirtualMachine" || api_version.split('/').next() != Some("kubevirt.io") {
            return Err(ManifestError::WrongKind { api_version: api_version.to_owned(), kind: kind.to_owned() });
        }
        let strings = |pointer: &str| -> BTreeMap<String, String> {
            json::at(object, pointer)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
                .collect()
        };
        let name = json::text(object, "/metadata/name")
            .or_else(|| json::text(object, "/metadata/generateName"))
            .filter(|n| !n.is_empty())
            .ok_or_else(|| ManifestError::Field { field: "metadata.name".to_owned(), expected: "a name" })?;
        let spec = json::at(object, "/spec")
            .filter(|s| s.is_object())
            .ok_or_else(|| ManifestError::Field { field: "spec".to_owned(), expected: "an object" })?;
        let vm = Self {
            namespace: json::text(object, "/metadata/namespace").unwrap_or("default").to_owned(),
            name: name.to_owned(),
            uid: json::text(object, "/metadata/uid").map(str::to_owned),
            generation: json::at(object, "/metadata/generation").and_then(Value::as_i64),
            resource_version: json::text(object, "/metadata/resourceVersion").map(str::to_owned),
            labels: strings("/metadata/labels"),
            annotations: strings("/metadata/annotations"),
            has_annotations: json::at(object, "/metadata/annotations").is_some(),
            managers: json::list(object, "/metadata/managedFields")
                .iter()
                .filter_map(|m| json::text(m, "/manager").map(str::to_owned))
                .collect(),
            controller: json::list(object, "/metadata/ownerReferences")
                .iter()
                .find(|o| json::at(o, "/controller").and_then(Value::as_bool) == Some(true))
                .map(|o| {
                    let part = |p| json::text(o, p).unwrap_or_default();
                    format!("{} {}", part("/kind"), part("/name"))
                }),
            spec: spec.clone(),
        };
        vm.check_shape()?;
        Ok(vm)
    }

    /// A VM from metadata and spec that were parsed apart.
    ///
    /// # Errors
    /// When the template or its domain is missing or of another shape.
    pub fn from_parts(meta: &ObjectMeta, spec: Value) -> Result<Self, ManifestError> {
        let vm = Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone(),
            generation: meta.generation,
            resource_version: meta.resource_version.clone(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            has_annotations: meta.annotations.is_some(),
            managers: meta.managed_fields.iter().flatten().filter_map(|m| m.manager.clone()).collect(),
            controller: meta
                .owner_references
                .iter()
                .flatten()
                .find(|o| o.controller == Some(true))
                .map(|o| format!("{} {}", o.kind, o.name)),
            spec,
        };
        vm.check_shape()?;
        Ok(vm)
    }

    /// Every object on the way to what we read must be an object, and every switch a boolean, so that a pointer means
    /// what it says. An API server keeps nothing else; a file may hold anything.
    fn check_shape(&self) -> Result<(), ManifestError> {
        let check = |field: String, needed: bool, expected: &'static str, fits: fn(&Value) -> bool| {
            let found = json::at(&self.spec, &format!("/{}", field.replace('.', "/")));
            if found.map_or(!needed, fits) {
                return Ok(());
            }
            Err(ManifestError::Field { field: format!("spec.{field}"), expected })
        };
        for field in ["template", "template.spec", "template.spec.domain"] {
            check(field.to_owned(), true, "an object", Value::is_object)?;
        }
        let domain = |field: &str| format!("template.spec.domain.{field}");
        for field in ["features", "features.hyperv", "clock", "clock.timer", "clock.utc"] {
            check(domain(field), false, "an object", Value::is_object)?;
        }
        for field in SWITCHES {
            let switch = if field.starts_with("clock") { "present" } else { "enabled" };
            check(domain(field), false, "an object", Value::is_object)?;
            check(domain(&format!("{field}.{switch}")), false, "true or false", Value::is_boolean)?;
            check(domain(&format!("{field}.tickPolicy")), false, "text", Value::is_string)?;
        }
        for field in OBJECTS {
            check(domain(field), false, "an object", Value::is_object)?;
        }
        for field in LISTS {
            check(domain(field), false, "a list", Value::is_array)?;
        }
        check("template.spec.volumes".to_owned(), false, "a list", Value::is_array)?;
        for field in FLAGS {
            check(domain(field), false, "true or false", Value::is_boolean)?;
        }
        for field in COUNTS {
            check(domain(field), false, "a whole number", Value::is_u64)?;
        }
        for field in TEXTS {
            check(domain(field), false, "text", Value::is_string)?;
        }
        self.check_disks()
    }

    /// Disks are found by their names, so each must have one. Two of one name are KubeVirt's to refuse.
    fn check_disks(&self) -> Result<(), ManifestError> {
        let disks = json::list(self.domain(), "/devices/disks");
        for (index, disk) in disks.iter().enumerate() {
            let fault = |field: &str, expected| {
                let field = format!("spec.template.spec.domain.devices.disks[{index}]{field}");
                Err(ManifestError::Field { field, expected })
            };
            if json::text(disk, "/name").is_none() {
                return fault(".name", "text");
            }
            for kind in ["disk", "cdrom", "lun", "floppy"] {
                if disk.get(kind).is_some_and(|k| !k.is_object() && !k.is_null()) {
                    return fault(&format!(".{kind}"), "an object");
                }
            }
            for text in ["cache", "io"] {
                if disk.get(text).is_some_and(|t| !t.is_string() && !t.is_null()) {
                    return fault(&format!(".{text}"), "text");
                }
            }
            for flag in ["dedicatedIOThread", "shareable"] {
                if disk.get(flag).is_some_and(|t| !t.is_boolean() && !t.is_null()) {
                    return fault(&format!(".{flag}"), "true or false");
                }
            }
        }
        Ok(())
    }

    /// The domain, which [`Vm::from_object`] has checked to be there.
    pub fn domain(&self) -> &Value {
        self.spec.pointer("/template/spec/domain").unwrap_or(&Value::Null)
    }

    /// A label or annotation of the VM or of its template, whichever has it.
    pub fn marks(&self, annotations: bool) -> impl Iterator<Item = (&str, &str)> {
        let (own, pointer) = if annotations {
            (&self.annotations, "/template/metadata/annotations")
        } else {
            (&self.labels, "/template/metadata/labels")
        };
        let template = json::at(&self.spec, pointer).and_then(Value::as_object).into_iter().flatten();
        own.iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .chain(template.filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))))
    }

    /// How KubeVirt runs it: `spec.runStrategy`, or what `spec.running` stands for. `None` when neither is set.
    pub fn run_strategy(&self) -> Option<&str> {
        json::text(&self.spec, "/runStrategy").or_else(|| match json::at(&self.spec, "/running")?.as_bool()? {
            true => Some("Always"),
            false => Some("Halted"),
        })
    }
}

/// Which nodes a plan is made for.
#[derive(Clone, Debug)]
pub enum Nodes {
    /// Offline: taken to be capable, and the plan says so.
    Assumed,
    /// As the cluster's labels say.
    Known(Arc<NodePool>),
}

/// Everything observed about one VM at one moment.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The VM.
    pub vm: Vm,
    /// What the guest agent of its running VMI says of the operating system (`mswindows`).
    pub guest_os: Option<String>,
    /// The name that the guest agent gives it: `Windows Server 2022 Standard`.
    pub guest_name: Option<String>,
    /// The nodes that may host it.
    pub nodes: Nodes,
    /// What the cluster can do.
    pub capabilities: Arc<Capabilities>,
    /// What its preference gives it where it says nothing itself.
    pub preference: Preference,
    /// What its instancetype owns.
    pub instancetype: Instancetype,
    /// What is known of its volumes.
    pub volumes: Volumes,
    /// Its running instance.
    pub running: Option<Running>,
    /// Places that wintune itself wrote: they say nothing of the guest.
    pub ours: Vec<String>,
    /// Whether this VM's own annotations are consent, within the cluster's limits.
    pub consent_by_annotation: bool,
    /// The day on which this is planned, for rules that are to be reviewed by a date. Unknown: nothing has expired.
    pub today: Option<Date>,
}

/// The running instance of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Running {
    /// Where it runs.
    pub node: Option<String>,
    /// Its domain; null where it was not read.
    pub domain: Value,
}

impl Facts {
    /// Facts of a manifest without a cluster.
    pub fn offline(vm: Vm) -> Self {
        let unread = || "there is no cluster to read it from".to_owned();
        let preference = match json::at(&vm.spec, "/preference") {
            None => Preference::None,
            Some(_) => Preference::Unread { why: unread() },
        };
        let instancetype = match json::at(&vm.spec, "/instancetype") {
            None => Instancetype::None,
            Some(_) => Instancetype::Unread { why: unread() },
        };
        Self {
            volumes: Volumes::of_manifest(&vm),
            vm,
            guest_os: None,
            guest_name: None,
            nodes: Nodes::Assumed,
            capabilities: Capabilities::assumed(),
            preference,
            instancetype,
            running: None,
            ours: Vec::new(),
            consent_by_annotation: false,
            today: None,
        }
    }
}

/// What is asked of a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Name of the profile.
    pub profile: String,
    /// What differs from it.
    pub overrides: Overrides,
    /// Whether the VM may be left with fewer than two nodes that can take it.
    pub allow_unmigratable: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            profile: crate::api::tuning::DEFAULT_PROFILE.to_owned(),
            overrides: Overrides::default(),
            allow_unmigratable: false,
        }
    }
}

/// Names a VM in output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VmRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}
