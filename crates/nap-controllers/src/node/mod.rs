//! Nodes: their drain and termination, and the taint that keeps pods away meanwhile.

mod do_not_disrupt;
mod drain;
mod eviction_backoff;
pub mod taint;
pub mod termination;
mod volumes;

pub use eviction_backoff::EvictionBackoff;

use crate::permissions::{KARPENTER, Permission};

/// Nodes are tainted, drained and finalized.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", "nodes", &["get", "patch"]),
    Permission::new("", "pods/eviction", &["create"]),
    Permission::new("", "pods", &["delete"]),
    Permission::new(KARPENTER, "nodeclaims", &["delete"]),
    Permission::new(KARPENTER, "nodeclaims/status", &["patch"]),
    Permission::new("storage.k8s.io", "volumeattachments", &["list"]),
];
