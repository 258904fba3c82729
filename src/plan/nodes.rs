//! The nodes of a cluster, put into classes once, so that a plan looks at classes and not at nodes.
//!
//! A class is every node with the same labels of KubeVirt's and the same lasting taints. A cluster of 500 equal nodes
//! has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::facts::Vm;
use super::json;

/// The nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePool {
    nodes: Vec<NodeView>,
    classes: Vec<Class>,
    /// The class of each node.
    class_of: Vec<usize>,
    /// How many nodes each class has.
    sizes: Vec<u32>,
}

/// One node that KubeVirt schedules VMs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NodeView {
    /// Name.
    pub name: String,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// A taint, as Kubernetes has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// Nodes that are the same to a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    hyperv: BTreeSet<String>,
}

const HYPERV: &str = "hyperv.node.kubevirt.io/";
const VENDOR: &str = "cpu-vendor.node.kubevirt.io/";
const HOST_MODEL: &str = "host-model-cpu.node.kubevirt.io/";
const REQUIRED: &str = "host-model-required-features.node.kubevirt.io/";
/// virt-handler sets it to "true" while it is alive on a node, else to "false" (KubeVirt pkg/virt-handler/heartbeat).
const SCHEDULABLE: &str = "kubevirt.io/schedulable";
/// What Kubernetes itself puts on a node for a while: a cordon ends, and so does pressure.
const PASSING: &str = "node.kubernetes.io/";
/// Node facts of wintune's own agent.
const OURS: &str = "node.wintune.dev/";

/// Whether a label says something that a plan asks for.
pub fn is_read(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    domain.ends_with("kubevirt.io") || key.starts_with(OURS) || matches!(key, "cpumanager" | "kubernetes.io/arch")
}

impl Class {
    /// Whether a label has the value `true`.
    pub(super) fn has(&self, label: &str) -> bool {
        self.labels.get(label).is_some_and(|v| v == "true")
    }

    /// Whether the node's KVM has a Hyper-V feature.
    pub(super) fn hyperv(&self, feature: &str) -> bool {
        self.hyperv.contains(feature)
    }

    /// `Intel`, `AMD` or another vendor.
    pub(super) fn vendor(&self) -> Option<&str> {
        self.ending(VENDOR).next()
    }

    /// The CPU model that `host-model` comes to on such a node.
    pub(super) fn host_model(&self) -> Option<&str> {
        self.ending(HOST_MODEL).next()
    }

    /// CPU features that a VM with `host-model` takes from such a node.
    pub(super) fn host_model_features(&self) -> impl Iterator<Item = &str> {
        self.ending(REQUIRED)
    }

    /// TSC frequency in Hz.
    pub(super) fn tsc_frequency(&self) -> Option<u64> {
        self.labels.get("cpu-timer.node.kubevirt.io/tsc-frequency")?.parse().ok()
    }

    /// Whether the CPU scales the TSC.
    pub(super) fn tsc_scalable(&self) -> bool {
        self.has("cpu-timer.node.kubevirt.io/tsc-scalable")
    }

    /// Whether pods can have CPUs of their own. The old label is the one of Harvester's and earlier KubeVirt's.
    pub(super) fn cpu_manager(&self) -> bool {
        self.has("kubevirt.io/cpumanager") || self.has("cpumanager")
    }

    /// Endings of the labels with this beginning that are `true`.
    fn ending<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        self.labels
            .range(start.to_owned()..)
            .map_while(move |(k, v)| Some((k.strip_prefix(start)?, v)))
            .filter(|(_, v)| *v == "true")
            .map(|(ending, _)| ending)
    }

    /// The first lasting taint that a VM does not tolerate.
    fn untolerated(&self, tolerations: &[Value]) -> Option<&Taint> {
        self.taints.iter().find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
    }
}

/// Whether a toleration covers a taint (Kubernetes core/v1 Toleration).
fn tolerates(toleration: &Value, taint: &Taint) -> bool {
    let part = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or_default();
    let effect = matches!(part("effect"), "") || part("effect") == taint.effect;
    let exists = part("operator") == "Exists";
    let key = part("key") == taint.key || (part("key").is_empty() && exists);
    effect && key && (exists || part("value") == taint.value)
}

impl NodePool {
    /// Takes the nodes that carry KubeVirt's schedulable label, whatever it says, cordoned or not: a cordon ends, and
    /// so does the absence of a virt-handler.
    pub fn new(nodes: impl IntoIterator<Item = NodeView>) -> Self {
        let mut nodes: Vec<NodeView> = nodes.into_iter().filter(|n| n.labels.contains_key(SCHEDULABLE)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pool = Self::default();
        for node in &nodes {
            let class = Class::of(node);
            let known = pool.classes.iter().position(|c| *c == class);
            pool.class_of.push(known.unwrap_or(pool.classes.len()));
            match known.and_then(|known| pool.sizes.get_mut(known)) {
                Some(size) => *size += 1,
                None => {
                    pool.classes.push(class);
                    pool.sizes.push(1);
                }
            }
        }
        pool.nodes = nodes;
        pool
    }

    /// Every node.
    pub fn nodes(&self) -> &[NodeView] {
        &self.nodes
    }

    /// The nodes that Kubernetes may place a VM on, whatever is in its domain: by its node selector, its required node
    /// affinity and its tolerations.
    pub fn eligible<'a>(self: &Arc<Self>, vm: &'a Vm) -> Eligible<'a> {
        let spec = json::at(&vm.spec, "/template/spec").unwrap_or(&NOTHING);
        let placement = Placement {
            selector: json::at(spec, "/nodeSelector"),
            terms: json::list(
                spec,
                "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
            ),
            tolerations: json::list(spec, "/tolerations"),
        };
        if placement.selector.is_none() && placement.terms.is_empty() {
            // Taints are the same throughout a class, so no node has to be looked at.
            let tolerated = |class: &Class| class.untolerated(placement.tolerations).is_none();
            let classes = self.classes.iter().zip(&self.sizes);
            let counts = classes.map(|(class, size)| if tolerated(class) { *size } else { 0 }).collect();
            return Eligible { pool: self.clone(), placement, counts };
        }
        let mut counts = vec![0; self.classes.len()];
        for (node, class) in self.nodes.iter().zip(&self.class_of) {
            let Some(kind) = self.classes.get(*class) else { continue };
            if placement.fits(node, kind)
                && let Some(count) = counts.get_mut(*class)
            {
                *count += 1;
            }
        }
        Eligible { pool: self.clone(), placement, counts }
    }
}

impl Class {
    fn of(node: &NodeView) -> Self {
        let labels: BTreeMap<String, String> =
            node.labels.iter().filter(|(k, _)| is_read(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let lasting = |t: &&Taint| t.effect != "PreferNoSchedule" && !t.key.starts_with(PASSING);
        let mut taints: Vec<Taint> = node.taints.iter().filter(lasting).cloned().collect();
        taints.sort();
        let mut class = Self { labels, taints, hyperv: BTreeSet::new() };
        class.hyperv = class.ending(HYPERV).map(str::to_owned).collect();
        // It comes and goes with virt-handler, and says nothing of what the node can do.
        class.labels.remove(SCHEDULABLE);
        class
    }
}

static NOTHING: Value = Value::Null;

/// Where Kubernetes may place a VM.
#[derive(Clone, Debug)]
struct Placement<'a> {
    selector: Option<&'a Value>,
    terms: &'a [Value],
    tolerations: &'a [Value],
}

impl Placement<'_> {
    fn fits(&self, node: &NodeView, class: &Class) -> bool {
        let selected = self
            .selector
            .and_then(Value::as_object)
            .is_none_or(|selector| selector.iter().all(|(k, v)| node.labels.get(k).map(String::as_str) == v.as_str()));
        selected
            && (self.terms.is_empty() || self.terms.iter().any(|term| term_fits(term, node)))
            && class.untolerated(self.tolerations).is_none()
    }
}

/// Whether a node satisfies every expression of a term (Kubernetes core/v1 NodeSelectorTerm). An empty term fits none.
fn term_fits(term: &Value, node: &NodeView) -> bool {
    let expressions = json::list(term, "/matchExpressions");
    let fields = json::list(term, "/matchFields");
    let label =
        |e: &Value| expression_fits(e, json::text(e, "/key").and_then(|k| node.labels.get(k)).map(String::as_str));
    let field = |e: &Value| json::text(e, "/key") == Some("metadata.name") && expression_fits(e, Some(&node.name));
    !(expressions.is_empty() && fields.is_empty()) && expressions.iter().all(label) && fields.iter().all(field)
}

fn expression_fits(expression: &Value, value: Option<&str>) -> bool {
    let values = json::list(expression, "/values");
    let listed = |v: &str| values.iter().any(|x| x.as_str() == Some(v));
    let than = |bigger: bool| {
        let number = |text: &str| text.parse::<i64>().ok();
        let limit = values.first().and_then(Value::as_str).and_then(number);
        match (value.and_then(number), limit) {
            (Some(value), Some(limit)) => (value > limit) == bigger && value != limit,
            _ => false,
        }
    };
    match json::text(expression, "/operator") {
        Some("In") => value.is_some_and(listed),
        Some("NotIn") => !value.is_some_and(listed),
        Some("Exists") => value.is_some(),
        Some("DoesNotExist") => value.is_none(),
        Some("Gt") => than(true),
        Some("Lt") => than(false),
        _ => false,
    }
}

/// The nodes that may host a VM.
#[derive(Clone, Debug)]
pub struct Eligible<'a> {
    pool: Arc<NodePool>,
    placement: Placement<'a>,
    /// How many of each class.
    counts: Vec<u32>,
}

impl Eligible<'_> {
    /// How many nodes.
    pub fn count(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// The classes that there are nodes of, with how many.
    pub fn classes(&self) -> impl Iterator<Item = (&Class, u32)> {
        self.pool.classes.iter().zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Whether something holds for every class. True where there is no node: ask [`Self::count`] first.
    pub fn all(&self, holds: impl Fn(&Class) -> bool) -> bool {
        self.classes().all(|(class, _)| holds(class))
    }

    /// Whether something holds for any class.
    pub fn any(&self, holds: impl Fn(&Class) -> bool) -> bool {
        self.classes().any(|(class, _)| holds(class))
    }

    /// The nodes of a class that may host the VM, by name.
    pub fn names<'s>(&'s self, class: &'s Class) -> impl Iterator<Item = &'s str> {
        let wanted = self.pool.classes.iter().position(|c| std::ptr::eq(c, class));
        let nodes = self.pool.nodes.iter().zip(&self.pool.class_of);
        nodes
            .filter(move |(node, c)| Some(**c) == wanted && self.placement.fits(node, class))
            .map(|(node, _)| node.name.as_str())
    }

    /// The class of a node by its name.
    pub fn class_of(&self, name: &str) -> Option<&Class> {
        let at = self.pool.nodes.binary_search_by(|n| n.name.as_str().cmp(name)).ok()?;
        self.pool.classes.get(*self.pool.class_of.get(at)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, labels: &[(&str, &str)], taints: &[(&str, &str, &str)]) -> NodeView {
        let labels = labels.iter().chain(&[(SCHEDULABLE, "true")]).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let taint = |(key, value, effect): &(&str, &str, &str)| Taint {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            effect: (*effect).to_owned(),
        };
        NodeView { name: name.to_owned(), labels: labels.collect(), taints: taints.iter().map(taint).collect() }
    }

    fn names(nodes: Vec<NodeView>, spec: &Value) -> Vec<String> {
        let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"template": {"spec": {"domain": {}}}}});
        json_patch::merge(&mut object["spec"]["template"]["spec"], spec);
        let vm = Vm::from_object(&object).unwrap();
        let pool = Arc::new(NodePool::new(nodes));
        let eligible = pool.eligible(&vm);
        let mut names: Vec<String> =
            eligible.classes().flat_map(|(c, _)| eligible.names(c).map(str::to_owned).collect::<Vec<_>>()).collect();
        assert_eq!(eligible.count() as usize, names.len());
        names.sort();
        names
    }

    #[test]
    fn equal_nodes_are_one_class_whatever_their_names_and_zones() {
        let pool = NodePool::new((0..500).map(|i| {
            node(&format!("n{i}"), &[("zone", &i.to_string()), ("cpu-vendor.node.kubevirt.io/AMD", "true")], &[])
        }));
        assert_eq!((pool.nodes.len(), pool.classes.len()), (500, 1));
        assert_eq!(pool.classes[0].vendor(), Some("AMD"));
        let unlabelled = NodeView { name: "no-kubevirt".to_owned(), ..NodeView::default() };
        assert!(NodePool::new([unlabelled]).nodes.is_empty());
    }

    #[test]
    fn selector_affinity_and_taints_decide_as_kubernetes_does() {
        let nodes = || {
            vec![
                node("a", &[("disk", "fast"), ("cores", "8")], &[]),
                node("b", &[("disk", "slow"), ("cores", "64")], &[("dedicated", "db", "NoSchedule")]),
                node("c", &[("disk", "fast")], &[("node.kubernetes.io/unschedulable", "", "NoSchedule")]),
                node("d", &[], &[("soft", "", "PreferNoSchedule"), ("gone", "", "NoExecute")]),
            ]
        };
        let affinity = |terms: Value| {
            json!({"tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
        };
        let expression = |e: Value| affinity(json!([{"matchExpressions": [e]}]));
        for (spec, fitting) in [
            (json!({}), vec!["a", "c"]),
            (json!({"nodeSelector": {"disk": "fast"}}), vec!["a", "c"]),
            (json!({"nodeSelector": {"disk": "none"}}), vec![]),
            (json!({"tolerations": [{"key": "dedicated", "value": "db"}]}), vec!["a", "b", "c"]),
            (json!({"tolerations": [{"key": "dedicated", "value": "web"}]}), vec!["a", "c"]),
            (json!({"tolerations": [{"key": "gone", "operator": "Exists", "effect": "NoSchedule"}]}), vec!["a", "c"]),
            (json!({"tolerations": [{"operator": "Exists"}]}), vec!["a", "b", "c", "d"]),
            (expression(json!({"key": "disk", "operator": "In", "values": ["fast"]})), vec!["a", "c"]),
            (expression(json!({"key": "disk", "operator": "NotIn", "values": ["fast"]})), vec!["b", "d"]),
            (expression(json!({"key": "disk", "operator": "DoesNotExist"})), vec!["d"]),
            (expression(json!({"key": "disk", "operator": "Exists"})), vec!["a", "b", "c"]),
            (expression(json!({"key": "cores", "operator": "Gt", "values": ["8"]})), vec!["b"]),
            (expression(json!({"key": "cores", "operator": "Lt", "values": ["9"]})), vec!["a"]),
            (expression(json!({"key": "disk", "operator": "Near"})), vec![]),
            (affinity(json!([{}])), vec![]),
            (
                affinity(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["d"]}]}])),
                vec!["d"],
            ),
        ] {
            assert_eq!(names(nodes(), &spec), fitting, "{spec}");
        }
    }
}
