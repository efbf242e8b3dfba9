//! topology.

pub(crate) mod counts;
pub(crate) mod groups;
