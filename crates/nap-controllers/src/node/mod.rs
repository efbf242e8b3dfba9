//! Nodes: their drain and termination, and the taint that keeps pods away meanwhile.

mod drain;
mod eviction_backoff;
pub mod taint;
pub mod termination;

pub use eviction_backoff::EvictionBackoff;
