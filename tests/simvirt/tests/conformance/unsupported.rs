//! What simvirt does not claim to answer, and why. Nothing in here is compared.

use crate::report::Report;
use crate::traces::Traces;

/// Single requests of folders that are replayed otherwise: folder, part of the request's name, reason.
const REQUESTS: [(&str, &str, &str); 17] = [
    ("f-guest-queries", "-pause", "pause and unpause are not simulated"),
    ("f-guest-queries", "-unpause", "pause and unpause are not simulated"),
    ("f-guest-queries", "-freeze", "freeze and unfreeze are not simulated"),
    ("f-guest-queries", "-unfreeze", "freeze and unfreeze are not simulated"),
    ("f-guest-queries", "-softreboot", "softreboot and reset are not simulated"),
    ("f-guest-queries", "-reset", "softreboot and reset are not simulated"),
    ("f-guest-queries", "-migrate", "migrations are not simulated"),
    ("f-guest-queries", "expand", "expand-spec and expand-vm-spec are not simulated"),
    ("f-guest-queries", "handler-pod", "handler pods are not simulated; the test sets what virt-api finds"),
    (
        "d3-running-field-and-rights",
        "old-after",
        "looks at the VM whose bodies are not stored; the effect is compared with the call",
    ),
    ("d3-running-field-and-rights", "old-patch", "bodies of writes are not stored in this folder"),
    ("d3-running-field-and-rights", "old-to-runstrategy", "bodies of writes are not stored in this folder"),
    ("d3-running-field-and-rights", "rerun-", "needs the write before it, whose body is not stored"),
    ("d3-running-field-and-rights", "replace-", "bodies of writes are not stored in this folder"),
    ("d3-running-field-and-rights", "apply-", "bodies of writes are not stored in this folder"),
    ("d3-running-field-and-rights", "wintune-enabled", "bodies of writes are not stored in this folder"),
    ("d3-running-field-and-rights", "wintune-disk", "bodies of writes are not stored in this folder"),
];

/// Folders that are not replayed at all.
const FOLDERS: [(&str, &str); 21] = [
    ("b3-instancetype", "instancetypes and preferences are not simulated"),
    ("c3-running-instancetype-vm", "instancetypes and preferences are not simulated"),
    ("d2-vmi-ends", "bodies are not stored; ends are compared in d4, start failures and back-off are not simulated"),
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
    REQUESTS.iter().find(|(f, part, _)| *f == folder && name.contains(part)).map(|(_, _, reason)| *reason)
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
