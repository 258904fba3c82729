//! What is known of the volumes behind a VM's disks.

use std::collections::BTreeMap;

use serde_json::Value;

use super::facts::Vm;
use super::json;

/// Claims by name; a DataVolume's claim has its name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volumes(BTreeMap<String, Claim>);

/// What is known of a PersistentVolumeClaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Block device or file.
    pub mode: Option<Mode>,
    /// Preallocated or thick: KubeVirt does not pass discard on to it.
    pub thick: bool,
}

/// Volume mode of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A block device.
    Block,
    /// A file on a file system.
    File,
}

/// Endings of the annotations by which KubeVirt keeps discard from a claim (KubeVirt docs/discard-passthrough.md,
/// pkg/virt-launcher/virtwrap/converter/storage/disk.go:131-134).
const THICK: [&str; 2] = ["/storage.preallocation", "/storage.thick-provisioned"];
/// Harvester keeps its claims as JSON text here (Harvester pkg/util/constants.go).
pub const CLAIM_TEMPLATES: &str = "harvesterhci.io/volumeClaimTemplates";

impl Claim {
    /// Reads a claim, or the template of one: `spec.volumeMode`, annotations.
    pub fn of(spec: Option<&Value>, annotations: Option<&Value>) -> Self {
        // The default of a claim that names none (Kubernetes core/v1).
        let mode = spec.map(|spec| match json::text(spec, "/volumeMode") {
            Some("Block") => Mode::Block,
            _ => Mode::File,
        });
        let is_true = |v: &Value| v.as_str() == Some("true");
        let thick = annotations
            .and_then(Value::as_object)
            .is_some_and(|all| all.iter().any(|(k, v)| is_true(v) && THICK.iter().any(|end| k.ends_with(end))));
        Self { mode, thick }
    }
}

impl Volumes {
    /// What a manifest itself says: DataVolume templates, and Harvester's claim templates.
    pub fn of_manifest(vm: &Vm) -> Self {
        let mut claims = BTreeMap::new();
        for template in json::list(&vm.spec, "/dataVolumeTemplates") {
            let Some(name) = json::text(template, "/metadata/name") else { continue };
            let annotations = json::at(template, "/metadata/annotations");
            // `storage` without a mode takes the one of its storage profile, which is not here.
            let spec = json::at(template, "/spec/pvc")
                .or_else(|| json::at(template, "/spec/storage").filter(|s| json::at(s, "/volumeMode").is_some()));
            let mut claim = Claim::of(spec, annotations);
            claim.thick |= json::flag(template, "/spec/preallocation");
            claims.insert(name.to_owned(), claim);
        }
        let harvester = vm.annotations.get(CLAIM_TEMPLATES).and_then(|text| serde_json::from_str::<Value>(text).ok());
        for template in harvester.as_ref().and_then(Value::as_array).into_iter().flatten() {
            if let Some(name) = json::text(template, "/metadata/name") {
                let claim = Claim::of(json::at(template, "/spec"), json::at(template, "/metadata/annotations"));
                claims.insert(name.to_owned(), claim);
            }
        }
        Self(claims)
    }

    /// Takes over what a cluster says of a claim.
    pub fn insert(&mut self, name: &str, claim: Claim) {
        self.0.insert(name.to_owned(), claim);
    }

    /// What is known of a claim.
    pub fn claim(&self, name: &str) -> Option<Claim> {
        self.0.get(name).copied()
    }
}

/// The name of the claim behind a volume of a VM.
pub fn claim_name(volume: &Value) -> Option<&str> {
    json::text(volume, "/persistentVolumeClaim/claimName").or_else(|| json::text(volume, "/dataVolume/name"))
}

/// Names of every claim of a VM.
pub fn claim_names(vm: &Vm) -> impl Iterator<Item = &str> {
    json::list(&vm.spec, "/template/spec/volumes").iter().filter_map(claim_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manifest_tells_of_its_own_claims() {
        let claims = json!([{"metadata": {"name": "h"}, "spec": {"volumeMode": "Block"}}]).to_string();
        let vm = Vm::from_object(&json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "vm", "annotations": {CLAIM_TEMPLATES: claims}},
            "spec": {"template": {"spec": {"domain": {}}}, "dataVolumeTemplates": [
                {"metadata": {"name": "a"}, "spec": {"pvc": {"volumeMode": "Block"}}},
                {"metadata": {"name": "b", "annotations": {"user.custom.annotation/storage.thick-provisioned": "true"}}, "spec": {"pvc": {}}},
                {"metadata": {"name": "c"}, "spec": {"storage": {}, "preallocation": true}}]}}))
        .unwrap();
        let volumes = Volumes::of_manifest(&vm);
        let of = |name: &str| volumes.claim(name).unwrap();
        assert_eq!((of("a").mode, of("h").mode), (Some(Mode::Block), Some(Mode::Block)));
        assert_eq!((of("b").mode, of("b").thick), (Some(Mode::File), true));
        assert_eq!((of("c").mode, of("c").thick), (None, true));
        assert_eq!(volumes.claim("d"), None);
    }
}
