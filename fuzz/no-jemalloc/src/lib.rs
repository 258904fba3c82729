//! Empty; see Cargo.toml.
