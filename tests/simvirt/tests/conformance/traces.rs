//! The recorded requests and answers.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

/// The folder of the traces.
pub(crate) struct Traces {
    root: PathBuf,
}

/// One recorded request with its answer.
pub(crate) struct Exchange {
    pub(crate) name: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// A request as cluster administrator; otherwise as the operator's ServiceAccount.
    pub(crate) admin: bool,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Value,
    pub(crate) status: u16,
    pub(crate) answer_type: Option<String>,
    pub(crate) answer: Value,
}

impl Traces {
    /// Where they are looked for.
    pub(crate) fn place() -> PathBuf {
        let shared = std::env::var_os("WINTUNE_SHARED")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
        shared.join("kubevirt/traces")
    }

    pub(crate) fn find() -> Option<Traces> {
        let root = Self::place();
        root.is_dir().then_some(Traces { root })
    }

    /// Any JSON file.
    pub(crate) fn json(&self, path: &str) -> anyhow::Result<Value> {
        let file = self.root.join(path);
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parse {}", file.display()))
    }

    /// The rows of a JSON list.
    pub(crate) fn rows(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        match self.json(path)? {
            Value::Array(rows) => Ok(rows),
            _ => anyhow::bail!("{path} is no list"),
        }
    }

    /// The exchanges of a folder whose requests are stored in full, in their order.
    pub(crate) fn exchanges(&self, folder: &str) -> anyhow::Result<Vec<Exchange>> {
        self.rows(&format!("{folder}/index.json"))?
            .iter()
            .filter_map(|row| text(row, "/file"))
            .map(|file| self.exchange(&format!("{folder}/{file}")))
            .collect()
    }

    pub(crate) fn exchange(&self, path: &str) -> anyhow::Result<Exchange> {
        let value = self.json(path)?;
        let part = |pointer: &str| value.pointer(pointer).cloned().unwrap_or_default();
        let string = |pointer: &str| text(&value, pointer).map(str::to_owned);
        Ok(Exchange {
            name: string("/name").context("an exchange without a name")?,
            method: string("/request/method").context("an exchange without a method")?,
            path: string("/request/path").context("an exchange without a path")?,
            admin: text(&value, "/request/user").is_some_and(|user| user.starts_with("kvadmin")),
            content_type: string("/request/contentType"),
            body: part("/request/body"),
            status: part("/response/status").as_u64().and_then(|s| s.try_into().ok()).unwrap_or_default(),
            answer_type: string("/response/contentType"),
            answer: part("/response/body"),
        })
    }

    /// How many requests a folder's index lists.
    pub(crate) fn requests(&self, folder: &str) -> anyhow::Result<usize> {
        let rows = self.rows(&format!("{folder}/index.json"))?;
        Ok(rows.iter().filter(|row| text(row, "/file").is_some()).count())
    }

    /// The VM manifest that all scenarios start from, in another namespace and under another name.
    pub(crate) fn manifest(&self, namespace: &str, name: &str, strategy: &str) -> anyhow::Result<Value> {
        let mut vm = self.exchange("b1-patch-stopped-vm/001-jp-create.json")?.body;
        for (pointer, value) in
            [("/metadata/namespace", namespace), ("/metadata/name", name), ("/spec/runStrategy", strategy)]
        {
            if let Some(place) = vm.pointer_mut(pointer) {
                *place = Value::from(value);
            }
        }
        Ok(vm)
    }
}

/// The string at `pointer`.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}
