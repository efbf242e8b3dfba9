//! The nodes of a problem as a fleet: the input of consolidation, kept up to date while decisions
//! are carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_engine::{Candidate, Fleet, Node, Options, PodKey, PoolRules, RunningPod, solve};
use nap_units::UsdPerHour;

use crate::format::{ExistingNode, Offering, Problem};
use crate::judge::{StepsVerdict, judge_from};
use crate::read::ProblemError;
use crate::snapshot::ParsedRules;
use crate::steps::{LaunchNames, StepFile};

/// Seconds for which every node would go on running: a day.
const REMAINING_LIFE: i64 = 86_400;

/// Disruption cost of a node and of each of its pods, in thousandths.
const DISRUPTION_COST: i64 = 1_000;

impl Problem {
    /// The fleet of the problem's nodes, of which a decision may disrupt `budget` percent of each
    /// NodePool, rounded up. Every node is a candidate that runs no `doNotDisrupt` pod.
    pub fn fleet(&self, budget: usize) -> Result<Fleet, ProblemError> {
        RunningFleet::new(self.clone(), budget).map(|running| running.fleet)
    }

    /// Price of an existing node; zero if its offering does not exist.
    pub(crate) fn price_of(&self, node: &ExistingNode) -> UsdPerHour {
        let kind = self.kind(&node.instance_type);
        let offer = kind.and_then(|kind| {
            let own = |offer: &&Offering| {
                offer.zone == node.zone && offer.capacity_type == node.capacity_type
            };
            kind.offerings.iter().find(own)
        });
        offer.and_then(Offering::price).unwrap_or(UsdPerHour::ZERO)
    }

    /// Cost of all existing nodes.
    pub fn fleet_cost(&self) -> UsdPerHour {
        self.nodes.iter().map(|node| self.price_of(node)).sum()
    }

    /// Lower bound on the moves with which any consolidation lowers the fleet's cost to `cost`:
    /// nodes worth the difference go, and all their pods move. A fraction of a node counts.
    pub fn fewest_moves(&self, cost: UsdPerHour) -> usize {
        let pinned = self.pinned();
        let may_go =
            |node: &&ExistingNode| !node.pods.keys().any(|class| pinned.contains(class.as_str()));
        let size = |node: &ExistingNode| -> (i128, i128) {
            let pods = node.pods.values().sum::<usize>();
            (i128::try_from(pods).unwrap_or(i128::MAX), self.price_of(node).micros().into())
        };
        let mut nodes: Vec<_> = self.nodes.iter().filter(may_go).map(size).collect();
        nodes.retain(|(_, price)| *price > 0);
        // The fewest pods for its price first.
        nodes.sort_by(|(pods, price), (others, other_price)| {
            (pods * other_price).cmp(&(others * price))
        });
        let mut saving = i128::from((self.fleet_cost() - cost).micros());
        let mut moves = 0;
        for (pods, price) in nodes {
            if saving < price {
                moves += (pods * saving.max(0) + price - 1) / price;
                break;
            }
            moves += pods;
            saving -= price;
        }
        usize::try_from(moves).unwrap_or(usize::MAX)
    }

    /// Number of running pods.
    pub fn running(&self) -> usize {
        self.nodes.iter().flat_map(|node| node.pods.values()).sum()
    }

    /// Lower bound on the cost at which any consolidation of the fleet ends; `None` without pods.
    ///
    /// Nodes for all pods cost at least the bound of a plan for them. And consolidation removes no
    /// node with a pod that must not be evicted, and moves pods only when their node goes, so these
    /// nodes are paid for and keep their pods; all other pods are in the room that these leave, or
    /// on nodes that are paid for besides, which the bound of a plan beside them counts. The higher
    /// of the two bounds is one too.
    pub fn consolidation_bound(&self) -> Result<Option<UsdPerHour>, ProblemError> {
        let bound = |problem: &Self| -> Result<Option<UsdPerHour>, ProblemError> {
            let bound = solve(&problem.snapshot()?, &Options::default()).lower_bound;
            Ok(bound.map(|bound| bound + problem.fleet_cost()))
        };
        let (anew, beside) = (bound(&self.replanned(false))?, bound(&self.replanned(true))?);
        Ok(anew.max(beside))
    }

    /// The problem of launching nodes for the running pods: they are pending, and no node exists.
    /// With `keeps_pinned`, nodes that must stay do, with their pods.
    fn replanned(&self, keeps_pinned: bool) -> Self {
        let mut problem = self.clone();
        let pinned = self.pinned();
        let stays = |node: &ExistingNode| {
            keeps_pinned && node.pods.keys().any(|class| pinned.contains(class.as_str()))
        };
        let (stay, go): (Vec<_>, Vec<_>) = self.nodes.iter().cloned().partition(stays);
        for class in &mut problem.pods {
            let running = go.iter().filter_map(|node| node.pods.get(&class.name));
            class.replicas += running.sum::<usize>();
        }
        problem.nodes = stay;
        problem
    }

    /// Names of the classes whose pods must not be evicted.
    pub(crate) fn pinned(&self) -> BTreeSet<&str> {
        let pinned = self.pods.iter().filter(|class| class.do_not_disrupt);
        pinned.map(|class| class.name.as_str()).collect()
    }
}

/// Number of nodes of a pool that a budget in percent allows to disrupt, rounded up.
pub(crate) fn allowed(nodes: usize, percent: usize) -> usize {
    nodes.saturating_mul(percent).div_ceil(100)
}

/// A fleet that decisions change. Nodes that a decision leaves alone keep their identity.
pub struct RunningFleet {
    problem: Problem,
    parsed: ParsedRules,
    budget: usize,
    /// Number of each node in the names of its pods, by node; never used again.
    numbers: BTreeMap<String, usize>,
    named: usize,
    /// Number of decisions that were carried out.
    decisions: usize,
    fleet: Fleet,
}

impl RunningFleet {
    /// The fleet of a problem without pending pods; `budget` is in percent of each pool's nodes.
    pub fn new(problem: Problem, budget: usize) -> Result<Self, ProblemError> {
        if let Some(class) = problem.pods.iter().find(|class| class.replicas > 0) {
            let path = format!("pods: {}: replicas", class.name);
            return Err(ProblemError::invalid(path, "a fleet has no pending pods; set it to 0"));
        }
        let parsed = problem.parse_rules()?;
        let snapshot = problem.snapshot()?;
        let templates = problem.pods.iter().zip(&parsed.pods).map(|(class, pod)| {
            let key = PodKey::new(&class.namespace, &format!("{}-0.0", class.name));
            nap_engine::Pod { key, ..pod.clone() }
        });
        let fleet = Fleet { snapshot, templates: templates.collect(), ..Fleet::default() };
        let mut running = Self {
            problem,
            parsed,
            budget,
            numbers: BTreeMap::new(),
            named: 0,
            decisions: 0,
            fleet,
        };
        running.refresh();
        Ok(running)
    }

    /// The input of the next decision.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The nodes and their pods at present.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Judges the steps of the next decision.
    pub fn judge(&self, steps: &[StepFile]) -> Result<StepsVerdict, ProblemError> {
        judge_from(self.decisions, &self.problem, self.budget, &[steps.to_vec()])
    }

    /// Carries out the steps of a decision. Nodes that it launches are named `launched-D-N`: the
    /// numbers of the decision and of the node in it.
    pub fn apply(&mut self, steps: &[StepFile]) -> Result<(), ProblemError> {
        let changed = self.problem.carry_out(steps, &mut LaunchNames::of(self.decisions))?;
        self.decisions += 1;
        self.rebuild(&changed.into_iter().collect());
        Ok(())
    }

    /// Removes one pod of a class from a node; false if there is none.
    pub fn remove_pod(&mut self, node: &str, class: &str) -> bool {
        let found = self.problem.nodes.iter_mut().find(|one| one.name == node);
        let Some(found) = found else { return false };
        let Some(count) = found.pods.get_mut(class) else { return false };
        *count -= 1;
        if *count == 0 {
            found.pods.remove(class);
        }
        self.rebuild(&BTreeSet::from([node.to_owned()]));
        true
    }

    /// Brings the snapshot's nodes into the order of the problem's; makes those in `changed` anew.
    fn rebuild(&mut self, changed: &BTreeSet<String>) {
        let before = std::mem::take(&mut self.fleet.snapshot.nodes);
        let mut kept: BTreeMap<&str, &Arc<Node>> =
            before.iter().map(|node| (node.name.as_str(), node)).collect();
        kept.retain(|name, _| !changed.contains(*name));
        let nodes = self.problem.nodes.iter().map(|node| match kept.get(node.name.as_str()) {
            Some(same) => Arc::clone(same),
            None => Arc::new(self.problem.node(node, &self.parsed)),
        });
        self.fleet.snapshot.nodes = nodes.collect();
        self.refresh();
    }

    /// Derives headroom, candidates and pool rules from the nodes.
    fn refresh(&mut self) {
        for node in &self.problem.nodes {
            if !self.numbers.contains_key(&node.name) {
                self.numbers.insert(node.name.clone(), self.named);
                self.named += 1;
            }
        }
        let problem = &self.problem;
        for (pool, written) in self.fleet.snapshot.pools.iter_mut().zip(&problem.node_pools) {
            pool.headroom = problem.headroom(written);
        }
        let pinned = problem.pinned();
        let classes: BTreeMap<&str, usize> = problem
            .pods
            .iter()
            .enumerate()
            .map(|(number, class)| (class.name.as_str(), number))
            .collect();
        let mut candidates = Vec::with_capacity(problem.nodes.len());
        let mut pools: BTreeMap<String, (usize, PoolRules)> = BTreeMap::new();
        for node in &problem.nodes {
            let price = problem.price_of(node);
            let pods: usize = node.pods.values().sum();
            let pods = i64::try_from(pods).unwrap_or(i64::MAX);
            let disruption_cost = DISRUPTION_COST.saturating_mul(pods.saturating_add(1));
            let (nodes, rules) = pools.entry(node.node_pool.clone()).or_default();
            *nodes += 1;
            rules.cost += price;
            rules.disruption_cost = rules.disruption_cost.saturating_add(disruption_cost);
            if node.pods.keys().any(|class| pinned.contains(class.as_str())) {
                continue;
            }
            let number = self.numbers.get(&node.name).copied().unwrap_or_default();
            let mut pods = Vec::new();
            for (class, count) in &node.pods {
                let Some(template) = classes.get(class.as_str()).copied() else { continue };
                let namespace = &problem.pods[template].namespace;
                for replica in 0..*count {
                    let key = PodKey::new(namespace, &format!("{class}-{number}.{replica}"));
                    pods.push(RunningPod { key, template });
                }
            }
            let kind = problem.kind(&node.instance_type);
            candidates.push(Candidate {
                node: node.name.clone(),
                pool: node.node_pool.clone(),
                instance_type: node.instance_type.clone(),
                capacity_type: nap_engine::CapacityType::parse(&node.capacity_type),
                price,
                capacity: kind.map(|kind| kind.capacity.resources()).unwrap_or_default(),
                pods,
                disruption_cost,
                remaining_life: REMAINING_LIFE,
                ..Candidate::default()
            });
        }
        self.fleet.candidates = candidates;
        let rules = pools.into_iter().map(|(name, (nodes, rules))| {
            (name, PoolRules { budget: allowed(nodes, self.budget), ..rules })
        });
        self.fleet.pools = rules.collect();
    }
}
