//! The minimal CRDs say nothing that KubeVirt's own do not say.

#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::path::Path;

use harness::CrdSource;
use serde_json::Value;

#[test]
fn the_vmi_template_of_a_vm_is_the_spec_of_a_vmi() {
    let minimal = CrdSource::minimal();
    let vm = schema(&read(&minimal.path().join("virtualmachines.kubevirt.io.yaml")));
    let vmi = schema(&read(&minimal.path().join("virtualmachineinstances.kubevirt.io.yaml")));
    let template = vm.pointer("/properties/spec/properties/template/properties/spec").expect("the template's spec");
    assert_eq!(template, vmi.pointer("/properties/spec").expect("the spec"));
}

#[test]
fn every_minimal_crd_is_a_part_of_kubevirts_own() {
    let Ok(full) = CrdSource::full() else {
        println!("SKIPPED: KubeVirt's own CRDs are not on this machine");
        return;
    };
    let mut differences = Vec::new();
    for entry in std::fs::read_dir(CrdSource::minimal().path()).expect("read the folder") {
        let file = entry.expect("read the folder").path();
        let ours = read(&file);
        let theirs = read(&full.path().join(file.file_name().expect("a name")));
        let place = file.display().to_string();
        for part in ["/metadata/name", "/spec/group", "/spec/scope", "/spec/names"] {
            if ours.pointer(part) != theirs.pointer(part) {
                differences.push(format!("{place}: {part}"));
            }
        }
        let versions = |crd: &Value| crd["spec"]["versions"].as_array().expect("versions").clone();
        assert_eq!(versions(&ours).len(), versions(&theirs).len(), "{place}");
        for (our, their) in versions(&ours).iter().zip(versions(&theirs)) {
            for key in ["name", "served", "storage", "subresources"] {
                if our[key] != their[key] {
                    differences.push(format!("{place}: {key} of version {}", our["name"]));
                }
            }
            if columns(our) != columns(&their) {
                differences.push(format!("{place}: printer columns"));
            }
        }
        compare(&place, &schema(&ours), &schema(&theirs), &mut differences);
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Notes where `ours` has a field that `theirs` has not, or of another type.
fn compare(place: &str, ours: &Value, theirs: &Value, differences: &mut Vec<String>) {
    for key in ["type", "format", "enum", "default", "nullable", "x-kubernetes-int-or-string"] {
        if ours[key] != theirs[key] {
            differences.push(format!("{place}: {key} {} is {}", ours[key], theirs[key]));
        }
    }
    for (name, field) in ours["properties"].as_object().into_iter().flatten() {
        match theirs["properties"].get(name) {
            Some(their) => compare(&format!("{place}.{name}"), field, their, differences),
            None => differences.push(format!("{place}: no field {name}")),
        }
    }
    if let Some(items) = ours.get("items") {
        compare(&format!("{place}[]"), items, &theirs["items"], differences);
    }
}

fn columns(version: &Value) -> Vec<[Value; 4]> {
    let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
    columns.map(|column| ["name", "type", "jsonPath", "priority"].map(|key| column[key].clone())).collect()
}

fn schema(crd: &Value) -> Value {
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").expect("a schema").clone()
}

fn read(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("read {}: {error}", file.display()));
    let limits = serde_saphyr::options! { budget: None };
    serde_saphyr::from_str_with_options(&text, limits)
        .unwrap_or_else(|error| panic!("parse {}: {error}", file.display()))
}
