//! The judge of steps: replays the decisions of consolidation one step at a time and judges the
//! plan of each step like any other plan.

use std::collections::{BTreeMap, BTreeSet};

use nap_units::UsdPerHour;

use super::{MAX_LISTED, judge};
use crate::fleet::allowed;
use crate::format::{ExistingNode, PodClass, Problem};
use crate::read::ProblemError;
use crate::steps::{LaunchNames, StepFile};

/// The judge's answer about decisions of consolidation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepsVerdict {
    /// The first violations, one line each. Decisions without any are valid.
    pub violations: Vec<String>,
    /// Pods for which no binding order was found and none is ruled out; not violations.
    pub undecided: usize,
    /// Number of pods that moved.
    pub moves: usize,
    /// Number of nodes that were removed.
    pub removed: usize,
    /// Number of nodes that were launched.
    pub launched: usize,
    /// The problem after the last valid step.
    pub after: Problem,
}

impl StepsVerdict {
    /// Whether there is no violation.
    pub fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }

    fn report(&mut self, violation: String) {
        if self.violations.len() < MAX_LISTED {
            self.violations.push(violation);
        }
    }
}

/// Judges decisions for the nodes of a problem. Each may disrupt `budget` percent of the nodes of
/// each pool, as they are before it. Judging ends at the first wrong step. Fails only if the
/// problem itself is invalid.
pub fn judge_steps(
    problem: &Problem,
    budget: usize,
    decisions: &[Vec<StepFile>],
) -> Result<StepsVerdict, ProblemError> {
    judge_from(0, problem, budget, decisions)
}

/// Judges decisions of which the first has the number `first`.
pub(crate) fn judge_from(
    first: usize,
    problem: &Problem,
    budget: usize,
    decisions: &[Vec<StepFile>],
) -> Result<StepsVerdict, ProblemError> {
    let mut verdict = StepsVerdict { after: problem.clone(), ..StepsVerdict::default() };
    for (number, steps) in (first..).zip(decisions) {
        let mut decision = Decision::new(number, &verdict.after, budget);
        for (step_number, step) in steps.iter().enumerate() {
            let about = format!("decision {number}, step {step_number}");
            // Later steps count on this one, so their violations would only repeat it.
            if !decision.step(&about, step, &mut verdict)? {
                return Ok(verdict);
            }
        }
    }
    Ok(verdict)
}

/// Bookkeeping of one decision.
struct Decision {
    /// Nodes that may still be disrupted, by pool.
    budgets: BTreeMap<String, usize>,
    /// Nodes that existed before the decision.
    existed: BTreeSet<String>,
    /// Nodes that received pods in an earlier step of it.
    receivers: BTreeSet<String>,
    /// Names of the nodes that it launches.
    names: LaunchNames,
    /// Whether nodes that receive no pods cannot matter: there are no rules between pods and no
    /// limits. The judge leaves them out then, which is what makes it fast on large fleets.
    is_local: bool,
}

impl Decision {
    fn new(number: usize, problem: &Problem, budget: usize) -> Self {
        let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
        for node in &problem.nodes {
            *nodes.entry(node.node_pool.clone()).or_default() += 1;
        }
        let budgets = nodes.into_iter().map(|(pool, count)| (pool, allowed(count, budget)));
        let is_alone = |class: &PodClass| {
            class.topology_spread.is_empty()
                && class.pod_affinity.is_empty()
                && class.pod_anti_affinity.is_empty()
        };
        let is_local = problem.pods.iter().all(is_alone)
            && problem.node_pools.iter().all(|pool| pool.limits.is_empty());
        Self {
            is_local,
            budgets: budgets.collect(),
            existed: problem.nodes.iter().map(|node| node.name.clone()).collect(),
            receivers: BTreeSet::new(),
            names: LaunchNames::of(number),
        }
    }

    /// Judges a step; carries it out in `verdict.after`, or is false if it is wrong.
    fn step(
        &mut self,
        about: &str,
        step: &StepFile,
        verdict: &mut StepsVerdict,
    ) -> Result<bool, ProblemError> {
        let leaving: BTreeSet<&str> = step.remove.iter().map(String::as_str).collect();
        let mut wrong = Vec::new();
        if leaving.is_empty() {
            wrong.push(format!("{about}: it removes no node"));
        }
        if leaving.len() != step.remove.len() {
            wrong.push(format!("{about}: it removes a node twice"));
        }
        let pinned = verdict.after.pinned();
        let mut saved = UsdPerHour::ZERO;
        let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
        for name in &leaving {
            let found = verdict.after.nodes.iter().find(|node| node.name == *name);
            let Some(node) = found else {
                wrong.push(format!("{about}: node `{name}` does not exist"));
                continue;
            };
            saved += verdict.after.price_of(node);
            for (class, count) in &node.pods {
                *waiting.entry(class.clone()).or_default() += count;
            }
            if !self.existed.contains(*name) {
                wrong.push(format!("{about}: `{name}` was launched by the same decision"));
            }
            if self.receivers.contains(*name) {
                wrong.push(format!("{about}: `{name}` received pods, which would move twice"));
            }
            if let Some(class) = node.pods.keys().find(|class| pinned.contains(class.as_str())) {
                wrong.push(format!("{about}: `{name}` runs `{class}`, which must not be evicted"));
            }
            match self.budgets.get_mut(&node.node_pool) {
                Some(left) if *left > 0 => *left -= 1,
                _ => wrong.push(format!("{about}: pool `{}` exceeds its budget", node.node_pool)),
            }
        }
        let stays = wrong.is_empty();
        for line in wrong {
            verdict.report(line);
        }
        if !stays {
            return Ok(false);
        }
        // The cluster without the leaving nodes, whose pods wait: an ordinary problem.
        let all = std::mem::take(&mut verdict.after.nodes);
        let mut gone = Vec::new();
        for node in all {
            if leaving.contains(node.name.as_str()) {
                gone.push(node);
            } else {
                verdict.after.nodes.push(node);
            }
        }
        for class in &mut verdict.after.pods {
            class.replicas = waiting.get(&class.name).copied().unwrap_or(0);
        }
        let judged = if self.is_local {
            let receives = |node: &&ExistingNode| step.plan.existing.contains_key(&node.name);
            let some = verdict.after.nodes.iter().filter(receives).cloned().collect();
            let all = std::mem::replace(&mut verdict.after.nodes, some);
            let judged = judge(&verdict.after, &step.plan);
            verdict.after.nodes = all;
            judged?
        } else {
            judge(&verdict.after, &step.plan)?
        };
        for class in &mut verdict.after.pods {
            class.replicas = 0;
        }
        for violation in &judged.violations {
            verdict.report(format!("{about}: {violation}"));
        }
        if judged.unplaced > 0 {
            verdict.report(format!("{about}: {} pods have no place", judged.unplaced));
        }
        if judged.cost > saved {
            verdict.report(format!("{about}: {} for {saved}: the cost rises", judged.cost));
        }
        if !(judged.is_valid() && judged.unplaced == 0 && judged.cost <= saved) {
            verdict.after.nodes.extend(gone);
            return Ok(false);
        }
        verdict.undecided += judged.undecided;
        verdict.removed += gone.len();
        verdict.launched += step.plan.nodes.len();
        verdict.moves += step.moves();
        self.receivers.extend(step.plan.existing.keys().cloned());
        let places = StepFile { remove: Vec::new(), plan: step.plan.clone() };
        verdict.after.carry_out(&[places], &mut self.names)?;
        Ok(true)
    }
}
