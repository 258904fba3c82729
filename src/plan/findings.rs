//! What a reader should know beside the settings.

use std::sync::LazyLock;

use serde::Deserialize;

use super::context::Context;
use super::detect::{self, Detection};
use super::disks::{self, Disk};
use super::facts::Facts;
use super::json;
use super::profile::{self, DataError};
use super::settings::{Finding, Outcome, Setting, Severity};
use super::settle::Settled;
use super::{harvester, known_bad, migration};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Misplaced {
    at: String,
    belongs: String,
    source: String,
}

static MISPLACED: LazyLock<Result<Vec<Misplaced>, DataError>> =
    LazyLock::new(|| profile::parse("misplaced.yaml", include_str!("data/misplaced.yaml")));

/// What a reader should know beside the settings.
pub(super) fn of_vm(facts: &Facts, detection: &Detection) -> Result<Vec<Finding>, DataError> {
    let domain = facts.vm.domain();
    let mut found = Vec::new();
    if let Some(contradiction) = detection.contradiction() {
        found.push(Finding {
            id: "contradicting-signs".into(),
            severity: Severity::Warning,
            text: format!("signs of the operating system contradict each other: {contradiction}"),
            source: "plan/data/signs.yaml".into(),
        });
    }
    if facts.vm.run_strategy().is_none() {
        found.push(Finding {
            id: "no-run-strategy".into(),
            severity: Severity::Error,
            text: "neither spec.runStrategy nor spec.running is set; KubeVirt refuses such a VM".to_owned(),
            source: "KubeVirt pkg/virt-api/webhooks/validating-webhook/admitters/vms-admitter.go".into(),
        });
    }
    for field in MISPLACED.as_ref().map_err(Clone::clone)? {
        if domain.pointer(&field.at).is_some() {
            let name = |p: &str| format!("domain{}", p.replace('/', "."));
            found.push(Finding {
                id: "misplaced-field".into(),
                severity: Severity::Warning,
                text: format!(
                    "{} is not part of the API and is dropped; it belongs at {}",
                    name(&field.at),
                    name(&field.belongs)
                ),
                source: field.source.as_str().into(),
            });
        }
    }
    Ok(found)
}

/// What is known of a plan for a Windows VM.
pub(super) fn of_plan(
    cx: &Context<'_>,
    disks: &[Disk<'_>],
    settings: &[Setting],
    settled: &Settled,
) -> Result<Vec<Finding>, DataError> {
    let mut found: Vec<Finding> = settled.bad.iter().map(|rule| known_bad::finding(cx, rule)).collect();
    let capped = |s: &Setting| matches!(s.outcome, Outcome::Stays { rule: "guest-version", .. });
    let fields: Vec<&str> = settings.iter().filter(|s| capped(s)).map(|s| s.field.as_str()).collect();
    if let (Some((guest, mark)), false) = (&cx.guest, fields.is_empty()) {
        let text = format!(
            "{} ({mark}) has no use for {}: not written, whatever the profile says",
            guest.name,
            fields.join(", ")
        );
        found.push(Finding {
            id: "guest-version".into(),
            severity: Severity::Note,
            text,
            source: guest.source.as_str().into(),
        });
    }
    found.extend(harvester::findings(cx, &settled.change.domain, disks, settings));
    let thick = disks::without_discard(cx, disks);
    if !thick.is_empty() {
        let names: Vec<String> = thick.into_iter().map(detect::printable).collect();
        found.push(Finding::new(
            "no-discard",
            Severity::Note,
            format!("discard does not reach the storage of {}: the claim is preallocated or thick, so space that Windows frees stays taken", names.join(", ")),
            "KubeVirt docs/discard-passthrough.md",
        ));
    }
    // Where nodes are known the solver says it beside its figures.
    let blockers = migration::blockers(&settled.change.domain);
    if settled.migration.is_none() && !blockers.is_empty() {
        let text = format!("the VM cannot migrate, with or without this plan: {}", blockers.join(", "));
        found.push(Finding::new(
            "migration-blocked",
            Severity::Note,
            text,
            "KubeVirt pkg/virt-handler/vm.go:1134-1300",
        ));
    }
    Ok(found)
}

/// What concerns a VM whatever runs in it: a disk that several VMs share is nobody's to tune.
pub(super) fn of_other_systems(facts: &Facts) -> Option<Finding> {
    let disks = json::list(facts.vm.domain(), "/devices/disks").iter().filter(|d| json::flag(d, "/shareable"));
    let names: Vec<String> = disks.filter_map(|d| json::text(d, "/name")).map(detect::printable).collect();
    (!names.is_empty()).then(|| {
        let text = format!("{} is shareable and never touched: other VMs write it too", names.join(", "));
        Finding::new(
            "shareable-disk",
            Severity::Note,
            text,
            "KubeVirt pkg/virt-launcher/virtwrap/converter/converter.go:100-160",
        )
    })
}
