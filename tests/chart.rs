//! The chart: what it carries, what it renders, what it refuses, and that a real API server takes it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{ControlPlane, helm_template};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "wintune-system";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn chart() -> PathBuf {
    root().join("charts/wintune")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

fn render(values: &[(&str, &str)]) -> Vec<Value> {
    helm_template(&chart(), "wintune", NAMESPACE, values).unwrap_or_else(|words| panic!("{values:?}: {words}"))
}

/// Those of one kind, by name.
fn of_kind(objects: &[Value], kind: &str) -> BTreeMap<String, Value> {
    let name = |o: &Value| o["metadata"]["name"].as_str().unwrap().to_owned();
    objects.iter().filter(|o| o["kind"] == kind).map(|o| (name(o), o.clone())).collect()
}

fn strings(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// YAML writers differ in how they write a whole number.
fn with_floats(mut value: Value) -> Value {
    match &mut value {
        Value::Number(n) => return json!(n.as_f64()),
        Value::Array(items) => items.iter_mut().for_each(|v| *v = with_floats(v.take())),
        Value::Object(map) => map.values_mut().for_each(|v| *v = with_floats(v.take())),
        _ => {}
    }
    value
}

#[test]
fn both_folders_hold_the_definitions_that_the_program_prints() {
    let printed: BTreeMap<String, String> = wintune::api::crds::all()
        .into_iter()
        .map(|(file, crd)| (file, wintune::api::crds::to_yaml(&crd).unwrap()))
        .collect();
    for folder in [root().join("crds"), chart().join("files/crds")] {
        let held: BTreeMap<String, String> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("read {}: {error}", folder.display()))
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), read(&entry.path())))
            .collect();
        assert!(held == printed, "{} is not what `wintune crds` prints: run `make generate`", folder.display());
    }
}

#[test]
fn rendered_definitions_differ_from_the_files_by_keep_alone() {
    let mut rendered = of_kind(&render(&[]), "CustomResourceDefinition");
    for entry in std::fs::read_dir(chart().join("files/crds")).unwrap() {
        let file: Value = serde_saphyr::from_str(&read(&entry.unwrap().path())).unwrap();
        let name = file["metadata"]["name"].as_str().unwrap().to_owned();
        let mut crd = rendered.remove(&name).unwrap_or_else(|| panic!("{name} is not rendered"));
        let annotations = crd["metadata"].as_object_mut().unwrap().remove("annotations");
        assert_eq!(annotations, Some(json!({"helm.sh/resource-policy": "keep"})), "{name}");
        assert_eq!(with_floats(crd), with_floats(file), "{name}");
    }
    assert!(rendered.is_empty(), "no file for {:?}", rendered.keys());
    assert!(of_kind(&render(&[("crds.install", "false")]), "CustomResourceDefinition").is_empty());
}

#[test]
fn every_rule_stands_below_the_name_of_the_code_that_needs_it() {
    let mut named = 0;
    for entry in std::fs::read_dir(chart().join("templates")).unwrap() {
        let path = entry.unwrap().path();
        let text = read(&path);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[1].starts_with("- apiGroups:")) {
            let place = format!("{}: {:?}", path.display(), pair[0]);
            let words = pair[0].strip_prefix("# ").and_then(|comment| comment.split_once(": "));
            let (file, item) = words.and_then(|(code, _)| code.split_once(' ')).unwrap_or_else(|| panic!("{place}"));
            assert!(file.starts_with("src/"), "{place}");
            let code = read(&root().join(file));
            let is_there = match item.strip_suffix("()") {
                Some(function) => ["(", "<"].iter().any(|then| code.contains(&format!("fn {function}{then}"))),
                None => code.contains(&format!("struct {item} {{")),
            };
            assert!(is_there, "{place}");
            named += 1;
        }
    }
    let objects = render(&[]);
    let rules: Vec<&Value> = objects.iter().filter_map(|o| o["rules"].as_array()).flatten().collect();
    assert_eq!(rules.len(), named, "a rule is written in a way that this test does not see");
    assert!(!rules.iter().any(|rule| rule.to_string().contains('*')), "a wildcard");
}

#[test]
fn users_write_policies_of_their_namespaces_and_never_records() {
    let roles = of_kind(&render(&[]), "ClusterRole");
    let reading = BTreeSet::from(["get", "list", "watch"]);
    let granted = |role: &str| -> BTreeSet<(String, String)> {
        let mut granted = BTreeSet::new();
        for rule in roles[role]["rules"].as_array().unwrap() {
            for resource in strings(&rule["resources"]) {
                granted.extend(strings(&rule["verbs"]).into_iter().map(|verb| (resource.to_owned(), verb.to_owned())));
            }
        }
        granted
    };
    let view = granted("wintune-view");
    assert!(view.iter().all(|(_, verb)| reading.contains(verb.as_str())), "{view:?}");
    assert_eq!(view.len(), 3 * reading.len(), "{view:?}");
    let edit = granted("wintune-edit");
    let expected = ["create", "delete", "patch", "update"].map(|verb| ("windowstunings".to_owned(), verb.to_owned()));
    assert_eq!(edit, BTreeSet::from(expected));
    assert_eq!(roles["wintune-edit"]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], Value::Null);
    let without = of_kind(&render(&[("userRoles.create", "false")]), "ClusterRole");
    assert_eq!(without.keys().collect::<Vec<_>>(), ["wintune-operator"]);
}

/// The restricted Pod Security Standard, which a real API server checks below, and what goes beyond it.
#[test]
fn the_pod_asks_for_no_more_than_it_needs() {
    let objects = render(&[]);
    let deployment = &of_kind(&objects, "Deployment")["wintune-operator"];
    let pod = &deployment["spec"]["template"]["spec"];
    for absent in ["hostNetwork", "hostPID", "hostIPC", "volumes", "initContainers"] {
        assert_eq!(pod[absent], Value::Null, "{absent}");
    }
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0];
    let security =
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
    assert_eq!(container["securityContext"], security);
    assert_eq!(container["resources"]["limits"]["cpu"], Value::Null, "a throttled operator may lose its lease");
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], deployment["spec"]["template"]["metadata"]["labels"]);

    assert_eq!(of_kind(&objects, "PodDisruptionBudget").len(), 1);
    let one = render(&[("replicas", "1")]);
    assert!(of_kind(&one, "PodDisruptionBudget").is_empty(), "a budget for one replica would only block drains");
}

#[test]
fn unknown_and_wrong_values_are_refused_by_name() {
    for (key, value) in [
        ("replics", "3"),
        ("image.tagg", "x"),
        ("resources.request.cpu", "1"),
        ("replicas", "two"),
        ("logJson", "1"),
        ("statusInterval", "0"),
        ("image.digest", "latest"),
        ("fullnameOverride", "Upper"),
    ] {
        let words = helm_template(&chart(), "wintune", NAMESPACE, &[(key, value)]).expect_err(key).to_string();
        let named = key.split('.').all(|part| words.contains(part) || part == "cpu");
        assert!(words.contains("values don't meet the specifications") && named, "{key}: {words}");
    }
    // Rancher adds its own to every release.
    render(&[("global.cattle.clusterName", "local")]);
}

#[test]
fn the_chart_is_of_this_version_and_helm_finds_nothing_to_say() {
    let meta: Value = serde_saphyr::from_str(&read(&chart().join("Chart.yaml"))).unwrap();
    assert_eq!(meta["appVersion"], env!("CARGO_PKG_VERSION"));
    let mut helm = Command::new(harness::binary("helm").expect("helm"));
    let lint = helm.args(["lint", "--strict"]).arg(chart()).stdin(Stdio::null()).output().expect("run helm");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

#[test]
fn the_readme_lists_every_value() {
    let values: BTreeMap<String, Value> = serde_saphyr::from_str(&read(&chart().join("values.yaml"))).unwrap();
    let mut keys = BTreeSet::new();
    for (key, value) in values {
        match value.as_object() {
            Some(group) if ["image", "crds", "userRoles"].contains(&key.as_str()) => {
                keys.extend(group.keys().map(|inner| format!("{key}.{inner}")));
            }
            _ => drop(keys.insert(key)),
        }
    }
    let readme = read(&chart().join("README.md"));
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), keys);
}

#[tokio::test]
async fn a_cluster_takes_the_chart_and_keeps_the_definitions_when_it_goes() {
    let plane = ControlPlane::start().await.expect("start");
    let client = plane.admin();
    harness::create_namespace(&client, NAMESPACE).await.expect("create the namespace");
    let restricted = json!({"metadata": {"labels": {"pod-security.kubernetes.io/warn": "restricted"}}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(&restricted)).await.expect("label it");
    let helm = |args: &[&str]| {
        let output = Command::new(harness::binary("helm").expect("helm"))
            .args(args)
            .args(["-n", NAMESPACE, "--kubeconfig"])
            .arg(plane.admin_kubeconfig())
            .env("HOME", plane.dir())
            .stdin(Stdio::null())
            .output()
            .expect("run helm");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {words}");
        assert!(!words.contains("unknown field") && !words.contains("would violate"), "{args:?}: {words}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let chart = chart();
    let chart = chart.to_str().unwrap();
    let notes = helm(&["install", "wintune", chart]);
    assert!(notes.contains("KubeVirt is not there yet"), "{notes}");
    helm(&["upgrade", "wintune", chart, "--set", "replicas=3"]);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("wintune-operator").await.expect("get the Deployment");
    assert_eq!(deployment.spec.and_then(|spec| spec.replicas), Some(3));

    helm(&["uninstall", "wintune"]);
    assert!(deployments.get_opt("wintune-operator").await.expect("get the Deployment").is_none());
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let kept = definitions.list(&ListParams::default()).await.expect("list the definitions");
    assert_eq!(kept.items.len(), 3);
    // The release finds its own definitions again.
    helm(&["install", "wintune", chart]);
    plane.stop().await.expect("stop");
}
