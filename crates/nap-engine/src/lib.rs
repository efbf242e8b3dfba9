//! The decision engine: a [`Snapshot`] of a cluster goes in, a [`Plan`] comes out.
//!
//! The engine is pure. It does no I/O, reads no clock, draws no random number and cannot fail.
//! Everything that happens to a cluster is decided here, so that a decision can be shown before it
//! happens, stored, and replayed.
//!
//! # The problem
//!
//! Pending pods must go onto nodes. Existing nodes have free capacity that costs nothing. New nodes
//! come from NodePools, each with requirements, taints, limits and a catalogue of instance types;
//! a type is sold in several zones and capacity types at different prices. Find the nodes to launch
//! and a place for every pod such that
//!
//! 1. as many pods as possible have a place, those of higher priorities first;
//! 2. heavier pools come before lighter ones;
//! 3. the launches cost as little as possible;
//! 4. kube-scheduler would accept every binding, and no limit of a pool is exceeded.
//!
//! # Why it is hard
//!
//! It is vector bin packing (CPU, memory, pods, devices, host ports, …) with variable bin types,
//! and so NP-hard even without further rules. Three things make it harder:
//!
//! - **Compatibility.** A pod restricts the offerings of its node, and pods on one node restrict
//!   them together. The price of a node depends on this intersection.
//! - **Topology.** Spread constraints, affinity and anti-affinity couple all pods that they count:
//!   a pod's place depends on where the others are, and the order of binding matters.
//! - **Preferences.** A pod with preferences has several relaxation levels, and a relaxed pod may
//!   take the room of another.
//!
//! What helps is repetition: real clusters have thousands of pods but few distinct ones, and a
//! catalogue has thousands of offerings but few distinct sets of labels. Every stage works on
//! interned ids and integer vectors.
//!
//! # The stages
//!
//! Each folder is a stage and may use only the ones above it; `xtask tidy` checks that.
//!
//! ```text
//!   Snapshot, Options
//!        │
//!   model ─────────── plain data in and out
//!        │
//!   topology ──────── rules between pods as counts per domain
//!        │
//!   classes ───────── equal pods, relaxation levels, requests as integer vectors
//!        │
//!   offerings ─────── sorted tables; the offerings eligible for a pool and a set of pods
//!        │
//!   packing ───────── existing nodes first, then bins, by a fill rule
//!        │
//!   optimize ──────── portfolio of strategies, lower bound
//!        │
//!   plan ──────────── bins to launches, alternatives, release order
//!        │
//!   explain ───────── refusals, funnels, English
//!        │
//!   solve ─────────── the eight steps of a decision
//!        │
//!   consolidate ───── a running fleet: what to remove or to replace
//!        │
//!   remedy ────────── what single change would place a refused pod
//!        ▼
//!      Plan
//! ```
//!
//! A *bin* is a node that is not launched: a pool, the requirements and requests of its pods, and
//! no type yet. A pod may join while some eligible offering holds everything; the offering is
//! chosen when the plan is written. Most pods that do not fit are rejected by comparing two short
//! vectors.
//!
//! # The portfolio
//!
//! No single heuristic is good on all inputs, so several pack the same pods and the best packing
//! wins: most pods placed, then lowest cost, then fewest pods that need a nomination.
//!
//! | strategy | idea |
//! |---|---|
//! | baseline | first-fit-decreasing in the incumbent's order; no plan is worse than this one |
//! | capped first fit | bins stop growing at one of several sizes, not at the largest type |
//! | patterns | one node at a time from complementary classes, at the lowest price per value |
//! | constrained patterns | patterns that count topology as they go |
//! | column generation | loads for all nodes at once from a linear program, rounded |
//! | ruin and recreate | the most wasteful nodes of the best packing are packed again |
//!
//! Pods without a place get another try with exactly what the scheduler would allow.
//!
//! # The lower bound
//!
//! The duals of a linear program price resources, or whole pods, such that no node is worth more
//! than it costs. The value of all pods, less the free capacity, is then a lower bound on the cost
//! of any plan that places them. It ignores topology over labels other than the hostname, pool
//! limits and weights, and which pods can share a node. The portfolio stops once a packing is
//! within 0.25 % of the bound.
//!
//! # Determinism
//!
//! Equal snapshots give byte-equal plans, in whatever order their lists are. There are no hash maps
//! and no clock: the search is bounded by effort, a count of comparisons. Floating point guides
//! choices and is added up in a fixed order; feasibility and prices are integers.
//!
//! # Performance
//!
//! Grouping is linear in the pods; everything after it depends on the number of classes, not of
//! pods. Labels are compared once per eligibility set. First fit makes `O(classes · bins)` vector
//! comparisons. Patterns make `O(distinct nodes · sizes · classes)`, because a pattern is repeated
//! while there are pods for it. Column generation grows with the square of the shapes and is
//! skipped above 256. Small decisions are dominated by sorting the catalogue, which
//! [`Catalogue::prepare`] and [`SolverCache`] keep.

mod classes;
mod consolidate;
mod explain;
mod ids;
mod intern;
mod model;
mod offerings;
mod optimize;
mod packing;
mod plan;
mod remedy;
mod simplex;
mod solve;
mod topology;

pub use consolidate::{ConsolidationCache, consolidate};
pub use explain::funnel::{Funnel, UnavailableOffering, funnel};
pub use model::alternatives::Alternatives;
pub use model::catalogue::Catalogue;
pub use model::fleet::{
    Candidate, Consolidation, ConsolidationOptions, Fleet, KeepReason, Kept, PoolRules, RunningPod,
    Step, WorkloadBudget,
};
pub use model::options::{
    DEFAULT_NODE_COST, DefaultSpread, MinValuesPolicy, Options, PreferencePolicy,
};
pub use model::plan::{Alternative, Launch, Placement, Plan, Tier, Unplaced};
pub use model::pod_rules::{
    HostPort, LabelRule, Namespaces, PodTerm, RunningPods, Selector, Spread,
};
pub use model::price_estimates::PriceEstimates;
pub use model::refusal::{
    PoolReason, PoolRejection, Refusal, RequirementsConflict, Rule, Shortage, Unsupported,
    VolumeProblem,
};
pub use model::snapshot::{
    ATTACHABLE_VOLUMES, CapacityType, Daemon, InstanceType, NODES, Node, Offering, Pod, PodKey,
    Pool, Preferences, RESERVATION_ID, Snapshot, Weighted,
};
pub use offerings::overlay::{Overlay, OverlayConflict, PriceChange, overlay};
pub use offerings::solver_cache::SolverCache;
pub use plan::release_order::release_order;
pub use remedy::{Change, Remedy, RemedyPlacement, RemedySearch, after};
pub use solve::{solve, solve_first_fit, solve_with};
