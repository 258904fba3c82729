//! Events on the VM, one for each thing that happened to it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::writer::{Target, Writer};
use crate::api::conditions::truncate;
use crate::plan::facts::Vm;

/// The API server refuses a longer note.
const MAX_NOTE: usize = 1000;

/// Tells the readers of `kubectl describe vm` what happened.
pub struct Events {
    recorder: Recorder,
    writer: Writer,
}

impl Events {
    /// Events reported by this replica.
    pub fn new(client: Client, writer: Writer, instance: &str) -> Self {
        let reporter = Reporter { controller: "wintune.dev/operator".to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: Recorder::new(client, reporter), writer }
    }

    /// Publishes one. A failure is logged and counted, never a reason to do anything again.
    pub async fn publish(&self, vm: &Vm, warning: bool, action: &str, reason: &str, note: &str) {
        let reference = ObjectReference {
            api_version: Some("kubevirt.io/v1".to_owned()),
            kind: Some("VirtualMachine".to_owned()),
            name: Some(vm.name.clone()),
            namespace: Some(vm.namespace.clone()),
            uid: vm.uid.clone(),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(truncate(note, MAX_NOTE).to_owned()),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.writer.write(Target::Event, self.recorder.publish(&event, &reference)).await {
            tracing::warn!(namespace = %vm.namespace, name = %vm.name, %error, reason, "event not published");
        }
    }
}
