//! Where the programs lie that the tests run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The path of `kube-apiserver`, `kubectl`, `helm`, `kube-controller-manager`, `kube-scheduler`, `kubelet` or `etcd`.
///
/// A program that lies in the folder `KUBEBUILDER_ASSETS` wins, then an installed `etcd`. All else comes from
/// `tests/control-plane/build`: at once when it is in its cache, in minutes when not. It blocks that long; call it
/// through `spawn_blocking` where that matters.
///
/// # Errors
/// When the build fails or knows no program of that name.
pub fn binary(name: &str) -> Result<PathBuf> {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") {
        let path = Path::new(&assets).join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    if name == "etcd"
        && let Some(installed) = find_in_path(name)
    {
        return Ok(installed);
    }
    build(name)
}

/// The workspace's root folder, as it was when this crate was compiled.
pub(crate) fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // <root>/tests/harness
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn build(name: &str) -> Result<PathBuf> {
    let script = workspace_root().join("tests/control-plane/build");
    // Standard error stays ours, so that a person sees why the first run takes minutes.
    let output = Command::new(&script)
        .arg(name)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {}", script.display()))?;
    if !output.status.success() {
        bail!("{} {name} failed: {}", script.display(), output.status);
    }
    let folder = String::from_utf8(output.stdout).context("read the folder that the build printed")?;
    let path = Path::new(folder.trim_end()).join(name);
    if !path.is_file() {
        bail!("{} {name} left no file {}", script.display(), path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_root_holds_the_build_script() {
        assert!(workspace_root().join("tests/control-plane/build").is_file());
    }

    #[test]
    fn an_unknown_program_is_an_error_that_names_it() {
        let error = binary("kube-sandwich").expect_err("no such part").to_string();
        assert!(error.contains("kube-sandwich"), "{error}");
    }
}
