//! Writing the plan: from bins to launches.
//!
//! [`launches`] chooses the offering of each bin, [`alternatives_cache`] finds the offerings that
//! could replace it, and [`release_order`] says in which order the nodes should accept pods.

pub(crate) mod alternatives_cache;
pub(crate) mod launches;
pub(crate) mod release_order;
