//! Is this guest Windows, how sure is that, and by which signs.
//!
//! The guest agent of a running guest decides, then an administrator's annotation. Without them one strong sign is enough to write, unless a strong sign
//! says otherwise; weak signs are enough to propose. Contradictions are always reported.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::facts::Facts;
use super::json::{self, State};
use super::profile::{DataError, enlightenments, parse};

/// How sure it is that the guest is Windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Confidence {
    /// The guest agent says so.
    Certain,
    /// A strong sign says so and no strong sign contradicts.
    Sure,
    /// Weak signs, or strong ones that contradict each other: propose, never write.
    Unsure,
    /// Nothing says Windows.
    No,
}

/// What the signs say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Detection {
    /// How sure.
    pub confidence: Confidence,
    /// The signs that were found, strongest first.
    pub signs: Vec<Sign>,
}

/// One sign that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sign {
    /// Which rule of `signs.yaml`.
    pub id: String,
    /// Where it was found, and what stood there.
    pub found: String,
    /// What it says.
    pub says: Says,
    /// How much it counts.
    pub weight: Weight,
}

/// Windows or another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Says {
    /// Windows.
    Windows,
    /// Another operating system.
    Other,
}

/// How much a sign counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// Enough to write.
    Strong,
    /// Enough to propose.
    Weak,
    /// Counts only where nothing stronger speaks, and contradicts nothing.
    Hint,
}

impl Detection {
    /// Signs that contradict what the others led to, as one line; `None` where all agree.
    pub fn contradiction(&self) -> Option<String> {
        let (mut windows, mut other) = (Vec::new(), Vec::new());
        for sign in self.signs.iter().filter(|s| s.weight != Weight::Hint) {
            match sign.says {
                Says::Windows => windows.push(sign.found.as_str()),
                Says::Other => other.push(sign.found.as_str()),
            }
        }
        (!windows.is_empty() && !other.is_empty())
            .then(|| format!("{} against {}", other.join(", "), windows.join(", ")))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    id: String,
    at: Place,
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
    says: Says,
    weight: Weight,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Place {
    Label,
    Annotation,
    Preference,
    Image,
    Volume,
    Guest,
    Consent,
    Hyperv,
    Sysprep,
    Clock,
    Cdroms,
    Cloudinit,
}

static RULES: LazyLock<Result<Vec<Rule>, DataError>> =
    LazyLock::new(|| parse("signs.yaml", include_str!("data/signs.yaml")));

/// Reads every sign of a VM.
///
/// # Errors
/// When the embedded data is invalid.
pub fn detect(facts: &Facts) -> Result<Detection, DataError> {
    let rules = RULES.as_ref().map_err(Clone::clone)?;
    let mut signs: Vec<Sign> = Vec::new();
    // Read once: every rule about marks looks at all of them.
    let marks = [facts.vm.marks(false).collect::<Vec<_>>(), facts.vm.marks(true).collect::<Vec<_>>()];
    for rule in rules {
        for found in found(rule, facts, &marks) {
            // Of the rules with one id the first that matches a place counts: `win*` before `*`.
            if !signs.iter().any(|s| s.id == rule.id && s.found == found) {
                signs.push(Sign { id: rule.id.clone(), found, says: rule.says, weight: rule.weight });
            }
        }
    }
    signs.sort_by_key(|s| s.weight);
    let has = |says, weight| signs.iter().any(|s| s.says == says && s.weight == weight);
    let windows = has(Says::Windows, Weight::Strong);
    let other = has(Says::Other, Weight::Strong);
    let weak = has(Says::Windows, Weight::Weak);
    let confidence = match facts.guest_os.as_deref() {
        Some(WINDOWS_ID) => Confidence::Certain,
        Some(_) => Confidence::No,
        // An administrator's word for this very VM decides over every mark.
        None if facts.consent_by_annotation => Confidence::Sure,
        None if windows && !other => Confidence::Sure,
        None if windows => Confidence::Unsure,
        None if weak && !other && !has(Says::Other, Weight::Weak) && !has(Says::Other, Weight::Hint) => {
            Confidence::Unsure
        }
        None => Confidence::No,
    };
    Ok(Detection { confidence, signs })
}

/// Keys of annotations that are signs.
pub fn annotation_keys() -> impl Iterator<Item = &'static str> {
    let rules = RULES.as_ref().map(Vec::as_slice).unwrap_or_default();
    rules.iter().filter(|r| r.at == Place::Annotation).map(|r| r.key.as_str())
}

/// What the guest agent of every Windows reports as the system's id.
const WINDOWS_ID: &str = "mswindows";

/// The places at which a rule matches, each in words.
fn found(rule: &Rule, facts: &Facts, marks: &[Vec<(&str, &str)>; 2]) -> Vec<String> {
    let vm = &facts.vm;
    let domain = vm.domain();
    let volumes = json::list(&vm.spec, "/template/spec/volumes");
    // What we wrote ourselves is no evidence.
    let ours = |pointer: &str| facts.ours.iter().any(|o| o == pointer);
    let one = |yes: bool, words: &str| if yes { vec![words.to_owned()] } else { Vec::new() };
    match rule.at {
        Place::Label | Place::Annotation => {
            let annotations = rule.at == Place::Annotation;
            let what = if annotations { "annotation" } else { "label" };
            let [labels, annotated] = marks;
            let marks = if annotations { annotated } else { labels };
            marks
                .iter()
                .filter(|(k, v)| json::matches(&rule.key, k) && json::matches(&rule.value, v))
                .map(|(k, v)| format!("{what} {}={}", printable(k), printable(v)))
                .collect()
        }
        Place::Preference => json::text(&vm.spec, "/preference/name")
            .filter(|name| json::matches(&rule.value, name))
            .map(|name| format!("preference {}", printable(name)))
            .into_iter()
            .collect(),
        Place::Image => volumes
            .iter()
            .filter_map(|v| json::text(v, "/containerDisk/image"))
            .filter(|image| json::matches(&rule.value, image))
            .map(|image| format!("image {}", printable(image)))
            .collect(),
        Place::Volume => volumes
            .iter()
            .filter_map(|v| json::text(v, "/name"))
            .filter(|name| json::matches(&rule.value, name))
            .map(|name| format!("volume {}", printable(name)))
            .collect(),
        Place::Guest => {
            one(facts.guest_os.as_deref() == Some(WINDOWS_ID), "the guest agent of the running instance says mswindows")
        }
        Place::Consent => one(facts.consent_by_annotation, "an administrator's annotation asks for this VM"),
        Place::Hyperv => {
            // A field that the API does not have is a typing error, which the API server drops.
            let mut known = vec!["evmcs", "vendorid"];
            known.extend(enlightenments().unwrap_or_default().iter().map(|k| k.field.as_str()));
            let on = json::at(domain, "/features/hyperv")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .filter(|(name, _)| !ours(&format!("/features/hyperv/{name}")))
                .filter(|(name, v)| known.contains(&name.as_str()) && json::state(Some(v), "enabled") == State::On)
                .count();
            let words = if on == 1 { "feature is" } else { "features are" };
            one(on > 0, &format!("{on} Hyper-V {words} on already"))
        }
        Place::Sysprep => one(volumes.iter().any(|v| json::at(v, "/sysprep").is_some()), "a sysprep volume"),
        Place::Clock => {
            let timer = json::state(json::at(domain, "/clock/timer/hyperv"), "present");
            let misplaced = json::state(json::at(domain, "/resources/clock/timer/hyperv"), "present");
            let timer = timer == State::On && !ours("/clock/timer/hyperv");
            one(timer || misplaced == State::On, "the Hyper-V clock timer")
        }
        Place::Cdroms => {
            let cdroms =
                json::list(domain, "/devices/disks").iter().filter(|d| json::at(d, "/cdrom").is_some()).count();
            one(cdroms >= 2, &format!("{cdroms} CD-ROMs"))
        }
        Place::Cloudinit => one(
            volumes.iter().any(|v| json::at(v, "/cloudInitNoCloud").or(json::at(v, "/cloudInitConfigDrive")).is_some()),
            "a cloud-init volume",
        ),
    }
}

/// Text of others in our output: short, and without control characters that could repaint a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut clean: String = text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(80).is_some() {
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::facts::Vm;
    use serde_json::json;

    fn facts(object: Value) -> Facts {
        let mut whole = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
            "spec": {"template": {"spec": {"domain": {"devices": {}}}}}});
        json_patch::merge(&mut whole, &object);
        Facts::offline(Vm::from_object(&whole).unwrap())
    }

    fn confidence(object: Value) -> Confidence {
        detect(&facts(object)).unwrap().confidence
    }

    #[test]
    fn nothing_says_nothing() {
        assert_eq!(confidence(json!({})), Confidence::No);
    }

    #[test]
    fn harvesters_linux_label_does_not_outweigh_a_sysprep_volume() {
        let facts = facts(json!({"metadata": {"labels": {"harvesterhci.io/os": "linux"}},
            "spec": {"template": {"spec": {"volumes": [{"name": "a", "sysprep": {}}]}}}}));
        let detection = detect(&facts).unwrap();
        assert_eq!(detection.confidence, Confidence::Sure);
        assert_eq!(detection.contradiction().unwrap(), "label harvesterhci.io/os=linux against a sysprep volume");
    }

    #[test]
    fn strong_signs_that_contradict_only_propose() {
        let object = json!({"spec": {"preference": {"name": "rhel.9"},
            "template": {"spec": {"domain": {"features": {"hyperv": {"relaxed": {}}}}}}}});
        assert_eq!(confidence(object), Confidence::Unsure);
    }

    #[test]
    fn a_cloud_init_volume_outweighs_weak_signs_and_contradicts_nothing() {
        let with = |domain: Value| {
            facts(
                json!({"spec": {"template": {"spec": {"volumes": [{"name": "a", "cloudInitNoCloud": {}}], "domain": domain}}}}),
            )
        };
        let strong = detect(&with(json!({"features": {"hyperv": {"relaxed": {}}}}))).unwrap();
        assert_eq!((strong.confidence, strong.contradiction()), (Confidence::Sure, None));
        let weak = detect(&with(json!({"clock": {"timer": {"hyperv": {}}}}))).unwrap();
        assert_eq!((weak.confidence, weak.contradiction()), (Confidence::No, None));
    }

    #[test]
    fn the_guest_agent_decides_either_way() {
        let mut linux = facts(json!({"metadata": {"labels": {"harvesterhci.io/os": "windows"}}}));
        linux.guest_os = Some("fedora".to_owned());
        assert_eq!(detect(&linux).unwrap().confidence, Confidence::No);
        let mut windows = facts(json!({"metadata": {"labels": {"kubevirt.io/os": "linux"}}}));
        windows.guest_os = Some("mswindows".to_owned());
        assert_eq!(detect(&windows).unwrap().confidence, Confidence::Certain);
    }

    #[test]
    fn a_windows_label_is_not_also_taken_for_another_system() {
        let facts = facts(json!({"metadata": {"labels": {"os.template.kubevirt.io/win10": "true"}}}));
        let detection = detect(&facts).unwrap();
        assert_eq!(detection.signs.len(), 1);
        assert_eq!(detection.confidence, Confidence::Sure);
    }

    #[test]
    fn text_of_others_is_made_harmless() {
        assert_eq!(printable("a\u{1b}[31mb\nc"), "a?[31mb?c");
        assert_eq!(printable(&"x".repeat(200)).chars().count(), 81);
    }
}
