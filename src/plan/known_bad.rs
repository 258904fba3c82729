//! Combinations that are known to fail or to hurt: rules in a data file, each with its source and a date by which
//! somebody has to look at it again.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use k8s_openapi::jiff::civil::Date;
use semver::Version;
use serde::Deserialize;
use serde_json::Value;

use super::context::Context;
use super::disks::{Disk, Kind, disks};
use super::json::{self, State};
use super::patch::item_of;
use super::profile::{DataError, parse};
use super::settings::{Finding, Outcome, Setting, Severity};

/// One rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, as output and metrics show it.
    pub id: String,
    severity: Weight,
    when: Vec<Condition>,
    refuse: Vec<String>,
    effect: String,
    unblock: String,
    source: String,
    review: Date,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Weight {
    Refuse,
    Warn,
}

/// One condition; exactly one of its kinds is there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Condition {
    at: Option<String>,
    is: Option<Is>,
    #[serde(rename = "in")]
    within: Option<Vec<Value>>,
    not_in: Option<Vec<Value>>,
    below: Option<u64>,
    longer: Option<usize>,
    disk: Option<DiskCondition>,
    count: Option<usize>,
    vendor: Option<String>,
    node_lacks: Option<Lacks>,
    guest: Option<Vec<String>>,
    unknown: Option<bool>,
    kubevirt: Option<Vec<Version>>,
    firmware: Option<Firmware>,
    hook: Option<String>,
    #[serde(rename = "override")]
    override_: Option<String>,
    not: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Is {
    On,
    Off,
    #[serde(rename = "not on")]
    NotOn,
    Present,
    Absent,
    Empty,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Lacks {
    Tsc,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Firmware {
    Bios,
    Efi,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DiskCondition {
    bus: Option<Vec<String>>,
    cache: Option<Vec<String>>,
    cache_not: Option<Vec<String>>,
    io: Option<Vec<String>>,
    shareable: Option<bool>,
    #[serde(rename = "dedicatedIOThread")]
    dedicated_io_thread: Option<bool>,
}

const FILE: &str = "known-bad.yaml";

static RULES: LazyLock<Result<Vec<Rule>, DataError>> =
    LazyLock::new(|| parse_rules(include_str!("data/known-bad.yaml")));

/// Every rule.
///
/// # Errors
/// When the embedded data is invalid.
pub fn rules() -> Result<&'static [Rule], DataError> {
    RULES.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// Reads rules.
///
/// # Errors
/// When the text is not a list of rules, or one of them says nothing, or two have one name.
pub fn parse_rules(text: &str) -> Result<Vec<Rule>, DataError> {
    let rules: Vec<Rule> = parse(FILE, text)?;
    let mut names = BTreeSet::new();
    for rule in &rules {
        let fault = |cause: &str| {
            Err(DataError { file: FILE, cause: format!("rule {:?}: {cause}", super::detect::printable(&rule.id)) })
        };
        if rule.id.is_empty() || !names.insert(rule.id.as_str()) {
            return fault("its id is empty, or another rule has it");
        }
        if rule.when.is_empty() {
            return fault("`when` is empty: it would always hold");
        }
        if let Some(cause) = rule.when.iter().find_map(Condition::fault) {
            return fault(cause);
        }
        if [&rule.effect, &rule.unblock, &rule.source].into_iter().any(String::is_empty) {
            return fault("effect, unblock and source must say something");
        }
    }
    Ok(rules)
}

impl Condition {
    /// Why it means nothing.
    fn fault(&self) -> Option<&'static str> {
        let about_a_place = [
            self.is.is_some(),
            self.within.is_some(),
            self.not_in.is_some(),
            self.below.is_some(),
            self.longer.is_some(),
        ];
        let tests = about_a_place.iter().filter(|t| **t).count();
        let kinds = [
            self.at.is_some(),
            self.disk.is_some(),
            self.vendor.is_some(),
            self.node_lacks.is_some(),
            self.guest.is_some(),
            self.kubevirt.is_some(),
            self.firmware.is_some(),
            self.hook.is_some(),
            self.override_.is_some(),
        ];
        if kinds.iter().filter(|k| **k).count() != 1 {
            return Some("a condition must have exactly one kind");
        }
        if tests != usize::from(self.at.is_some()) {
            return Some("`at` goes with exactly one test");
        }
        if self.at.as_ref().is_some_and(|at| !at.starts_with('/')) {
            return Some("`at` is a place and starts with /");
        }
        if self.override_.is_some() != self.not.is_some() {
            return Some("`override` goes with `not`");
        }
        let alone = (self.count.is_some() && self.disk.is_none()) || (self.unknown.is_some() && self.guest.is_none());
        alone.then_some("`count` goes with `disk`, `unknown` with `guest`")
    }

    fn holds(&self, cx: &Context<'_>, after: &After<'_>) -> bool {
        if let Some(at) = &self.at {
            return self.place_holds(json::at(after.domain, at), at);
        }
        if let Some(wanted) = &self.disk {
            let fitting = after.disks.iter().filter(|d| d.kind == Kind::Disk && wanted.fits(d)).count();
            return fitting >= self.count.unwrap_or(1);
        }
        let nodes = |holds: &dyn Fn(&super::nodes::Class) -> bool| cx.eligible.as_ref().is_some_and(|e| e.any(holds));
        if let Some(vendor) = &self.vendor {
            return nodes(&|class| class.vendor() == Some(vendor.as_str()));
        }
        if let Some(Lacks::Tsc) = self.node_lacks {
            return nodes(&|class| !class.tsc_scalable() || class.tsc_frequency().is_none());
        }
        if let Some(ids) = &self.guest {
            return match &cx.guest {
                Some((guest, _)) => ids.contains(&guest.id),
                None => self.unknown == Some(true),
            };
        }
        if let Some(versions) = &self.kubevirt {
            return cx.facts.capabilities.may_be(versions);
        }
        if let Some(firmware) = self.firmware {
            let efi = json::at(after.domain, "/firmware/bootloader/efi").is_some();
            return efi == (firmware == Firmware::Efi);
        }
        if let Some(hook) = &self.hook {
            return after.settings.iter().any(|s| s.field == *hook && !matches!(s.outcome, Outcome::Stays { .. }));
        }
        match (&self.override_, &self.not) {
            (Some(setting), Some(value)) => {
                let overrides = serde_json::to_value(cx.desired.overrides).unwrap_or_default();
                json::text(&overrides, &format!("/{}", setting.replace('.', "/"))) != Some(value)
            }
            _ => false,
        }
    }

    fn place_holds(&self, value: Option<&Value>, at: &str) -> bool {
        let switch = if at.starts_with("/clock") { "present" } else { "enabled" };
        let state = json::state(value, switch);
        match self.is {
            Some(Is::On) => return state == State::On,
            Some(Is::Off) => return state == State::Off,
            Some(Is::NotOn) => return state != State::On,
            Some(Is::Present) => return value.is_some(),
            Some(Is::Absent) => return value.is_none(),
            Some(Is::Empty) => return value.is_some_and(|v| json::at(v, "/enabled").is_none()),
            None => {}
        }
        if let Some(values) = &self.within {
            return value.is_some_and(|v| values.contains(v));
        }
        if let Some(values) = &self.not_in {
            return !value.is_some_and(|v| values.contains(v));
        }
        if let Some(below) = self.below {
            return value.and_then(Value::as_u64).is_some_and(|v| v < below);
        }
        let longer = |limit: usize| value.and_then(Value::as_str).is_some_and(|v| v.chars().count() > limit);
        self.longer.is_some_and(longer)
    }
}

impl DiskCondition {
    fn fits(&self, disk: &Disk<'_>) -> bool {
        let text = |field: &str| disk.entry.and_then(|e| e.get(field)).and_then(Value::as_str);
        let listed = |list: &Option<Vec<String>>, value: Option<&str>| {
            list.as_ref().is_none_or(|l| value.is_some_and(|v| l.iter().any(|x| x == v)))
        };
        let none_of = |list: &Option<Vec<String>>, value: Option<&str>| {
            list.as_ref().is_none_or(|l| !value.is_some_and(|v| l.iter().any(|x| x == v)))
        };
        listed(&self.bus, Some(disk.bus))
            && listed(&self.cache, text("cache"))
            && none_of(&self.cache_not, text("cache"))
            && listed(&self.io, text("io"))
            && self.shareable.is_none_or(|s| s == disk.flag("shareable"))
            && self.dedicated_io_thread.is_none_or(|d| d == disk.flag("dedicatedIOThread"))
    }
}

/// A VM as it would be after a plan.
struct After<'a> {
    domain: &'a Value,
    disks: Vec<Disk<'a>>,
    settings: &'a [Setting],
}

/// A rule that holds for a VM as it would be.
pub(super) struct Hit {
    pub(super) rule: &'static Rule,
    /// The disks that it speaks of; `None` where it speaks of none in particular.
    disks: Option<Vec<String>>,
}

/// The rules that hold for a VM as it would be.
pub(super) fn hits(cx: &Context<'_>, domain: &Value, settings: &[Setting]) -> Result<Vec<Hit>, DataError> {
    let after = After { domain, disks: disks(&cx.with_domain(domain)), settings };
    let holding = rules()?.iter().filter(|rule| rule.when.iter().all(|c| c.holds(cx, &after)));
    let hit = |rule: &'static Rule| {
        let wanted = rule.when.iter().find_map(|c| c.disk.as_ref());
        let names = |wanted: &DiskCondition| {
            let fitting = after.disks.iter().filter(|d| d.kind == Kind::Disk && wanted.fits(d));
            fitting.map(|d| d.name.to_owned()).collect()
        };
        Hit { rule, disks: wanted.map(names) }
    };
    Ok(holding.map(hit).collect())
}

/// Refuses what the plan would do of a rule. Whether that takes a write away.
pub(super) fn refuse(cx: &Context<'_>, hit: &Hit, settings: &mut [Setting]) -> bool {
    let rule = hit.rule;
    let mut taken = false;
    if rule.severity == Weight::Warn || rule.refuse.is_empty() {
        return taken;
    }
    // What is wrong with one disk is no reason to leave another alone.
    let concerned = |place: &str| match (item_of(place), &hit.disks) {
        (Some((list, name)), Some(disks)) if list.starts_with("/devices/disks/") => disks.iter().any(|d| d == name),
        _ => true,
    };
    for setting in settings.iter_mut() {
        let planned = matches!(setting.outcome, Outcome::Write | Outcome::Waits { .. });
        if planned && rule.refuse.iter().any(|p| fits(p, &setting.field)) && concerned(&setting.pointer) {
            taken |= setting.is_write();
            let (rule_id, unblock) = (Cow::Borrowed(rule.id.as_str()), rule.unblock.clone());
            setting.outcome = Outcome::Refused { rule: rule_id, why: rule.words(cx), unblock };
        }
    }
    taken
}

/// What is said of a rule that holds whatever the plan does.
pub(super) fn finding(cx: &Context<'_>, rule: &'static Rule) -> Finding {
    let severity = if rule.severity == Weight::Refuse { Severity::Error } else { Severity::Warning };
    let text = format!("{}; {}", rule.words(cx), rule.unblock);
    Finding { id: Cow::Borrowed(&rule.id), severity, text, source: Cow::Borrowed(&rule.source) }
}

impl Rule {
    /// The effect, its source, and whether somebody should have looked at it again.
    fn words(&self, cx: &Context<'_>) -> String {
        match cx.facts.today {
            Some(today) if today > self.review => {
                format!("{} (this rule was to be reviewed by {})", self.effect, self.review)
            }
            _ => self.effect.clone(),
        }
    }
}

/// Whether a field is one of a pattern, in which one `*` stands for anything.
fn fits(pattern: &str, field: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == field,
        Some((start, end)) => {
            field.len() >= start.len() + end.len() && field.starts_with(start) && field.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests;
