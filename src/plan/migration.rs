//! Which nodes could take a VM before and after a plan, and which it loses.
//!
//! KubeVirt finds much of this out only when a migration fails: without the gate HypervStrictCheck no node selector
//! speaks of enlightenments, and host-passthrough adds none either (KubeVirt
//! pkg/virt-controller/services/nodeselectorrenderer.go, watch/migration/migration.go). So it is worked out beforehand,
//! class by class.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::context::Context;
use super::facts::Facts;
use super::json::{self, State};
use super::nodes::{Class, Eligible};
use super::profile::{DataError, enlightenments};

/// What a plan does to a VM's freedom to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// Nodes on which Kubernetes may place the VM: by selector, affinity and taints.
    pub nodes: u32,
    /// How many of them the VM can run on and move between as it is. Where CPUs differ: as seen from the node that it
    /// runs on, or from the least fortunate one.
    pub before: u32,
    /// The same after the plan.
    pub after: u32,
    /// Nodes that the plan loses, at most five.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// How many more it loses.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: u32,
    /// What keeps the VM from migrating with or without the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the shape that serde asks for
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A node that a plan loses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// Its name.
    pub node: String,
    /// What it lacks.
    pub why: String,
}

/// How many nodes are named.
const NAMED: usize = 5;
/// Fewer nodes than this, and nothing can migrate.
pub(super) const ENOUGH: u32 = 2;
/// How far a TSC may be off without scaling, in millionths (KubeVirt pkg/virt-controller/watch/topology/tsc.go:129-174).
const TSC_TOLERANCE: u64 = 250;

impl Migration {
    /// In one line, as people read it.
    pub fn words(&self) -> String {
        let mut words = format!("{} of {} nodes -> {} of {}", self.before, self.nodes, self.after, self.nodes);
        let lost: Vec<String> = self.lost.iter().map(|l| format!("{} {}", l.node, l.why)).collect();
        if !lost.is_empty() {
            words += &format!(", lost: {}", lost.join(", "));
        }
        if self.more > 0 {
            words += &format!(" and {} more", self.more);
        }
        if !self.blockers.is_empty() {
            words += &format!("; cannot migrate anyway: {}", self.blockers.join(", "));
        }
        words
    }
}

/// What a domain asks of a node.
struct Needs<'a> {
    hyperv: Vec<&'static str>,
    evmcs: bool,
    tsc: bool,
    dedicated: bool,
    model: Model<'a>,
    features: Vec<&'a str>,
}

enum Model<'a> {
    Passthrough,
    LikeHost,
    Named(&'a str),
}

impl<'a> Needs<'a> {
    fn of(facts: &'a Facts, domain: &'a Value) -> Result<Self, DataError> {
        let mut hyperv: Vec<&'static str> = Vec::new();
        let on = |place: &str, switch: &str| json::state(json::at(domain, place), switch) == State::On;
        for known in enlightenments()? {
            let given =
                || json::state(facts.preference.hyperv(domain, &known.field).map(|(v, _)| v), "enabled") == State::On;
            if let Some(node) = &known.node
                && (on(known.pointer(), "enabled") || given())
                && !hyperv.contains(&node.as_str())
            {
                hyperv.push(node);
            }
        }
        if on("/clock/timer/hyperv", "present") {
            hyperv.push("time");
        }
        let required =
            |f: &&Value| matches!(f.get("policy").and_then(Value::as_str), None | Some("" | "require" | "force"));
        let features: Vec<&str> = json::list(domain, "/cpu/features")
            .iter()
            .filter(required)
            .filter_map(|f| json::text(f, "/name"))
            .collect();
        let owned = facts.instancetype.owns("/cpu/model").and_then(|(value, _)| value).and_then(Value::as_str);
        let model = json::text(domain, "/cpu/model").filter(|m| !m.is_empty()).or(owned);
        Ok(Self {
            evmcs: on("/features/hyperv/evmcs", "enabled"),
            tsc: on("/features/hyperv/reenlightenment", "enabled") || features.contains(&"invtsc"),
            dedicated: json::flag(domain, "/cpu/dedicatedCpuPlacement"),
            model: match model.or(facts.capabilities.cpu_model.as_deref()) {
                Some("host-passthrough") => Model::Passthrough,
                None | Some("host-model") => Model::LikeHost,
                Some(named) => Model::Named(named),
            },
            features,
            hyperv,
        })
    }

    /// What a node lacks for it. The invariant TSC is not a label of its own.
    fn lacks(&self, class: &Class, tsc: Option<u64>) -> Option<String> {
        if let Some(feature) = self.hyperv.iter().find(|f| !class.hyperv(f)) {
            return Some(format!("no {feature}"));
        }
        if self.evmcs && class.vendor() != Some("Intel") {
            return Some("no Intel CPU".to_owned());
        }
        if self.dedicated && !class.cpu_manager() {
            return Some("no CPU manager".to_owned());
        }
        if let Model::Named(model) = self.model
            && !class.has(&format!("cpu-model.node.kubevirt.io/{model}"))
        {
            return Some(format!("no {}", super::detect::printable(model)));
        }
        let missing = |f: &&&str| **f != "invtsc" && !class.has(&format!("cpu-feature.node.kubevirt.io/{f}"));
        if let Some(feature) = self.features.iter().find(missing) {
            return Some(format!("no {}", super::detect::printable(feature)));
        }
        if self.tsc {
            let Some(own) = class.tsc_frequency() else { return Some("no TSC frequency".to_owned()) };
            let near = |wanted: u64| own.abs_diff(wanted) <= wanted / 1_000_000 * TSC_TOLERANCE;
            if !tsc.is_some_and(|wanted| near(wanted) || (class.tsc_scalable() && own >= wanted)) {
                return Some("another TSC frequency".to_owned());
            }
        }
        None
    }

    /// Whether a VM that started on one node can move to another.
    fn moves(&self, from: &Class, to: &Class) -> bool {
        if from.vendor() != to.vendor() {
            return false;
        }
        match self.model {
            Model::Named(_) => true,
            Model::Passthrough => from.host_model() == to.host_model(),
            Model::LikeHost => {
                let model = from.host_model().is_none_or(|m| {
                    to.host_model() == Some(m) || to.has(&format!("cpu-model-migration.node.kubevirt.io/{m}"))
                });
                let mut features = from.host_model_features();
                model
                    && features.all(|f| {
                        to.has(&format!("cpu-feature.node.kubevirt.io/{f}"))
                            || to.host_model_features().any(|own| own == f)
                    })
            }
        }
    }

    /// How many nodes a VM can run on and move between, and the class from which that is so.
    fn reach<'e>(&self, eligible: &'e Eligible<'_>, running: Option<&Class>) -> (u32, Option<&'e Class>) {
        let tsc = eligible.classes().filter_map(|(class, _)| class.tsc_frequency()).min();
        let fitting = || eligible.classes().filter(|(class, _)| self.lacks(class, tsc).is_none());
        let from = |source: &Class| fitting().filter(|(to, _)| self.moves(source, to)).map(|(_, n)| n).sum::<u32>();
        let counted = || fitting().map(|(class, _)| (from(class), Some(class)));
        let here = running.and_then(|own| counted().find(|(_, class)| *class == Some(own)));
        here.or_else(|| counted().min_by_key(|(n, _)| *n)).unwrap_or((0, None))
    }
}

/// Works out both sides. `None` where no nodes are known.
pub(super) fn solve(cx: &Context<'_>, after: &Value) -> Result<Option<Migration>, DataError> {
    let Some(eligible) = &cx.eligible else { return Ok(None) };
    let running = cx.facts.running.as_ref().and_then(|r| r.node.as_deref()).and_then(|n| eligible.class_of(n));
    let (needs_before, needs_after) = (Needs::of(cx.facts, cx.domain)?, Needs::of(cx.facts, after)?);
    let (before, source_before) = needs_before.reach(eligible, running);
    let (after, source_after) = needs_after.reach(eligible, running);
    let tsc = eligible.classes().filter_map(|(class, _)| class.tsc_frequency()).min();
    let within = |needs: &Needs<'_>, source: Option<&Class>, class: &Class| {
        needs.lacks(class, tsc).is_none() && source.is_some_and(|s| needs.moves(s, class))
    };
    let (mut lost, mut more) = (Vec::new(), 0);
    for (class, _) in eligible.classes() {
        if !within(&needs_before, source_before, class) || within(&needs_after, source_after, class) {
            continue;
        }
        let why = needs_after.lacks(class, tsc).unwrap_or_else(|| "has another CPU".to_owned());
        for node in eligible.names(class) {
            if lost.len() < NAMED {
                lost.push(Lost { node: node.to_owned(), why: why.clone() });
            } else {
                more += 1;
            }
        }
    }
    Ok(Some(Migration { nodes: eligible.count(), before, after, lost, more, blockers: blockers(cx.domain) }))
}

/// What keeps a VM from migrating whatever this planner does (KubeVirt pkg/virt-handler/vm.go:1134-1300).
pub(super) fn blockers(domain: &Value) -> Vec<String> {
    let some = |place: &str| !json::list(domain, place).is_empty();
    let all = [
        (some("/devices/gpus"), "a GPU is passed through"),
        (some("/devices/hostDevices"), "a host device is passed through"),
        (json::at(domain, "/features/hypervPassthrough").is_some(), "hypervPassthrough"),
        (
            json::list(domain, "/devices/interfaces").iter().any(|i| i.get("sriov").is_some()),
            "an SR-IOV interface, unless KubeVirt detaches it",
        ),
    ];
    all.into_iter().filter(|(is, _)| *is).map(|(_, why)| why.to_owned()).collect()
}

#[cfg(test)]
mod tests;
