//! `wintune profiles`: what each profile wants, and why.

use std::fmt::Write;
use std::process::ExitCode;

use tabled::builder::Builder;

use super::{CliError, print, render};
use crate::plan::profile::{Profile, profiles};

pub(super) fn run(name: Option<&str>) -> Result<ExitCode, CliError> {
    let all = profiles()?;
    let shown: Vec<&Profile> = all.iter().filter(|p| name.is_none_or(|n| n == p.name)).collect();
    if let (Some(name), true) = (name, shown.is_empty()) {
        let known: Vec<&str> = all.iter().map(|p| p.name.as_str()).collect();
        return Err(CliError::UnknownProfile(name.to_owned(), known.join(", ")));
    }
    let mut text = String::new();
    for profile in shown {
        let _ = writeln!(text, "{} revision {}: {}", profile.name, profile.revision, profile.summary);
        let mut builder = Builder::default();
        builder.push_record(["SETTING", "VALUE", "REASON", "SOURCE"]);
        for (setting, said) in &profile.settings {
            let value = said.value.as_str().map_or_else(|| said.value.to_string(), str::to_owned);
            builder.push_record([setting.clone(), value, said.reason.clone(), said.source.clone()]);
        }
        render::indented(&mut text, builder);
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
