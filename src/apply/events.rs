//! Events on the VM, one for each thing that happened to it.
//!
//! The recorder is that of `k8s-controller`: the same words again within minutes count up one event, other words are
//! an event of their own. (That of kube leaves the words out of its key, so a second refusal would show the first
//! one's.)

use k8s_controller::events::{Event, EventRecorder, EventType, PublishError, Reporter};
use kube::Client;
use kube::api::ObjectMeta;
use kube::core::PartialObjectMeta;
use std::marker::PhantomData;

use super::writer::{Target, Writer};
use crate::api::kubevirt::VirtualMachine;
use crate::plan::facts::Vm;

/// Tells the readers of `kubectl describe vm` what happened.
pub struct Events {
    recorder: EventRecorder,
    writer: Writer,
}

impl Events {
    /// Events reported by this replica.
    pub fn new(client: Client, writer: Writer, instance: &str) -> Self {
        let reporter = Reporter { controller: "wintune.dev/operator".to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: EventRecorder::new(client, reporter), writer }
    }

    /// Publishes one. A failure is logged and counted, never a reason to do anything again.
    pub async fn publish(&self, vm: &Vm, warning: bool, action: &str, reason: &str, note: &str) {
        let about = PartialObjectMeta::<VirtualMachine> {
            types: None,
            metadata: ObjectMeta {
                name: Some(vm.name.clone()),
                namespace: Some(vm.namespace.clone()),
                uid: vm.uid.clone(),
                ..ObjectMeta::default()
            },
            _phantom: PhantomData,
        };
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: Some(note.to_owned()),
            related: None,
        };
        let publish = async {
            self.recorder.publish(&about, &event).await.map_err(|error| match error {
                PublishError::Kube(error) => error,
                other => kube::Error::Service(Box::new(other)),
            })
        };
        if let Err(error) = self.writer.write(Target::Event, publish).await {
            tracing::warn!(namespace = %vm.namespace, name = %vm.name, %error, reason, "event not published");
        }
    }
}
