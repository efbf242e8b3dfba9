//! Search for an order in which the scheduler could bind every pod where the plan puts it.
//!
//! Spread and affinity depend on the pods that are bound before, so an order is searched for: a pod
//! that owns rules is bound as soon as its rules allow it without blocking a pod that waits; a pod
//! that is only counted by rules is bound when it helps one that waits. A node whose zone is
//! undecided counts in whichever of its zones satisfies the rule.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use nap_api::labels;
use nap_engine::Pod;
use nap_units::{CPU, MEMORY};

use super::counts::DomainCounts;
use super::nodes::JudgedNode;
use super::rules::{Rule, Rules};
use crate::format::Problem;

/// Maximum number of orders tried.
const MAX_ORDERS: u64 = 24;

/// Approximate maximum of rule checks; beyond it no further order is tried.
const MAX_CHECKS: usize = 40_000_000;

/// The reason of a pod whose affinity is not satisfied.
const AFFINITY: &str = "affinity";

/// Pods that could not be bound, one line of text each.
#[derive(Default)]
pub(super) struct Unbound {
    /// Impossible in every order.
    pub(super) violations: Vec<String>,
    /// No order was found, and none is ruled out.
    pub(super) undecided: Vec<String>,
}

/// Searches for an order in which the scheduler could bind every pod.
pub(super) fn bind(problem: &Problem, pods: &[Pod], nodes: &[JudgedNode]) -> Unbound {
    let mut unbound = Unbound::default();
    let rules = Rules::new(problem, pods, nodes);
    let mut items: Vec<Item> = Vec::new();
    let mut ranks: BTreeMap<(usize, Option<&String>), usize> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        let zone = node.labels.get(labels::ZONE).and_then(BTreeSet::first);
        for (class, count) in node.planned.iter().filter(|(class, _)| rules.couples(*class)) {
            for _ in 0..*count {
                let rank = ranks.entry((*class, zone)).or_default();
                items.push(Item { class: *class, node: number, rank: *rank });
                *rank += 1;
            }
        }
    }
    let mut checks = 0;
    let mut fewest: Option<Vec<(Item, &str)>> = None;
    for order in 0..MAX_ORDERS {
        if order > 0 && checks > MAX_CHECKS {
            break;
        }
        let size = |item: &Item| {
            let requests = &pods[item.class].requests;
            (Reverse(requests.get(CPU)), Reverse(requests.get(MEMORY)))
        };
        let name = |item: &Item| problem.pods[item.class].name.as_str();
        match order {
            0 => items.sort_by_key(|item| (item.rank, item.class, item.node)),
            // The order of most solvers: largest pods first, class by class or size by size.
            1 => items.sort_by(|a, b| (size(a), name(a), a.rank).cmp(&(size(b), name(b), b.rank))),
            2 => items.sort_by_key(|item| (size(item), item.rank)),
            _ => items.sort_by_key(|item| scramble(order, item)),
        }
        let left = match order {
            1 => rules.bind_in_groups(&items, |a, b| a.class == b.class, &mut checks),
            2 => rules.bind_in_groups(&items, |a, b| size(a) == size(b), &mut checks),
            _ => rules.bind_greedily(&items, order % 2 == 1, &mut checks),
        };
        if left.is_empty() {
            return unbound;
        }
        if fewest.as_ref().is_none_or(|fewest| left.len() < fewest.len()) {
            fewest = Some(left);
        }
    }
    let left = fewest.unwrap_or_default();
    let impossible = rules.impossible(&items);
    for (item, why) in left {
        let (class, node) = (&problem.pods[item.class].name, &nodes[item.node]);
        let line = format!("a pod of `{class}` cannot be bound to {}: {why}", node.name);
        let is_impossible = |rule: &Rule| matches!(rule, Rule::Spread { counts, .. } if impossible.contains(counts));
        let certain = why == AFFINITY || rules.owned[item.class].iter().any(is_impossible);
        let list = if certain { &mut unbound.violations } else { &mut unbound.undecided };
        list.push(line);
    }
    unbound
}

/// A planned pod: its class and its node.
#[derive(Clone, Copy)]
struct Item {
    class: usize,
    node: usize,
    /// Index among the planned pods of its class in its zone.
    rank: usize,
}

/// Sort key that differs between orders: a splitmix64 hash of the item.
fn scramble(order: u64, item: &Item) -> u64 {
    let mut mixed = order;
    for part in [item.class, item.node, item.rank] {
        mixed = mixed.wrapping_add(part as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
    }
    mixed
}

impl Rules {
    /// Binds pods as soon as that blocks no waiting pod; returns the pods that are left and why.
    /// Where every candidate blocks others, binds the first ones, or with `fewest` those that block
    /// the fewest.
    fn bind_greedily(
        &self,
        items: &[Item],
        fewest: bool,
        checks: &mut usize,
    ) -> Vec<(Item, &'static str)> {
        let mut counts = self.counts.clone();
        let (mut ruled, mut counted): (Vec<Item>, Vec<Item>) =
            items.iter().partition(|item| !self.owned[item.class].is_empty());
        for item in &ruled {
            self.set_waiting(&mut counts, item, true);
        }
        while !ruled.is_empty() {
            let before = (ruled.len(), counted.len());
            let mut blocked: BTreeSet<usize> = BTreeSet::new();
            *checks += ruled.len();
            ruled.retain(|item| !self.try_bind(&mut counts, item, Some(&mut blocked)));
            if ruled.len() < before.0 {
                continue;
            }
            // Every pod left is blocked: raise the emptiest domains of the counts that block them.
            for careful in [true, false] {
                *checks += counted.len();
                let minimum: Vec<usize> = counts.iter().map(DomainCounts::minimum).collect();
                counted.retain(|item| {
                    let helps = self.counted_by[item.class].iter().any(|number| {
                        let count = &counts[*number];
                        let emptiest = |domain: &usize| count.possible[*domain] == minimum[*number];
                        blocked.contains(number) && count.domains[item.node].iter().any(emptiest)
                    });
                    let helps = helps && !(careful && self.blocks(&counts, item).is_some());
                    if helps {
                        self.add(&mut counts, item);
                    }
                    !helps
                });
                if careful && counted.len() == before.1 {
                    // Every counted pod that helps one pod blocks another.
                    self.bind_few(&mut counts, &mut ruled, fewest);
                }
                if (ruled.len(), counted.len()) != before {
                    break;
                }
            }
            if (ruled.len(), counted.len()) == before {
                break;
            }
        }
        self.reasons(&counts, ruled)
    }

    /// Binds about 1/64 of the pods although they block others: the first, or with `fewest` those
    /// that block the fewest.
    fn bind_few(&self, counts: &mut [DomainCounts], ruled: &mut Vec<Item>, fewest: bool) {
        let few = (ruled.len() / 64).max(1);
        let mut order: Vec<(usize, usize)> = Vec::new();
        for (index, item) in ruled.iter().enumerate() {
            if self.obstacle(counts, item).is_none() {
                let damage = if fewest { self.count_blocked(counts, item) } else { 0 };
                order.push((damage, index));
            }
        }
        order.sort_unstable();
        let mut chosen: Vec<usize> = order.into_iter().take(few).map(|(_, index)| index).collect();
        chosen.sort_unstable();
        let mut index = 0;
        ruled.retain(|item| {
            let bound = chosen.binary_search(&index).is_ok() && self.try_bind(counts, item, None);
            index += 1;
            !bound
        });
    }

    /// Number of waiting pods that binding the item would block.
    fn count_blocked(&self, counts: &[DomainCounts], item: &Item) -> usize {
        let blocked = self.counted_by[item.class].iter().map(|number| &counts[*number]);
        let blocked = blocked.filter(|count| count.would_block_waiting(item.node));
        let waiting = |count: &DomainCounts| -> usize {
            count.domains[item.node].iter().flat_map(|domain| count.waiting[*domain]).sum()
        };
        blocked.map(waiting).sum()
    }

    /// Binds pods group by group in the given order, and retries after each group what could not be
    /// bound yet; returns the pods that are left and why.
    fn bind_in_groups(
        &self,
        items: &[Item],
        same: impl Fn(&Item, &Item) -> bool,
        checks: &mut usize,
    ) -> Vec<(Item, &'static str)> {
        let mut counts = self.counts.clone();
        let mut waiting: Vec<Item> = Vec::new();
        for group in items.chunk_by(same) {
            waiting.extend(group);
            let mut before = usize::MAX;
            while waiting.len() < before {
                before = waiting.len();
                *checks += before;
                waiting.retain(|item| !self.try_bind(&mut counts, item, None));
            }
        }
        self.reasons(&counts, waiting)
    }

    /// Counts whose spread holds in no order: the owners in one domain exceed the final minimum by
    /// more than the skew.
    fn impossible(&self, items: &[Item]) -> BTreeSet<usize> {
        let mut last = self.counts.clone();
        for item in items {
            self.add(&mut last, item);
            self.set_waiting(&mut last, item, true);
        }
        let exceeds = |(before, after): (&DomainCounts, &DomainCounts)| {
            let max = after.minimum().saturating_add(after.max_skew);
            after.waiting.iter().zip(&before.certain).any(|([others, counted], running)| {
                (*others > 0 && *running > max) || (*counted > 0 && running + counted > max)
            })
        };
        let both = self.counts.iter().zip(&last).enumerate();
        both.filter(|(_, pair)| exceeds(*pair)).map(|(number, _)| number).collect()
    }

    /// Pairs every pod that is left with the kind of rule that keeps it unbound.
    fn reasons(&self, counts: &[DomainCounts], left: Vec<Item>) -> Vec<(Item, &'static str)> {
        let why = |item: Item| match self.obstacle(counts, &item) {
            Some(Rule::Affinity { .. }) => (item, AFFINITY),
            _ => (item, "spread"),
        };
        left.into_iter().map(why).collect()
    }

    /// Binds a pod if its rules allow it. With `blocked`, binds it only if it blocks no waiting
    /// pod, and otherwise adds the counts that it waits for to `blocked`.
    fn try_bind(
        &self,
        counts: &mut [DomainCounts],
        item: &Item,
        blocked: Option<&mut BTreeSet<usize>>,
    ) -> bool {
        let obstacle = self.obstacle(counts, item);
        if let Some(blocked) = blocked {
            match obstacle {
                Some(Rule::Spread { counts, .. }) => drop(blocked.insert(*counts)),
                Some(Rule::Affinity { counts, .. }) => blocked.extend(counts),
                None => {
                    // A pod does not block itself.
                    self.set_waiting(counts, item, false);
                    if let Some(number) = self.blocks(counts, item) {
                        self.set_waiting(counts, item, true);
                        blocked.insert(number);
                    } else {
                        self.add(counts, item);
                        return true;
                    }
                }
            }
            return false;
        }
        if obstacle.is_none() {
            self.set_waiting(counts, item, false);
            self.add(counts, item);
        }
        obstacle.is_none()
    }

    fn set_waiting(&self, counts: &mut [DomainCounts], item: &Item, waits: bool) {
        for rule in &self.owned[item.class] {
            if let Rule::Spread { counts: number, own, .. } = rule {
                counts[*number].set_waiting(item.node, *own, waits);
            }
        }
    }

    /// The first count whose waiting pods binding the item would block.
    fn blocks(&self, counts: &[DomainCounts], item: &Item) -> Option<usize> {
        self.counted_by[item.class]
            .iter()
            .copied()
            .find(|number| counts[*number].would_block_waiting(item.node))
    }

    fn add(&self, counts: &mut [DomainCounts], item: &Item) {
        for number in &self.counted_by[item.class] {
            counts[*number].add(item.node);
        }
    }

    /// The first rule that keeps the pod from being bound now; `None` if it can be bound.
    fn obstacle(&self, counts: &[DomainCounts], item: &Item) -> Option<&Rule> {
        self.owned[item.class].iter().find(|rule| match rule {
            Rule::Spread { counts: number, max_skew, min_domains, own } => {
                let count = &counts[*number];
                let enough = count.certain.len() >= *min_domains;
                let minimum = if enough { count.minimum() } else { 0 };
                let fits = |domain: &usize| count.certain[*domain] + own <= minimum + max_skew;
                !count.domains[item.node].iter().any(fits)
            }
            Rule::Affinity { counts: numbers, own } => {
                let first = *own && numbers.iter().all(|number| counts[*number].total == 0);
                !numbers.iter().all(|number| {
                    let count = &counts[*number];
                    count.domains[item.node]
                        .iter()
                        .any(|domain| first || count.possible[*domain] > 0)
                })
            }
        })
    }
}
