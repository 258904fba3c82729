//! Reading manifests: files of others, so every fault is one line that names file, document and field.

use std::io::Read;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::de::IntoDeserializer;
use serde_json::Value;

use super::ManifestArgs;
use crate::api::record::PolicyKind;
use crate::api::tuning::{ClusterWindowsTuning, ClusterWindowsTuningSpec, WindowsTuning, WindowsTuningSpec};
use crate::observe::index;
use crate::plan::capabilities::CapabilitiesFile;
use crate::plan::consent::{Policy, PolicyView};
use crate::plan::detect::printable;
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
    /// A document is not YAML.
    #[error("{file}, document {document}: not valid YAML or JSON: {cause}")]
    Yaml {
        /// Which file.
        file: String,
        /// Which document, from 1.
        document: String,
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
    /// A VM asks for something by annotation that there is not.
    #[error("{vm}: {cause}")]
    Asked {
        /// Which VM.
        vm: String,
        /// What it asks for.
        cause: crate::plan::PlanError,
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
        for document in documents(path, "a VirtualMachine") {
            let parsed = document.and_then(|(document, object)| match Vm::from_object(&object) {
                Ok(vm) => Ok(Manifest { object, vm }),
                Err(cause) => Err(InputError::Manifest { file: file.clone(), document, cause }),
            });
            match parsed {
                Ok(manifest) => manifests.push(manifest),
                Err(fault) => faults.push(fault),
            }
        }
    }
    (manifests, faults)
}

/// What a file says of a cluster.
pub(super) fn capabilities(path: &Path) -> Result<CapabilitiesFile, InputError> {
    let file = name(path);
    let text = read(path)?;
    serde_saphyr::from_str_with_options(&text, limits()).map_err(|error| InputError::Yaml {
        file,
        document: "1".to_owned(),
        cause: explain(&error, 0),
    })
}

/// The policy of a file, with its namespace where it names one.
#[derive(Debug)]
pub(super) struct PolicyFile {
    /// As consent is decided by it.
    pub(super) view: PolicyView,
    /// Of a `WindowsTuning`.
    pub(super) namespace: Option<String>,
}

/// Reads the one policy of a file.
pub(super) fn policy(path: &Path) -> Result<PolicyFile, InputError> {
    let file = name(path);
    let expected = "a WindowsTuning or ClusterWindowsTuning";
    let documents = documents(path, expected);
    let extra = documents.len() > 1;
    let Some(first) = documents.into_iter().next() else { return Err(InputError::Empty { file, expected }) };
    let (document, object) = first?;
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
    let policy = match kind {
        "WindowsTuning" => {
            let typed: WindowsTuningSpec = strict(&object, &WindowsTuning::crd()).map_err(fault)?;
            index::policy_view(PolicyKind::WindowsTuning, &object, &typed.selector, None, None, typed.tuning)
        }
        "ClusterWindowsTuning" => {
            let typed: ClusterWindowsTuningSpec = strict(&object, &ClusterWindowsTuning::crd()).map_err(fault)?;
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
        Policy::Readable(view) => {
            let namespace = json::text(&object, "/metadata/namespace").filter(|_| kind == "WindowsTuning");
            Ok(PolicyFile { view: *view, namespace: namespace.map(str::to_owned) })
        }
        Policy::Unreadable { why, .. } => Err(fault(why)),
    }
}

/// Parses a spec and refuses fields that its definition does not have, as the API server does on `kubectl apply`.
fn strict<T: serde::de::DeserializeOwned>(object: &Value, crd: &CustomResourceDefinition) -> Result<T, String> {
    let schema = crd.spec.versions.first().and_then(|v| serde_json::to_value(&v.schema).ok()).unwrap_or_default();
    let schema = schema.pointer("/openAPIV3Schema/properties/spec").cloned().unwrap_or_default();
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    let top = object.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let spec = object.get("spec").cloned().unwrap_or(Value::Null);
    let unknown = top.filter(|key| !known.contains(key)).map(str::to_owned).next();
    if let Some(field) = unknown.or_else(|| unknown_field(&spec, &schema, "spec")) {
        return Err(format!("{field} is not a field of this kind"));
    }
    if let Some(fault) = misfit(&spec, &schema, "spec") {
        return Err(fault);
    }
    T::deserialize(spec.into_deserializer()).map_err(|e: serde_json::Error| format!("spec: {e}"))
}

/// The first value that is of another type than its schema says, or none of the words that it lists.
fn misfit(value: &Value, schema: &Value, path: &str) -> Option<String> {
    let expected = schema.get("type").and_then(Value::as_str);
    let fits = match (expected, value) {
        (_, Value::Null) | (None, _) => true,
        (Some("object"), v) => v.is_object(),
        (Some("array"), v) => v.is_array(),
        (Some("string"), v) => v.is_string(),
        (Some("boolean"), v) => v.is_boolean(),
        (Some("integer"), v) => v.is_i64() || v.is_u64(),
        (Some(_), _) => true,
    };
    if !fits {
        return Some(format!("{path} is not of type {}", expected.unwrap_or_default()));
    }
    if let (Some(words), Value::String(word)) = (schema.get("enum").and_then(Value::as_array), value)
        && !words.contains(value)
    {
        let known: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        return Some(format!("{path}: {:?} is not one of {}", printable(word), known.join(", ")));
    }
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let field =
                schema.get("properties").and_then(|p| p.get(key)).or_else(|| schema.get("additionalProperties"))?;
            misfit(value, field, &format!("{path}.{key}"))
        }),
        Value::Array(items) => {
            let item = |(index, value)| misfit(value, schema.get("items")?, &format!("{path}[{index}]"));
            items.iter().enumerate().find_map(item)
        }
        _ => None,
    }
}

/// The first field of a value that its schema does not have.
fn unknown_field(value: &Value, schema: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            let field =
                schema.get("properties").and_then(|p| p.get(key)).or_else(|| schema.get("additionalProperties"));
            field.map_or(Some(path.clone()), |field| unknown_field(value, field, &path))
        }),
        Value::Array(items) => {
            let item = |(index, value)| unknown_field(value, schema.get("items")?, &format!("{path}[{index}]"));
            items.iter().enumerate().find_map(item)
        }
        _ => None,
    }
}

/// The documents of a file, each with its number, Lists taken apart. The fault of the whole file where
/// there is nothing in it, not even a List.
///
/// Each document is parsed alone, as kubectl does it: what is wrong with one takes none of the others along.
fn documents(path: &Path, expected: &'static str) -> Vec<Result<(String, Value), InputError>> {
    let file = name(path);
    let text = match read(path) {
        Ok(text) => text,
        Err(fault) => return vec![Err(fault)],
    };
    let (mut documents, mut lists) = (Vec::new(), false);
    for (index, (line, text)) in split(&text).into_iter().enumerate() {
        let number = (index + 1).to_string();
        let objects: Vec<Value> = match serde_saphyr::from_multiple_with_options(text, limits()) {
            Ok(objects) => objects,
            Err(error) => {
                let cause = explain(&error, line);
                documents.push(Err(InputError::Yaml { file: file.clone(), document: number, cause }));
                continue;
            }
        };
        for object in objects.into_iter().filter(|o| !o.is_null()) {
            let is_list = json::text(&object, "/kind").is_some_and(|k| k.ends_with("List"));
            match object.get("items").and_then(Value::as_array) {
                Some(items) if is_list => {
                    lists = true;
                    let item = |(i, o): (usize, &Value)| Ok((format!("{number} item {}", i + 1), o.clone()));
                    documents.extend(items.iter().enumerate().map(item));
                }
                _ => documents.push(Ok((number.clone(), object))),
            }
        }
    }
    // What `kubectl get` prints of a namespace without VMs is a List of nothing, and no fault.
    if documents.is_empty() && !lists {
        return vec![Err(InputError::Empty { file, expected })];
    }
    documents
}

/// A file at its lines that open a document, each part with the number of lines before it. What stands before the
/// first of them is a document only if it holds something.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut offset, mut start_line) = (0, 0, 0);
    for (line, content) in text.split_inclusive('\n').enumerate() {
        let opens = content
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if opens && offset > 0 {
            parts.push((start_line, text.get(start..offset).unwrap_or_default()));
            (start, start_line) = (offset, line);
        }
        offset += content.len();
    }
    parts.push((start_line, text.get(start..).unwrap_or_default()));
    let blank = |part: &str| part.lines().all(|l| l.trim_start().is_empty() || l.trim_start().starts_with('#'));
    if parts.first().is_some_and(|(_, first)| blank(first)) {
        parts.remove(0);
    }
    parts
}

/// What a document may hold: the VMs of a large cluster in one List, and no bomb of aliases.
fn limits() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: 6_000_000, max_events: 12_000_000, max_buffered_comment_events: 1_000_000 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
    }
}

/// A parser's fault on one line, counted from the start of the file.
fn explain(error: &serde_saphyr::Error, lines_before: usize) -> String {
    let text = error.render_with_options(serde_saphyr::render_options! {
        formatter: &serde_saphyr::UserMessageFormatter,
        snippets: serde_saphyr::SnippetMode::Off,
        line_offset: lines_before as u64,
    });
    text.lines().next().unwrap_or("unknown fault").trim().to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_file_falls_apart_at_its_markers() {
        let parts = |text: &'static str| split(text).into_iter().map(|(_, part)| part).collect::<Vec<_>>();
        assert_eq!(parts("a\n"), ["a\n"]);
        assert_eq!(parts("---\na\n---\nb"), ["---\na\n", "---\nb"]);
        assert_eq!(parts("# first\n\n---\na\n"), ["---\na\n"]);
        assert_eq!(parts("a\n---\n---\nb\n"), ["a\n", "---\n", "---\nb\n"]);
        assert_eq!(parts("a\r\n---\r\nb\r\n"), ["a\r\n", "---\r\nb\r\n"]);
        assert_eq!(parts("--- # one\na\n---\t\nb\n---"), ["--- # one\na\n", "---\t\nb\n", "---"]);
        // Neither a longer line nor an indented one is a marker.
        assert_eq!(parts("a: |\n  ---\n----\n---x\n"), ["a: |\n  ---\n----\n---x\n"]);
        assert!(parts("").is_empty() && parts("# a\n \n").is_empty());
    }

    #[test]
    fn each_part_knows_the_lines_before_it() {
        let lines: Vec<usize> = split("# x\na\n---\nb\nc\n---\n").into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [0, 2, 5]);
        let error = serde_saphyr::from_str::<Value>("a: 1\nb: c: d\n").unwrap_err();
        assert!(explain(&error, 10).ends_with("at line 12, column 5"), "{}", explain(&error, 10));
    }

    #[test]
    fn a_field_is_one_that_the_schema_has() {
        let schema = json!({"properties": {
            "a": {"properties": {"b": {"type": "string"}}},
            "map": {"additionalProperties": {"type": "string"}},
            "list": {"items": {"properties": {"c": {}}}}}});
        let unknown = |value: Value| unknown_field(&value, &schema, "spec");
        assert_eq!(unknown(json!({"a": {"b": "x"}, "map": {"any": "x"}, "list": [{"c": 1}], "a": null})), None);
        assert_eq!(unknown(json!({"a": {"d": {}}})), Some("spec.a.d".to_owned()));
        assert_eq!(unknown(json!({"list": [{"c": 1}, {"d": 1}]})), Some("spec.list[1].d".to_owned()));
        assert_eq!(unknown(json!({"e": null})), Some("spec.e".to_owned()));
    }

    /// The check reads the schema where it is; a change of its shape must not let everything through.
    #[test]
    fn the_definitions_have_the_schema_that_is_looked_up() {
        for crd in [WindowsTuning::crd(), ClusterWindowsTuning::crd()] {
            let object = |spec: Value| json!({"spec": spec});
            let strict = |spec: Value| strict::<Value>(&object(spec), &crd);
            assert_eq!(strict(json!({"selector": {}, "apply": {"mode": "Propose"}})).map(|_| ()), Ok(()));
            assert!(strict(json!({"selector": {}, "apply": {"modes": 1}})).unwrap_err().contains("spec.apply.modes"));
        }
    }
}
