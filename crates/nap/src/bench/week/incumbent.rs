//! A model of the incumbent's rules: first fit, one command at a time, at most one replacement.
//!
//! Emptiness comes first, then drift, then the consolidation of several nodes by a binary search
//! over the first hundred by savings ratio, then that of the first single node that saves. A
//! command is looked at again after 15 s, during which nothing else is decided.

use std::collections::{BTreeMap, BTreeSet};

use nap_engine::{Options, Plan, Snapshot, solve_first_fit};
use nap_units::UsdPerHour;

use super::market::Amount;
use super::policy::{Decision, Passed, Policy, View};
use super::world::{Reason, fits};

/// Time until a command is looked at again.
const VALIDATION: i64 = 15;
/// Most nodes that one command removes.
const MAX_NODES: usize = 100;
/// Smallest score of the `Balanced` policy, in thousandths.
const MIN_SCORE: i128 = 500;

/// A model of the incumbent's rules.
pub(super) struct Incumbent {
    is_balanced: bool,
    /// The command that is looked at again, and when.
    validating: Option<(Decision, i64)>,
}

impl Incumbent {
    pub(super) fn new(is_balanced: bool) -> Self {
        Self { is_balanced, validating: None }
    }

    fn command(&self, view: &mut View<'_>) -> Option<Decision> {
        let candidates = view.candidates();
        let mut budgets = view.budgets(Reason::Empty);
        let mut empty = by_savings_ratio(view, view.empty(&candidates));
        empty.retain(|node| take(&mut budgets, view.pool(*node)));
        if !empty.is_empty() {
            let (reason, launches) = (Reason::Empty, Vec::new());
            return Some(Decision { reason, remove: empty, launches });
        }
        let drifted = view.drift(
            &candidates,
            1,
            |_| false,
            |snapshot| solve_first_fit(snapshot, &Options::default()),
        );
        if let Some(first) = drifted.into_iter().next() {
            return Some(first);
        }
        let has_pods = |node: &usize| !view.world.nodes[node].pods.is_empty();
        let with_pods = candidates.iter().copied().filter(has_pods).collect();
        let sorted = by_savings_ratio(view, with_pods);
        let base = Trial::new(view);
        self.several(view, &base, &sorted).or_else(|| {
            let budgets = view.budgets(Reason::Underutilized);
            let within = sorted.iter().filter(|node| budgets[view.pool(**node)] > 0);
            within.map(|node| [*node]).find_map(|one| self.simulate(view, &base, &one))
        })
    }

    /// The longest of the tried prefixes that can be removed with at most one replacement.
    fn several(&self, view: &View<'_>, base: &Trial, sorted: &[usize]) -> Option<Decision> {
        let mut budgets = view.budgets(Reason::Underutilized);
        let within = sorted.iter().copied().filter(|node| take(&mut budgets, view.pool(*node)));
        let within: Vec<usize> = within.take(MAX_NODES).collect();
        let (mut low, mut high) = (2, within.len());
        let mut found = None;
        while low <= high {
            let middle = usize::midpoint(low, high);
            match self.simulate(view, base, &within[..middle]) {
                Some(decision) => {
                    found = Some(decision);
                    low = middle + 1;
                }
                None => high = middle - 1,
            }
        }
        found
    }

    /// Removes nodes: their pods go to the first nodes with room, and the rest to one new node, if
    /// that is cheaper.
    fn simulate(&self, view: &View<'_>, base: &Trial, remove: &[usize]) -> Option<Decision> {
        let mut trial = base.without(view, remove);
        let mut pods: Vec<usize> = remove
            .iter()
            .flat_map(|node| &view.world.nodes[node].pods)
            .map(|pod| view.world.pods[pod].workload)
            .collect();
        let requests = |workload: &usize| view.market.requests[*workload];
        pods.sort_by_key(|one| std::cmp::Reverse((requests(one)[0], requests(one)[1], *one)));
        pods.retain(|workload| !trial.place(view, *workload));
        let before: UsdPerHour = remove.iter().map(|node| price(view, *node)).sum();
        let launch = match pods.first() {
            None => None,
            Some(_) => Some(trial.replacement(view, remove, &pods, before)?),
        };
        let after = launch.map_or(UsdPerHour::ZERO, |kind| view.market.kinds[kind].price);
        let is_worth =
            before > after && (!self.is_balanced || scores(view, remove, before - after));
        let launches = launch.into_iter().collect();
        let decision =
            Decision { reason: Reason::Underutilized, remove: remove.to_vec(), launches };
        is_worth.then_some(decision)
    }

    /// What is left of a command after the time to think again.
    fn validated(&self, view: &View<'_>, mut decision: Decision) -> Option<Decision> {
        let candidates: BTreeSet<usize> = view.candidates().into_iter().collect();
        let mut budgets = view.budgets(decision.reason);
        if decision.reason == Reason::Empty {
            let world = &*view.world;
            let is_empty = |node: &usize| world.nodes[node].pods.is_empty();
            decision.remove.retain(|node| {
                candidates.contains(node) && is_empty(node) && take(&mut budgets, view.pool(*node))
            });
            return (!decision.remove.is_empty()).then_some(decision);
        }
        let mut stands =
            |node: &usize| candidates.contains(node) && take(&mut budgets, view.pool(*node));
        let all_stand = decision.remove.iter().all(&mut stands);
        let again = all_stand
            .then(|| self.simulate(view, &Trial::new(view), &decision.remove))
            .flatten()?;
        (again.launches.len() == decision.launches.len()).then_some(again)
    }
}

impl Policy for Incumbent {
    fn solve(&mut self, snapshot: &Snapshot) -> Plan {
        solve_first_fit(snapshot, &Options::default())
    }

    fn pass(&mut self, view: &mut View<'_>) -> Passed {
        let now = view.world.now;
        let decision = match self.validating.take() {
            Some((decision, at)) if at > now => {
                self.validating = Some((decision, at));
                return Passed { again: Some(at), ..Passed::default() };
            }
            Some((decision, _)) => self.validated(view, decision),
            None => match self.command(view) {
                Some(decision) if decision.reason != Reason::Drifted => {
                    let at = now + VALIDATION;
                    self.validating = Some((decision, at));
                    return Passed { again: Some(at), ..Passed::default() };
                }
                other => other,
            },
        };
        // A command that is carried out is followed by the next pass at once.
        let again = decision.is_some().then_some(now + 1);
        Passed { decisions: decision.into_iter().collect(), again, surplus: None }
    }

    fn began(&mut self, _: &Decision, _: usize, _: &[(usize, usize)], _: i64) {}

    fn ended(&mut self, _: Reason, _: usize, _: bool, _: i64) {}

    fn launches(&mut self, _: &BTreeMap<usize, usize>, _: i64) {}
}

fn take(budgets: &mut [usize; 2], pool: usize) -> bool {
    let has_left = budgets[pool] > 0;
    budgets[pool] = budgets[pool].saturating_sub(1);
    has_left
}

fn price(view: &View<'_>, node: usize) -> UsdPerHour {
    view.market.kinds[view.world.nodes[&node].kind].price
}

/// Disruption cost of a node: one for itself and one for each pod.
fn disruption(view: &View<'_>, node: usize) -> i64 {
    1 + i64::try_from(view.world.nodes[&node].pods.len()).unwrap_or(i64::MAX)
}

/// Nodes by price over disruption cost, highest first.
fn by_savings_ratio(view: &View<'_>, mut nodes: Vec<usize>) -> Vec<usize> {
    let ratio = |node: usize| price(view, node).micros() / disruption(view, node);
    nodes.sort_by_key(|node| (std::cmp::Reverse(ratio(*node)), *node));
    nodes
}

/// Whether the saving, as a share of the pool's cost, is at least half of the disruption, as a
/// share of the pool's, in every pool. The saving is split by the price of what a pool loses.
fn scores(view: &View<'_>, remove: &[usize], saving: UsdPerHour) -> bool {
    let sum = |nodes: &[usize]| -> (i128, i128) {
        let micros = nodes.iter().map(|node| i128::from(price(view, *node).micros())).sum();
        (micros, nodes.iter().map(|node| i128::from(disruption(view, *node))).sum())
    };
    let (all, _) = sum(remove);
    [0, 1].into_iter().all(|pool| {
        let of_pool = |node: &usize| view.pool(*node) == pool;
        let own: Vec<usize> = remove.iter().copied().filter(of_pool).collect();
        let nodes: Vec<usize> = view.world.nodes.keys().copied().filter(of_pool).collect();
        let ((lost, moved), (cost, total)) = (sum(&own), sum(&nodes));
        let share = i128::from(saving.micros()) * lost / all.max(1);
        own.is_empty() || share * total * 1000 >= MIN_SCORE * cost * moved
    })
}

/// Room that is left while pods are placed.
#[derive(Clone)]
struct Trial {
    /// Number, kind and free room of the nodes that stay.
    room: Vec<(usize, usize, Amount)>,
    /// Pods of each workload in each zone, for those that are spread.
    zones: Vec<Option<Vec<Option<usize>>>>,
}

impl Trial {
    fn new(view: &View<'_>) -> Self {
        let (world, market) = (&*view.world, view.market);
        let mut room = Vec::new();
        for (number, node) in &world.nodes {
            if !node.joined || node.going.is_some() {
                continue;
            }
            let mut free = node.free;
            for workload in view.reserved.get(number).into_iter().flatten() {
                for (free, request) in free.iter_mut().zip(&market.requests[*workload]) {
                    *free -= request;
                }
            }
            room.push((*number, node.kind, free));
        }
        let each = view.trace.workloads.iter().enumerate();
        let zones = each.map(|(number, workload)| {
            let pool = usize::from(workload.spot);
            workload.zone_spread.then(|| world.zone_counts(market, number, pool))
        });
        Self { room, zones: zones.collect() }
    }

    /// The room without some nodes and their pods.
    fn without(&self, view: &View<'_>, remove: &[usize]) -> Self {
        let mut trial = self.clone();
        trial.room.retain(|(number, _, _)| !remove.contains(number));
        let world = &*view.world;
        for node in remove.iter().map(|node| &world.nodes[node]) {
            for workload in node.pods.iter().map(|pod| world.pods[pod].workload) {
                let counts = trial.zones[workload].as_mut();
                if let Some(Some(count)) = counts.map(|counts| &mut counts[world.zone(node.kind)]) {
                    *count -= 1;
                }
            }
        }
        trial
    }

    /// Whether one more pod of a workload may be in a zone.
    fn is_open(&self, workload: usize, zone: usize) -> bool {
        let Some(counts) = &self.zones[workload] else { return true };
        let least = counts.iter().flatten().min().copied().unwrap_or(0);
        counts[zone].unwrap_or(0) <= least
    }

    fn count(&mut self, workload: usize, zone: usize) {
        if let Some(counts) = &mut self.zones[workload] {
            *counts[zone].get_or_insert(0) += 1;
        }
    }

    /// Places a pod on the first node with room.
    fn place(&mut self, view: &View<'_>, workload: usize) -> bool {
        let requests = &view.market.requests[workload];
        let pool = usize::from(view.trace.workloads[workload].spot);
        let suits = |(_, kind, free): &(usize, usize, Amount)| {
            view.market.kinds[*kind].pool == pool
                && fits(requests, free)
                && self.is_open(workload, view.world.zone(*kind))
        };
        let Some(found) = self.room.iter().position(suits) else { return false };
        let (_, kind, free) = &mut self.room[found];
        for (free, request) in free.iter_mut().zip(requests) {
            *free -= request;
        }
        let zone = view.world.zone(*kind);
        self.count(workload, zone);
        true
    }

    /// The cheapest kind of node that holds pods and costs less than what is removed. Spot nodes
    /// alone are not replaced by a spot node. If a size of several removed nodes would do, the new
    /// node must cost less than the cheapest of these nodes.
    fn replacement(
        &self,
        view: &View<'_>,
        remove: &[usize],
        pods: &[usize],
        before: UsdPerHour,
    ) -> Option<usize> {
        let pool = usize::from(pods.iter().any(|one| view.trace.workloads[*one].spot));
        let fit_together =
            pods.iter().all(|one| usize::from(view.trace.workloads[*one].spot) == pool);
        let is_spot_to_spot = pool == 1 && remove.iter().all(|node| view.pool(*node) == 1);
        if !fit_together || is_spot_to_spot {
            return None;
        }
        let mut needed: Amount = [0; 3];
        for workload in pods {
            for (sum, request) in needed.iter_mut().zip(&view.market.requests[*workload]) {
                *sum += request;
            }
        }
        let is_short = |name: &str| view.market.is_marked() && view.market.scarce == name;
        let mut open: Vec<Option<bool>> = Vec::new();
        let mut suited: Vec<usize> = Vec::new();
        for (number, kind) in view.market.kinds.iter().enumerate() {
            let zone = view.world.zone(number);
            let holds =
                kind.pool == pool && kind.price < before && fits(&needed, &kind.allocatable);
            if !holds || is_short(&kind.instance_type) {
                continue;
            }
            open.resize(open.len().max(zone + 1), None);
            let is_open = *open[zone].get_or_insert_with(|| self.all_open(pods, zone));
            if is_open {
                suited.push(number);
            }
        }
        if remove.len() > 1 {
            let same = remove.iter().filter(|node| {
                let own = &view.market.kinds[view.world.nodes[*node].kind].instance_type;
                suited.iter().any(|kind| view.market.kinds[*kind].instance_type == *own)
            });
            if let Some(most) = same.map(|node| price(view, *node)).min() {
                suited.retain(|kind| view.market.kinds[*kind].price < most);
            }
        }
        let room = view.market.limit - view.world.used(view.market, pool);
        let cheapest = suited.into_iter().filter(|kind| view.market.kinds[*kind].cpu_milli <= room);
        cheapest.min_by_key(|kind| (view.market.kinds[*kind].price, *kind))
    }

    /// Whether pods may all be in one zone.
    fn all_open(&self, pods: &[usize], zone: usize) -> bool {
        let mut counts = Self { room: Vec::new(), zones: self.zones.clone() };
        pods.iter().all(|workload| {
            let is_open = counts.is_open(*workload, zone);
            counts.count(*workload, zone);
            is_open
        })
    }
}
