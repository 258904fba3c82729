//! Hyper-V features, checked only when a VMI is made.

use super::Check;
use crate::value::{flag, list, present, text};

const HYPERV: &str = "/domain/features/hyperv";

/// What needs what. KubeVirt reports the first feature of a chain whose need was switched off.
const NEEDS: [(&str, &str); 5] =
    [("evmcs", "vapic"), ("ipi", "vpindex"), ("tlbflush", "vpindex"), ("synictimer", "synic"), ("synic", "vpindex")];

pub(super) fn check(check: &mut Check<'_>) {
    if !present(check.spec, HYPERV) {
        return;
    }
    if present(check.spec, "/domain/features/hypervPassthrough") {
        check.refuse(
            ".domain.features.hyperv",
            "Cannot explicitly set hyperV features if HypervPassthrough is being used. Please use either HyperV or \
             HypervPassthrough."
                .to_owned(),
        );
    }
    let enabled = |feature: &str| flag(check.spec, &format!("{HYPERV}/{feature}/enabled"));
    let broken: Vec<(&str, &str)> = NEEDS
        .into_iter()
        .filter(|(feature, need)| enabled(feature) == Some(true) && enabled(need) == Some(false))
        .collect();
    for (feature, need) in broken {
        // The doubled path is KubeVirt's.
        let path = format!("{}.domain.features.hyperv.domain.features.hyperv", check.at);
        let message = format!("'{path}.{feature}' requires '{path}.{need}', which was disabled.");
        check.refuse(&format!(".domain.features.hyperv.{feature}"), message);
    }
    let evmcs = flag(check.spec, &format!("{HYPERV}/evmcs/enabled")) == Some(true);
    let vmx = list(check.spec, "/domain/cpu/features")
        .iter()
        .any(|f| text(f, "/name") == Some("vmx") && text(f, "/policy") == Some("require"));
    if evmcs && !vmx {
        check.refuse(".domain.cpu.features", "vmx cpu feature is required when evmcs is set".to_owned());
    }
}
