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
        for (name, value) in &profile.hyperv {
            let switch = serde_json::to_value(value.value).unwrap_or_default();
            let retries = value.retries.map(|r| format!(" ({r})")).unwrap_or_default();
            let name = serde_json::to_value(name).unwrap_or_default();
            let value_text = format!("{}{retries}", switch.as_str().unwrap_or_default());
            let field = format!("features.hyperv.{}", name.as_str().unwrap_or_default());
            builder.push_record([field, value_text, value.reason.clone(), value.source.clone()]);
        }
        for (field, value) in &profile.clock {
            let name = field.pointer().trim_start_matches('/').replace('/', ".");
            builder.push_record([name, value.value.to_string(), value.reason.clone(), value.source.clone()]);
        }
        render::indented(&mut text, builder);
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
