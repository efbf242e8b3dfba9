//! Nodes: their drain and termination, and the taint that keeps pods away meanwhile.

mod do_not_disrupt;
mod drain;
mod eviction_backoff;
pub mod taint;
pub mod termination;
mod volumes;

pub use eviction_backoff::EvictionBackoff;
