//! A running fleet, and the decision which of its nodes to remove or to replace.

use std::collections::BTreeMap;

use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::model::{CapacityType, Options, Plan, Pod, PodKey, Refusal, Snapshot};

/// Everything that consolidation depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fleet {
    /// The cluster. Every pod that waits has been given its place already: its pods are ignored.
    pub snapshot: Snapshot,
    /// Distinct pods of the candidates, each under the key of one of them. Pods that differ only in
    /// their names share one.
    pub templates: Vec<Pod>,
    /// Nodes that may be removed or replaced.
    pub candidates: Vec<Candidate>,
    /// Rules of every NodePool that has candidates. Nodes of any other pool are kept.
    pub pools: BTreeMap<String, PoolRules>,
    /// Workloads whose evictions are so few that they bind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<WorkloadBudget>,
}

/// Evictions that a workload may still have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadBudget {
    /// Its namespace, kind and name, for messages.
    pub workload: String,
    /// Pods of it that may be moved.
    pub evictions: usize,
}

/// A node that may be removed or replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name in [`Snapshot::nodes`].
    pub node: String,
    /// Name of its NodePool.
    pub pool: String,
    /// Its VM size.
    pub instance_type: String,
    /// Its capacity type; `None` if unknown.
    pub capacity_type: Option<CapacityType>,
    /// Its price.
    pub price: UsdPerHour,
    /// Its capacity, which counts against the limits of its pool.
    pub capacity: Resources,
    /// Pods that would have to move. They are part of the node's residents, and their requests are
    /// not part of its free capacity.
    pub pods: Vec<RunningPod>,
    /// Number of its pods by workload, as indices in [`Fleet::workloads`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<(usize, usize)>,
    /// Disruption cost of the node by Karpenter's formula, in thousandths: 1000 for the node and
    /// about 1000 for each pod.
    pub disruption_cost: i64,
    /// Seconds for which the node would go on costing its price if it were kept.
    pub remaining_life: i64,
    /// Smallest saving of a step with launches, in percent of its price, if that is more than
    /// [`ConsolidationOptions::min_saving_percent`].
    #[serde(default)]
    pub min_saving_percent: i64,
    /// Whether no step may remove it, for reasons of the caller's. It may be surplus.
    #[serde(default)]
    pub is_held: bool,
    /// Whether the last decision found it to be surplus: such nodes are preferred, so that few
    /// change.
    #[serde(default)]
    pub was_surplus: bool,
}

/// A pod of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningPod {
    /// Namespace and name.
    pub key: PodKey,
    /// Index of its template in [`Fleet::templates`].
    pub template: usize,
}

/// Rules of a NodePool for consolidation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRules {
    /// Number of its nodes that may still be disrupted.
    pub budget: usize,
    /// Whether the `Balanced` policy judges each step.
    pub balanced: bool,
    /// Cost of all its nodes; `Balanced` compares with it.
    pub cost: UsdPerHour,
    /// Disruption cost of all its nodes, in thousandths; `Balanced` compares with it.
    pub disruption_cost: i64,
    /// Whether a spot node may be replaced by a cheaper spot node.
    pub spot_to_spot: bool,
}

/// Settings of consolidation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsolidationOptions {
    /// Settings for new nodes.
    pub solve: Options,
    /// What one eviction costs, in micro-dollars.
    pub eviction_cost: i64,
    /// Seconds for which a replacement and the node that it replaces are both paid for.
    pub overlap: i64,
    /// Smallest saving of a step with launches, in percent of the price of what it removes.
    pub min_saving_percent: i64,
    /// Upper limit on the nodes that one step removes.
    pub max_removed: usize,
    /// Upper limit on the steps of a decision.
    pub max_steps: usize,
}

impl Default for ConsolidationOptions {
    fn default() -> Self {
        Self {
            solve: Options::default(),
            eviction_cost: 500,
            overlap: 300,
            min_saving_percent: 15,
            max_removed: 16,
            max_steps: 1_000,
        }
    }
}

/// The decision for a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consolidation {
    /// What to do, in this order. Each step lowers the cost by itself and counts on those before
    /// it having happened.
    pub steps: Vec<Step>,
    /// The candidates that stay and are not held, in the order of their names, with their reasons.
    pub kept: Vec<Kept>,
    /// Names of further candidates whose pods would all fit on the nodes that stay, in order. Pods
    /// that avoid them let them become empty without an eviction.
    #[serde(default)]
    pub surplus: Vec<String>,
    /// Cost of all candidates.
    pub cost_before: UsdPerHour,
    /// Cost of the candidates that stay and of the nodes that are launched.
    pub cost_after: UsdPerHour,
}

/// Nodes that are removed together, and the places of their pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Names of the nodes to remove, in order.
    pub remove: Vec<String>,
    /// Places of their pods: on nodes that stay, and on nodes to launch. Nothing is unplaced.
    pub plan: Plan,
    /// Price of the removed nodes less that of the launched ones.
    pub saving: UsdPerHour,
    /// Number of pods that move.
    pub evictions: usize,
}

/// A candidate that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Name of the node.
    pub node: String,
    /// Why it stays.
    pub reason: KeepReason,
}

/// Why a candidate stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeepReason {
    /// An earlier step moves pods to it.
    Receives,
    /// It would pay, and the budgets of its NodePool allow no further disruption.
    Budget,
    /// It would pay, and the decision has as many steps as it may have.
    Steps {
        /// Upper limit on the steps of a decision.
        max: usize,
    },
    /// It would pay, and the pods of a workload have been moved as often as they may be in a day.
    EvictionBudget {
        /// Its namespace, kind and name.
        workload: String,
        /// Pods of it that may still be moved.
        evictions: usize,
    },
    /// A pod would have no place.
    Unplaced {
        /// The pod.
        pod: PodKey,
        /// Why it has none.
        refusal: Refusal,
    },
    /// No nodes that are cheap enough hold its pods.
    NoCheaper {
        /// Lower bound on the cost of the nodes that would be launched instead.
        cost: UsdPerHour,
    },
    /// A replacement would save too little.
    SmallSaving {
        /// The saving at most.
        saving: UsdPerHour,
        /// The smallest saving that counts.
        least: UsdPerHour,
        /// The same in percent of its price; 0 if it was not recorded.
        #[serde(default)]
        percent: i64,
        /// Whether it asks for more than others, because its NodePool grows.
        #[serde(default)]
        grows: bool,
    },
    /// The saving over its remaining life does not pay for the move.
    Payback {
        /// The saving.
        saving: UsdPerHour,
        /// Saving over the remaining life, in micro-dollars.
        gain: i64,
        /// Cost of evictions and of paying for both nodes meanwhile, in micro-dollars.
        effort: i64,
        /// The remaining life, in seconds.
        #[serde(default)]
        life: i64,
        /// Number of evictions.
        #[serde(default)]
        evictions: usize,
        /// Cost of each, in micro-dollars.
        #[serde(default)]
        eviction_cost: i64,
        /// Time for which old and new nodes are both paid for, in seconds; 0 without new ones.
        #[serde(default)]
        overlap: i64,
    },
    /// The `Balanced` policy asks for a score of 500.
    Balanced {
        /// Saving over disruption, each as a share of the pool's, in thousandths.
        score: i64,
    },
    /// A spot node would be replaced by a spot node, which its pool does not allow.
    SpotToSpot,
    /// A spot node may be replaced by a spot node only if enough cheaper types are on sale.
    FewSpotTypes {
        /// Cheaper types on sale.
        types: usize,
    },
}
