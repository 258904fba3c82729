//! A real Kubernetes control plane for tests: etcd and kube-apiserver on free ports of 127.0.0.1.
//!
//! What it guarantees
//! * RBAC is real: a ServiceAccount may do what its rules say and nothing else
//!   ([`ControlPlane::token_kubeconfig`]).
//! * CRDs, pruning, patches, admission webhooks, audit and the aggregation layer are the real ones.
//! * Nothing stays behind: the processes die with the [`ControlPlane`], and with the test process too when that
//!   is killed.
//!
//! What it leaves out: there is no kube-controller-manager, so nothing collects garbage, finishes the deletion of
//! a namespace or makes pods of a Deployment; there are no nodes and no kubelet.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! let plane = harness::ControlPlane::start().await?;
//! let crds = plane.install_kubevirt_crds().await?;
//! println!("{} with {crds}", plane.url());
//! harness::create_namespace(&plane.admin(), "erp").await?;
//! plane.stop().await
//! # }
//! ```

mod apiserver;
mod apply;
mod audit;
mod binaries;
mod control_plane;
mod crds;
mod helm;
mod kubeconfig;
mod namespace;
mod operator;
mod pki;
mod ports;
mod process;
mod usage;

pub use audit::AuditEvent;
pub use binaries::binary;
pub use control_plane::ControlPlane;
pub use crds::CrdSource;
pub use helm::helm_template;
pub use namespace::create_namespace;
pub use operator::{Install, Operator};
