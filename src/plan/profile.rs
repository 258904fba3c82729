//! Profiles and enlightenments: data with reasons and sources, parsed once.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::tuning::{Enlightenment, Switch};

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
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name, as policies use it.
    pub name: String,
    /// Moves whenever a value moves.
    pub revision: i32,
    /// One line for people.
    pub summary: String,
    /// What it says of each enlightenment.
    pub hyperv: BTreeMap<Enlightenment, HypervValue>,
    /// What it says of the clock.
    pub clock: BTreeMap<ClockField, ClockValue>,
}

/// What a profile says of one enlightenment.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HypervValue {
    /// On, Off or Leave.
    pub value: Switch,
    /// For spinlocks: after how many spins the guest tells the hypervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Why.
    pub reason: String,
    /// Where a reader can check it.
    pub source: String,
}

/// The parts of the clock block.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum ClockField {
    /// Offset of the hardware clock.
    Utc,
    /// Hyper-V's reference time.
    Hyperv,
    /// High precision event timer.
    Hpet,
    /// Programmable interval timer.
    Pit,
    /// Real-time clock.
    Rtc,
}

impl ClockField {
    /// Pointer below the domain.
    pub fn pointer(self) -> &'static str {
        match self {
            Self::Utc => "/clock/utc",
            Self::Hyperv => "/clock/timer/hyperv",
            Self::Hpet => "/clock/timer/hpet",
            Self::Pit => "/clock/timer/pit",
            Self::Rtc => "/clock/timer/rtc",
        }
    }
}

/// What a profile says of one part of the clock: the value that is written where there is none.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClockValue {
    /// The value.
    pub value: Value,
    /// Why.
    pub reason: String,
    /// Where a reader can check it.
    pub source: String,
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
    /// Ending of the node label that says that a node has it.
    pub node: String,
    /// Only reported where an owner has it on.
    #[serde(default)]
    pub reports: bool,
}

impl Knowledge {
    /// Pointer below the domain.
    pub fn pointer(&self) -> String {
        format!("/features/hyperv/{}", self.field)
    }
}

static PROFILES: LazyLock<Result<Vec<Profile>, DataError>> =
    LazyLock::new(|| parse("profiles.yaml", include_str!("data/profiles.yaml")));
static ENLIGHTENMENTS: LazyLock<Result<Vec<Knowledge>, DataError>> =
    LazyLock::new(|| parse("enlightenments.yaml", include_str!("data/enlightenments.yaml")));

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
    fn every_profile_speaks_of_every_enlightenment_with_a_reason_and_a_source() {
        let known: BTreeSet<_> = enlightenments().unwrap().iter().map(|k| k.name).collect();
        for profile in profiles().unwrap() {
            assert_eq!(profile.hyperv.keys().copied().collect::<BTreeSet<_>>(), known, "{}", profile.name);
            assert_eq!(profile.clock.len(), 5);
            let texts = profile.hyperv.values().map(|v| (&v.reason, &v.source));
            for (reason, source) in texts.chain(profile.clock.values().map(|v| (&v.reason, &v.source))) {
                assert!(reason.len() > 10 && source.len() > 5, "{reason} / {source}");
            }
        }
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
