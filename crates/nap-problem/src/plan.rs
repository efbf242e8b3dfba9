//! The plan file, and its conversion from the engine's plan.

use std::collections::BTreeMap;

use nap_engine::{Plan, PodKey};
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

use crate::read::ProblemError;

/// A plan: nodes to launch, with pods by class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanFile {
    /// Nodes to launch.
    pub nodes: Vec<PlannedNode>,
    /// Number of pods by class, by existing node.
    #[serde(default)]
    pub existing: BTreeMap<String, BTreeMap<String, usize>>,
    /// Number of unplaced pods by class.
    #[serde(default)]
    pub unplaced: BTreeMap<String, usize>,
}

/// A node to launch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedNode {
    /// Its NodePool.
    pub node_pool: String,
    /// Its instance type.
    pub instance_type: String,
    /// The zone of its price.
    pub zone: String,
    /// All possible zones, if there is more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_zones: Vec<String>,
    /// Its capacity type.
    pub capacity_type: String,
    /// Its price in dollars per hour.
    pub price_usd_per_hour: f64,
    /// Number of pods by class.
    pub pods: BTreeMap<String, usize>,
}

impl PlanFile {
    /// Reads a plan file's text.
    pub fn parse(text: &str) -> Result<Self, ProblemError> {
        serde_json::from_str(text).map_err(ProblemError::Json)
    }

    /// The text of the file, with a final line break.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Converts the engine's plan for the snapshot or the fleet of a problem.
    pub fn of(plan: &Plan) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "written with six decimals")]
        let dollars = |price: UsdPerHour| price.micros() as f64 / 1e6;
        let nodes = plan.launches.iter().map(|launch| PlannedNode {
            node_pool: launch.pool.clone(),
            instance_type: launch.instance_type.clone(),
            zone: launch.zone.clone(),
            open_zones: Vec::new(),
            capacity_type: launch.capacity_type.to_string(),
            price_usd_per_hour: dollars(launch.price),
            pods: counted(&launch.pods),
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

/// Class of a pod of a problem's snapshot.
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
