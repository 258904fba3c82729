//! Profiles and enlightenments: data with reasons and sources, parsed once.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::overrides::{Enlightenment, Overrides};

/// A data file of ours that does not parse. A test reads them all, so this never reaches a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("data file {file} of this build is invalid: {cause}")]
pub struct DataError {
    /// Name of the file.
    pub file: &'static str,
    /// What the parser says.
    pub cause: String,
}

/// Parses one of our embedded data files.
pub(super) fn parse<T: serde::de::DeserializeOwned>(file: &'static str, text: &str) -> Result<T, DataError> {
    serde_saphyr::from_str(text).map_err(|e| DataError { file, cause: e.to_string() })
}

/// A named set of desired settings.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Name, as policies use it.
    pub name: String,
    /// Moves whenever a value moves.
    pub revision: i32,
    /// One line for people.
    pub summary: String,
    /// What it says of each setting, by the path that overrides use: `clock.pit`.
    pub settings: BTreeMap<String, Said>,
    /// The same values as one typed whole.
    #[serde(skip)]
    pub values: Overrides,
}

/// What a profile says of one setting.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// One of the values that an override can have.
    pub value: Value,
    /// Why.
    pub reason: String,
    /// Where a reader can check it.
    pub source: String,
}

/// A profile as it stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    extends: Option<String>,
    revision: i32,
    summary: String,
    settings: BTreeMap<String, Said>,
}

/// Puts profiles together from what is written, each after the one that it extends.
fn assemble(written: Vec<Written>) -> Result<Vec<Profile>, String> {
    let mut profiles: Vec<Profile> = Vec::new();
    for Written { name, extends, revision, summary, settings: own } in written {
        let mut settings = match &extends {
            None => BTreeMap::new(),
            Some(base) => {
                let base = profiles.iter().find(|p| p.name == *base);
                base.ok_or_else(|| format!("{name} extends a profile that does not stand before it"))?.settings.clone()
            }
        };
        settings.extend(own);
        let values = values_of(&settings).map_err(|e| format!("{name}: {e}"))?;
        profiles.push(Profile { name, revision, summary, settings, values });
    }
    Ok(profiles)
}

/// The values of settings as overrides hold them.
fn values_of(settings: &BTreeMap<String, Said>) -> Result<Overrides, String> {
    let mut nested = serde_json::Map::new();
    for (path, said) in settings {
        let (group, name) = path.split_once('.').ok_or_else(|| format!("{path} is not a path"))?;
        let group = nested.entry(group).or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Value::Object(group) = group {
            group.insert(name.to_owned(), said.value.clone());
        }
    }
    serde_json::from_value(Value::Object(nested)).map_err(|e| e.to_string())
}

/// What is asked of a VM: a profile, and what a policy has otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Desired<'a> {
    pub(super) profile: &'static Profile,
    pub(super) overrides: &'a Overrides,
}

/// A wanted value, and who wants it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picked<T> {
    pub(super) value: Option<T>,
    /// A policy says so, against the profile or not.
    pub(super) overridden: bool,
}

impl<'a> Desired<'a> {
    /// The value of one setting.
    pub(super) fn pick<T>(&self, get: impl Fn(&Overrides) -> Option<T>) -> Picked<T> {
        match get(self.overrides) {
            Some(value) => Picked { value: Some(value), overridden: true },
            None => Picked { value: get(&self.profile.values), overridden: false },
        }
    }

    /// Reason and source of one setting.
    pub(super) fn said(&self, path: &str) -> (&'static str, &'static str) {
        self.profile.settings.get(path).map_or(("", ""), |said| (said.reason.as_str(), said.source.as_str()))
    }
}

/// What is known of one enlightenment, whatever the profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knowledge {
    /// Its name in overrides.
    pub name: Enlightenment,
    /// Its field below `/features/hyperv/`.
    pub field: String,
    /// What must be on for it.
    #[serde(default)]
    pub requires: Vec<Enlightenment>,
    /// Whether it needs the Hyper-V clock timer.
    #[serde(default)]
    pub clock: bool,
    /// Ending of the node label that says that a node has it. Absent where there is no such label.
    #[serde(default)]
    pub node: Option<String>,
    /// It needs nothing from a node.
    #[serde(default)]
    pub free: bool,
    /// It needs TSC scaling and a published TSC frequency on every node.
    #[serde(default)]
    pub tsc: bool,
    /// What is written.
    #[serde(default = "enabled")]
    pub value: Value,
    /// Pointer below the domain.
    #[serde(skip)]
    pointer: String,
}

fn enabled() -> Value {
    serde_json::json!({"enabled": true})
}

impl Knowledge {
    /// Pointer below the domain.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }
}

static PROFILES: LazyLock<Result<Vec<Profile>, DataError>> = LazyLock::new(|| {
    let file = "profiles.yaml";
    assemble(parse(file, include_str!("data/profiles.yaml"))?).map_err(|cause| DataError { file, cause })
});
static ENLIGHTENMENTS: LazyLock<Result<Vec<Knowledge>, DataError>> = LazyLock::new(|| {
    let mut all: Vec<Knowledge> = parse("enlightenments.yaml", include_str!("data/enlightenments.yaml"))?;
    for known in &mut all {
        known.pointer = format!("/features/hyperv/{}", known.field);
    }
    Ok(all)
});

/// Every profile.
///
/// # Errors
/// When the embedded data is invalid.
pub fn profiles() -> Result<&'static [Profile], DataError> {
    PROFILES.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// Every enlightenment, prerequisites before what needs them.
///
/// # Errors
/// When the embedded data is invalid.
pub fn enlightenments() -> Result<&'static [Knowledge], DataError> {
    ENLIGHTENMENTS.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// A profile by name, or `None`.
///
/// # Errors
/// When the embedded data is invalid.
pub fn named(name: &str) -> Result<Option<&'static Profile>, DataError> {
    Ok(profiles()?.iter().find(|p| p.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_profile_speaks_of_every_setting_with_a_reason_and_a_source() {
        let all: BTreeSet<&String> = named("migration-safe").unwrap().unwrap().settings.keys().collect();
        for known in enlightenments().unwrap() {
            let name = serde_json::to_value(known.name).unwrap();
            assert!(all.contains(&format!("hyperv.{}", name.as_str().unwrap())), "{name}");
        }
        for profile in profiles().unwrap() {
            assert_eq!(profile.settings.keys().collect::<BTreeSet<_>>(), all, "{}", profile.name);
            for (path, said) in &profile.settings {
                assert!(said.reason.len() > 10 && said.source.len() > 5, "{path}: {said:?}");
            }
            // Every value arrived in the typed whole: it prints as it was written.
            let typed = serde_json::to_value(&profile.values).unwrap();
            for (path, said) in &profile.settings {
                let pointer = format!("/{}", path.replace('.', "/"));
                assert_eq!(typed.pointer(&pointer), Some(&said.value), "{} {path}", profile.name);
            }
        }
    }

    #[test]
    fn a_profile_that_extends_one_lists_only_what_differs() {
        let written: Vec<Written> = parse("profiles.yaml", include_str!("data/profiles.yaml")).unwrap();
        let profiles = profiles().unwrap();
        for own in written.iter().filter(|w| w.extends.is_some()) {
            let base = profiles.iter().find(|p| Some(&p.name) == own.extends.as_ref()).unwrap();
            for (path, said) in &own.settings {
                assert_ne!(base.settings[path].value, said.value, "{} repeats {path}", own.name);
            }
        }
        let orphan = "- {name: a, extends: b, revision: 1, summary: c, settings: {}}";
        assert!(assemble(serde_saphyr::from_str(orphan).unwrap()).unwrap_err().contains("does not stand before"));
    }

    #[test]
    fn prerequisites_come_before_what_needs_them() {
        let mut seen = BTreeSet::new();
        for k in enlightenments().unwrap() {
            assert!(k.requires.iter().all(|r| seen.contains(r)), "{:?}", k.name);
            seen.insert(k.name);
        }
    }

    #[test]
    fn the_schema_lists_the_profiles_that_exist() {
        let text = include_str!("../api/tuning.rs");
        let names: Vec<String> = profiles().unwrap().iter().map(|p| format!("\"{}\"", p.name)).collect();
        assert!(text.contains(&format!("\"enum\" = [{}]", names.join(", "))));
    }
}
