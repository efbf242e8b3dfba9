//! packing.

pub(crate) mod bin_queue;
pub(crate) mod constrained;
pub(crate) mod constrained_patterns;
pub(crate) mod existing;
pub(crate) mod first_fit;
pub(crate) mod leftovers;
pub(crate) mod open_bin;
pub(crate) mod patterns;
pub(crate) mod result;
pub(crate) mod rounded_columns;
pub(crate) mod size_caps;
