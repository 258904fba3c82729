//! What simvirt does not claim to answer, and why. Nothing in here is compared.

use crate::report::Report;
use crate::traces::Traces;

/// Which requests of a folder, by name.
enum Names {
    Starting(&'static str),
    Ending(&'static str),
}
use Names::{Ending, Starting};

const F: &str = "f-guest-queries";
const D3: &str = "d3-running-field-and-rights";
const NO_BODY: &str = "bodies of writes are not stored in this folder";

/// Single requests of folders that are replayed otherwise.
const REQUESTS: [(&str, Names, &str); 18] = [
    (F, Ending("-pause"), "pause and unpause are not simulated"),
    (F, Ending("-unpause"), "pause and unpause are not simulated"),
    (F, Ending("-freeze"), "freeze and unfreeze are not simulated"),
    (F, Ending("-unfreeze"), "freeze and unfreeze are not simulated"),
    (F, Ending("-softreboot"), "softreboot and reset are not simulated"),
    (F, Ending("-reset"), "softreboot and reset are not simulated"),
    (F, Ending("-migrate"), "migrations are not simulated"),
    (F, Ending("-expand"), "expand-spec and expand-vm-spec are not simulated"),
    (F, Starting("expand-vm-spec"), "expand-spec and expand-vm-spec are not simulated"),
    (F, Starting("handler-pod"), "handler pods are not simulated; the test sets what virt-api finds"),
    (D3, Starting("old-after"), "looks whose bodies are not stored; the effect is compared with the call"),
    (D3, Starting("old-patch"), NO_BODY),
    (D3, Starting("old-to-runstrategy"), NO_BODY),
    (D3, Starting("rerun-"), "needs the write before it, whose body is not stored"),
    (D3, Starting("replace-"), NO_BODY),
    (D3, Starting("apply-"), NO_BODY),
    (D3, Starting("wintune-enabled"), NO_BODY),
    (D3, Starting("wintune-disk"), NO_BODY),
];

/// Folders that are not replayed at all.
const FOLDERS: [(&str, &str); 20] = [
    ("b3-instancetype", "instancetypes and preferences are not simulated"),
    ("c3-running-instancetype-vm", "instancetypes and preferences are not simulated"),
    (
        "e1-third-party-vmi-webhook",
        "third-party webhooks are the API server's business; VMI updates by others are not refused",
    ),
    ("e2-third-party-pod-webhook", "pods are not simulated"),
    ("e3-vmi-webhook-adds-sidecar-annotation", "pods and feature gates are not simulated"),
    ("g0-h0-pods-default", "pods are not simulated"),
    ("g1-h1-pods-sidecar-gate", "pods and feature gates are not simulated"),
    ("h2-pods-hypervstrict-cpumanager", "pods and feature gates are not simulated"),
    ("i1-harvester-running-vm-patches", "the KubeVirt object is not read; differs from c only in evictionStrategy"),
    ("i2-harvester-subresources", "the KubeVirt object is not read; differs from d1 only in evictionStrategy"),
    ("i3-harvester-combinations", "the KubeVirt object is not read; differs from b2 only in evictionStrategy"),
    ("i4-harvester-pods", "pods are not simulated"),
    ("i5-harvester-vmi-ends", "as d2"),
    ("k-virt-api-down", "the simulation cannot be down while it is there"),
    ("s1-launcher-alone", "the launcher is not simulated"),
    ("s2-real-node", "nodes are not simulated"),
    ("s3-real-node-starts", "nodes are not simulated"),
    ("s4-real-node-recovery-and-hook-failures", "nodes are not simulated"),
    ("s5-real-node-hypervpassthrough-empty", "nodes are not simulated"),
    ("setup", "no requests"),
];

/// Why a request is not compared, if it is not.
pub(crate) fn request(folder: &str, name: &str) -> Option<&'static str> {
    let meant = |names: &Names| match names {
        Starting(part) => name.starts_with(part),
        Ending(part) => name.ends_with(part),
    };
    let found = REQUESTS.iter().find(|(f, names, _)| *f == folder && meant(names));
    found.map(|(_, _, reason)| *reason)
}

/// Counts the folders that are left out.
pub(crate) fn folders(traces: &Traces, report: &mut Report) -> anyhow::Result<()> {
    for (folder, reason) in FOLDERS {
        // Some folders hold no index: they have no requests.
        let count = traces.requests(folder).unwrap_or_default();
        report.unsupported(folder, reason, count);
    }
    Ok(())
}
