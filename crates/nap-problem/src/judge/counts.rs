//! Pod counts by topology domain, with lower and upper bounds where a node's domain is undecided.

use std::collections::BTreeMap;

use super::nodes::JudgedNode;

/// The pods that one constraint counts, by domain.
#[derive(Clone)]
pub(super) struct DomainCounts {
    /// Per node, the domains it may be in.
    pub(super) domains: Vec<Vec<usize>>,
    /// Per domain, the pods that are certainly in it.
    pub(super) certain: Vec<usize>,
    /// Per domain, the pods that may be in it.
    pub(super) possible: Vec<usize>,
    /// Number of domains by `possible`; its first key is the minimum.
    levels: BTreeMap<usize, usize>,
    /// All counted pods on nodes that have a domain.
    pub(super) total: usize,
    /// Per domain, the unbound pods that own the constraint: `[not counted by it, counted by it]`.
    pub(super) waiting: Vec<[usize; 2]>,
    /// The smallest `maxSkew` of any owner.
    pub(super) max_skew: usize,
}

impl DomainCounts {
    /// Empty counts over the values of a label, on the nodes that the constraint includes.
    pub(super) fn new(
        nodes: &[JudgedNode],
        key: &str,
        includes: impl Fn(&JudgedNode) -> bool,
    ) -> Self {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut domains = Vec::with_capacity(nodes.len());
        for node in nodes {
            let values = node.labels.get(key).filter(|_| includes(node));
            let mut own = Vec::new();
            for value in values.into_iter().flatten() {
                let next = numbers.len();
                own.push(*numbers.entry(value).or_insert(next));
            }
            domains.push(own);
        }
        let count = numbers.len();
        let levels = if count == 0 { BTreeMap::new() } else { BTreeMap::from([(0, count)]) };
        Self {
            domains,
            certain: vec![0; count],
            possible: vec![0; count],
            levels,
            total: 0,
            waiting: vec![[0; 2]; count],
            max_skew: usize::MAX,
        }
    }

    /// Counts a pod that is bound to a node.
    pub(super) fn add(&mut self, node: usize) {
        let domains = &self.domains[node];
        if let [only] = domains.as_slice() {
            self.certain[*only] += 1;
        }
        for domain in domains {
            let level = self.possible[*domain];
            self.possible[*domain] += 1;
            *self.levels.entry(level + 1).or_default() += 1;
            if let Some(count) = self.levels.get_mut(&level) {
                *count -= 1;
                if *count == 0 {
                    self.levels.remove(&level);
                }
            }
        }
        self.total += usize::from(!domains.is_empty());
    }

    /// Whether one more counted pod on the node would exceed the skew of a pod that still waits.
    pub(super) fn would_block_waiting(&self, node: usize) -> bool {
        let [only] = self.domains[node].as_slice() else { return false };
        let [others, counted] = self.waiting[*only];
        let next = self.certain[*only] + 1;
        let max = self.minimum().saturating_add(self.max_skew);
        (others > 0 && next > max) || (counted > 0 && next + 1 > max)
    }

    /// Adds an owner of the constraint to those that wait for the node's domain, or removes it.
    /// `own` is 1 if the owner is counted itself, otherwise 0.
    pub(super) fn set_waiting(&mut self, node: usize, own: usize, waits: bool) {
        if let [only] = self.domains[node].as_slice() {
            let count = &mut self.waiting[*only][own.min(1)];
            *count = if waits { *count + 1 } else { count.saturating_sub(1) };
        }
    }

    /// Upper bound of the pod count of the emptiest domain; 0 if there is no domain.
    pub(super) fn minimum(&self) -> usize {
        self.levels.first_key_value().map_or(0, |(level, _)| *level)
    }
}
