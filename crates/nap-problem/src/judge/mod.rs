//! The judge of plan files: violations and cost, independent of the solver that made the plan.
//!
//! A plan is valid if the scheduler could bind every pod where the plan puts it, in some order and
//! for some choice of the zones that the plan leaves open. The judge works on classes and counts,
//! so plans of 100,000 pods can be judged, and shares no algorithm with the engine.

mod anti_affinity;
mod binding;
mod counts;
mod nodes;
mod rules;
mod steps;

use std::collections::BTreeMap;

use nap_units::{Resources, UsdPerHour};

use crate::format::Problem;
use crate::plan::PlanFile;
use crate::read::ProblemError;
use crate::snapshot::ParsedRules;

use binding::bind;
use nodes::JudgedNode;
pub(crate) use steps::judge_from;
pub use steps::{StepsVerdict, judge_steps};

/// Maximum number of violations listed.
const MAX_LISTED: usize = 20;

/// The judge's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The first violations, one line each. A plan without any is valid.
    pub violations: Vec<String>,
    /// Pods for which no binding order was found and none is ruled out; not violations.
    pub undecided: usize,
    /// Sum over the planned nodes of the cheapest available offering that each still admits.
    pub cost: UsdPerHour,
    /// Number of nodes to launch.
    pub nodes: usize,
    /// Number of pods with a node.
    pub placed: usize,
    /// Number of pods without a node.
    pub unplaced: usize,
}

impl Verdict {
    /// Whether there is no violation.
    pub fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Judges a plan file for a problem. Fails only if the problem itself is invalid.
pub fn judge(problem: &Problem, plan: &PlanFile) -> Result<Verdict, ProblemError> {
    let parsed = problem.parse_rules()?;
    let mut judge = Judge {
        problem,
        plan,
        parsed: &parsed,
        classes: problem
            .pods
            .iter()
            .enumerate()
            .map(|(number, class)| (class.name.as_str(), number))
            .collect(),
        verdict: Verdict { nodes: plan.nodes.len(), ..Verdict::default() },
    };
    judge.counts();
    judge.limits();
    let nodes = judge.nodes();
    let unbound = bind(problem, &parsed.pods, &nodes);
    let apart = anti_affinity::violations(problem, &parsed.pods, &nodes);
    for violation in apart.into_iter().chain(unbound.violations) {
        judge.report(violation);
    }
    judge.verdict.undecided = unbound.undecided.len();
    Ok(judge.verdict)
}

struct Judge<'a> {
    problem: &'a Problem,
    plan: &'a PlanFile,
    parsed: &'a ParsedRules,
    classes: BTreeMap<&'a str, usize>,
    verdict: Verdict,
}

impl Judge<'_> {
    fn report(&mut self, violation: String) {
        if self.verdict.violations.len() < MAX_LISTED {
            self.verdict.violations.push(violation);
        }
    }

    /// Checks that the plan accounts for every pod of every class exactly once.
    fn counts(&mut self) {
        let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
        let on_nodes = self.plan.nodes.iter().flat_map(|node| &node.pods);
        let on_existing = self.plan.existing.values().flatten();
        for (name, count) in on_nodes.chain(on_existing) {
            *placed.entry(name).or_default() += count;
            self.verdict.placed += count;
        }
        let mut seen = placed.clone();
        for (name, count) in &self.plan.unplaced {
            *seen.entry(name).or_default() += count;
            self.verdict.unplaced += count;
        }
        for name in seen
            .keys()
            .filter(|name| !self.classes.contains_key(**name))
            .copied()
            .collect::<Vec<_>>()
        {
            self.report(format!("class `{name}` does not exist"));
        }
        for class in &self.problem.pods {
            let seen = seen.get(class.name.as_str()).copied().unwrap_or(0);
            if seen != class.replicas {
                self.report(format!(
                    "class `{}` has {} pods, the plan {seen}",
                    class.name, class.replicas
                ));
            }
        }
    }

    fn limits(&mut self) {
        for pool in &self.problem.node_pools {
            let mut used = Resources::new();
            for node in self.plan.nodes.iter().filter(|node| node.node_pool == pool.name) {
                let capacity =
                    self.problem.kind(&node.instance_type).map(|kind| kind.capacity.resources());
                used.add(&capacity.unwrap_or_default().with("nodes", 1));
            }
            let headroom = self.problem.headroom(pool);
            let any = self.plan.nodes.iter().any(|node| node.node_pool == pool.name);
            for (name, left) in headroom.iter().filter(|(name, left)| any && used.get(name) > *left)
            {
                self.report(format!(
                    "pool `{}` exceeds its limit on {name}: {left} left, {} used",
                    pool.name,
                    used.get(name)
                ));
            }
        }
    }

    /// Existing and planned nodes with their pods; reports what is wrong with each node by itself.
    fn nodes(&mut self) -> Vec<JudgedNode> {
        let (problem, plan, parsed) = (self.problem, self.plan, self.parsed);
        let mut nodes: Vec<JudgedNode> = (0..problem.nodes.len())
            .map(|number| JudgedNode::existing(problem, parsed, number))
            .collect();
        for (name, pods) in &plan.existing {
            match problem.nodes.iter().position(|node| node.name == *name) {
                Some(number) => nodes[number].planned = self.known(pods),
                None => self.report(format!("node `{name}` does not exist")),
            }
        }
        for node in &mut nodes {
            for what in node.place_pods(problem, &parsed.pods) {
                self.report(format!("node `{}`: {what}", node.name));
            }
        }
        for (number, planned) in plan.nodes.iter().enumerate() {
            let about = format!("nodes[{number}] {} {}", planned.instance_type, planned.zone);
            let mut node = match JudgedNode::planned(problem, parsed, number, planned) {
                Ok(node) => node,
                Err(what) => {
                    self.report(format!("{about}: {what}"));
                    continue;
                }
            };
            node.planned = self.known(&planned.pods);
            for what in node.place_pods(problem, &parsed.pods) {
                self.report(format!("{about}: {what}"));
            }
            match node.price(problem, planned) {
                Some(price) => {
                    self.verdict.cost += price;
                    let claimed = UsdPerHour::parse(&format!("{:.7}", planned.price_usd_per_hour));
                    let near = |claimed: UsdPerHour| (claimed.micros() - price.micros()).abs() <= 1;
                    if !claimed.is_some_and(near) {
                        self.report(format!(
                            "{about}: it costs {price}, not {}",
                            planned.price_usd_per_hour
                        ));
                    }
                }
                None => self.report(format!("{about}: its pods leave it no zone")),
            }
            nodes.push(node);
        }
        nodes
    }

    /// Class indices and counts of a plan's pods; unknown class names are left out.
    fn known(&self, pods: &BTreeMap<String, usize>) -> Vec<(usize, usize)> {
        pods.iter()
            .filter_map(|(name, count)| Some((*self.classes.get(name.as_str())?, *count)))
            .collect()
    }
}
