//! The steps file: a decision of consolidation, from any solver, and what carrying it out makes of
//! a problem's nodes.

use std::collections::{BTreeMap, BTreeSet};

use nap_engine::Consolidation;
use serde::{Deserialize, Serialize};

use crate::format::{ExistingNode, Problem};
use crate::plan::PlanFile;
use crate::read::ProblemError;

/// Decisions of consolidation for the nodes of a problem, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepsFile {
    /// The steps of each decision; none is empty. Budgets are those of one decision.
    pub decisions: Vec<Vec<StepFile>>,
}

/// Nodes that are removed together, and the places of their pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepFile {
    /// Names of the nodes to remove.
    pub remove: Vec<String>,
    /// Places of their pods.
    pub plan: PlanFile,
}

impl StepsFile {
    /// Reads a steps file's text.
    pub fn parse(text: &str) -> Result<Self, ProblemError> {
        serde_json::from_str(text).map_err(ProblemError::Json)
    }

    /// The text of the file, with a final line break.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

impl StepFile {
    /// Converts the engine's decision for the fleet of a problem.
    pub fn of(decision: &Consolidation) -> Vec<Self> {
        let steps = decision.steps.iter();
        steps
            .map(|step| Self { remove: step.remove.clone(), plan: PlanFile::of(&step.plan) })
            .collect()
    }

    /// Number of pods that it moves.
    pub fn moves(&self) -> usize {
        let launched = self.plan.nodes.iter().flat_map(|node| node.pods.values());
        let placed = self.plan.existing.values().flat_map(BTreeMap::values);
        launched.chain(placed).sum()
    }
}

/// Names of launched nodes: `launched-D-N` for the node with number N of decision D, both from 0.
/// Later decisions refer to them.
#[derive(Clone, Debug)]
pub(crate) struct LaunchNames {
    decision: usize,
    node: usize,
}

impl LaunchNames {
    pub(crate) fn of(decision: usize) -> Self {
        Self { decision, node: 0 }
    }

    fn next(&mut self) -> String {
        self.node += 1;
        format!("launched-{}-{}", self.decision, self.node - 1)
    }
}

impl Problem {
    /// Carries out steps: moves pods, appends launched nodes, and drops removed nodes. Returns the
    /// names of the nodes that are new or have other pods than before.
    ///
    /// Fails at the first name that does not exist, and leaves the problem half changed then.
    pub(crate) fn carry_out(
        &mut self,
        steps: &[StepFile],
        names: &mut LaunchNames,
    ) -> Result<Vec<String>, ProblemError> {
        let mut index: BTreeMap<String, usize> = BTreeMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            index.insert(node.name.clone(), number);
        }
        let mut removed: BTreeSet<usize> = BTreeSet::new();
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        let missing = |name: &str| ProblemError::Dangling {
            path: "steps: node".to_owned(),
            name: name.to_owned(),
        };
        for step in steps {
            for name in &step.remove {
                removed.insert(*index.get(name).ok_or_else(|| missing(name))?);
            }
            for (name, pods) in &step.plan.existing {
                let number = *index.get(name).ok_or_else(|| missing(name))?;
                for (class, count) in pods {
                    *self.nodes[number].pods.entry(class.clone()).or_default() += count;
                }
                touched.insert(number);
            }
            for launch in &step.plan.nodes {
                let name = names.next();
                if index.contains_key(&name) {
                    return Err(ProblemError::Duplicate { list: "nodes", name });
                }
                index.insert(name.clone(), self.nodes.len());
                touched.insert(self.nodes.len());
                self.nodes.push(ExistingNode {
                    name,
                    node_pool: launch.node_pool.clone(),
                    instance_type: launch.instance_type.clone(),
                    zone: launch.zone.clone(),
                    capacity_type: launch.capacity_type.clone(),
                    pods: launch.pods.clone(),
                });
            }
        }
        let changed = touched.difference(&removed).map(|number| self.nodes[*number].name.clone());
        let changed = changed.collect();
        let mut number = 0;
        self.nodes.retain(|_| {
            number += 1;
            !removed.contains(&(number - 1))
        });
        Ok(changed)
    }
}
