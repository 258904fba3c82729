//! What every group of settings works with: the facts, what is asked, and what follows from both once.

use serde_json::Value;

use super::facts::{Facts, Nodes, Wanted};
use super::guest::{self, Guest};
use super::json;
use super::nodes::{Class, Eligible};
use super::profile::{DataError, Desired, Profile};
use super::settings::{Outcome, Setting};

/// What every group of settings works with.
pub(super) struct Context<'a> {
    pub(super) facts: &'a Facts,
    pub(super) domain: &'a Value,
    pub(super) desired: Desired<'a>,
    /// The guest's version, and the mark that says so.
    pub(super) guest: Option<(&'static Guest, String)>,
    /// The nodes that may host the VM; `None` where no nodes are known.
    pub(super) eligible: Option<Eligible<'a>>,
    /// How many vCPUs it has; `None` where an instancetype that was not read decides.
    pub(super) vcpus: Option<u64>,
    /// It lives on Harvester.
    pub(super) harvester: bool,
}

/// One value that is wanted at one place.
pub(super) struct Ask {
    /// Where.
    pub(super) place: String,
    /// What.
    pub(super) desired: Value,
    /// How profiles and overrides call it.
    pub(super) setting: &'static str,
    /// A policy asks for it over whatever stands there.
    pub(super) overridden: bool,
}

impl<'a> Context<'a> {
    pub(super) fn new(facts: &'a Facts, wanted: &'a Wanted, profile: &'static Profile) -> Result<Self, DataError> {
        let domain = facts.vm.domain();
        let eligible = match &facts.nodes {
            Nodes::Assumed => None,
            Nodes::Known(pool) => Some(pool.eligible(&facts.vm)),
        };
        Ok(Self {
            facts,
            domain,
            desired: Desired { profile, overrides: &wanted.overrides },
            guest: guest::version(facts)?,
            eligible,
            vcpus: vcpus(facts),
            harvester: super::harvester::is(facts),
        })
    }

    /// The same for the VM with another domain: as it would be after a plan.
    pub(super) fn with_domain<'b>(&'b self, domain: &'b Value) -> Context<'b> {
        Context { domain, guest: None, eligible: None, ..*self }
    }

    /// Whether the guest's version has no use for a setting.
    pub(super) fn unused(&self, setting: &str) -> Option<Outcome> {
        let (guest, mark) = self.guest.as_ref().filter(|(guest, _)| guest.has_no_use_for(setting))?;
        Some(Outcome::Stays {
            rule: "guest-version",
            why: format!("{} has no use for it ({mark}; {})", guest.name, guest.source),
        })
    }

    /// Works out one plain value: written where nothing stands, an owner's choice stays unless a policy overrides it,
    /// and what an instancetype owns is never written.
    pub(super) fn setting(&self, ask: Ask) -> Setting {
        let Ask { place, desired, setting, overridden } = ask;
        let own = json::at(self.domain, &place);
        let given = self.facts.preference.gives(&place).filter(|_| own.is_none());
        let current = own.or(given.map(|(value, _)| value));
        let (reason, source) = self.desired.said(setting);
        let owned = self.facts.instancetype.owns(&place);
        let outcome = match (current, owned) {
            (_, Some((value, _))) if value == Some(&desired) => Outcome::Satisfied,
            (_, Some((_, words))) => Outcome::Stays { rule: "instancetype", why: words },
            (Some(current), None) if *current == desired => Outcome::Satisfied,
            (_, None) if overridden => Outcome::Write,
            (Some(current), None) => {
                let who = given.map_or_else(|| "its owner".to_owned(), |(_, origin)| origin.to_owned());
                let why = format!("{who} chose {current}; to change it, set overrides.{setting} in a policy");
                Outcome::Kept { why }
            }
            (None, None) => self.unused(setting).unwrap_or(Outcome::Write),
        };
        let mut setting = match overridden {
            false => Setting::new(place, current, desired, reason, source),
            true => {
                let reason = format!("override of the policy; profile: {reason}");
                Setting::new(place, current, desired, reason, source)
            }
        };
        if given.is_some() && outcome == Outcome::Write {
            setting.current = None;
        }
        setting.outcome(outcome)
    }

    /// Whether something holds for every node that may host the VM, or why the setting is refused.
    pub(super) fn every_node(&self, what: &str, holds: impl Fn(&Class) -> bool) -> Result<(), Outcome> {
        let Some(eligible) = &self.eligible else { return Ok(()) };
        if eligible.count() == 0 {
            return Err(Outcome::refused(
                "no-eligible-node",
                "no schedulable KubeVirt node fits this VM's nodeSelector, affinity and tolerations, so nothing is known of where it would run",
                "check them, and the label kubevirt.io/schedulable of the nodes",
            ));
        }
        if !eligible.all(holds) {
            return Err(Outcome::refused(
                "node-lacks-feature",
                format!("not every one of the {} eligible nodes {what}", eligible.count()),
                "keep the VM off such nodes with a nodeSelector, or upgrade them",
            ));
        }
        Ok(())
    }

    /// The same for what a plan without nodes must not take for granted.
    pub(super) fn every_known_node(&self, what: &str, holds: impl Fn(&Class) -> bool) -> Result<(), Outcome> {
        if self.eligible.is_none() {
            return Err(Outcome::refused(
                "nodes-unknown",
                format!("it needs to be known that every node {what}, and no nodes were given"),
                "plan from the cluster, or give --capabilities with its nodes (wintune capabilities prints them)",
            ));
        }
        self.every_node(what, holds)
    }

    /// Whether the VM has, or will have, CPUs of its own, before this plan.
    pub(super) fn dedicated(&self) -> bool {
        let owned = self.facts.instancetype.owns("/cpu/dedicatedCpuPlacement");
        json::flag(self.domain, "/cpu/dedicatedCpuPlacement")
            || owned.is_some_and(|(value, _)| value.and_then(Value::as_bool) == Some(true))
    }
}

/// How many vCPUs a VM has: its topology, or what it asks for where it has none (KubeVirt
/// pkg/virt-launcher/virtwrap/converter/vcpu).
fn vcpus(facts: &Facts) -> Option<u64> {
    if json::at(&facts.vm.spec, "/instancetype").is_some() {
        return facts.instancetype.vcpus();
    }
    let domain = facts.vm.domain();
    let part = |name: &str| json::count(domain, &format!("/cpu/{name}"));
    let parts = [part("cores"), part("sockets"), part("threads")];
    if parts.iter().any(|p| p.is_some_and(|n| n > 0)) {
        return parts.into_iter().try_fold(1_u64, |all, part| all.checked_mul(part.unwrap_or(1).max(1)));
    }
    let asked =
        ["/resources/limits/cpu", "/resources/requests/cpu"].into_iter().find_map(|p| cpus(json::at(domain, p)?));
    Some(asked.map_or(1, |thousandths| thousandths.div_ceil(1000).max(1)))
}

/// A quantity of CPU in thousandths.
pub(super) fn cpus(quantity: &Value) -> Option<u64> {
    let thousandths = number(quantity)? * 1000.0;
    // A quantity is a decimal number; the rounding takes back what its way through a float added.
    (0.0..1e15).contains(&thousandths).then(|| thousandths.round() as u64)
}

/// A quantity as a number. Exponents are left unread: nobody writes them, and a large one would be worked out.
pub(super) fn number(quantity: &Value) -> Option<f64> {
    let text = match quantity {
        Value::String(text) if text.len() <= 32 => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let exponent = |(a, b): (u8, u8)| matches!(a, b'e' | b'E') && !matches!(b, b'i');
    if text.bytes().zip(text.bytes().skip(1)).any(exponent) {
        return None;
    }
    let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(text);
    kube_quantity::ParsedQuantity::try_from(quantity).ok()?.to_bytes_f64().filter(|n| n.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::facts::Vm;
    use crate::plan::instancetype::{Instancetype, Owned};
    use serde_json::json;

    #[test]
    fn quantities_of_cpu_are_read_in_every_form() {
        for (quantity, thousandths) in [
            (json!("4"), Some(4000)),
            (json!(4), Some(4000)),
            (json!("250m"), Some(250)),
            (json!("0.1"), Some(100)),
            (json!(0.5), Some(500)),
            (json!("1e999999999"), None),
            (json!("1E9"), None),
            (json!("four"), None),
            (json!("-1"), None),
            (json!({}), None),
        ] {
            assert_eq!(cpus(&quantity), thousandths, "{quantity}");
        }
        assert_eq!(number(&json!("2Gi")), Some(2.0 * 1_073_741_824.0));
    }

    #[test]
    fn vcpus_come_from_the_topology_the_instancetype_or_the_request() {
        let of = |domain: Value| {
            let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
                "spec": {"template": {"spec": {"domain": domain}}}});
            vcpus(&Facts::offline(Vm::from_object(&object).unwrap()))
        };
        assert_eq!(of(json!({})), Some(1));
        assert_eq!(of(json!({"cpu": {"cores": 4, "sockets": 2, "threads": 0}})), Some(8));
        assert_eq!(of(json!({"resources": {"requests": {"cpu": "1500m"}}})), Some(2));
        assert_eq!(of(json!({"cpu": {"cores": u64::MAX, "sockets": 2}})), None);
        let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"instancetype": {"name": "u1"}, "template": {"spec": {"domain": {}}}}});
        let mut facts = Facts::offline(Vm::from_object(&object).unwrap());
        assert_eq!(vcpus(&facts), None);
        let owned = Owned::from_object("u1", &json!({"spec": {"cpu": {"guest": 6}}})).unwrap();
        facts.instancetype = Instancetype::Read(Box::new(owned));
        assert_eq!(vcpus(&facts), Some(6));
    }
}
