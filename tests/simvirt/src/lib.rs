//! A test double for KubeVirt's virt-controller and virt-api; it is not KubeVirt.
//!
//! It runs beside a real kube-apiserver in which KubeVirt's CRDs are installed, and answers as the recorded traces of
//! the real components do. `tests/conformance/` replays those traces, compares, and lists what it leaves out.
//!
//! What it does:
//! * VMs: annotations, finalizer, status, VMIs by run strategy, RestartRequired, the wait before the next VMI.
//! * VMIs: the phases and conditions that a node would write, an end by deletion, shutdown or crash.
//! * Subresources through the API server's own aggregation and RBAC: start, stop, restart, guestosinfo,
//!   filesystemlist, userlist.
//! * With [`Options::admission`], the mutating and validating webhooks for VMs and VMIs, as far as the traces show
//!   their rules; then virt-controller also puts back a dropped firmware UUID and PCI layout.
//!
//! What it does not do:
//! * Pods, nodes, libvirt, QEMU, guests, storage, networks, migrations, events, ControllerRevisions, back-off after
//!   failed starts (`startFailure`, CrashLoopBackOff).
//! * Instancetypes and preferences, VM pools, snapshots, clones, hotplug of disks, WaitAsReceiver, feature gates
//!   (all are off), other architectures than amd64.
//! * Other subresources (pause, freeze, migrate, expand-spec, ...): they answer 501.
//! * Webhooks on VMI updates: in KubeVirt others cannot change a VMI's spec, here they can.
//! * Canonical quantities: KubeVirt's webhook turns 2048Mi into 2Gi, this one leaves it.
//! * Scale: every step reads the VM and the VMI from the API server, so that it is simple and never stale.

mod admission;
mod answers;
mod context;
mod controller;
mod defaults;
mod guest;
mod guest_os;
mod guest_queries;
mod node;
mod objects;
mod options;
mod quantity;
mod register;
mod rollout;
mod rules;
mod server;
mod status;
mod strategy;
mod subresources;
mod time;
mod value;
mod vmi;

use std::sync::Arc;

use tokio::task::JoinSet;

pub use guest::Guest;
pub use guest_os::GUEST_ANNOTATION;
pub use options::{Handler, Options, Rollout, Stage};
pub use server::Server;

use crate::context::Context;
use crate::objects::Objects;

/// A running simulation. Dropping it ends its tasks; [`Simvirt::stop`] also takes the registrations back.
pub struct Simvirt {
    context: Arc<Context>,
    registrations: Objects,
    tasks: JoinSet<()>,
}

impl Simvirt {
    /// Starts the simulation with an administrator's client. KubeVirt's CRDs must be installed. Returns once the API
    /// server serves the subresources and, if wanted, the webhooks are registered.
    ///
    /// # Errors
    /// When the server cannot be bound, an object cannot be written, or the API server does not take the
    /// registration as available within a minute.
    pub async fn start(admin: kube::Client, options: Options) -> anyhow::Result<Simvirt> {
        let registrations = Objects::new(admin.clone(), "virt-operator");
        let server = Server::bind(&options.namespace).await?;
        let context = Arc::new(Context::new(admin.clone(), options));
        register::api_service(&registrations, &server, &context.options.namespace).await?;
        let mut tasks = JoinSet::new();
        if context.options.admission {
            register::webhooks(&registrations, &server).await?;
        }
        let router = subresources::router().merge(admission::router()).with_state(Arc::clone(&context));
        tasks.spawn(server.run(router));
        register::wait(&registrations).await?;
        tasks.spawn(node::run(admin.clone(), Arc::clone(&context)));
        tasks.spawn(controller::run(admin, Arc::clone(&context)));
        Ok(Simvirt { context, registrations, tasks })
    }

    /// A handle with which a test acts as the guests and their node.
    pub fn guest(&self) -> Guest {
        Guest::new(Arc::clone(&self.context))
    }

    /// Ends the simulation and takes its APIService and webhooks back.
    pub async fn stop(mut self) {
        register::withdraw(&self.registrations).await;
        self.tasks.shutdown().await;
    }
}
