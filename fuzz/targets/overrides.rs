//! A policy: refused in words, or planned with on Windows VMs.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target};
use serde::Deserialize;
use serde_json::Value;
use wintune::api::record::PolicyKind;
use wintune::api::tuning::{ClusterWindowsTuningSpec, Tuning};
use wintune::observe::index::policy_view;
use wintune::plan::consent::Policy;
use wintune::plan::facts::Vm;
use wintune_fuzz::mutate::{Fields, mutate};
use wintune_fuzz::{documents, plan_in_words, plan_write_undo, wanted, windows_vms};

static VMS: LazyLock<[Value; 2]> = LazyLock::new(windows_vms);

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
    for object in documents(text) {
        // A whole manifest, or what stands below its spec.
        let spec = object.get("spec").unwrap_or(&object);
        if let Ok(tuning) = Tuning::deserialize(spec) {
            plan_with(tuning);
        }
        // The cluster's kind has every field of the namespace's.
        if let Ok(typed) = ClusterWindowsTuningSpec::deserialize(spec) {
            let namespaces = typed.namespace_selector.as_ref();
            let kind = PolicyKind::ClusterWindowsTuning;
            let policy = policy_view(kind, &object, &typed.selector, namespaces, typed.limits, typed.tuning);
            if let Policy::Readable(view) = policy {
                assert_eq!(view.tuning.not_acted_on(), None, "a policy counts that is not acted on");
            }
        }
    }
    Corpus::Keep
});

fn plan_with(tuning: Tuning) {
    let text = serde_json::to_string(&tuning).expect("a policy can be written");
    assert_eq!(serde_json::from_str::<Tuning>(&text).ok().as_ref(), Some(&tuning), "it reads as it was written");
    let refused = tuning.not_acted_on().is_some();
    let wanted = wanted(tuning);
    for object in VMS.iter() {
        if refused {
            // Such a policy never gets this far; if one did, it must not bring the planner down.
            plan_in_words(&Vm::from_object(object).expect("it is a VM"), &wanted);
        } else {
            plan_write_undo(object, &wanted);
        }
    }
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(FIELDS, data, size, max_size, seed)
});

macro_rules! below {
    ($above:literal: $($field:literal)*) => { &[$(concat!("/spec/", $above, $field)),*] };
}

/// Fields that this release does not have are left out by its parser; a later one has them.
const FIELDS: &Fields = &[
    (
        below!("overrides/hyperv/": "relaxed" "vapic" "spinlocks" "vpindex" "synic" "synictimer" "synictimerDirect" "ipi" "runtime"
            "reset" "frequencies" "reenlightenment" "tlbflush" "tlbflushDirect" "tlbflushExtended" "evmcs" "vendorid"),
        &["-", r#""Enabled""#, r#""Disabled""#, r#""Leave""#],
    ),
    (
        below!("overrides/": "clock/utc" "clock/hyperv" "clock/hpet" "clock/kvm" "cpu/topology" "cpu/threads" "cpu/nested"
            "cpu/dedicatedCpuPlacement" "cpu/isolateEmulatorThread" "cpu/guestMappingPassthrough" "devices/memBalloon"
            "devices/blockMultiQueue" "devices/networkMultiqueue" "hook/ioUring" "hook/avic"),
        &["-", r#""Enabled""#, r#""Disabled""#, r#""Leave""#, "null"],
    ),
    (
        below!("overrides/": "clock/pit" "clock/rtc" "disks/bus" "disks/cache" "disks/io" "ioThreads/policy" "cpu/model"),
        &[
            "-",
            r#""delay""#,
            r#""catchup""#,
            r#""discard""#,
            r#""virtio""#,
            r#""none""#,
            r#""writeback""#,
            r#""native""#,
            r#""threads""#,
            r#""SupplementalPool""#,
            r#""Dedicated""#,
            r#""host-passthrough""#,
            r#""host-model""#,
            r#""Leave""#,
        ],
    ),
    (below!("overrides/": "ioThreads/poolSize"), &["-", "0", "1", "4", "64", "4294967295", "-1"]),
    (
        below!("": "overrides" "overrides/hyperv" "overrides/clock" "overrides/disks" "overrides/ioThreads" "overrides/cpu"
            "apply" "limits" "measure" "selector" "namespaceSelector" "profile" "onWithdrawal"),
        &[
            "-",
            "-",
            "{}",
            "null",
            r#""migration-safe""#,
            r#""Restore""#,
            r#"{"mode":"WhenStopped"}"#,
            r#"{"mode":"Stage"}"#,
        ],
    ),
    (
        below!("selector/matchExpressions/": "0" "1"),
        &[
            "-",
            r#"{"key":"a","operator":"In","values":["b"]}"#,
            r#"{"key":"a","operator":"NotIn","values":[]}"#,
            r#"{"key":"a","operator":"Exists"}"#,
            r#"{"key":"","operator":"Gt"}"#,
        ],
    ),
];
