//! The decision engine: a [`Snapshot`] of a cluster goes in, a [`Plan`] comes out.
//!
//! It is pure. It does no I/O, reads no clock, draws no random number, cannot fail, and gives byte-equal plans for equal
//! snapshots. Everything that happens to a cluster is decided here, so that a decision can be shown before it happens, stored,
//! and replayed.

mod model;

pub use model::{
    Alternative, CapacityType, Catalogue, Daemon, InstanceType, Launch, Node, Offering, Options, Placement,
    Plan, Pod, PodKey, Pool, PoolReason, Refusal, Snapshot, Tier, Unplaced, Unsuitable,
};
