//! Which tool writes a VM, by the marks that it leaves.

use std::sync::LazyLock;

use serde::Deserialize;

use super::facts::Vm;
use super::json;
use super::profile::{DataError, parse};

/// A tool that owns a VM, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the tool.
    pub tool: &'static str,
    /// The label or annotation that says so.
    pub mark: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    tool: String,
    at: Place,
    key: String,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Place {
    Label,
    Annotation,
    Manager,
}

static MARKS: LazyLock<Result<Vec<Mark>, DataError>> =
    LazyLock::new(|| parse("owners.yaml", include_str!("data/owners.yaml")));

/// The GitOps tool that owns a VM, if one does.
///
/// # Errors
/// When the embedded data is invalid.
pub fn gitops(vm: &Vm) -> Result<Option<Owner>, DataError> {
    let marks = MARKS.as_ref().map_err(Clone::clone)?;
    Ok(marks.iter().find_map(|mark| {
        let found = match mark.at {
            Place::Label => vm.labels.contains_key(&mark.key).then(|| format!("label {}", mark.key)),
            Place::Annotation => vm.annotations.contains_key(&mark.key).then(|| format!("annotation {}", mark.key)),
            Place::Manager => {
                let manager = vm.managers.iter().find(|m| json::matches(&mark.key, m));
                manager.map(|m| format!("field manager {}", super::detect::printable(m)))
            }
        };
        found.map(|mark_found| Owner { tool: &mark.tool, mark: mark_found })
    }))
}

/// Keys of annotations that say who owns a VM.
pub fn annotation_keys() -> impl Iterator<Item = &'static str> {
    let marks = MARKS.as_ref().map(Vec::as_slice).unwrap_or_default();
    marks.iter().filter(|m| m.at == Place::Annotation).map(|m| m.key.as_str())
}
