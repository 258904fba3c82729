//! The test's hand on the guests.

use std::sync::Arc;

use serde_json::Value;

use crate::context::{Context, GuestMemory};
use crate::guest_os;
use crate::node::{agent_connected, phase, pod_terminating, put_condition};
use crate::objects::{Key, VMI, code};
use crate::options::{Handler, Stage};
use crate::strategy::is_final;
use crate::value::text;

/// Lets a test act as the guest and its node. Cheap to clone.
#[derive(Clone)]
pub struct Guest {
    context: Arc<Context>,
}

impl Guest {
    pub(crate) fn new(context: Arc<Context>) -> Guest {
        Guest { context }
    }

    /// The guest shuts itself down: the VMI ends as Succeeded.
    ///
    /// # Errors
    /// When there is no running VMI of this name, or the API server refuses the write.
    pub async fn shutdown(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.finish(namespace, name, "Succeeded").await
    }

    /// The guest or its QEMU crashes: the VMI ends as Failed.
    ///
    /// # Errors
    /// When there is no running VMI of this name, or the API server refuses the write.
    pub async fn crash(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.finish(namespace, name, "Failed").await
    }

    /// Declares the guest's system by a name such as `windows-2022` (see [`crate::GUEST_ANNOTATION`]). A running VMI
    /// reports it, with its agent connected, when this returns; later ones when their agent connects.
    ///
    /// # Errors
    /// When the name is unknown or the API server refuses the write.
    pub async fn set_guest_os(&self, namespace: &str, name: &str, os: &str) -> anyhow::Result<()> {
        let info = guest_os::info(os).ok_or_else(|| anyhow::anyhow!("unknown guest {os}"))?;
        self.change(namespace, name, |guest| guest.os = Some(info.clone()));
        let key = Key::new(namespace, name);
        if self.context.guest(&key).limit.is_some_and(|limit| limit < Stage::Agent) {
            return Ok(());
        }
        self.write(&key, |vmi| {
            if text(vmi, "/status/phase") == Some("Running") {
                agent_connected(vmi, info.clone());
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Holds the VMIs of this name back at `stage`, or lets them go on with `None`.
    pub fn limit(&self, namespace: &str, name: &str, stage: Option<Stage>) {
        self.change(namespace, name, |guest| guest.limit = stage);
    }

    /// What virt-api finds when it asks this guest's node.
    pub fn set_handler(&self, namespace: &str, name: &str, handler: Handler) {
        self.change(namespace, name, |guest| guest.handler = handler);
    }

    /// The items of `filesystemlist`. Without this the first disk carries one NTFS volume.
    pub fn set_filesystems(&self, namespace: &str, name: &str, items: Value) {
        self.change(namespace, name, |guest| guest.filesystems = Some(items));
    }

    /// The items of `userlist`. Without this nobody is logged in.
    pub fn set_users(&self, namespace: &str, name: &str, items: Value) {
        self.change(namespace, name, |guest| guest.users = Some(items));
    }

    fn change(&self, namespace: &str, name: &str, change: impl FnOnce(&mut GuestMemory)) {
        let mut memory = self.context.memory();
        change(memory.guests.entry(Key::new(namespace, name)).or_default());
    }

    async fn finish(&self, namespace: &str, name: &str, end: &str) -> anyhow::Result<()> {
        let found = self
            .write(&Key::new(namespace, name), |vmi| {
                anyhow::ensure!(!is_final(vmi), "VMI {namespace}/{name} has ended already");
                phase(vmi, end);
                put_condition(vmi, pod_terminating());
                Ok(())
            })
            .await?;
        anyhow::ensure!(found, "no VMI {namespace}/{name}");
        Ok(())
    }

    /// Changes the VMI, again after a lost race; false if there is none.
    async fn write(&self, key: &Key, change: impl Fn(&mut Value) -> anyhow::Result<()>) -> anyhow::Result<bool> {
        loop {
            let Some(mut vmi) = self.context.handler.get(VMI, key).await? else {
                return Ok(false);
            };
            change(&mut vmi)?;
            match self.context.handler.replace(VMI, key, &vmi).await {
                Ok(_) => return Ok(true),
                Err(error) if code(&error) == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
