//! Charts, rendered as `helm install` would render them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::apply::parse;
use crate::binaries::binary;

/// Every object that `helm template --include-crds` makes of `chart`, in helm's order; `values` are given as
/// `--set KEY=VALUE`. No cluster is asked. Blocks for as long as helm runs (well under a second).
///
/// # Errors
/// When helm is not there or refuses the chart (the error carries its words), or its output is no YAML.
pub fn helm_template(chart: &Path, release: &str, namespace: &str, values: &[(&str, &str)]) -> Result<Vec<Value>> {
    let mut helm = Command::new(binary("helm")?);
    helm.args(["template", release]).arg(chart).args(["--namespace", namespace, "--include-crds"]);
    for (key, value) in values {
        helm.args(["--set", &format!("{key}={value}")]);
    }
    let output = helm.stdin(Stdio::null()).output().context("run helm template")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("helm template of {} failed ({}): {}", chart.display(), output.status, words.trim());
    }
    let text = String::from_utf8(output.stdout).context("read the output of helm template")?;
    parse(&text).with_context(|| format!("parse what helm template made of {}", chart.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_rendered_with_its_crds_and_values() {
        let dir = tempfile::tempdir().expect("temp dir");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("make the folder");
            std::fs::write(path, text).expect("write");
        };
        write("Chart.yaml", "apiVersion: v2\nname: tiny\nversion: 0.1.0\n");
        write("values.yaml", "wanted: false\n");
        write("crds/crd.yaml", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n");
        write(
            "templates/map.yaml",
            "{{- if .Values.wanted }}\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\n  namespace: {{ .Release.Namespace }}\n{{- end }}\n",
        );
        let kinds = |values: &[(&str, &str)]| -> Vec<Value> {
            let objects = helm_template(dir.path(), "r", "n", values).expect("render");
            objects.iter().map(|object| object["kind"].clone()).collect()
        };
        assert_eq!(kinds(&[]), ["CustomResourceDefinition"]);
        assert_eq!(kinds(&[("wanted", "true")]), ["CustomResourceDefinition", "ConfigMap"]);
        write("templates/broken.yaml", "{{ fail \"out of cheese\" }}");
        let error = helm_template(dir.path(), "r", "n", &[]).expect_err("it fails").to_string();
        assert!(error.contains("out of cheese"), "{error}");
    }
}
