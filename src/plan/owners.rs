//! Which tool writes a VM, by the marks that it leaves.

use std::sync::LazyLock;

use serde::Deserialize;

use super::facts::Vm;
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
        let (what, map) = match mark.at {
            Place::Label => ("label", &vm.labels),
            Place::Annotation => ("annotation", &vm.annotations),
        };
        map.contains_key(&mark.key).then(|| Owner { tool: &mark.tool, mark: format!("{what} {}", mark.key) })
    }))
}
