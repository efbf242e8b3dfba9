//! Replacements: the cheapest new nodes for the pods that found no place on the nodes that stay.
//!
//! Where all rules of the pods are by domain, the new nodes are in the domains of the old ones.
//! Then no count changes, the pods can be packed without their rules, and what was found out once
//! holds for the same pods everywhere. Pods with rules by hostname are packed on the whole cluster.

use std::collections::BTreeMap;

use nap_units::UsdPerHour;

use crate::classes::{Class, Classes, PodCounts};
use crate::consolidate::cache::Memory;
use crate::consolidate::state::{FleetState, Move, Trial};
use crate::ids::{ClassId, Id, IndexVec, KeyId, TermId};
use crate::intern::digest;
use crate::model::Tier;
use crate::offerings::pool_table::PoolTable;
use crate::packing::packer::{ClusterState, PackingProblem, pack};
use crate::packing::result::Packing;
use crate::packing::strategy::{FillRule, SizeCap, Strategy};
use crate::solve::max_pods;
use crate::topology::counts::HostQuery;
use crate::topology::domains::Domain;

/// Domains that new nodes are bound to, in the order of their keys.
pub(super) type BoundTo = Vec<(KeyId, Domain)>;

/// Parts into which the CPU of the pods is divided to cap the size of nodes: few large nodes move
/// fewer pods again later than many small ones.
const SIZE_PARTS: [i64; 2] = [2, 4];

/// Ways to pack pods with rules by hostname.
const CONSTRAINED_STRATEGIES: [Strategy; 2] = [
    Strategy { cap: SizeCap::None, fill_rule: FillRule::InOrder },
    Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::ConstrainedPatterns },
];

/// New nodes for pods.
pub(super) struct Replacement {
    pub(super) packing: Packing,
    pub(super) cost: UsdPerHour,
    pub(super) tier: Tier,
    /// The new nodes are in the domains of the old ones, so that no count changes.
    pub(super) keeps_domains: bool,
}

/// Outcome of the search for new nodes.
pub(super) enum Found {
    /// The cheapest nodes.
    Nodes(Box<Replacement>),
    /// All nodes cost more than was asked for; the cheapest cost at least this.
    Dearer(UsdPerHour),
    /// A class has no place.
    Unplaced(ClassId, Box<Packing>),
}

impl<'a> FleetState<'a> {
    /// The cheapest new nodes for the pods that a trial left over, if they cost at most `most`.
    pub(super) fn replacement(
        &mut self,
        trial: &Trial,
        most: UsdPerHour,
        memory: &mut Memory,
    ) -> Found {
        if let Some(least) = self.at_least(trial).filter(|least| *least > most) {
            return Found::Dearer(least);
        }
        let bound_to = self.bound_to(&trial.remainder, &trial.removed);
        let bound_to = bound_to.filter(|_| self.may_return(trial));
        let Some(bound_to) = bound_to else { return self.pack_on_cluster(trial, most) };
        let set = self.set_digest(trial, &bound_to);
        if let Some(cost) = memory.cost(set).filter(|cost| *cost > most) {
            return Found::Dearer(cost);
        }
        let found = self.pack_in_domains(trial, &bound_to);
        if let Found::Nodes(one) = &found {
            memory.remember(set, one.cost);
        }
        match found {
            Found::Nodes(one) if one.cost > most => Found::Dearer(one.cost),
            found => found,
        }
    }

    /// Lower bound on the cost of any new nodes for the pods; `None` without prices.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "costs are far below the limits of the type"
    )]
    fn at_least(&self, trial: &Trial) -> Option<UsdPerHour> {
        // A thousandth for the rounding of the duals.
        let value = self.value(&trial.remainder) * 0.999;
        value.is_finite().then(|| UsdPerHour::from_micros(value.floor() as i64))
    }

    /// Domains of removed nodes that keep every count of their pods as it is; `None` if the pods
    /// have rules by hostname, or if the nodes are in different domains.
    pub(super) fn bound_to(&self, pods: &[(ClassId, usize)], removed: &[usize]) -> Option<BoundTo> {
        let mut keys: Vec<KeyId> = Vec::new();
        for (class, _) in pods {
            let class = &self.classes[*class];
            let Some(profile) = &class.topology else { continue };
            if !profile.is_by_domain() || !class.surely_counted.iter().all(|certain| *certain) {
                return None;
            }
            keys.extend(&profile.keys);
        }
        keys.sort_unstable();
        keys.dedup();
        self.shared_domains(removed, &keys)
    }

    /// Whether the rules of the pods allow them back into the domains that they leave. They need
    /// not: pods that are gone since then may have left a spread uneven.
    fn may_return(&mut self, trial: &Trial) -> bool {
        let Some(node) = trial.removed.first().map(|number| self.nodes[*number].node) else {
            return false;
        };
        let mut counted = Vec::new();
        let mut allowed = true;
        for (class, count) in trial.remainder.iter().copied() {
            let of_class = &self.classes[class];
            let Some(profile) = &of_class.topology else { continue };
            let domains = self.cluster.existing.domains_of(node, profile);
            let allowance = self.cluster.topology.allowance(profile, &domains, HostQuery::New);
            if allowance.of(count) < count {
                allowed = false;
                break;
            }
            let one = Move { class, node, count };
            self.count(one, true);
            counted.push(one);
        }
        for one in counted {
            self.count(one, false);
        }
        allowed
    }

    /// Domains that all of these candidates share; `None` if they differ or lack a label.
    fn shared_domains(&self, removed: &[usize], keys: &[KeyId]) -> Option<BoundTo> {
        let mut shared = BoundTo::new();
        for key in keys {
            let mut domains = removed.iter().map(|number| self.domain(*number, *key));
            let first = domains.next()?;
            if first == Domain::Absent || domains.any(|domain| domain != first) {
                return None;
            }
            shared.push((*key, first));
        }
        Some(shared)
    }

    fn domain(&self, number: usize, key: KeyId) -> Domain {
        self.cluster.existing.domains[self.nodes[number].node][key.index()]
    }

    /// Digest of pods, domains, and what the limits of pools leave for them.
    fn set_digest(&mut self, trial: &Trial, bound_to: &BoundTo) -> u128 {
        let mut pods: Vec<(u64, usize)> =
            trial.remainder.iter().map(|(class, count)| (self.digests[*class], *count)).collect();
        pods.sort_unstable();
        let names = bound_to.iter().filter_map(|(key, domain)| match domain {
            Domain::Is(domain) => {
                let table = self.offerings.domain_table();
                Some((table.label(*key).to_owned(), table.name(*key, *domain).to_owned()))
            }
            Domain::Absent => None,
        });
        let names: Vec<(String, String)> = names.collect();
        let room = self.room_under_limits(pods.iter().map(|(_, count)| count).sum());
        let halves = [digest(&(&pods, &names, &room)), digest(&(&room, &names, &pods))];
        (u128::from(halves[0]) << 64) | u128::from(halves[1])
    }

    /// What the limits of each pool leave for some pods. They need no more nodes than they are, so
    /// room for that many of the largest is as good as no limit, and counts as that.
    fn room_under_limits(&self, pods: usize) -> Vec<Vec<i64>> {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        let of_pool = |table: &PoolTable<'_>| {
            let limits = table.limits.iter().enumerate();
            let room = limits.map(|(number, (_, left))| {
                let charges = table.types.iter().map(|one| one.charge[number]);
                (*left).min(charges.max().unwrap_or(0).saturating_mul(pods))
            });
            room.collect()
        };
        self.offerings.pools.iter().map(of_pool).collect()
    }

    /// Packs pods onto new nodes in the given domains, without their rules.
    fn pack_in_domains(&mut self, trial: &Trial, bound_to: &BoundTo) -> Found {
        let domain_terms: Vec<TermId> = bound_to
            .iter()
            .filter_map(|(key, domain)| match domain {
                Domain::Is(domain) => Some(self.offerings.domain_term(*key, *domain)),
                Domain::Absent => None,
            })
            .collect();
        let mut list: IndexVec<ClassId, Class<'a>> = IndexVec::new();
        let mut pending: PodCounts = IndexVec::new();
        let mut original: IndexVec<ClassId, ClassId> = IndexVec::new();
        for (id, count) in trial.remainder.iter().copied() {
            let class = &self.classes[id];
            let terms = class
                .terms
                .iter()
                .filter_map(|term| self.offerings.conjunction(*term, &domain_terms));
            let terms = terms.collect();
            list.push(class.without_topology(list.next_id(), terms));
            pending.push(count);
            original.push(id);
        }
        let classes = Classes { list, terms: IndexVec::new() };
        let smallest_ahead = classes.smallest_ahead();
        let problem = PackingProblem {
            classes: &classes,
            pending: &pending,
            max_pods: max_pods(&self.options.solve),
            reservations: &BTreeMap::new(),
            smallest_ahead: &smallest_ahead,
            shadow_prices: &self.shadow_prices,
        };
        let mut best: Option<Replacement> = None;
        let mut unplaced = None;
        for strategy in strategies(&classes, &pending) {
            let mut packing =
                pack(&mut self.offerings, &problem, ClusterState::default(), strategy, true, None);
            if let Some(class) = first_unplaced(&packing) {
                unplaced = Some((original[class], packing));
                break;
            }
            let Some(cost) = packing.price(&self.offerings, true) else { continue };
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                for bin in &mut packing.bins {
                    bin.domains.clone_from(bound_to);
                    for (class, _) in &mut bin.content {
                        *class = original[*class];
                    }
                }
                let tier = strategy.tier();
                best = Some(Replacement { packing, cost, tier, keeps_domains: true });
            }
        }
        match (best, unplaced) {
            (Some(best), _) => Found::Nodes(Box::new(best)),
            (None, Some((class, packing))) => Found::Unplaced(class, Box::new(packing)),
            (None, None) => Found::Dearer(UsdPerHour::from_micros(i64::MAX)),
        }
    }

    /// Packs pods onto new nodes and what is left of the others, with all their rules.
    fn pack_on_cluster(&mut self, trial: &Trial, most: UsdPerHour) -> Found {
        let mut pending: PodCounts = IndexVec::filled(0, self.classes.list.len());
        for (class, count) in &trial.remainder {
            pending[self.classes[*class].base] += count;
        }
        let smallest_ahead = self.classes.smallest_ahead();
        let problem = PackingProblem {
            classes: &self.classes,
            pending: &pending,
            max_pods: max_pods(&self.options.solve),
            reservations: &BTreeMap::new(),
            smallest_ahead: &smallest_ahead,
            shadow_prices: &self.shadow_prices,
        };
        let mut cluster = self.cluster.clone();
        cluster.existing.close_uninitialized();
        for number in &trial.removed {
            cluster.existing.close(self.nodes[*number].node);
        }
        let mut best: Option<Replacement> = None;
        let mut unplaced = None;
        for strategy in CONSTRAINED_STRATEGIES {
            // The second way is slow, and rarely better by more than this.
            if best.as_ref().is_some_and(|best| is_hopeless(best.cost, most)) {
                break;
            }
            let cluster = cluster.clone();
            let mut packing = pack(&mut self.offerings, &problem, cluster, strategy, true, None);
            if let Some(class) = first_unplaced(&packing) {
                unplaced = Some((class, packing));
                continue;
            }
            // The steps after this one may add nodes and domains.
            if packing.topology.depends_on_its_nodes() {
                continue;
            }
            let Some(cost) = packing.price(&self.offerings, true) else { continue };
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                let tier = strategy.tier();
                best = Some(Replacement { packing, cost, tier, keeps_domains: false });
            }
        }
        match (best, unplaced) {
            (Some(best), _) => Found::Nodes(Box::new(best)),
            (None, Some((class, packing))) => Found::Unplaced(class, Box::new(packing)),
            (None, None) => Found::Dearer(UsdPerHour::from_micros(i64::MAX)),
        }
    }
}

/// Whether a cost is so far above what was asked for that no other packing would get there.
fn is_hopeless(cost: UsdPerHour, most: UsdPerHour) -> bool {
    cost.micros() > most.micros().saturating_add(most.micros() / 4)
}

/// Ways to pack the pods of removed nodes: onto one node if possible, onto few, and at the best
/// value.
fn strategies(classes: &Classes<'_>, pending: &PodCounts) -> Vec<Strategy> {
    let cpu = classes.list.iter().zip(pending);
    let cpu: i64 = cpu
        .map(|(class, count)| class.cpu.saturating_mul(i64::try_from(*count).unwrap_or(i64::MAX)))
        .fold(0, i64::saturating_add);
    let mut strategies = vec![Strategy::first_fit(SizeCap::None)];
    let capped = SIZE_PARTS.map(|parts| SizeCap::Cpu(cpu.div_euclid(parts) + 1));
    strategies.extend(capped.map(Strategy::first_fit));
    strategies.push(Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Patterns });
    strategies
}

/// The first class that a packing leaves without a place.
fn first_unplaced(packing: &Packing) -> Option<ClassId> {
    let mut each = packing.unplaced.enumerate();
    each.find(|(_, count)| **count > 0).map(|(class, _)| class)
}
