//! A manifest as `wintune plan -f` reads it, planned, written and taken back.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target};
use wintune::plan::facts::Wanted;
use wintune_fuzz::mutate::{Fields, mutate};
use wintune_fuzz::{documents, plan_write_undo, wishes};

static WISHES: LazyLock<[Wanted; 5]> = LazyLock::new(wishes);

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
    for object in documents(text) {
        WISHES.iter().for_each(|wanted| plan_write_undo(&object, wanted));
    }
    Corpus::Keep
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(FIELDS, data, size, max_size, seed)
});

macro_rules! below {
    ($above:literal: $($field:literal)*) => { &[$(concat!("/spec/template/spec/domain", $above, $field)),*] };
}

const FIELDS: &Fields = &[
    (
        below!("/features/hyperv/": "relaxed" "vapic" "spinlocks" "vpindex" "synic" "synictimer" "synictimer/direct" "ipi"
            "runtime" "reset" "frequencies" "reenlightenment" "tlbflush" "tlbflush/direct" "evmcs" "vendorid" "unknown"),
        &[
            "-",
            "-",
            "{}",
            "{}",
            "null",
            r#"{"enabled":true}"#,
            r#"{"enabled":false}"#,
            r#"{"enabled":null}"#,
            r#"{"enabled":true,"direct":{"enabled":true}}"#,
            r#"{"spinlocks":4096}"#,
            r#"{"unknown":[1]}"#,
            "7",
        ],
    ),
    (
        below!("/clock/timer/": "hpet" "pit" "rtc" "hyperv" "kvm" "unknown"),
        &[
            "-",
            "-",
            "{}",
            "null",
            r#"{"present":true}"#,
            r#"{"present":false}"#,
            r#"{"tickPolicy":"delay"}"#,
            r#"{"tickPolicy":"catchup","present":true}"#,
            r#"{"tickPolicy":null}"#,
            r#"{"tickPolicy":5}"#,
            r#""text""#,
        ],
    ),
    (
        below!("/": "features" "features/hyperv" "features/hypervPassthrough" "features/smm" "features/acpi" "clock"
            "clock/utc" "clock/timezone" "clock/timer" "resources/clock" "resources/features" "memory" "memory/guest"
            "memory/hugepages" "cpu" "cpu/numa" "cpu/realtime" "firmware" "firmware/bootloader/efi" "devices" "devices/disks"
            "ioThreads" "devices/tpm" "devices/gpus"),
        &[
            "-",
            "-",
            "{}",
            "null",
            r#"{"enabled":true}"#,
            r#"{"offsetSeconds":60}"#,
            r#""Europe/Berlin""#,
            r#""4Gi""#,
            "[]",
            r#"{"guest":"4Gi"}"#,
            r#"{"pageSize":"2Mi"}"#,
            r#"{"secureBoot":false}"#,
            r#"{"supplementalPoolThreadCount":2}"#,
        ],
    ),
    (
        below!("/": "cpu/cores" "cpu/sockets" "cpu/threads" "cpu/maxSockets" "devices/disks/0/bootOrder"
            "devices/disks/0/blockSize/custom/logical" "devices/disks/0/blockSize/custom/physical"),
        &["-", "0", "1", "2", "4", "64", "512", "4096", "-1", "1.5", "18446744073709551615", "null", r#""2""#],
    ),
    (
        below!("/": "cpu/dedicatedCpuPlacement" "cpu/isolateEmulatorThread" "devices/blockMultiQueue"
            "devices/networkInterfaceMultiqueue" "devices/autoattachMemBalloon" "devices/disks/0/dedicatedIOThread"
            "devices/disks/0/shareable" "devices/disks/1/dedicatedIOThread"),
        &["-", "true", "false", "null", "{}"],
    ),
    (
        below!("/": "cpu/model" "ioThreadsPolicy" "devices/disks/0/cache" "devices/disks/0/io" "devices/disks/0/errorPolicy"
            "devices/disks/1/cache" "machine/type" "devices/interfaces/0/model"),
        &[
            "-",
            "null",
            r#""host-passthrough""#,
            r#""host-model""#,
            r#""shared""#,
            r#""auto""#,
            r#""supplementalPool""#,
            r#""none""#,
            r#""writeback""#,
            r#""native""#,
            r#""threads""#,
            r#""stop""#,
            r#""virtio""#,
            r#""e1000e""#,
        ],
    ),
    (
        below!("/devices/disks/": "0" "1" "2"),
        &[
            "-",
            r#"{"name":"a","disk":{"bus":"virtio"}}"#,
            r#"{"name":"b","disk":{"bus":"sata"}}"#,
            r#"{"name":"c","lun":{"bus":"scsi"}}"#,
            r#"{"name":"d","cdrom":{"bus":"sata"}}"#,
            r#"{"name":"a","disk":{}}"#,
            "null",
        ],
    ),
    (
        &["/spec/template/spec/volumes/0", "/spec/template/spec/volumes/1", "/spec/template/spec/volumes/2"],
        &[
            "-",
            r#"{"name":"a","persistentVolumeClaim":{"claimName":"a"}}"#,
            r#"{"name":"b","dataVolume":{"name":"b"}}"#,
            r#"{"name":"c","containerDisk":{"image":"registry.example/virtio-win:1"}}"#,
            r#"{"name":"d","sysprep":{}}"#,
            r#"{"name":"e","cloudInitNoCloud":{}}"#,
            "null",
        ],
    ),
    (
        &[
            "/metadata/labels/harvesterhci.io~1os",
            "/metadata/labels/kubevirt.io~1os",
            "/metadata/labels/vm.kubevirt.io~1template",
            "/metadata/annotations/vm.kubevirt.io~1os",
            "/metadata/annotations/wintune.dev~1tune",
            "/spec/preference/name",
            "/spec/template/metadata/labels/kubevirt.io~1os",
            "/metadata/labels/argocd.argoproj.io~1instance",
        ],
        &[
            "-",
            r#""windows""#,
            r#""win2k22""#,
            r#""linux""#,
            r#""true""#,
            r#""windows.11""#,
            r#""rhel.9""#,
            "null",
            "5",
        ],
    ),
    (
        &[
            "/spec/runStrategy",
            "/spec/running",
            "/spec/template/spec/architecture",
            "/spec/template/spec/evictionStrategy",
            "/spec/preference",
            "/spec/instancetype",
            "/metadata/annotations",
            "/metadata/labels",
            "/metadata/uid",
            "/metadata/ownerReferences",
            "/spec/template/spec/nodeSelector",
        ],
        &[
            "-",
            "-",
            "null",
            "true",
            "false",
            r#""Halted""#,
            r#""Always""#,
            r#""amd64""#,
            r#""arm64""#,
            r#""LiveMigrate""#,
            r#"{"name":"windows.2k25"}"#,
            "{}",
            "[]",
            r#""uid""#,
        ],
    ),
];
