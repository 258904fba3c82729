//! The settings of a profile, in the shape in which a policy overrides them: the two are one type.

// A field is `None` where neither profile nor policy speaks of it.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// On, Off or Leave: what a profile or an override says of one switch.
///
/// They are spelled `Enabled`, `Disabled` and `Leave`, because YAML 1.1, which kubectl reads, takes a bare `On` or
/// `Off` for a boolean.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Switch {
    /// Written where it is missing. As an override also over an explicit off.
    #[serde(rename = "Enabled")]
    On,
    /// As an override: written over an existing on. In a profile alone it never causes a write.
    #[serde(rename = "Disabled")]
    Off,
    /// Never written; what the owner chose stays and is reported.
    #[default]
    Leave,
}

/// Settings that differ from the profile.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Overrides {
    /// Hyper-V enlightenments by the name of their field in KubeVirt's API, and `synictimerDirect`, `tlbflushDirect`,
    /// `tlbflushExtended`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 24))]
    #[x_kube(
        validation = Rule::new("self.all(k, k in ['relaxed', 'vapic', 'spinlocks', 'vpindex', 'synic', 'synictimer', 'synictimerDirect', 'ipi', 'runtime', 'reset', 'frequencies', 'reenlightenment', 'tlbflush', 'tlbflushDirect', 'tlbflushExtended', 'evmcs', 'vendorid'])")
            .message("unknown enlightenment; known are relaxed, vapic, spinlocks, vpindex, synic, synictimer, synictimerDirect, ipi, runtime, reset, frequencies, reenlightenment, tlbflush, tlbflushDirect, tlbflushExtended, evmcs, vendorid")
    )]
    pub hyperv: BTreeMap<Enlightenment, Switch>,
    /// The clock and its timers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clock: ClockValues,
    /// How disks are cached and read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub disks: DiskValues,
    /// Threads that do nothing but I/O.
    #[serde(default, skip_serializing_if = "is_default")]
    pub io_threads: IoThreadValues,
    /// Model, topology and placement of the virtual CPUs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cpu: CpuValues,
    /// Balloon and network queues.
    #[serde(default, skip_serializing_if = "is_default")]
    pub devices: DeviceValues,
    /// What KubeVirt's API cannot say, and only a domain hook can set.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hook: HookValues,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The switches of `domain.features.hyperv`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum Enlightenment {
    /// Relaxed timing: no watchdog bugcheck on an overcommitted host.
    Relaxed,
    /// Virtual APIC access through one page.
    Vapic,
    /// Notification of the hypervisor after this many spins.
    Spinlocks,
    /// Virtual processor index register; others depend on it.
    Vpindex,
    /// Synthetic interrupt controller.
    Synic,
    /// Synthetic timers.
    Synictimer,
    /// Direct mode of the synthetic timers.
    SynictimerDirect,
    /// Paravirtual inter-processor interrupts.
    Ipi,
    /// Run time register of the virtual processor.
    Runtime,
    /// Reset register.
    Reset,
    /// TSC and APIC frequencies.
    Frequencies,
    /// Notice of a migration that changed the TSC.
    Reenlightenment,
    /// Paravirtual TLB flush.
    Tlbflush,
    /// TLB flush of nested guests without their hypervisor.
    TlbflushDirect,
    /// TLB flush of parts of an address space.
    TlbflushExtended,
    /// Enlightened VMCS for nested Hyper-V on Intel.
    Evmcs,
    /// Vendor text that the guest reads.
    Vendorid,
}

impl Enlightenment {
    /// Its name in overrides.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Vapic => "vapic",
            Self::Spinlocks => "spinlocks",
            Self::Vpindex => "vpindex",
            Self::Synic => "synic",
            Self::Synictimer => "synictimer",
            Self::SynictimerDirect => "synictimerDirect",
            Self::Ipi => "ipi",
            Self::Runtime => "runtime",
            Self::Reset => "reset",
            Self::Frequencies => "frequencies",
            Self::Reenlightenment => "reenlightenment",
            Self::Tlbflush => "tlbflush",
            Self::TlbflushDirect => "tlbflushDirect",
            Self::TlbflushExtended => "tlbflushExtended",
            Self::Evmcs => "evmcs",
            Self::Vendorid => "vendorid",
        }
    }
}

/// The clock of a VM. A profile writes what is missing; an override also replaces what is there.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClockValues {
    /// `Enabled` writes `utc: {}` where neither an offset nor a time zone stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<Switch>,
    /// Hyper-V's reference time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<Switch>,
    /// High precision event timer; `Disabled` writes `present: false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hpet: Option<Switch>,
    /// KVM's own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<Switch>,
    /// Tick policy of the programmable interval timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pit: Option<PitPolicy>,
    /// Tick policy of the real-time clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtc: Option<RtcPolicy>,
}

/// What happens to ticks of the interval timer that come late.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PitPolicy {
    /// They are delivered late.
    #[serde(rename = "delay")]
    Delay,
    /// They are delivered in a burst.
    #[serde(rename = "catchup")]
    Catchup,
    /// They are dropped. Untested on Windows.
    #[serde(rename = "discard")]
    Discard,
    /// Never written.
    Leave,
}

/// What happens to ticks of the real-time clock that come late.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtcPolicy {
    /// They are delivered late.
    #[serde(rename = "delay")]
    Delay,
    /// They are delivered in a burst.
    #[serde(rename = "catchup")]
    Catchup,
    /// Never written.
    Leave,
}

/// The I/O path of disks.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiskValues {
    /// Which bus is wanted; a disk moves only on proof, and by this release not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusWanted>,
    /// Host cache of disks on block volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMode>,
    /// How QEMU reads and writes disks on block volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoMode>,
}

/// A disk bus.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusWanted {
    /// virtio-blk.
    #[serde(rename = "virtio")]
    Virtio,
    /// Never moved.
    Leave,
}

/// How the host caches a disk.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Past the host's page cache.
    #[serde(rename = "none")]
    None,
    /// Through it, written at once.
    #[serde(rename = "writethrough")]
    Writethrough,
    /// Through it, written later.
    #[serde(rename = "writeback")]
    Writeback,
    /// Never written.
    Leave,
}

/// How QEMU does I/O.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Linux native AIO.
    #[serde(rename = "native")]
    Native,
    /// A pool of worker threads.
    #[serde(rename = "threads")]
    Threads,
    /// Never written.
    Leave,
}

/// Threads that do nothing but I/O.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IoThreadValues {
    /// How they are given to disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<IoThreadsWanted>,
    /// How many a pool has; worked out from disks and vCPUs where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub pool_size: Option<u32>,
}

/// How I/O threads are given to disks.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoThreadsWanted {
    /// A pool that every virtio disk uses, where it may be added, else a thread for each virtio disk.
    SupplementalPool,
    /// A thread for each virtio disk.
    Dedicated,
    /// Never written.
    Leave,
}

/// Model, topology and placement of the virtual CPUs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CpuValues {
    /// CPU model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<CpuModelWanted>,
    /// `Enabled` puts the vCPUs of a Windows client that has more sockets than it uses into one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Switch>,
    /// `Enabled` gives two threads to a core, with dedicated CPUs on nodes with SMT only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Switch>,
    /// `Disabled` hides vmx and svm from guests that run no hypervisor of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested: Option<Switch>,
    /// A host CPU for each vCPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated_cpu_placement: Option<Switch>,
    /// A host CPU for QEMU's own threads; needs dedicated CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate_emulator_thread: Option<Switch>,
    /// The host's NUMA nodes in the guest; needs dedicated CPUs and hugepages that the VM has already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_mapping_passthrough: Option<Switch>,
}

/// A CPU model.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuModelWanted {
    /// Everything that the host's CPU has.
    #[serde(rename = "host-passthrough")]
    HostPassthrough,
    /// The named model nearest to the host's CPU.
    #[serde(rename = "host-model")]
    HostModel,
    /// Never written.
    Leave,
}

/// Balloon and network queues.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceValues {
    /// `Disabled` takes the memory balloon away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_balloon: Option<Switch>,
    /// As many queues as vCPUs for each virtio disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_multi_queue: Option<Switch>,
    /// As many queues as vCPUs for each virtio network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_multiqueue: Option<Switch>,
}

/// What only a domain hook can set.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookValues {
    /// Linux io_uring for virtio disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_uring: Option<Switch>,
    /// Lets synthetic interrupts and AVIC or APICv live together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avic: Option<Switch>,
    /// Hypercall input in registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xmm_input: Option<Switch>,
    /// MSR bitmap of nested guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emsr_bitmap: Option<Switch>,
}
