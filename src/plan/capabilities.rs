//! What a cluster can do: which fields its VirtualMachine schema has, and which feature gates are on.
//!
//! A live cluster is always asked. Offline a file says it, or the bundled table of versions, and the plan says which.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use semver::Version;
use serde::{Deserialize, Serialize};

use super::json::BY_NAME;
use super::nodes::NodeView;
use super::profile::{DataError, parse};

/// What a cluster can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// How this is known.
    pub origin: Origin,
    /// KubeVirt's version, where it is known.
    pub kubevirt: Option<Version>,
    /// Harvester's version; empty where it is Harvester of an unknown version.
    pub harvester: Option<String>,
    /// Fields of a domain, dotted, that the schema does not have.
    pub missing: BTreeSet<String>,
    /// Feature gates that are on.
    pub gates: BTreeSet<String>,
    /// The CPU model of VMs that name none; host-model where absent.
    pub cpu_model: Option<String>,
}

/// How a cluster's capabilities are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not at all: only what every supported version has is planned.
    Assumed,
    /// The cluster was asked.
    Cluster,
    /// A file says it.
    File(String),
    /// The bundled table says it, for this version.
    Bundled(String),
}

impl Origin {
    /// What a reader of an offline plan should know.
    pub fn assumption(&self) -> Option<String> {
        match self {
            Self::Cluster => None,
            Self::Assumed => Some(
                "no cluster and no version was given: only fields that KubeVirt 1.2 and later have are planned; give --kubevirt, --harvester or --capabilities"
                    .to_owned(),
            ),
            Self::File(name) => Some(format!("the cluster's capabilities are those of {name}")),
            Self::Bundled(version) => {
                Some(format!("the cluster's capabilities are taken from the bundled table for {version}, not from the cluster"))
            }
        }
    }
}

/// A file of capabilities, as `wintune capabilities` prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CapabilitiesFile {
    /// `wintune.dev/v1alpha1`.
    pub api_version: String,
    /// `Capabilities`.
    pub kind: String,
    /// KubeVirt's version: `1.8.4`, or `1.8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubevirt: Option<String>,
    /// Harvester's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harvester: Option<String>,
    /// Fields of a domain, dotted, that the schema of VirtualMachines does not have.
    #[serde(default)]
    pub missing: BTreeSet<String>,
    /// Feature gates that are on.
    #[serde(default)]
    pub gates: BTreeSet<String>,
    /// The CPU model of VMs that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// The nodes that KubeVirt schedules to. Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeView>>,
}

/// Rows of the bundled table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kubevirt: Vec<KubeVirtRow>,
    harvester: Vec<HarvesterRow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KubeVirtRow {
    version: String,
    missing: BTreeSet<String>,
    gates: BTreeSet<String>,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HarvesterRow {
    version: String,
    kubevirt: String,
    gates: BTreeSet<String>,
    #[serde(rename = "source")]
    _source: String,
}

static TABLE: LazyLock<Result<Table, DataError>> =
    LazyLock::new(|| parse("capabilities.yaml", include_str!("data/capabilities.yaml")));

/// Why capabilities cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CapabilitiesError {
    /// Not in the bundled table.
    #[error("{what} {found:?} is not in the bundled table; known are {known}")]
    UnknownVersion {
        /// KubeVirt or Harvester.
        what: &'static str,
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// Another kind of file.
    #[error("expected kind Capabilities of wintune.dev/v1alpha1, found kind {0:?} of apiVersion {1:?}")]
    WrongKind(String, String),
    /// A version that cannot be read.
    #[error("kubevirt: {0:?} is not a version")]
    Version(String),
    /// The embedded data is invalid.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl Capabilities {
    /// What every supported version has.
    pub fn assumed() -> Arc<Self> {
        static ASSUMED: LazyLock<Arc<Capabilities>> = LazyLock::new(|| {
            let rows = TABLE.as_ref().map(|t| t.kubevirt.as_slice()).unwrap_or_default();
            let missing = rows.iter().flat_map(|r| r.missing.iter().cloned()).collect();
            Arc::new(Capabilities {
                origin: Origin::Assumed,
                kubevirt: None,
                harvester: None,
                missing,
                gates: BTreeSet::new(),
                cpu_model: None,
            })
        });
        ASSUMED.clone()
    }

    /// What the bundled table says of a version of KubeVirt: `1.8`, `v1.8.4`.
    ///
    /// # Errors
    /// When the table does not have it.
    pub fn of_kubevirt(version: &str) -> Result<Self, CapabilitiesError> {
        let table = TABLE.as_ref().map_err(Clone::clone)?;
        let row = table.kubevirt.iter().find(|r| minor(version) == Some(r.version.as_str()));
        let row = row.ok_or_else(|| unknown("KubeVirt", version, table.kubevirt.iter().map(|r| r.version.as_str())))?;
        Ok(Self {
            origin: Origin::Bundled(format!("KubeVirt {}", row.version)),
            kubevirt: parse_version(version),
            harvester: None,
            missing: row.missing.clone(),
            gates: row.gates.clone(),
            cpu_model: None,
        })
    }

    /// The newest row of the bundled table, for what is newer than it.
    pub fn newest() -> Self {
        let last = TABLE.as_ref().ok().and_then(|t| t.kubevirt.last()).map(|row| row.version.as_str());
        last.and_then(|version| Self::of_kubevirt(version).ok()).unwrap_or_else(|| (*Self::assumed()).clone())
    }

    /// What the bundled table says of a version of Harvester: `1.8`, `v1.8.2`.
    ///
    /// # Errors
    /// When the table does not have it.
    pub fn of_harvester(version: &str) -> Result<Self, CapabilitiesError> {
        let table = TABLE.as_ref().map_err(Clone::clone)?;
        let row = table.harvester.iter().find(|r| minor(version) == Some(r.version.as_str()));
        let row =
            row.ok_or_else(|| unknown("Harvester", version, table.harvester.iter().map(|r| r.version.as_str())))?;
        let mut own = Self::of_kubevirt(&row.kubevirt)?;
        own.origin = Origin::Bundled(format!("Harvester {} with KubeVirt {}", row.version, row.kubevirt));
        own.harvester = Some(row.version.clone());
        own.gates.extend(row.gates.iter().cloned());
        Ok(own)
    }

    /// What a file says, and the nodes that it lists.
    ///
    /// # Errors
    /// When it is another kind, or its version is none.
    pub fn of_file(name: &str, file: CapabilitiesFile) -> Result<(Self, Option<Vec<NodeView>>), CapabilitiesError> {
        if file.kind != "Capabilities" || file.api_version != "wintune.dev/v1alpha1" {
            return Err(CapabilitiesError::WrongKind(file.kind, file.api_version));
        }
        let version = |text: String| parse_version(&text).ok_or(CapabilitiesError::Version(text));
        let own = Self {
            origin: Origin::File(name.to_owned()),
            kubevirt: file.kubevirt.map(version).transpose()?,
            harvester: file.harvester,
            missing: file.missing,
            gates: file.gates,
            cpu_model: file.cpu_model,
        };
        Ok((own, file.nodes))
    }

    /// Whether the schema has a field, by its place below the domain.
    pub fn serves(&self, place: &str) -> bool {
        !self.missing.iter().any(|missing| covers(missing, place))
    }

    /// Whether a feature gate is on.
    pub fn gate(&self, name: &str) -> bool {
        self.gates.contains(name)
    }

    /// Whether the patch release is unknown, or one of these: `1.7.0`.
    pub fn may_be(&self, versions: &[Version]) -> bool {
        self.kubevirt.as_ref().is_some_and(|v| versions.contains(v))
    }
}

/// Every field of a domain that a plan can write, dotted, lists standing for their items.
pub fn fields_of_interest() -> Vec<String> {
    super::patch::places()
        .into_iter()
        .map(|place| place.split('/').skip(1).filter(|t| !t.starts_with(BY_NAME)).collect::<Vec<_>>().join("."))
        .collect()
}

/// Whether a dotted field is a place or holds it. Items of a list count as the list: `devices.disks.io` is
/// `/devices/disks/name=a/io`.
fn covers(field: &str, place: &str) -> bool {
    let mut tokens = place.split('/').skip(1).filter(|t| !t.starts_with(BY_NAME));
    field.split('.').all(|part| tokens.next() == Some(part))
}

/// `1.8` of `v1.8.4`.
fn minor(version: &str) -> Option<&str> {
    let version = version.trim_start_matches('v');
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
    version.get(..end)
}

/// Reads `v1.8.4`, `1.8.4-5.2` and `1.8`, whose patch is then 0 of a build that no rule names.
pub fn parse_version(text: &str) -> Option<Version> {
    let text = text.trim_start_matches('v');
    if text.matches('.').count() == 1 && !text.contains('-') {
        return Version::parse(&format!("{text}.0-any")).ok();
    }
    Version::parse(text).ok()
}

fn unknown<'a>(what: &'static str, found: &str, known: impl Iterator<Item = &'a str>) -> CapabilitiesError {
    let known = known.collect::<Vec<_>>().join(", ");
    CapabilitiesError::UnknownVersion { what, found: super::detect::printable(found), known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_table_has_every_supported_version() {
        for minor in 2..=9 {
            let own = Capabilities::of_kubevirt(&format!("1.{minor}")).unwrap();
            assert!(own.serves("/features/hyperv/synictimer/direct"), "1.{minor}");
            assert_eq!(own.serves("/features/hyperv/tlbflush/direct"), minor >= 8, "1.{minor}");
            assert!(own.serves("/features/hyperv/tlbflush"));
            assert_eq!(own.serves("/ioThreads/supplementalPoolThreadCount"), minor >= 5, "1.{minor}");
        }
        for minor in 4..=9 {
            let own = Capabilities::of_harvester(&format!("v1.{minor}.0")).unwrap();
            assert!(own.gate("CPUManager") && !own.gate("Sidecar"), "1.{minor}");
        }
        let error = Capabilities::of_kubevirt("1.1").unwrap_err().to_string();
        assert!(error.contains("KubeVirt \"1.1\" is not in the bundled table; known are 1.2,"), "{error}");
        assert!(Capabilities::of_harvester("").is_err());
    }

    #[test]
    fn nothing_given_is_the_least_that_all_have() {
        let assumed = Capabilities::assumed();
        assert!(!assumed.serves("/ioThreads/supplementalPoolThreadCount") && assumed.serves("/cpu/model"));
        assert!(assumed.gates.is_empty());
    }

    #[test]
    fn versions_are_read_in_the_forms_that_clusters_print() {
        assert_eq!(parse_version("v1.8.4").unwrap(), Version::new(1, 8, 4));
        assert_eq!(parse_version("1.8.4-5.2").unwrap().patch, 4);
        assert_ne!(parse_version("1.7").unwrap(), Version::new(1, 7, 0));
        assert_eq!(parse_version("main"), None);
    }

    #[test]
    fn a_field_covers_what_is_below_it_and_items_of_a_list() {
        assert!(covers("devices.disks.io", "/devices/disks/name=a/io"));
        assert!(covers("features.hyperv.tlbflush", "/features/hyperv/tlbflush/enabled"));
        assert!(!covers("features.hyperv.tlbflush.direct", "/features/hyperv/tlbflush"));
        assert!(!covers("cpu.model", "/cpu/modelx"));
    }
}
