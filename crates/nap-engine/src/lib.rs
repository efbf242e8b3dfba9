//! The decision engine: a [`Snapshot`] of a cluster goes in, a [`Plan`] comes out.
//!
//! It is pure. It does no I/O, reads no clock, draws no random number, cannot fail, and gives
//! byte-equal plans for equal snapshots. Everything that happens to a cluster is decided here, so
//! that a decision can be shown before it happens, stored, and replayed.

//! # How it decides
//!
//! Pods that are alike form a class, and classes are placed in order of priority, then size. What
//! exists is free and is filled first; the rest is packed onto hypothetical nodes, each of which
//! becomes the cheapest offering that holds its pods. Packing is tried several times: once in the
//! incumbent's own fill_rule; then with the size of nodes capped at each of a few sizes, because nodes
//! that grow without a cap end up on the largest type on offer, whatever it costs; and node by
//! node, with pods that complement each other, on the type that is cheapest for what it holds,
//! rules between pods included. Where no pod depends on another, column generation seeks loads for
//! all of them at once. Pods that are left get a last try with what the scheduler itself would
//! allow. The cheapest plan that places most pods wins, so a plan never costs more than the
//! incumbent's fill_rule would; in the end, its nodes that waste most are taken apart and packed
//! again.
//!
//! | module | what it knows |
//! |---|---|
//! | `model` | what is read and what is answered |
//! | `coupling` | the rules by which pods depend on each other, as data |
//! | `rules` | which of them there are, and who takes part in which |
//! | `topology` | how many pods each domain has, and may still take |
//! | `intern` | how equals are found fast |
//! | `groups` | which pods are written alike |
//! | `preferences` | what pods would like, and what they give up first |
//! | `classes` | which of these differ in nothing that matters |
//! | `existing` | how what exists is filled |
//! | `overlay` | what a user knows better about offerings |
//! | `catalogue` | the instance types on offer, in order |
//! | `prepared` | what daemons take on them in each pool |
//! | `table` | what each type of a pool has, and counts against its limits |
//! | `offerings` | which offerings suit which requirements |
//! | `diversity` | how many values of a label a node's choice must keep |
//! | `shelf` | which bins of nodes are looked at first |
//! | `offer` | what a class of pods would open a new node with |
//! | `pack` | how hypothetical nodes are filled within the limits |
//! | `packing` | what came of it, and what it costs |
//! | `sizes` | at which sizes nodes are capped |
//! | `coupled` | how pods that depend on others are placed, domain by domain |
//! | `closing` | what the scheduler would still allow to pods that spread constraints leave without a place |
//! | `patterns` | which pods complement each other on a node |
//! | `weave` | the same where pods depend on each other |
//! | `simplex` | how small linear programs are solved |
//! | `columns` | which loads of nodes cover all pods at the least cost, if fractions could be bought |
//! | `recipes` | how such loads become nodes |
//! | `repair` | how nodes that waste much are put together anew |
//! | `realise` | what the scheduler would make of a packing by itself |
//! | `worth` | what a unit of each resource is worth at the prices on offer |
//! | `certificate` | what placing the pods costs at least |
//! | `solve` | which packing wins, and the plan that it becomes |
//! | `launch` | which offering a bin becomes, and what else would do |
//! | `choice` | the same for nodes that are alike |
//! | `alternatives` | the latter, as places in the catalogue |
//! | `refuse` | why a pod has no place, as data |
//! | `funnel` | how many offerings are left for a pod, step by step |
//! | `change` | which single change would give it a place |
//! | `reason` | reasons as text |

mod classes;
mod explain;
mod intern;
mod model;
mod offerings;
mod optimize;
mod packing;
mod plan;
mod simplex;
mod solve;
mod topology;

pub use explain::funnel::{Funnel, funnel};
pub use explain::remedy::{Change, Remedy, RemedyPlacement, RemedySearch, after};
pub use model::alternatives::Alternatives;
pub use model::catalogue::Catalogue;
pub use model::pod_rules::{
    HostPort, LabelRule, Namespaces, PodTerm, RunningPods, Selector, Spread,
};
pub use model::{
    ATTACHABLE_VOLUMES, Alternative, CapacityType, Daemon, DefaultSpread, InstanceType, Launch,
    MinValuesPolicy, Node, Offering, Options, Placement, Plan, Pod, PodKey, Pool, PoolReason,
    PoolRejection, PreferencePolicy, Preferences, RESERVATION_ID, Refusal, Rule, Snapshot, Tier,
    Unplaced, Weighted,
};
pub use offerings::daemon_overhead::SolverCache;
pub use offerings::overlay::{Overlay, OverlayConflict, PriceChange, overlay};
pub use plan::release_order::release_order;
pub use solve::{solve, solve_first_fit, solve_with};
