//! What is wrong with a plan file, and what it costs.
//!
//! The same code judges whoever made the plan. It looks at classes and counts, so that plans of a
//! hundred thousand pods can be judged, and shares no algorithm with the engine. A zone that a plan
//! leaves open gets the benefit of the doubt, and so does the order in which pods are bound: a plan
//! is valid if the scheduler could bind every pod where the plan puts it, in some order, for some
//! choice of zones.

use std::collections::BTreeMap;

use nap_units::{Resources, UsdPerHour};

use super::binding::bind;
use super::format::Problem;
use super::places::Place;
use super::plan::PlanFile;
use super::read::ProblemError;
use super::snapshot::Understood;

/// The most violations that are listed.
const MAX_LISTED: usize = 20;

/// What became of a plan before the judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong, in words, the first few. A plan without any is valid.
    pub violations: Vec<String>,
    /// How many pods there is no known order of binding for, though none can be ruled out. They get
    /// the benefit of the doubt.
    pub undecided: usize,
    /// What its machines cost together: each the cheapest available offering that it still admits.
    pub cost: UsdPerHour,
    /// How many machines it makes.
    pub nodes: usize,
    /// How many pods have a place.
    pub placed: usize,
    /// How many have none.
    pub unplaced: usize,
}

impl Verdict {
    /// Nothing is wrong.
    pub fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Judges a plan file for a problem. It fails only if the problem itself makes no sense.
pub fn judge(problem: &Problem, plan: &PlanFile) -> Result<Verdict, ProblemError> {
    let understood = problem.understand()?;
    let mut judge = Judge {
        problem,
        plan,
        understood: &understood,
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
    let places = judge.places();
    let obstacles = bind(problem, &understood.pods, &places);
    for stuck in obstacles.wrong {
        judge.say(stuck);
    }
    judge.verdict.undecided = obstacles.undecided.len();
    Ok(judge.verdict)
}

struct Judge<'a> {
    problem: &'a Problem,
    plan: &'a PlanFile,
    understood: &'a Understood,
    classes: BTreeMap<&'a str, usize>,
    verdict: Verdict,
}

impl Judge<'_> {
    fn say(&mut self, what: String) {
        if self.verdict.violations.len() < MAX_LISTED {
            self.verdict.violations.push(what);
        }
    }

    /// Every pod is somewhere or unplaced, once.
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
            self.say(format!("class `{name}` does not exist"));
        }
        for class in &self.problem.pods {
            let seen = seen.get(class.name.as_str()).copied().unwrap_or(0);
            if seen != class.replicas {
                self.say(format!(
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
                self.say(format!(
                    "pool `{}` exceeds its limit on {name}: {left} left, {} used",
                    pool.name,
                    used.get(name)
                ));
            }
        }
    }

    /// The nodes that exist and those of the plan, each with its pods, and what is wrong with each
    /// by itself.
    fn places(&mut self) -> Vec<Place> {
        let (problem, plan, understood) = (self.problem, self.plan, self.understood);
        let mut places: Vec<Place> = (0..problem.nodes.len())
            .map(|number| Place::existing(problem, understood, number))
            .collect();
        for (name, pods) in &plan.existing {
            match problem.nodes.iter().position(|node| node.name == *name) {
                Some(number) => places[number].planned = self.known(pods),
                None => self.say(format!("node `{name}` does not exist")),
            }
        }
        for place in &mut places {
            for what in place.fill(problem, &understood.pods) {
                self.say(format!("node `{}`: {what}", place.name));
            }
        }
        for (number, node) in plan.nodes.iter().enumerate() {
            let about = format!("nodes[{number}] {} {}", node.instance_type, node.zone);
            let mut place = match Place::planned(problem, understood, number, node) {
                Ok(place) => place,
                Err(what) => {
                    self.say(format!("{about}: {what}"));
                    continue;
                }
            };
            place.planned = self.known(&node.pods);
            for what in place.fill(problem, &understood.pods) {
                self.say(format!("{about}: {what}"));
            }
            match place.price(problem, node) {
                Some(price) => {
                    self.verdict.cost += price;
                    let claimed = UsdPerHour::parse(&format!("{:.7}", node.price_usd_per_hour));
                    let near = |claimed: UsdPerHour| (claimed.micros() - price.micros()).abs() <= 1;
                    if !claimed.is_some_and(near) {
                        self.say(format!(
                            "{about}: it costs {price}, not {}",
                            node.price_usd_per_hour
                        ));
                    }
                }
                None => self.say(format!("{about}: its pods leave it no zone")),
            }
            places.push(place);
        }
        places
    }

    fn known(&self, pods: &BTreeMap<String, usize>) -> Vec<(usize, usize)> {
        pods.iter()
            .filter_map(|(name, count)| Some((*self.classes.get(name.as_str())?, *count)))
            .collect()
    }
}
