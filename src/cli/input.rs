//! Reading manifests: files of others, so every fault is one line that names file, document and field.

use std::io::Read;
use std::path::Path;

use serde::de::IntoDeserializer;
use serde_json::Value;

use super::ManifestArgs;
use crate::api::record::PolicyKind;
use crate::api::tuning::{ClusterWindowsTuningSpec, WindowsTuningSpec};
use crate::observe::index;
use crate::plan::consent::{Policy, PolicyView};
use crate::plan::facts::{ManifestError, Vm};
use crate::plan::json;

/// No file of manifests is longer; this bounds what a hostile one can make us hold.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

/// One fault of one document.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file cannot be read.
    #[error("{file}: {cause}")]
    Read {
        /// Which file.
        file: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The file is longer than we read.
    #[error("{file}: longer than {MAX_BYTES} bytes")]
    TooLong {
        /// Which file.
        file: String,
    },
    /// The file is not UTF-8.
    #[error("{file}: not UTF-8 text")]
    NotText {
        /// Which file.
        file: String,
    },
    /// The file is not YAML.
    #[error("{file}: not valid YAML or JSON: {cause}")]
    Yaml {
        /// Which file.
        file: String,
        /// Line, column and fault, on one line.
        cause: String,
    },
    /// The file holds nothing.
    #[error("{file}: empty, expected {expected}")]
    Empty {
        /// Which file.
        file: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A document is not a VirtualMachine that can be planned.
    #[error("{file}, document {document}: {cause}")]
    Manifest {
        /// Which file.
        file: String,
        /// Which document, from 1; `2 item 3` inside a List.
        document: String,
        /// What is wrong with it.
        cause: ManifestError,
    },
    /// A policy file does not hold one policy.
    #[error("{file}, document {document}: {cause}")]
    Policy {
        /// Which file.
        file: String,
        /// Which document, from 1.
        document: String,
        /// What is wrong with it.
        cause: String,
    },
}

/// A VirtualMachine of a file.
#[derive(Debug)]
pub(super) struct Manifest {
    /// As it was parsed.
    pub(super) object: Value,
    /// As the planner sees it.
    pub(super) vm: Vm,
}

/// Reads every VirtualMachine of every file, and every fault.
pub(super) fn manifests(args: &ManifestArgs) -> (Vec<Manifest>, Vec<InputError>) {
    let (mut manifests, mut faults) = (Vec::new(), Vec::new());
    for path in &args.files {
        let file = name(path);
        match documents(path, "a VirtualMachine") {
            Err(fault) => faults.push(fault),
            Ok(documents) => {
                for (document, object) in documents {
                    match Vm::from_object(&object) {
                        Ok(vm) => manifests.push(Manifest { object, vm }),
                        Err(cause) => faults.push(InputError::Manifest { file: file.clone(), document, cause }),
                    }
                }
            }
        }
    }
    (manifests, faults)
}

/// Reads the one policy of a file.
pub(super) fn policy(path: &Path) -> Result<PolicyView, InputError> {
    let file = name(path);
    let mut documents = documents(path, "a WindowsTuning or ClusterWindowsTuning")?;
    let extra = documents.len() > 1;
    let (document, object) = documents.swap_remove(0);
    let fault = |cause: String| InputError::Policy { file: file.clone(), document: document.clone(), cause };
    if extra {
        return Err(fault("expected one policy, found several documents".to_owned()));
    }
    let api_version = json::text(&object, "/apiVersion").unwrap_or_default();
    let kind = json::text(&object, "/kind").unwrap_or_default();
    if api_version != "wintune.dev/v1alpha1" {
        return Err(fault(format!(
            "expected a policy of wintune.dev/v1alpha1, found kind {kind:?} of apiVersion {api_version:?}"
        )));
    }
    let spec = object.get("spec").cloned().unwrap_or(Value::Null);
    let policy = match kind {
        "WindowsTuning" => {
            let typed: WindowsTuningSpec = strict(&spec).map_err(fault)?;
            index::policy_view(PolicyKind::WindowsTuning, &object, &typed.selector, None, None, typed.tuning)
        }
        "ClusterWindowsTuning" => {
            let typed: ClusterWindowsTuningSpec = strict(&spec).map_err(fault)?;
            let namespaces = typed.namespace_selector.as_ref();
            index::policy_view(
                PolicyKind::ClusterWindowsTuning,
                &object,
                &typed.selector,
                namespaces,
                typed.limits,
                typed.tuning,
            )
        }
        _ => return Err(fault(format!("expected a WindowsTuning or ClusterWindowsTuning, found kind {kind:?}"))),
    };
    match policy {
        Policy::Readable(view) => Ok(*view),
        Policy::Unreadable { why, .. } => Err(fault(why)),
    }
}

/// Parses a spec and refuses fields that it does not have, as the API server would.
fn strict<T: serde::de::DeserializeOwned + serde::Serialize>(spec: &Value) -> Result<T, String> {
    let typed: T =
        T::deserialize(spec.clone().into_deserializer()).map_err(|e: serde_json::Error| format!("spec: {e}"))?;
    let known = serde_json::to_value(&typed).map_err(|e| e.to_string())?;
    match unknown(spec, &known, "spec") {
        Some(field) => Err(format!("{field} is not a field of this kind")),
        None => Ok(typed),
    }
}

/// The first field that was given and did not come through.
fn unknown(given: &Value, known: &Value, path: &str) -> Option<String> {
    let given = given.as_object()?;
    given.iter().find_map(|(key, value)| {
        let path = format!("{path}.{key}");
        let empty = value.is_null()
            || value.as_object().is_some_and(serde_json::Map::is_empty)
            || value == &Value::Array(Vec::new());
        match known.get(key) {
            Some(known) => unknown(value, known, &path),
            None if empty && path.ends_with("Selector") => None,
            None => Some(path),
        }
    })
}

/// The documents of a file, each with its number, Lists taken apart.
fn documents(path: &Path, expected: &'static str) -> Result<Vec<(String, Value)>, InputError> {
    let file = name(path);
    let text = read(path)?;
    let parsed: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|e| {
        let cause = e.to_string();
        let first = cause.lines().next().unwrap_or("unknown fault").trim().trim_end_matches(':').to_owned();
        InputError::Yaml { file: file.clone(), cause: first }
    })?;
    let mut documents = Vec::new();
    for (index, object) in parsed.into_iter().enumerate().filter(|(_, o)| !o.is_null()) {
        let number = (index + 1).to_string();
        let is_list = json::text(&object, "/kind").is_some_and(|k| k.ends_with("List"));
        match object.get("items").and_then(Value::as_array) {
            Some(items) if is_list => {
                documents
                    .extend(items.iter().enumerate().map(|(i, o)| (format!("{number} item {}", i + 1), o.clone())));
            }
            _ => documents.push((number, object)),
        }
    }
    if documents.is_empty() {
        return Err(InputError::Empty { file, expected });
    }
    Ok(documents)
}

fn read(path: &Path) -> Result<String, InputError> {
    let file = name(path);
    let failed = |cause| InputError::Read { file: file.clone(), cause };
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        std::fs::File::open(path).map_err(failed)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(InputError::TooLong { file });
    }
    String::from_utf8(bytes).map_err(|_| InputError::NotText { file })
}

fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}
