//! Reconciles that a change of the cluster calls for.

/// One reconcile that has to run because the index changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dirty {
    /// The AKSNodeClass of this name.
    NodeClass(String),
    /// The NodePool of this name.
    NodePool(String),
    /// The Node of this name.
    Node(String),
    /// The NodeClaim of this name.
    NodeClaim(String),
    /// NodeClaims that nap created and no watch has shown.
    Unconfirmed,
    /// The status of every NodeOverlay.
    Overlays,
    /// A pod became unschedulable, or lost its planned place: the batch window grows.
    PendingPod,
    /// Pending pods may have other options than before.
    Provisioning,
    /// A disruption command may have progressed.
    Disruption,
}
