//! What the parts of the simulation share. All of it is lost when the simulation ends: a VM that runs when a new
//! one starts is taken to have been started from its present template.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::objects::{Key, Objects};
use crate::options::{Handler, Options, Stage};

/// Clients, options and memory.
pub(crate) struct Context {
    pub(crate) options: Options,
    /// Writes as virt-controller does.
    pub(crate) controller: Objects,
    /// Writes as virt-handler does.
    pub(crate) handler: Objects,
    /// Writes as virt-api does.
    pub(crate) api: Objects,
    memory: Mutex<Memory>,
}

/// What virt-controller would keep in ControllerRevisions and its queues, and what the test asked for.
#[derive(Default)]
pub(crate) struct Memory {
    /// By VM UID.
    pub(crate) vms: HashMap<String, VmMemory>,
    /// By VMI UID.
    pub(crate) vmis: HashMap<String, VmiMemory>,
    /// What the test said about guests, by VM name.
    pub(crate) guests: HashMap<Key, GuestMemory>,
}

/// One VM.
#[derive(Default)]
pub(crate) struct VmMemory {
    /// The VMI that was there at the last look.
    pub(crate) vmi: Option<String>,
    /// The template that VMI was made from: KubeVirt's start revision.
    pub(crate) start: Option<Value>,
    /// The template as it was when the last VMI was let go. The next VMI is made from it, which is why a patch
    /// after the DELETED event is never in time.
    pub(crate) snapshot: Option<Value>,
    /// No new VMI before this.
    pub(crate) not_before: Option<Instant>,
    /// A CPU or memory hotplug of this VMI is under way (it never ends here).
    pub(crate) hotplugging: bool,
}

/// One VMI: when the simulation first saw it, saw it deleted, and saw it run.
#[derive(Clone, Copy)]
pub(crate) struct VmiMemory {
    pub(crate) seen: Instant,
    pub(crate) deleted: Option<Instant>,
    pub(crate) running: Option<Instant>,
}

/// One guest, as the test wants it.
#[derive(Clone, Default)]
pub(crate) struct GuestMemory {
    pub(crate) os: Option<Value>,
    pub(crate) limit: Option<Stage>,
    pub(crate) handler: Handler,
    pub(crate) filesystems: Option<Value>,
    pub(crate) users: Option<Value>,
}

impl Context {
    pub(crate) fn new(client: kube::Client, options: Options) -> Context {
        Context {
            options,
            controller: Objects::new(client.clone(), "virt-controller"),
            handler: Objects::new(client.clone(), "virt-handler"),
            api: Objects::new(client, "virt-api"),
            memory: Mutex::new(Memory::default()),
        }
    }

    /// The memory. A panic elsewhere while it was held leaves plain data, so a poisoned lock is used as it is.
    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the test said about this guest.
    pub(crate) fn guest(&self, key: &Key) -> GuestMemory {
        self.memory().guests.get(key).cloned().unwrap_or_default()
    }
}
