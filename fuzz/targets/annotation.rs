//! The annotation `wintune.dev/applied`, which everybody who may edit a VM can forge.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target};
use serde_json::Value;
use wintune::plan::facts::{Vm, Wanted};
use wintune::plan::patch;
use wintune_fuzz::mutate::{Fields, mutate};
use wintune_fuzz::{UID, plan_in_words, undo_forged, windows_vms};

/// Windows VMs before and after they were tuned: an undo finds its own values only in the latter.
static VMS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let tuned = |object: &Value| {
        let vm = Vm::from_object(object).expect("it is a VM");
        let plan = plan_in_words(&vm, &Wanted::default()).expect("the profile is known");
        let mut tuned = object.clone();
        tuned["spec"]["template"]["spec"]["domain"] = plan.change.domain;
        tuned
    };
    windows_vms().into_iter().flat_map(|vm| [tuned(&vm), vm]).collect()
});

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
    let Ok(accepted) = patch::from_annotation(text, UID) else { return Corpus::Keep };
    assert_eq!(patch::check(&accepted, UID), Ok(()));
    let again = patch::from_annotation(&patch::to_annotation(&accepted), UID);
    assert_eq!(again.as_ref(), Ok(&accepted), "what is read is what would be written");
    VMS.iter().for_each(|vm| undo_forged(vm, text, &accepted));
    Corpus::Keep
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(FIELDS, data, size, max_size, seed)
});

/// JSON in JSON: the annotation holds values as text.
const FIELDS: &Fields = &[
    (
        &["/entries/0/at", "/entries/1/at", "/entries/2/at", "/entries/3/at"],
        &[
            r#""/features/hyperv/vapic""#,
            r#""/features/hyperv/vapic/enabled""#,
            r#""/features/hyperv/synictimer""#,
            r#""/features/hyperv/synictimer/direct""#,
            r#""/features/hyperv/synictimer/direct/enabled""#,
            r#""/features/hyperv/spinlocks""#,
            r#""/features/hyperv/relaxed/enabled""#,
            r#""/features/acpi""#,
            r#""/clock/utc""#,
            r#""/clock/timer/hpet""#,
            r#""/clock/timer/pit""#,
            r#""/clock/timer/pit/tickPolicy""#,
            r#""/clock/timer/rtc/tickPolicy""#,
            r#""/features""#,
            r#""/devices/disks/name=root/cache""#,
            r#""/cpu/model""#,
            r#""/devices/disks/0/disk/bus""#,
        ],
    ),
    (
        &[
            "/entries/0/was",
            "/entries/0/now",
            "/entries/1/was",
            "/entries/1/now",
            "/entries/2/was",
            "/entries/2/now",
            "/entries/3/was",
            "/entries/3/now",
        ],
        &[
            "-",
            r#""{}""#,
            r#""{\"enabled\":true}""#,
            r#""{\"enabled\":false}""#,
            r#""true""#,
            r#""false""#,
            r#""null""#,
            r#""\"delay\"""#,
            r#""\"catchup\"""#,
            r#""{\"present\":false}""#,
            r#""{\"tickPolicy\":\"delay\"}""#,
            r#""{\"direct\":{\"enabled\":true},\"enabled\":true}""#,
            r#""{\"direct\":{\"enabled\":false}}""#,
            r#""{\"enabled\":true,\"spinlocks\":8191}""#,
            r#""{\"spinlocks\":4096}""#,
            r#""[""#,
        ],
    ),
    (
        &["/created/0", "/created/1", "/created/2"],
        &["-", r#""/features""#, r#""/features/hyperv""#, r#""/clock""#, r#""/clock/timer""#, r#""/devices""#],
    ),
    (&["/entries", "/created", "/version", "/vmUid"], &["[]", "-", "1", r#""uid""#, r#""other""#]),
    (
        &["/entries/0", "/entries/1", "/entries/2"],
        &["-", r#"{"at":"/features/hyperv/vapic","now":"{\"enabled\":true}"}"#, r#"{"at":"/clock/utc","now":"{}"}"#],
    ),
];
