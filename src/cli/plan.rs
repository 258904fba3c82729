//! `wintune plan` and what it shares with `explain`.

use std::process::ExitCode;
use std::sync::Arc;

use super::input::{self, InputError, Manifest, PolicyFile};
use k8s_openapi::jiff::Zoned;
use k8s_openapi::jiff::civil::Date;
use serde_json::Value;

use super::{CliError, ClusterArgs, ManifestArgs, Output, PlanArgs, print, render};
use crate::api::record::PolicyKind;
use crate::api::tuning::Mode;
use crate::plan::capabilities::{Capabilities, CapabilitiesError};
use crate::plan::consent::{Consent, Marks, Policies, Policy, decide};
use crate::plan::facts::{Facts, Nodes, Wanted};
use crate::plan::nodes::NodePool;
use crate::plan::{Plan, json, patch, plan};
use crate::rollout::{Instance, Run, run as when};

/// A manifest with its plan, or with the reason why there is none.
pub(super) struct Planned {
    pub(super) manifest: Manifest,
    pub(super) plan: Result<Plan, String>,
    /// What the operator would make of it, as far as a manifest tells.
    pub(super) says: Vec<String>,
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
            ([one], true) => {
                warn_of_overwriting(one);
                render::patch(one)?
            }
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

/// A manifest that was not read from a cluster may lack what the VM there has, and a patch that adds a whole object
/// replaces it.
fn warn_of_overwriting(planned: &Planned) {
    let Ok(plan) = &planned.plan else { return };
    if patch::could_overwrite(&planned.manifest.vm, &plan.change) {
        eprintln!(
            "note: this manifest was not read from a cluster, and the patch puts {} in whole, over what the VM there may have; make it from the VM itself: kubectl get vm {} -n {} -o yaml | wintune plan -f - -o patch",
            plan.change
                .created
                .iter()
                .filter(|c| c.matches('/').count() == 1)
                .map(|c| c.trim_start_matches('/'))
                .collect::<Vec<_>>()
                .join(" and "),
            plan.vm.name,
            plan.vm.namespace
        );
    }
}

/// Plans every manifest with the profile or policy that was given.
pub(super) fn plan_all(args: &ManifestArgs) -> Result<Outcome, CliError> {
    let policy = args.policy.as_deref().map(input::policy).transpose().map_err(|f| CliError::Input(vec![f]))?;
    let cluster = Given::read(&args.cluster)?;
    let (manifests, mut faults) = input::manifests(args);
    let mut planned = Vec::new();
    for manifest in manifests {
        let (mut facts, wanted, mut says) = asked(args, policy.as_ref(), &manifest);
        cluster.put_into(&mut facts);
        let plan = match wanted.map(|wanted| plan(&facts, &wanted)) {
            // Of this VM alone, unless the command line asked for it.
            Some(Err(cause)) if args.profile.is_none() => {
                let vm = format!("{}/{}", manifest.vm.namespace, manifest.vm.name);
                faults.push(InputError::Asked { vm, cause });
                continue;
            }
            Some(plan) => Ok(plan?),
            None => Err(says.pop().unwrap_or_default()),
        };
        if let Run::Busy(why) = when(&manifest.vm, &instance(&manifest.object)) {
            says.push(format!("waits: {why}"));
        }
        if plan.as_ref().is_ok_and(|p| !p.has_changes()) {
            says.clear();
        }
        planned.push(Planned { manifest, plan, says });
    }
    Ok(Outcome { planned, faults })
}

/// What the command line says of the cluster.
struct Given {
    capabilities: Option<Arc<Capabilities>>,
    nodes: Option<Arc<NodePool>>,
    today: Date,
}

impl Given {
    fn read(args: &ClusterArgs) -> Result<Self, CliError> {
        let fault = |what: &str| {
            let what = what.to_owned();
            move |e: CapabilitiesError| CliError::Capabilities { what, cause: e.to_string() }
        };
        let (capabilities, nodes) = match (&args.kubevirt, &args.harvester, &args.capabilities) {
            (Some(version), _, _) => (Some(Capabilities::of_kubevirt(version).map_err(fault("--kubevirt"))?), None),
            (_, Some(version), _) => (Some(Capabilities::of_harvester(version).map_err(fault("--harvester"))?), None),
            (_, _, Some(path)) => {
                let name = path.display().to_string();
                let file = input::capabilities(path).map_err(|f| CliError::Input(vec![f]))?;
                let (own, nodes) = Capabilities::of_file(&name, file).map_err(fault(&name))?;
                (Some(own), nodes)
            }
            _ => (None, None),
        };
        let today = args.date.unwrap_or_else(|| Zoned::now().date());
        Ok(Self { capabilities: capabilities.map(Arc::new), nodes: nodes.map(|n| Arc::new(NodePool::new(n))), today })
    }

    fn put_into(&self, facts: &mut Facts) {
        facts.today = Some(self.today);
        if let Some(capabilities) = &self.capabilities {
            facts.capabilities = capabilities.clone();
        }
        if let Some(nodes) = &self.nodes {
            facts.nodes = Nodes::Known(nodes.clone());
        }
    }
}

/// What is asked of a VM, and what the operator would make of it. The VM's own annotations count as they do there.
/// Where nothing is asked, the last line says why.
fn asked(
    args: &ManifestArgs,
    policy: Option<&PolicyFile>,
    manifest: &Manifest,
) -> (Facts, Option<Wanted>, Vec<String>) {
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
        *list = Arc::new(vec![Policy::Readable(Box::new(file.view.clone()))]);
    }
    let consent = decide(Marks { labels: &vm.labels, annotations: &vm.annotations }, &policies);
    let by_annotation = matches!(&consent, Consent::Given(given) if given.by.kind == PolicyKind::Annotation);
    let default = || Wanted { profile: args.profile.clone().unwrap_or(Wanted::default().profile), ..Wanted::default() };
    let (wanted, says) = match consent {
        Consent::Given(given) => {
            let mut says = given.narrowed;
            if given.mode == Mode::Propose && says.is_empty() {
                says.push("only shows it: mode Propose never writes".to_owned());
            }
            let wanted = if policy.is_some() || args.profile.is_none() { given.wanted } else { default() };
            (Some(wanted), says)
        }
        Consent::OptedOut { reason } => {
            let reason = reason.map(|words| format!(" ({words})")).unwrap_or_default();
            let says = format!("opted out by annotation{reason}");
            if policy.is_some() {
                (None, vec![says])
            } else {
                (Some(default()), vec![format!("writes nothing: {says}")])
            }
        }
        Consent::Frozen { why } if policy.is_some() => (None, vec![why]),
        Consent::Frozen { why } => (Some(default()), vec![format!("writes nothing: {why}")]),
        Consent::None if policy.is_some() => (None, vec!["the policy does not cover it".to_owned()]),
        Consent::None => (Some(default()), Vec::new()),
    };
    (Facts { consent_by_annotation: by_annotation, ..Facts::offline(vm.clone()) }, wanted, says)
}

/// What a manifest's status says of its instance; nothing where it was never in a cluster.
fn instance(object: &Value) -> Instance {
    Instance {
        exists: false,
        created: json::at(object, "/status/created").and_then(Value::as_bool) == Some(true),
        pending: !json::list(object, "/status/stateChangeRequests").is_empty(),
        deleting: json::at(object, "/metadata/deletionTimestamp").is_some(),
    }
}
