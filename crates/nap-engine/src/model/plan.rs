//! The decision: nodes to launch, pods for existing nodes, and pods without a place.

use std::sync::Arc;

use nap_api::Requirements;
use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::model::{Alternatives, CapacityType, PodKey, Refusal};

/// The decision for a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Nodes to launch.
    pub launches: Vec<Launch>,
    /// Pods for nodes that exist or are in flight.
    pub placements: Vec<Placement>,
    /// Pods without a place, each with its refusal.
    pub unplaced: Vec<Unplaced>,
    /// Sum of the prices of all launches.
    pub cost: UsdPerHour,
    /// Lower bound on the cost of any plan that places the same pods. `None` when there was nothing
    /// to decide, and for a plan by first fit alone.
    #[serde(default)]
    pub lower_bound: Option<UsdPerHour>,
    /// Strategy that found the plan.
    pub tier: Tier,
}

/// Strategy that found a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// First-fit-decreasing, then the cheapest offering for each node.
    #[default]
    FirstFit,
    /// First-fit-decreasing with the size of nodes capped, at the cheapest of several caps.
    CappedFirstFit,
    /// One node at a time, filled with complementary pods, on the type with the lowest price for
    /// its content.
    Patterns,
    /// Patterns that respect the topology constraints of their pods from the start.
    ConstrainedPatterns,
    /// Node loads from a linear program over all pods, rounded to whole nodes.
    ColumnGeneration,
    /// The best of the other strategies, after its most wasteful nodes were packed again.
    RuinAndRecreate,
}

/// A node to launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Name of the NodePool.
    pub pool: String,
    /// VM size.
    pub instance_type: String,
    /// Value of the zone label.
    pub zone: String,
    /// Capacity type of the offering.
    pub capacity_type: CapacityType,
    /// Price of the offering.
    pub price: UsdPerHour,
    /// Pods of the node, in key order.
    pub pods: Vec<PodKey>,
    /// Sum of the requests of the pods and the daemons.
    pub requests: Resources,
    /// Requirements of the pool and the pods together. Launches share equal ones.
    pub requirements: Arc<Requirements>,
    /// Other offerings that hold the same pods, cheapest first, for when the chosen one is
    /// unavailable: all of them, up to 600, and up to 60 where a plan has thousands of launches.
    /// Each fits the limits of the pool by itself; a caller that falls back on several launches at
    /// once has to check the limits for all of them.
    pub alternatives: Alternatives,
}

/// Another offering for the pods of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// VM size.
    pub instance_type: Arc<str>,
    /// Value of the zone label.
    pub zone: Arc<str>,
    /// Capacity type of the offering.
    pub capacity_type: CapacityType,
    /// Price of the offering.
    pub price: UsdPerHour,
}

/// A pod for a node that exists or is in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The pod.
    pub pod: PodKey,
    /// Name of the node, as in [`Node::name`](crate::Node::name).
    pub node: String,
}

/// A pod without a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// The pod.
    pub pod: PodKey,
    /// Why no place was found.
    pub refusal: Refusal,
}
