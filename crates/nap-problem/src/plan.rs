//! The plan file, and the engine's plan as one.

use std::collections::BTreeMap;

use nap_engine::{Plan, PodKey};
use serde::{Deserialize, Serialize};

use crate::format::Problem;
use crate::read::ProblemError;

/// Which machines hold which pods, by class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanFile {
    /// The machines to make.
    pub nodes: Vec<PlannedNode>,
    /// How many pods of which class go onto which existing node.
    #[serde(default)]
    pub existing: BTreeMap<String, BTreeMap<String, usize>>,
    /// How many pods of which class have no place.
    #[serde(default)]
    pub unplaced: BTreeMap<String, usize>,
}

/// A machine to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedNode {
    /// The pool that makes it.
    pub node_pool: String,
    /// What it is.
    pub instance_type: String,
    /// Where it is, as far as its price is concerned.
    pub zone: String,
    /// Where it may still come to be, if that is more than one zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_zones: Vec<String>,
    /// How it is paid for.
    pub capacity_type: String,
    /// What it costs.
    pub price_usd_per_hour: f64,
    /// How many pods of which class it is for.
    pub pods: BTreeMap<String, usize>,
}

impl PlanFile {
    /// Reads a plan file's text.
    pub fn parse(text: &str) -> Result<Self, ProblemError> {
        serde_json::from_str(text).map_err(ProblemError::Json)
    }

    /// The plan file's text, which ends with a line break.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The engine's plan for a problem.
    pub fn of(problem: &Problem, plan: &Plan) -> Self {
        let mut prices: BTreeMap<(&str, &str, &str), f64> = BTreeMap::new();
        for kind in &problem.instance_types {
            for offer in &kind.offerings {
                prices.insert(
                    (&kind.name, &offer.zone, &offer.capacity_type),
                    offer.price_usd_per_hour,
                );
            }
        }
        let nodes = plan.launches.iter().map(|launch| {
            let offering = (
                launch.instance_type.as_str(),
                launch.zone.as_str(),
                launch.capacity_type.as_str(),
            );
            PlannedNode {
                node_pool: launch.pool.clone(),
                instance_type: launch.instance_type.clone(),
                zone: launch.zone.clone(),
                open_zones: Vec::new(),
                capacity_type: launch.capacity_type.to_string(),
                price_usd_per_hour: prices.get(&offering).copied().unwrap_or_default(),
                pods: counted(&launch.pods),
            }
        });
        let mut existing: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for placement in &plan.placements {
            let node = existing.entry(placement.node.clone()).or_default();
            *node.entry(class_of(&placement.pod).to_owned()).or_default() += 1;
        }
        let unplaced = counted(plan.unplaced.iter().map(|unplaced| &unplaced.pod));
        Self { nodes: nodes.collect(), existing, unplaced }
    }
}

/// The class that a pod of a problem's snapshot belongs to.
fn class_of(pod: &PodKey) -> &str {
    let (_, name) = pod.parts();
    name.rsplit_once('-').map_or(name, |(class, _)| class)
}

fn counted<'p>(pods: impl IntoIterator<Item = &'p PodKey>) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods {
        let class = class_of(pod);
        match counts.get_mut(class) {
            Some(count) => *count += 1,
            None => drop(counts.insert(class.to_owned(), 1)),
        }
    }
    counts
}
