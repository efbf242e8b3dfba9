//! Settings of a decision.

use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

use crate::model::Spread;

/// What a node costs besides its price if nothing else is said: about one percent of a small node,
/// so that packings that differ by a hair are decided for fewer nodes.
pub const DEFAULT_NODE_COST: UsdPerHour = UsdPerHour::from_micros(1_000);

/// Settings of a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Upper limit on the pods of one new node; `None` means as many as fit.
    #[serde(default)]
    pub max_pods_per_node: Option<u32>,
    /// Upper limit on the vCPUs of one new node; `None` means any size in the catalogue.
    #[serde(default)]
    pub max_cpu_per_node: Option<i64>,
    /// Highest price of a node in every pool; `None` without a ceiling. A lower one of the pool
    /// counts.
    #[serde(default)]
    pub max_node_price: Option<UsdPerHour>,
    /// Cost of a node besides its price (a disk, an address, operations). It counts when packings
    /// are compared; the prices and the cost of the plan exclude it.
    #[serde(default)]
    pub node_cost: UsdPerHour,
    /// Share of each resource of a new node that stays free, in percent, so that kube-scheduler
    /// finds room for every pod in any binding order. A pod that fits only without the slack is
    /// still placed.
    #[serde(default)]
    pub slack_percent: u8,
    /// Treatment of the pods' preferences.
    #[serde(default)]
    pub preferences: PreferencePolicy,
    /// Treatment of a pool's `minValues` that the catalogue cannot satisfy.
    #[serde(default)]
    pub min_values: MinValuesPolicy,
    /// Spread constraints of pods that have none of their own, from the scheduler's configuration.
    /// Their selectors are ignored: [`Pod::workload`](crate::Pod::workload) selects the pods that
    /// are counted.
    #[serde(default)]
    pub default_spread: Vec<DefaultSpread>,
}

/// Treatment of the pods' preferences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreferencePolicy {
    /// Preferences hold like requirements while that leaves a place; they are relaxed one at a time
    /// where it does not.
    #[default]
    Respect,
    /// Preferences have no effect.
    Ignore,
}

/// Treatment of a pool's `minValues` that the catalogue cannot satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinValuesPolicy {
    /// The pool launches no such node.
    #[default]
    Strict,
    /// The largest number of values that is available satisfies the rule.
    BestEffort,
}

/// A spread constraint for every pod that has none of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultSpread {
    /// The constraint.
    pub spread: Spread,
    /// `DoNotSchedule` instead of `ScheduleAnyway`.
    pub must_hold: bool,
}
