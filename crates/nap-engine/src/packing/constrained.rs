//! Placing pods with topology constraints, domain by domain.
//!
//! Such pods go where the counts of the domains allow, a few at a time: onto existing nodes, then
//! onto bins, then onto a new bin. Existing nodes and bins are taken in the emptiest domain first;
//! a new bin is opened in the cheapest domain that is allowed. A bin that takes such a pod is bound
//! to the domain, so that what is counted is what will be launched.

use crate::classes::PodCounts;
use crate::ids::{BinId, ClassId};
use crate::packing::bin_queue::Cursor;
use crate::packing::existing::ExistingPlacement;
use crate::packing::open_bin::NewBin;
use crate::packing::packer::Packer;
use crate::topology::counts::{Allowance, Host, HostQuery};
use crate::topology::domains::DomainAssignment;
use crate::topology::groups::TopologyProfile;

/// Upper limit on the rounds in which pods without a place are tried again.
const MAX_ROUNDS: usize = 8;

/// State of one domain assignment while pods of a class are placed.
#[derive(Clone, Default)]
struct AssignmentProgress {
    /// The bins before this position were refused.
    cursor: Cursor,
    /// No new bin can be opened in the domains.
    is_exhausted: bool,
    /// The best new bin for a number of pods, once it was looked for.
    new_bin: Option<(usize, Option<NewBin>)>,
}

/// Pods of a class in the domains of an assignment.
#[derive(Clone, Copy)]
struct Target<'t> {
    class: ClassId,
    profile: &'t TopologyProfile,
    assignment: &'t DomainAssignment,
}

impl Packer<'_, '_> {
    /// Places pods of a class with topology constraints and returns how many are left.
    pub(super) fn place_constrained(&mut self, id: ClassId, mut count: usize) -> usize {
        let classes = self.classes;
        let class = &classes[id];
        let Some(profile) = class.topology.as_deref() else { return count };
        self.bins.compact_queue();
        let mut candidates = self.cluster.existing.candidates(class, classes, profile);
        let assignments = self.offerings.assignments(class, profile);
        let target =
            |number: usize| Target { class: id, profile, assignment: &assignments[number] };
        let mut progress = vec![AssignmentProgress::default(); assignments.len()];
        let mut order: Vec<(i64, usize)> = Vec::with_capacity(assignments.len());
        // While that leaves a place, no pod goes where it could violate the spread of others.
        let mut order_independent = true;
        while count > 0 {
            let cluster = &mut self.cluster;
            if let Some((node, placed)) = cluster.existing.place_next(
                &mut candidates,
                class,
                profile,
                &mut cluster.topology,
                count,
            ) {
                self.on_existing.push(ExistingPlacement { class: id, node, count: placed });
                count -= placed;
                continue;
            }
            order.clear();
            for (number, assignment) in assignments.iter().enumerate() {
                if !progress[number].is_exhausted
                    && !self.allowance(target(number), HostQuery::Any, order_independent).is_none()
                {
                    let load = self.cluster.topology.load(profile, &assignment.domains);
                    order.push((load, number));
                }
            }
            order.sort_unstable();
            let mut placed = 0;
            for (_, number) in &order {
                let cursor = &mut progress[*number].cursor;
                placed = self.join_bin(target(*number), count, cursor, order_independent);
                if placed > 0 {
                    break;
                }
            }
            if placed == 0 {
                let targets: Vec<(usize, Target<'_>)> =
                    order.iter().map(|(_, number)| (*number, target(*number))).collect();
                let found = self.cheapest_target(&targets, count, &mut progress);
                let Some((number, new_bin)) = found else {
                    if order_independent {
                        order_independent = false;
                        progress.fill(AssignmentProgress::default());
                        continue;
                    }
                    break;
                };
                placed = self.open_in_domain(target(number), count, &new_bin);
                progress[number].is_exhausted = placed == 0;
            }
            count -= placed;
        }
        count
    }

    /// Tries constrained pods without a place again while that helps: the pods that they need may
    /// have been placed after them.
    pub(super) fn retry_constrained(&mut self, pending: &mut PodCounts) {
        let classes = self.classes;
        let waits = |class: ClassId, pending: usize| pending > 0 && classes[class].is_constrained();
        for _ in 0..MAX_ROUNDS {
            if !pending.enumerate().any(|(class, pending)| waits(class, *pending)) {
                break;
            }
            self.bins.reopen();
            let mut progress = false;
            for class in pending.ids() {
                if waits(class, pending[class]) {
                    let left = self.place_constrained(class, pending[class]);
                    progress |= left < pending[class];
                    pending[class] = left;
                }
            }
            if !progress {
                break;
            }
        }
    }

    /// Number of pods that a node in the target's domains may take at once.
    fn allowance(
        &self,
        Target { profile, assignment, .. }: Target<'_>,
        host: HostQuery,
        order_independent: bool,
    ) -> Allowance {
        let topology = &self.cluster.topology;
        let domains = &assignment.domains;
        let allowed = topology.allowance(profile, domains, host);
        if allowed.is_none() {
            return allowed;
        }
        let allowed = allowed.min(topology.stride(profile, domains));
        if !order_independent {
            return allowed;
        }
        let min_skews = &self.cluster.min_skews;
        allowed.min(topology.order_independent_allowance(profile, domains, host, min_skews))
    }

    /// Adds pods to the first bin that may take them in the target's domains; how many.
    fn join_bin(
        &mut self,
        target: Target<'_>,
        count: usize,
        cursor: &mut Cursor,
        order_independent: bool,
    ) -> usize {
        let Target { class, profile, assignment } = target;
        // A bin that is refused now may be allowed later if the pod must share it with others.
        let mut at = if profile.follows_hosts() { Cursor::default() } else { *cursor };
        loop {
            *cursor = at;
            let Some(bin) = self.next_bin(&mut at) else { return 0 };
            let entry = &self.bins[bin];
            let agrees = profile
                .keys
                .iter()
                .zip(&assignment.domains)
                .all(|(key, domain)| entry.domain(*key).is_none_or(|held| held == *domain));
            if !agrees
                || (order_independent
                    && self.would_violate_spread(bin, &profile.keys, &assignment.domains))
            {
                continue;
            }
            let host = Host::Bin(bin);
            let allowed = self.allowance(target, HostQuery::On(host), order_independent).of(count);
            let allowed = if self.fills_evenly() { allowed.min(1) } else { allowed };
            if allowed > 0
                && let Some(fit) = self.fit(bin, class, allowed, assignment)
                && (self.bins[bin].pods > 0 || self.may_open(fit.eligibility))
            {
                let added = self.add(bin, class, &fit, fit.room);
                if added > 0 {
                    self.bind_and_count(target, bin, added);
                    return added;
                }
            }
        }
    }

    /// The target with the cheapest new bin, in the heaviest pool. `targets` come with their
    /// positions in `progress`.
    fn cheapest_target(
        &mut self,
        targets: &[(usize, Target<'_>)],
        count: usize,
        progress: &mut [AssignmentProgress],
    ) -> Option<(usize, NewBin)> {
        let (_, Target { class, profile, .. }) = *targets.first()?;
        let share = count.div_ceil(targets.len());
        let by_host = self.cluster.topology.max_on_new_host(profile);
        let max = self.max_pods.of(by_host.of(share));
        let limited = self.ledger.any_limited();
        let mut best: Option<(usize, NewBin)> = None;
        for (number, target) in targets {
            if self.allowance(*target, HostQuery::New, false).is_none() {
                continue;
            }
            let new_bin = match progress[*number].new_bin {
                Some((for_max, known)) if for_max == max && !limited => known,
                _ => self.best_new_bin(class, max, target.assignment),
            };
            progress[*number].new_bin = Some((max, new_bin));
            let Some(new_bin) = new_bin.filter(|one| self.may_open(one.fit.eligibility)) else {
                continue;
            };
            if self.fills_evenly() {
                return Some((*number, new_bin));
            }
            let is_better = best.as_ref().is_none_or(|(_, best)| {
                new_bin.weight > best.weight
                    || (new_bin.weight == best.weight && new_bin.value.cheaper_than(&best.value))
            });
            if is_better {
                best = Some((*number, new_bin));
            }
        }
        best
    }

    fn open_in_domain(&mut self, target: Target<'_>, count: usize, new_bin: &NewBin) -> usize {
        let allowed = self.allowance(target, HostQuery::New, false);
        let wanted = allowed.of(new_bin.fit.room).min(count);
        let bin = self.open_bin(new_bin.fit.eligibility, new_bin.cap);
        let added = self.add(bin, target.class, &new_bin.fit, wanted);
        if added == 0 {
            self.bins.pop();
        } else {
            self.bind_and_count(target, bin, added);
        }
        added
    }

    /// Binds a bin to the target's domains and counts the pods that were added to it.
    fn bind_and_count(&mut self, target: Target<'_>, bin: BinId, added: usize) {
        let Target { class, profile, assignment } = target;
        self.bind(bin, &profile.keys, assignment);
        let certain = &self.classes[class].surely_counted;
        let host = Host::Bin(bin);
        self.cluster.topology.record(profile, certain, &assignment.domains, host, added);
    }
}
