//! plan.

pub(crate) mod alternatives_cache;
pub(crate) mod launches;
pub(crate) mod release_order;
