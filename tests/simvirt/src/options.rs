//! What a test can choose.

use std::time::Duration;

/// Times and parts of the simulation. The default is fast: a VM runs about 0.2 s after its start.
#[derive(Clone, Debug)]
pub struct Options {
    /// From the creation of a VMI to phase Running; Scheduled comes half-way.
    pub boot: Duration,
    /// From Running to the condition AgentConnected, for guests that have an agent.
    pub agent: Duration,
    /// How long a VMI that is being deleted stays; half of it when its grace period is 0 or 1, or it has ended already.
    pub terminating: Duration,
    /// From the DELETED event of a VMI to the next one, where one follows. Real: 48 to 223 ms.
    pub recreate: Duration,
    /// Serve KubeVirt's webhooks for VMs and VMIs. Without them the API server takes anything the CRD allows.
    pub admission: bool,
    /// The cluster's `vmRolloutStrategy`.
    pub rollout: Rollout,
    /// The node on which every VMI runs.
    pub node: String,
    /// Where the Service `virt-api` is put.
    pub namespace: String,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            boot: Duration::from_millis(200),
            agent: Duration::from_millis(20),
            terminating: Duration::from_millis(300),
            recreate: Duration::from_millis(60),
            admission: false,
            rollout: Rollout::LiveUpdate,
            node: "node01".to_owned(),
            namespace: "kubevirt".to_owned(),
        }
    }
}

/// KubeVirt's `vmRolloutStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollout {
    /// Sockets, guest memory and scheduling terms reach the running VMI (KubeVirt's default).
    #[default]
    LiveUpdate,
    /// Every template change waits for a restart.
    Stage,
}

/// How far a VMI may come; the simulation holds it there until the test lifts the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Phase Scheduling, no node yet.
    Scheduling,
    /// Phase Scheduled, a node but no domain.
    Scheduled,
    /// Phase Running, without a guest agent.
    Running,
    /// Phase Running with the guest agent connected.
    Agent,
}

/// What virt-api finds when it asks the node's virt-handler about a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Handler {
    /// virt-handler answers.
    #[default]
    Answers,
    /// There is no virt-handler pod on the node.
    Missing,
    /// The pod is there and nothing listens on its port.
    Refuses {
        /// Address and port, as in the error text.
        address: String,
    },
}
