//! `wintune plan` and what it shares with `explain`.

use std::process::ExitCode;

use super::input::{self, InputError, Manifest};
use super::{CliError, ManifestArgs, Output, PlanArgs, print, render};
use crate::plan::consent::{Consent, Marks, Policies, Policy, decide};
use crate::plan::facts::{Facts, Wanted};
use crate::plan::{Plan, plan};

/// A manifest with its plan; without one where the policy does not cover it.
pub(super) struct Planned {
    pub(super) manifest: Manifest,
    pub(super) plan: Option<Plan>,
}

/// What came of all manifests.
pub(super) struct Outcome {
    pub(super) planned: Vec<Planned>,
    pub(super) faults: Vec<InputError>,
}

pub(super) fn run(args: &PlanArgs) -> Result<ExitCode, CliError> {
    let Outcome { planned, faults } = plan_all(&args.manifests)?;
    let plans = || planned.iter().filter_map(|p| p.plan.as_ref());
    let text = match args.output {
        Output::Table => render::table(&planned),
        Output::Json => render::json(plans())?,
        Output::Yaml => render::yaml(plans())?,
        Output::Diff => render::diff(&planned)?,
        Output::Patch => match (planned.as_slice(), faults.is_empty()) {
            ([one], true) => render::patch(one)?,
            (_, true) => return Err(CliError::OnePatch(planned.len())),
            _ => String::new(),
        },
    };
    print(&text)?;
    if !faults.is_empty() {
        return Err(CliError::Input(faults));
    }
    let changes = plans().any(Plan::has_changes);
    Ok(if changes { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

/// Plans every manifest with the profile or policy that was given.
pub(super) fn plan_all(args: &ManifestArgs) -> Result<Outcome, CliError> {
    let policy = args.policy.as_deref().map(input::policy).transpose().map_err(|f| CliError::Input(vec![f]))?;
    let (manifests, faults) = input::manifests(args);
    let mut planned = Vec::new();
    for manifest in manifests {
        let wanted = match &policy {
            None => Some(Wanted {
                profile: args.profile.clone().unwrap_or_else(|| Wanted::default().profile),
                ..Wanted::default()
            }),
            Some(view) => {
                let policies =
                    Policies { namespaced: vec![Policy::Readable(Box::new(view.clone()))], ..Policies::default() };
                let marks = Marks { labels: &manifest.vm.labels, annotations: &manifest.vm.annotations };
                match decide(marks, &policies) {
                    Consent::Given(given) => Some(given.wanted),
                    _ => None,
                }
            }
        };
        let plan = wanted.map(|wanted| plan(&Facts::offline(manifest.vm.clone()), &wanted)).transpose()?;
        planned.push(Planned { manifest, plan });
    }
    Ok(Outcome { planned, faults })
}
