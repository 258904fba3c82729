//! The only readers: watches and the stores that they fill, snapshots of one VM, live checks before a write.
//!
//! Nothing here decides anything and nothing here writes.

pub mod capabilities;
pub mod claims;
pub mod index;
pub mod live;
pub mod preference;
pub mod served;
pub mod snapshot;
pub mod watches;
