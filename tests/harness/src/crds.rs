//! Which of KubeVirt's CustomResourceDefinitions a test runs on.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::apply::yaml_files;
use crate::binaries::workspace_root;

/// A folder of KubeVirt's CRDs. Both kinds name their files `PLURAL.GROUP.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrdSource {
    /// KubeVirt's own, with every field; they lie beside the checkout, not in it.
    Full(PathBuf),
    /// Ours, in `tests/fixtures/crds`: the fields that matter here, pruned as the full ones prune.
    Minimal(PathBuf),
}

impl CrdSource {
    /// The set that this machine and environment ask for.
    ///
    /// Full where `kubevirt/crds` exists in the shared folder (`WINTUNE_SHARED`, else `../shared` beside the
    /// checkout), else minimal. `WINTUNE_CRDS=minimal` or `full` insists on one. With `CI=true` a shared folder that
    /// exists must hold readable full CRDs, so that a broken mount cannot weaken the tests unnoticed.
    ///
    /// # Errors
    /// When the set that is insisted on cannot be read, or `WINTUNE_CRDS` says something else.
    pub fn find() -> Result<Self> {
        let mode = std::env::var("WINTUNE_CRDS").ok();
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        Self::choose(mode.as_deref(), &shared_folder(), ci)
    }

    /// KubeVirt's own CRDs.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn full() -> Result<Self> {
        Self::read_full(&shared_folder())
    }

    /// The project's own minimal set.
    pub fn minimal() -> Self {
        Self::Minimal(workspace_root().join("tests/fixtures/crds"))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Full(path) | Self::Minimal(path) => path,
        }
    }

    fn choose(mode: Option<&str>, shared: &Path, ci: bool) -> Result<Self> {
        match mode {
            Some("minimal") => Ok(Self::minimal()),
            Some("full") => Self::read_full(shared),
            None | Some("") if ci && shared.exists() => Self::read_full(shared),
            None | Some("") => Ok(Self::read_full(shared).unwrap_or_else(|_| Self::minimal())),
            Some(other) => bail!("WINTUNE_CRDS is {other:?}; it takes full or minimal"),
        }
    }

    fn read_full(shared: &Path) -> Result<Self> {
        let folder = shared.join("kubevirt/crds");
        let files = yaml_files(&folder).context("look for KubeVirt's own CRDs")?;
        let virtual_machines = folder.join("virtualmachines.kubevirt.io.yaml");
        if !files.contains(&virtual_machines) {
            bail!("KubeVirt's own CRDs are incomplete: no {}", virtual_machines.display());
        }
        for file in files {
            std::fs::File::open(&file).with_context(|| format!("open {}", file.display()))?;
        }
        Ok(Self::Full(folder))
    }
}

impl fmt::Display for CrdSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(path) => write!(out, "KubeVirt's own CRDs ({})", path.display()),
            Self::Minimal(path) => write!(out, "the minimal CRDs ({})", path.display()),
        }
    }
}

fn shared_folder() -> PathBuf {
    match std::env::var_os("WINTUNE_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => workspace_root().with_file_name("shared"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_with(file: &str) -> tempfile::TempDir {
        let shared = tempfile::tempdir().expect("temp dir");
        let crds = shared.path().join("kubevirt/crds");
        std::fs::create_dir_all(&crds).expect("make the folder");
        std::fs::write(crds.join(file), "").expect("write");
        shared
    }

    #[test]
    fn full_where_they_are_else_minimal() {
        let shared = shared_with("virtualmachines.kubevirt.io.yaml");
        let full = CrdSource::Full(shared.path().join("kubevirt/crds"));
        for ci in [false, true] {
            assert_eq!(CrdSource::choose(None, shared.path(), ci).expect("full"), full);
            assert_eq!(CrdSource::choose(Some("minimal"), shared.path(), ci).expect("minimal"), CrdSource::minimal());
            let nowhere = shared.path().join("nowhere");
            assert_eq!(CrdSource::choose(None, &nowhere, ci).expect("minimal"), CrdSource::minimal());
            CrdSource::choose(Some("full"), &nowhere, ci).expect_err("insisted on");
        }
    }

    #[test]
    fn in_ci_a_shared_folder_without_usable_crds_is_an_error() {
        let shared = shared_with("README.yaml");
        assert_eq!(CrdSource::choose(None, shared.path(), false).expect("minimal"), CrdSource::minimal());
        let error = CrdSource::choose(None, shared.path(), true).expect_err("insisted on").to_string();
        assert!(error.contains("virtualmachines.kubevirt.io.yaml"), "{error}");
    }

    #[test]
    fn an_unknown_wish_is_an_error() {
        CrdSource::choose(Some("medium"), Path::new("."), false).expect_err("no such set");
    }
}
