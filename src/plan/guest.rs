//! Which version of Windows a guest runs, and what that version has no use for.

use std::sync::LazyLock;

use serde::Deserialize;

use super::facts::Facts;
use super::json;
use super::profile::{DataError, parse};

/// A version of Windows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// How known-bad rules name it.
    pub id: String,
    /// For people.
    pub name: String,
    /// A desktop edition.
    pub desktop: bool,
    marks: Vec<String>,
    agent: Vec<String>,
    #[serde(default)]
    not_agent: Vec<String>,
    unused: Vec<String>,
    /// Where a reader can check what it has no use for.
    pub source: String,
}

impl Guest {
    /// Whether it has no use for a setting of a profile.
    pub fn has_no_use_for(&self, setting: &str) -> bool {
        self.unused.iter().any(|unused| match unused.strip_suffix('*') {
            Some(start) => setting.starts_with(start),
            None => setting == unused,
        })
    }
}

static GUESTS: LazyLock<Result<Vec<Guest>, DataError>> =
    LazyLock::new(|| parse("guests.yaml", include_str!("data/guests.yaml")));

/// Every version that is told apart, oldest first.
///
/// # Errors
/// When the embedded data is invalid.
pub fn guests() -> Result<&'static [Guest], DataError> {
    GUESTS.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// The version, and the mark that says so. What the guest agent says of itself decides, then the preference, then the
/// marks of templates; `None` where nothing that is known speaks of it.
///
/// # Errors
/// When the embedded data is invalid.
pub fn version(facts: &Facts) -> Result<Option<(&'static Guest, String)>, DataError> {
    let guests = guests()?;
    if let Some(name) = &facts.guest_name {
        let padded = format!("{name} ");
        let says = |patterns: &[String]| patterns.iter().any(|p| json::matches(p, &padded));
        // Newest first: "server 2012 r2" is no "2012" of an older row.
        let found = guests.iter().rev().find(|g| says(&g.agent) && !says(&g.not_agent));
        if let Some(guest) = found {
            return Ok(Some((guest, format!("the guest agent says {}", super::detect::printable(name)))));
        }
    }
    let preference = json::text(&facts.vm.spec, "/preference/name").map(|name| (name, format!("preference {name}")));
    let annotation = facts.vm.marks(true).find(|(k, _)| *k == "vm.kubevirt.io/os");
    let label = facts.vm.marks(false).find(|(k, _)| *k == "kubevirt.io/os");
    let template = facts.vm.marks(false).find_map(|(k, _)| k.strip_prefix("os.template.kubevirt.io/"));
    let marks = preference
        .into_iter()
        .chain(annotation.map(|(k, v)| (v, format!("annotation {k}={v}"))))
        .chain(label.map(|(k, v)| (v, format!("label {k}={v}"))))
        .chain(template.map(|v| (v, format!("label os.template.kubevirt.io/{v}"))));
    Ok(marks.into_iter().find_map(|(value, words)| {
        let guest = guests.iter().rev().find(|g| g.marks.iter().any(|m| json::matches(m, value)))?;
        Some((guest, super::detect::printable(&words)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::facts::Vm;
    use serde_json::{Value, json};

    fn facts(edit: &Value) -> Facts {
        let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"template": {"spec": {"domain": {}}}}});
        json_patch::merge(&mut object, edit);
        Facts::offline(Vm::from_object(&object).unwrap())
    }

    fn of_agent(name: &str) -> Option<&'static str> {
        let facts = Facts { guest_name: Some(name.to_owned()), ..facts(&json!({})) };
        version(&facts).unwrap().map(|(g, _)| g.id.as_str())
    }

    #[test]
    fn the_agents_names_are_told_apart() {
        for (name, id) in [
            ("Windows Server 2008 R2 Enterprise", "2008r2"),
            ("Windows Server (R) 2008 Standard", "2008"),
            ("Windows Server 2008 Standard", "2008"),
            ("Windows Server 2008", "2008"),
            ("Windows Server 2012 R2 Standard", "2012"),
            ("Windows Server 2019 Datacenter", "2019"),
            ("Windows 7 Professional", "7"),
            ("Windows 10 Enterprise", "10"),
            ("Windows 11 Pro", "11"),
            ("Windows Server 2025 Standard", "2025"),
        ] {
            assert_eq!(of_agent(name), Some(id), "{name}");
        }
        assert_eq!(of_agent("Windows Server 2031"), None);
    }

    #[test]
    fn every_mark_names_one_version() {
        for guest in guests().unwrap() {
            for mark in &guest.marks {
                let name = mark.trim_end_matches('*');
                let found = version(&facts(&json!({"spec": {"preference": {"name": name}}}))).unwrap();
                assert_eq!(found.map(|(g, _)| g.id.as_str()), Some(guest.id.as_str()), "{mark}");
            }
        }
    }

    #[test]
    fn the_agent_decides_then_the_preference_then_templates() {
        let all = json!({"metadata": {"labels": {"kubevirt.io/os": "win10"}, "annotations": {"vm.kubevirt.io/os": "windows2k16"}},
            "spec": {"preference": {"name": "windows.2k12.virtio"}}});
        let found = |facts: &Facts| version(facts).unwrap().map(|(g, words)| (g.id.clone(), words)).unwrap();
        assert_eq!(found(&facts(&all)), ("2012".to_owned(), "preference windows.2k12.virtio".to_owned()));
        let agent = Facts { guest_name: Some("Windows 11 Pro".to_owned()), ..facts(&all) };
        assert_eq!(found(&agent).0, "11");
        let template =
            json!({"spec": {"template": {"metadata": {"labels": {"os.template.kubevirt.io/win2k22": "true"}}}}});
        assert_eq!(found(&facts(&template)).0, "2022");
        assert!(version(&facts(&json!({"spec": {"preference": {"name": "windows"}}}))).unwrap().is_none());
    }

    #[test]
    fn old_versions_have_no_use_for_new_settings() {
        let of = |id: &str| guests().unwrap().iter().find(|g| g.id == id).unwrap();
        assert!(of("xp").has_no_use_for("hyperv.vapic") && of("xp").has_no_use_for("clock.pit"));
        assert!(of("2008").has_no_use_for("hyperv.ipi") && !of("2008").has_no_use_for("hyperv.vapic"));
        assert!(!of("2022").has_no_use_for("hyperv.ipi"));
        let known = &crate::plan::profile::named("migration-safe").unwrap().unwrap().settings;
        for guest in guests().unwrap() {
            for unused in &guest.unused {
                let any = |p: &&String| unused.strip_suffix('*').map_or(*p == unused, |start| p.starts_with(start));
                assert!(known.keys().any(|p| any(&p)), "{unused}");
            }
        }
    }
}
