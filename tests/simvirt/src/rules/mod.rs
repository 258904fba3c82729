//! The refusals of KubeVirt's validators, as far as the traces show them.

use serde_json::Value;

/// One reason to refuse.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) field: String,
    pub(crate) message: String,
}

pub(crate) fn schema(_vm: &Value) -> Vec<Refusal> { Vec::new() }
pub(crate) fn vm(_vm: &Value) -> Vec<Refusal> { Vec::new() }
pub(crate) fn vmi(_vmi: &Value) -> Vec<Refusal> { Vec::new() }
