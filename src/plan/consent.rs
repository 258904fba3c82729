//! Who may say that a VM is tuned, and who says so for this one.
//!
//! The order: an opt-out annotation always wins; then an annotation that asks for this VM; then the matching
//! `WindowsTuning` with the highest priority (among equals the oldest); then the matching `ClusterWindowsTuning` by
//! the same rule. Limits of every `ClusterWindowsTuning` that covers the namespace narrow all of them. With none of
//! these nothing is written. What cannot be read is never taken for absent.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::{Selector, SelectorExt};

use super::facts::Wanted;
use crate::api::annotation;
use crate::api::record::{PolicyKind, PolicyRef};
use crate::api::tuning::{AnnotationConsent, Limits, Mode, OnWithdrawal, Tuning};

/// A policy as far as it could be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Understood.
    Readable(Box<PolicyView>),
    /// Not understood: nothing is written or restored where it might decide.
    Unreadable {
        /// `WindowsTuning` or `ClusterWindowsTuning`.
        kind: PolicyKind,
        /// Its name.
        name: String,
        /// Why it cannot be read.
        why: String,
    },
}

impl Policy {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Readable(view) => &view.name,
            Self::Unreadable { name, .. } => name,
        }
    }
}

/// A policy that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyView {
    /// `WindowsTuning` or `ClusterWindowsTuning`.
    pub kind: PolicyKind,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Generation.
    pub generation: i64,
    /// When it was made; absent in a file.
    pub created: Option<Time>,
    /// Which VMs.
    pub selector: Selector,
    /// Which namespaces; everything for a `WindowsTuning`, which lies in one.
    pub namespace_selector: Selector,
    /// Limits; only of a `ClusterWindowsTuning`.
    pub limits: Option<Limits>,
    /// What it asks for.
    pub tuning: Tuning,
}

/// Everything that may decide for the VMs of one namespace.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// Policies of the namespace.
    pub namespaced: Arc<Vec<Policy>>,
    /// Policies of the cluster.
    pub cluster: Arc<Vec<Policy>>,
    /// Labels of the namespace.
    pub namespace_labels: BTreeMap<String, String>,
}

/// What the policies and annotations come to for one VM.
#[derive(Clone, Debug, PartialEq)]
pub enum Consent {
    /// Nobody asked.
    None,
    /// The VM's owner wants nothing done.
    OptedOut {
        /// In the owner's words.
        reason: Option<String>,
    },
    /// Something that might decide cannot be read.
    Frozen {
        /// What, and why.
        why: String,
    },
    /// Somebody asked.
    Given(Box<Given>),
}

/// What was asked, by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// Who.
    pub by: PolicyRef,
    /// What.
    pub wanted: Wanted,
    /// When it may be written, after the limits.
    pub mode: Mode,
    /// How the limits narrowed it, in words.
    pub narrowed: Vec<String>,
    /// Names of policies of the same kind that match as well and lost.
    pub losers: Vec<String>,
}

/// Labels and annotations of a VM: all that consent depends on.
#[derive(Clone, Copy, Debug)]
pub struct Marks<'a> {
    /// Labels of the VM itself.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations of the VM itself.
    pub annotations: &'a BTreeMap<String, String>,
}

/// Finds out who decides for a VM.
pub fn decide(vm: Marks<'_>, policies: &Policies) -> Consent {
    let asks = match annotations(vm.annotations) {
        Annotations::OptOut => {
            let reason = vm.annotations.get(annotation::REASON).map(|r| super::detect::printable(r));
            return Consent::OptedOut { reason };
        }
        Annotations::Unreadable(why) => return Consent::Frozen { why },
        Annotations::Ask(profile) => Some(profile),
        Annotations::Nothing => None,
    };
    let limits = match limits(policies) {
        Ok(limits) => limits,
        Err(why) => return Consent::Frozen { why },
    };
    let mut narrowed = Vec::new();
    if let Some((name, profile)) = asks {
        if limits.iter().all(|(_, l)| l.annotations.unwrap_or_default() == AnnotationConsent::Allow) {
            let by = PolicyRef {
                kind: PolicyKind::Annotation,
                name: name.to_owned(),
                uid: None,
                generation: None,
                created: None,
                on_withdrawal: OnWithdrawal::Keep,
            };
            let wanted = Wanted { profile: profile.to_owned(), ..Wanted::default() };
            return given(by, wanted, Mode::WhenStopped, Vec::new(), &limits, narrowed);
        }
        narrowed.push(format!("annotation {name} does not count: a ClusterWindowsTuning denies consent by annotation"));
    }
    for candidates in [&policies.namespaced, &policies.cluster] {
        let mut matching: Vec<&PolicyView> = Vec::new();
        for policy in candidates.iter() {
            match policy {
                Policy::Unreadable { kind, name, why } => {
                    return Consent::Frozen { why: format!("{kind:?} {name} cannot be read: {why}") };
                }
                Policy::Readable(view) => {
                    if view.selector.matches(vm.labels) && view.namespace_selector.matches(&policies.namespace_labels) {
                        matching.push(view);
                    }
                }
            }
        }
        matching.sort_by_key(|p| (Reverse(p.tuning.priority), p.created.clone(), p.name.clone()));
        if let Some((winner, rest)) = matching.split_first() {
            let wanted = Wanted {
                profile: winner.tuning.profile.clone(),
                overrides: winner.tuning.overrides.clone().unwrap_or_default(),
                allow_unmigratable: winner.tuning.allow_unmigratable,
            };
            let losers = rest.iter().map(|p| p.name.clone()).collect();
            return given(winner.reference(), wanted, winner.tuning.apply.mode, losers, &limits, narrowed);
        }
    }
    Consent::None
}

impl PolicyView {
    /// How a record refers to it.
    pub fn reference(&self) -> PolicyRef {
        PolicyRef {
            kind: self.kind,
            name: self.name.clone(),
            uid: Some(self.uid.clone()),
            generation: Some(self.generation),
            created: self.created.clone(),
            on_withdrawal: self.tuning.on_withdrawal,
        }
    }
}

fn given(
    by: PolicyRef,
    wanted: Wanted,
    mut mode: Mode,
    losers: Vec<String>,
    limits: &[(&str, &Limits)],
    mut narrowed: Vec<String>,
) -> Consent {
    for (name, limit) in limits {
        if limit.profiles.as_ref().is_some_and(|p| !p.contains(&wanted.profile)) {
            narrowed
                .push(format!("ClusterWindowsTuning {name} does not allow profile {}: proposed only", wanted.profile));
            mode = Mode::Propose;
        }
        if mode != Mode::Propose && limit.modes.as_ref().is_some_and(|m| !m.contains(&mode)) {
            narrowed.push(format!("ClusterWindowsTuning {name} does not allow mode {mode:?}: proposed only"));
            mode = Mode::Propose;
        }
    }
    Consent::Given(Box::new(Given { by, wanted, mode, narrowed, losers }))
}

/// Limits that cover the namespace, each with the name of its policy.
fn limits(policies: &Policies) -> Result<Vec<(&str, &Limits)>, String> {
    let mut limits = Vec::new();
    for policy in policies.cluster.iter() {
        match policy {
            Policy::Unreadable { name, why, .. } => {
                return Err(format!("ClusterWindowsTuning {name}, which may limit this, cannot be read: {why}"));
            }
            Policy::Readable(view) => {
                if let Some(limit) = &view.limits
                    && view.namespace_selector.matches(&policies.namespace_labels)
                {
                    limits.push((view.name.as_str(), limit));
                }
            }
        }
    }
    Ok(limits)
}

/// As long as the name of any object of Kubernetes.
const MAX_PROFILE: usize = 253;

enum Annotations<'a> {
    Nothing,
    OptOut,
    /// Name of the annotation and of the profile that it asks for.
    Ask((&'static str, &'a str)),
    Unreadable(String),
}

fn annotations(annotations: &BTreeMap<String, String>) -> Annotations<'_> {
    let profile = annotations.get(annotation::PROFILE).map(String::as_str).filter(|p| !p.is_empty());
    let ask = |name| Annotations::Ask((name, profile.unwrap_or(crate::api::tuning::DEFAULT_PROFILE)));
    match annotations.get(annotation::TUNE).map(String::as_str) {
        Some("false") => Annotations::OptOut,
        _ if profile.is_some_and(|p| p.len() > MAX_PROFILE) => {
            Annotations::Unreadable(format!("annotation {} is longer than any profile's name", annotation::PROFILE))
        }
        Some("true") => ask(annotation::TUNE),
        Some(other) => Annotations::Unreadable(format!(
            "annotation {} is {:?}; it must be \"true\" or \"false\"",
            annotation::TUNE,
            super::detect::printable(other)
        )),
        None if profile.is_some() => ask(annotation::PROFILE),
        None => Annotations::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tuning::Apply;
    use k8s_openapi::jiff::Timestamp;

    fn decide(annotations: &[(&str, &str)], policies: &Policies) -> Consent {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        super::decide(Marks { labels: &BTreeMap::new(), annotations: &annotations }, policies)
    }

    fn policy(name: &str, priority: i32, created: i64) -> PolicyView {
        PolicyView {
            kind: PolicyKind::WindowsTuning,
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            generation: 1,
            created: Timestamp::from_second(created).ok().map(Time),
            selector: Selector::default(),
            namespace_selector: Selector::default(),
            limits: None,
            tuning: Tuning {
                priority,
                profile: "migration-safe".to_owned(),
                apply: Apply { mode: Mode::WhenStopped, ..Apply::default() },
                ..Tuning::default()
            },
        }
    }

    fn readable(view: PolicyView) -> Policy {
        Policy::Readable(Box::new(view))
    }

    fn winner(consent: &Consent) -> &Given {
        match consent {
            Consent::Given(given) => given,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nobody_asked() {
        assert_eq!(decide(&[], &Policies::default()), Consent::None);
    }

    #[test]
    fn the_highest_priority_wins_and_among_equals_the_oldest() {
        let policies = Policies {
            namespaced: Arc::new(vec![
                readable(policy("young", 5, 20)),
                readable(policy("old", 5, 10)),
                readable(policy("low", 1, 1)),
            ]),
            ..Policies::default()
        };
        let consent = decide(&[], &policies);
        assert_eq!(winner(&consent).by.name, "old");
        assert_eq!(winner(&consent).losers, ["young", "low"]);
    }

    #[test]
    fn an_opt_out_wins_over_everything_and_an_annotation_over_policies() {
        let policies = Policies { namespaced: Arc::new(vec![readable(policy("a", 5, 1))]), ..Policies::default() };
        let out =
            [("wintune.dev/tune", "false"), ("wintune.dev/reason", "vendor says no"), ("wintune.dev/profile", "x")];
        assert_eq!(decide(&out, &policies), Consent::OptedOut { reason: Some("vendor says no".to_owned()) });
        let ask = decide(&[("wintune.dev/tune", "true")], &policies);
        assert_eq!(winner(&ask).by.kind, PolicyKind::Annotation);
        assert_eq!(winner(&ask).mode, Mode::WhenStopped);
        let profile = decide(&[("wintune.dev/profile", "latency")], &Policies::default());
        assert_eq!(winner(&profile).wanted.profile, "latency");
    }

    #[test]
    fn what_cannot_be_read_freezes() {
        let unreadable =
            || Policy::Unreadable { kind: PolicyKind::WindowsTuning, name: "b".to_owned(), why: "bad mode".to_owned() };
        let policies =
            Policies { namespaced: Arc::new(vec![readable(policy("a", 5, 1)), unreadable()]), ..Policies::default() };
        assert!(matches!(decide(&[], &policies), Consent::Frozen { .. }));
        let policies = Policies { cluster: Arc::new(vec![unreadable()]), ..Policies::default() };
        assert!(matches!(decide(&[("wintune.dev/tune", "true")], &policies), Consent::Frozen { .. }));
        assert!(matches!(decide(&[("wintune.dev/tune", "yes")], &Policies::default()), Consent::Frozen { .. }));
    }

    #[test]
    fn limits_only_narrow() {
        let limit = |limits: Limits| {
            let mut cluster = policy("limits", 0, 1);
            cluster.kind = PolicyKind::ClusterWindowsTuning;
            cluster.limits = Some(limits);
            cluster.selector = Selector::from_iter([kube::core::Expression::Equal("never".to_owned(), "x".to_owned())]);
            Policies {
                namespaced: Arc::new(vec![readable(policy("a", 5, 1))]),
                cluster: Arc::new(vec![readable(cluster)]),
                ..Policies::default()
            }
        };
        let modes = limit(Limits { modes: Some(vec![Mode::Propose]), ..Limits::default() });
        let consent = decide(&[], &modes);
        assert_eq!(winner(&consent).mode, Mode::Propose);
        assert_eq!(winner(&consent).narrowed.len(), 1);
        let profiles = limit(Limits { profiles: Some(vec!["latency".to_owned()]), ..Limits::default() });
        assert_eq!(winner(&decide(&[], &profiles)).mode, Mode::Propose);
        let no_annotations = limit(Limits { annotations: Some(AnnotationConsent::Deny), ..Limits::default() });
        let consent = decide(&[("wintune.dev/tune", "true")], &no_annotations);
        assert_eq!(winner(&consent).by.name, "a");
        let out = decide(&[("wintune.dev/tune", "false")], &no_annotations);
        assert_eq!(out, Consent::OptedOut { reason: None });
    }

    #[test]
    fn a_cluster_policy_comes_last_and_by_namespace() {
        let mut cluster = policy("all", 100, 1);
        cluster.namespace_selector =
            Selector::from_iter([kube::core::Expression::Equal("team".to_owned(), "db".to_owned())]);
        let policies = Policies { cluster: Arc::new(vec![readable(cluster)]), ..Policies::default() };
        assert_eq!(decide(&[], &policies), Consent::None);
        let policies = Policies { namespace_labels: [("team".to_owned(), "db".to_owned())].into(), ..policies };
        assert_eq!(winner(&decide(&[], &policies)).by.name, "all");
    }
}
