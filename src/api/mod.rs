//! Our own kinds, and lean views of the kinds that others own.
//!
//! Nothing here reads or writes anything; these are shapes, their validation rules and their names.

pub mod conditions;
pub mod crds;
pub mod kubevirt;
pub mod overrides;
pub mod record;
pub mod tuning;

/// API group of our kinds.
pub const GROUP: &str = "wintune.dev";
/// Field manager of every write that we make.
pub const FIELD_MANAGER: &str = "wintune";

/// Names of the annotations that we read from or write to a VirtualMachine.
pub mod annotation {
    /// `"true"` is consent for this VM alone, `"false"` opts it out of everything.
    pub const TUNE: &str = "wintune.dev/tune";
    /// Name of a profile; consent for this VM alone, like [`TUNE`].
    pub const PROFILE: &str = "wintune.dev/profile";
    /// Why a VM is opted out, in the owner's words; shown in the record.
    pub const REASON: &str = "wintune.dev/reason";
    /// Written by us: which values our last write replaced. A mirror of the record, so that a VM whose record was
    /// lost can still be restored.
    pub const APPLIED: &str = "wintune.dev/applied";
}
