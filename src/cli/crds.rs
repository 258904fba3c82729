//! `wintune crds`: our definitions, printed or written into a folder.

use std::path::Path;
use std::process::ExitCode;

use super::{CliError, print};
use crate::api::crds;

pub(super) fn run(out: Option<&Path>) -> Result<ExitCode, CliError> {
    for (file, crd) in crds::all() {
        let text = crds::to_yaml(&crd).map_err(|e| CliError::Print(e.to_string()))?;
        match out {
            None => print(&format!("---\n{text}"))?,
            Some(folder) => {
                let path = folder.join(&file);
                let failed = |cause| CliError::Write { what: path.display().to_string(), cause };
                std::fs::create_dir_all(folder).map_err(failed)?;
                std::fs::write(&path, text).map_err(failed)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
