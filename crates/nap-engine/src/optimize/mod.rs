//! optimize.

pub(crate) mod column_generation;
pub(crate) mod lower_bound;
pub(crate) mod ruin_and_recreate;
pub(crate) mod scheduler_replay;
