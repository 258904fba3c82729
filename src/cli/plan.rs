//! `wintune plan` and what it shares with `explain`.

use std::process::ExitCode;

use super::input::{self, InputError, Manifest, PolicyFile};
use super::{CliError, ManifestArgs, Output, PlanArgs, print, render};
use crate::api::record::PolicyKind;
use crate::plan::consent::{Consent, Marks, Policies, Policy, decide};
use crate::plan::facts::{Facts, Wanted};
use crate::plan::{Plan, json, plan};

/// A manifest with its plan, or with the reason why there is none.
pub(super) struct Planned {
    pub(super) manifest: Manifest,
    pub(super) plan: Result<Plan, String>,
}

/// What came of all manifests.
pub(super) struct Outcome {
    pub(super) planned: Vec<Planned>,
    pub(super) faults: Vec<InputError>,
}

pub(super) fn run(args: &PlanArgs) -> Result<ExitCode, CliError> {
    let Outcome { planned, faults } = plan_all(&args.manifests)?;
    let plans = || planned.iter().filter_map(|p| p.plan.as_ref().ok());
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
        let (facts, wanted) = asked(args, policy.as_ref(), &manifest);
        let plan = match wanted {
            Ok(wanted) => Ok(plan(&facts, &wanted)?),
            Err(why) => Err(why),
        };
        planned.push(Planned { manifest, plan });
    }
    Ok(Outcome { planned, faults })
}

/// What is asked of a VM, or why nothing is. The VM's own annotations count as they do for the operator.
fn asked(args: &ManifestArgs, policy: Option<&PolicyFile>, manifest: &Manifest) -> (Facts, Result<Wanted, String>) {
    let vm = &manifest.vm;
    let own = json::text(&manifest.object, "/metadata/namespace");
    // Every namespace carries its name as a label; its other labels are not known here.
    let name_label = ("kubernetes.io/metadata.name".to_owned(), vm.namespace.clone());
    let mut policies = Policies { namespace_labels: [name_label].into(), ..Policies::default() };
    let elsewhere = |file: &&PolicyFile| file.namespace.as_deref().zip(own).is_none_or(|(policy, vm)| policy == vm);
    if let Some(file) = policy.filter(elsewhere) {
        let list = match file.view.kind {
            PolicyKind::ClusterWindowsTuning => &mut policies.cluster,
            _ => &mut policies.namespaced,
        };
        list.push(Policy::Readable(Box::new(file.view.clone())));
    }
    let consent = decide(Marks { labels: &vm.labels, annotations: &vm.annotations }, &policies);
    let by_annotation = matches!(&consent, Consent::Given(given) if given.by.kind == PolicyKind::Annotation);
    let wanted = match consent {
        Consent::Given(given) if policy.is_some() || args.profile.is_none() => Ok(given.wanted),
        Consent::OptedOut { reason } if policy.is_some() => {
            let reason = reason.map(|words| format!(" ({words})")).unwrap_or_default();
            Err(format!("opted out by annotation{reason}"))
        }
        Consent::Frozen { why } if policy.is_some() => Err(why),
        Consent::None if policy.is_some() => Err("the policy does not cover it".to_owned()),
        _ => Ok(Wanted { profile: args.profile.clone().unwrap_or(Wanted::default().profile), ..Wanted::default() }),
    };
    (Facts { consent_by_annotation: by_annotation, ..Facts::offline(vm.clone()) }, wanted)
}
