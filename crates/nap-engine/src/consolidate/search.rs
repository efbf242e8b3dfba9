//! The order in which candidates, and groups of them, are tried.

use std::collections::BTreeMap;

use nap_units::{CPU, MEMORY, UsdPerHour};

use crate::classes::PodCounts;
use crate::consolidate::cache::Memory;
use crate::consolidate::evictions::EvictionsLeft;
use crate::consolidate::replacements::{BoundTo, Found, Replacement};
use crate::consolidate::state::{FleetState, Trial};
use crate::consolidate::worth::Proposal;
use crate::explain::refusal::RefusalBuilder;
use crate::ids::{ClassId, IndexVec, NodeIdx};
use crate::model::{
    Candidate, Consolidation, KeepReason, Kept, Launch, Placement, Plan, Pod, PodKey, Refusal,
    Step, Unsupported,
};
use crate::packing::packer::ClusterState;
use crate::packing::result::Packing;
use crate::plan::launches::LaunchWriter;

/// Numbers of nodes that are removed together, in rotation.
const GROUP_SIZES: [usize; 5] = [3, 2, 5, 8, 13];

/// Upper limit on the groups of each order that are tried in vain.
const MAX_FAILED_GROUPS: usize = 12;

/// Upper limit on the candidates that are passed over because their pods do not fit beside those
/// of the candidates before them.
const MAX_SKIPPED: usize = 8;

/// Nodes that may replace one node.
const MAX_REPLACEMENTS: usize = 3;

/// One decision in the making.
pub(super) struct Search<'a, 'm> {
    state: FleetState<'a>,
    memory: &'m mut Memory,
    /// Nodes of each pool that may still be disrupted.
    budgets: BTreeMap<&'a str, usize>,
    /// Pods of each workload that may still be moved.
    evictions: EvictionsLeft,
    steps: Vec<Step>,
    kept: BTreeMap<&'a str, KeepReason>,
}

impl<'a, 'm> Search<'a, 'm> {
    pub(super) fn new(state: FleetState<'a>, memory: &'m mut Memory) -> Self {
        let pools = state.fleet.pools.iter();
        let budgets = pools.map(|(name, rules)| (name.as_str(), rules.budget)).collect();
        let evictions = EvictionsLeft::new(state.fleet);
        Self { state, memory, budgets, evictions, steps: Vec::new(), kept: BTreeMap::new() }
    }

    /// Examines every candidate, then groups of them.
    pub(super) fn run(mut self, unsupported: &[(&PodKey, &Unsupported)]) -> Consolidation {
        self.delete_together();
        for number in 0..self.state.nodes.len() {
            if self.state.is_leaving(number) {
                continue;
            }
            let node = &self.state.nodes[number];
            let (name, pod) = (node.candidate.node.as_str(), node.unsupported);
            let outcome = match pod {
                Some((pod, template)) => {
                    let template = self.state.fleet.templates.get(template);
                    Err(unsupported_pod(pod, template, unsupported))
                }
                None if node.candidate.is_held => continue,
                None if self.state.is_receiver(number) => Err(KeepReason::Receives),
                None => self.try_step(vec![number]),
            };
            if let Err(reason) = outcome {
                self.kept.insert(name, reason);
            }
        }
        self.try_groups();
        let surplus = self.surplus();
        self.finish(surplus)
    }

    /// Deletes the first candidates whose pods all fit on the other nodes. Their pods are placed
    /// together, the largest first, which leaves less room unused than node by node.
    fn delete_together(&mut self) {
        let mut rest = self.deletable();
        let mut chosen: Vec<usize> = Vec::new();
        let mut skipped = 0;
        while !rest.is_empty() && skipped < MAX_SKIPPED {
            let fitting = self.fitting(&chosen, &rest);
            let others = rest.split_off(fitting);
            chosen.append(&mut rest);
            rest = others.into_iter().skip(1).collect();
            skipped += 1;
        }
        if chosen.len() < 2 {
            return;
        }
        let Some(mut places) = self.state.places_together(chosen.clone()) else { return };
        for number in chosen {
            if let Some(trial) = self.state.remove_to(number, &mut places) {
                self.commit(&trial, None, Vec::new());
            }
        }
    }

    /// Candidates within the budgets whose deletion would pay, in order.
    fn deletable(&self) -> Vec<usize> {
        let (mut left, mut evictions_left) = (self.budgets.clone(), self.evictions.clone());
        let mut deletable = Vec::new();
        for (number, node) in self.state.nodes.iter().enumerate() {
            let candidate = node.candidate;
            let budget = left.get_mut(candidate.pool.as_str()).filter(|left| **left > 0);
            let Some(budget) = budget else { continue };
            let evictions = candidate.pods.len();
            let removed = [candidate];
            let cost = UsdPerHour::ZERO;
            let proposal = Proposal { removed: &removed, cost, evictions, launches: 0 };
            let is_free = !candidate.is_held
                && node.unsupported.is_none()
                && evictions_left.allow(&removed).is_ok();
            if is_free && proposal.check(self.state.fleet, self.state.options).is_ok() {
                *budget -= 1;
                evictions_left.take(candidate);
                deletable.push(number);
            }
        }
        deletable.truncate(self.state.options.max_steps);
        deletable
    }

    /// How many of the first candidates in `rest` can be deleted beside the chosen ones, by
    /// doubling and then halving the number.
    fn fitting(&mut self, chosen: &[usize], rest: &[usize]) -> usize {
        let mut fits = |count: usize| {
            let all = chosen.iter().chain(&rest[..count]).copied().collect();
            self.state.fit_together(all)
        };
        let (mut fitting, mut too_many) = (0, rest.len() + 1);
        let mut doubles = true;
        while fitting + 1 < too_many {
            let middle = usize::midpoint(fitting, too_many);
            let next = if doubles { middle.min(2 * fitting + 1) } else { middle };
            if fits(next) {
                fitting = next;
            } else {
                (too_many, doubles) = (next, false);
            }
        }
        fitting
    }

    /// Candidates that the fleet can do without once the steps are done: each one's pods fit on the
    /// nodes that stay, beside those of the surplus nodes before it.
    fn surplus(&mut self) -> Vec<String> {
        let mut order: Vec<usize> = (0..self.state.nodes.len()).collect();
        order.sort_by_key(|number| !self.state.nodes[*number].candidate.was_surplus);
        let mut found = Vec::new();
        for number in order {
            let (state, node) = (&self.state, &self.state.nodes[number]);
            let is_used = state.is_leaving(number) || state.is_receiver(number);
            if is_used || node.unsupported.is_some() {
                continue;
            }
            found.extend(self.try_surplus(number));
        }
        found.sort_unstable();
        found
    }

    fn try_surplus(&mut self, number: usize) -> Option<String> {
        let trial = self.state.remove(vec![number]);
        if !trial.remainder.is_empty() {
            self.state.undo(trial);
            return None;
        }
        self.state.commit(&trial, true);
        Some(self.state.nodes[number].candidate.node.clone())
    }

    fn finish(self, surplus: Vec<String>) -> Consolidation {
        let all = || self.state.fleet.candidates.iter();
        let cost_before: UsdPerHour = all().map(|one| one.price).sum();
        let saving: UsdPerHour = self.steps.iter().map(|step| step.saving).sum();
        let kept = self.kept.into_iter();
        let kept = kept.map(|(node, reason)| Kept { node: node.to_owned(), reason });
        Consolidation {
            steps: self.steps,
            kept: kept.collect(),
            surplus,
            cost_before,
            cost_after: cost_before - saving,
        }
    }

    /// Removes candidates together if that pays. An error is the reason to keep them: for a single
    /// one, what it would not save comes before what forbids it.
    fn try_step(&mut self, removed: Vec<usize>) -> Result<(), KeepReason> {
        let allowed = self.allow(&removed);
        if removed.len() > 1 {
            allowed.clone()?;
        }
        let trial = self.state.remove(removed);
        match self.judge(&trial).and_then(|found| allowed.map(|()| found)) {
            Ok((replacement, launches)) => {
                self.commit(&trial, replacement, launches);
                Ok(())
            }
            Err(reason) => {
                self.state.undo(trial);
                Err(reason)
            }
        }
    }

    /// Checks what forbids a step whatever it saves: the number of steps, the budgets, and the
    /// evictions of workloads.
    fn allow(&self, removed: &[usize]) -> Result<(), KeepReason> {
        let max = self.state.options.max_steps;
        if self.steps.len() >= max {
            return Err(KeepReason::Steps { max });
        }
        if !self.is_within_budget(removed) {
            return Err(KeepReason::Budget);
        }
        let candidates: Vec<&Candidate> =
            removed.iter().map(|number| self.state.nodes[*number].candidate).collect();
        self.evictions.allow(&candidates)
    }

    fn is_within_budget(&self, removed: &[usize]) -> bool {
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for number in removed {
            *taken.entry(&self.state.nodes[*number].candidate.pool).or_default() += 1;
        }
        taken
            .into_iter()
            .all(|(pool, count)| self.budgets.get(pool).is_some_and(|left| *left >= count))
    }

    /// The new nodes that a trial needs, if it pays.
    fn judge(
        &mut self,
        trial: &Trial,
    ) -> Result<(Option<Box<Replacement>>, Vec<Launch>), KeepReason> {
        let state = &mut self.state;
        let (fleet, options) = (state.fleet, state.options);
        let removed: Vec<&Candidate> =
            trial.removed.iter().map(|number| state.nodes[*number].candidate).collect();
        let evictions = removed.iter().map(|one| one.pods.len()).sum();
        let proposal = |cost, launches| Proposal { removed: &removed, cost, evictions, launches };
        // What no new nodes could improve on: everything moves for free.
        proposal(UsdPerHour::ZERO, 0).check(fleet, options)?;
        if trial.remainder.is_empty() {
            return Ok((None, Vec::new()));
        }
        let most = proposal(UsdPerHour::ZERO, 0).most(options);
        match state.replacement(trial, most, self.memory) {
            Found::Dearer(cost) => {
                // Cheaper than the nodes, and not by enough.
                proposal(cost, 1).check(fleet, options)?;
                Err(KeepReason::NoCheaper { cost })
            }
            Found::Unplaced(class, packing) => {
                let pod = self.state.pod_of(trial, class);
                let FleetState { offerings, cluster, dimensions, classes, .. } = &mut self.state;
                let rules = &cluster.rules;
                let mut packing = packing;
                packing.topology = cluster.topology.clone();
                let packing = &packing;
                let mut builder = RefusalBuilder { offerings, rules, dimensions, packing };
                let refusal = builder.refusal(&classes[classes[class].last]);
                Err(KeepReason::Unplaced { pod, refusal })
            }
            Found::Nodes(found) => {
                let nodes = found.packing.bins.len();
                let proposal = proposal(found.cost, nodes);
                proposal.check(fleet, options)?;
                if nodes > MAX_REPLACEMENTS.max(removed.len()) {
                    return Err(KeepReason::NoCheaper { cost: found.cost });
                }
                let launches = self.state.launches(trial, &found);
                proposal.check_spot(fleet, &launches)?;
                Ok((Some(found), launches))
            }
        }
    }

    /// Carries out a trial, and writes it down as a step.
    fn commit(
        &mut self,
        trial: &Trial,
        replacement: Option<Box<Replacement>>,
        launches: Vec<Launch>,
    ) {
        let state = &mut self.state;
        let mut pods = state.pods_of(trial);
        let mut plan = Plan::default();
        let mut moves: Vec<(ClassId, NodeIdx, usize)> =
            trial.moves.iter().map(|one| (one.class, one.node, one.count)).collect();
        let keeps_domains = replacement.as_ref().is_none_or(|one| one.keeps_domains);
        if let Some(one) = &replacement {
            plan.tier = one.tier;
            let more = one.packing.on_existing.iter();
            moves.extend(more.map(|one| (one.class, one.node, one.count)));
        }
        for (class, node, count) in moves {
            let base = state.classes[class].base;
            let name = &state.cluster.existing.nodes[node].name;
            let keys = pods.get_mut(&base).into_iter().flat_map(|keys| {
                let rest = keys.split_off(count.min(keys.len()));
                std::mem::replace(keys, rest)
            });
            let placement = |pod: &PodKey| Placement { pod: pod.clone(), node: name.clone() };
            plan.placements.extend(keys.map(placement));
        }
        plan.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
        plan.launches = launches;
        plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
        state.commit(trial, keeps_domains);
        if let Some(one) = replacement {
            state.charge(&plan.launches);
            if !one.keeps_domains {
                state.take_over(one.packing);
            }
        }
        let removed = || trial.removed.iter().map(|number| state.nodes[*number].candidate);
        for one in removed() {
            if let Some(left) = self.budgets.get_mut(one.pool.as_str()) {
                *left = left.saturating_sub(1);
            }
            self.evictions.take(one);
            self.kept.remove(one.node.as_str());
        }
        let mut remove: Vec<String> = removed().map(|one| one.node.clone()).collect();
        remove.sort_unstable();
        let price: UsdPerHour = removed().map(|one| one.price).sum();
        let evictions = removed().map(|one| one.pods.len()).sum();
        let saving = price - plan.cost;
        self.steps.push(Step { remove, plan, saving, evictions });
    }

    /// Tries groups of the candidates with the most waste.
    fn try_groups(&mut self) {
        if self.state.options.max_removed < 2 {
            return;
        }
        for order in self.groups() {
            self.try_order(order);
        }
    }

    fn try_order(&mut self, mut order: Vec<usize>) {
        let (mut round, mut start, mut failures) = (0, 0, 0);
        while order.len() > 1 && start < order.len() && failures < MAX_FAILED_GROUPS {
            let max = self.state.options.max_removed.min(order.len());
            let size = GROUP_SIZES[round % GROUP_SIZES.len()].min(max);
            round += 1;
            let state = &self.state;
            order.retain(|number| !state.is_leaving(*number) && !state.is_receiver(*number));
            let chosen: Vec<usize> = order.iter().copied().skip(start).take(size).collect();
            if chosen.len() < 2 {
                break;
            }
            if !self.has_prospect(&chosen) || self.try_step(chosen).is_err() {
                failures += 1;
                if round % GROUP_SIZES.len() == 0 {
                    start += GROUP_SIZES[0];
                }
            }
        }
    }

    /// Whether the waste of some candidates is large enough for a saving that counts.
    #[expect(clippy::cast_precision_loss, reason = "it guides a choice")]
    fn has_prospect(&self, chosen: &[usize]) -> bool {
        let waste: f64 = chosen.iter().map(|number| self.waste(*number)).sum();
        let cost: f64 = chosen.iter().map(|number| self.cost(*number)).sum();
        waste * 100.0 >= cost * self.state.options.min_saving_percent as f64
    }

    /// Price of a candidate and what a node costs besides, in micro-dollars per hour.
    #[expect(clippy::cast_precision_loss, reason = "it guides a choice")]
    fn cost(&self, number: usize) -> f64 {
        let node_cost = self.state.options.solve.node_cost;
        (self.state.nodes[number].candidate.price + node_cost).micros() as f64
    }

    /// Cost of a candidate less the value of its pods, in micro-dollars per hour.
    fn waste(&self, number: usize) -> f64 {
        self.cost(number) - self.state.value(&self.state.nodes[number].content)
    }

    /// Orders of the candidates that may be removed together, those whose pods are bound to the
    /// same domains: what complements each other side by side, and the most wasteful first.
    fn groups(&self) -> Vec<Vec<usize>> {
        let state = &self.state;
        let mut groups: BTreeMap<BoundTo, Vec<(f64, usize)>> = BTreeMap::new();
        for (number, node) in state.nodes.iter().enumerate() {
            let is_free = !state.is_leaving(number) && !state.is_receiver(number);
            if !is_free || node.candidate.is_held || node.unsupported.is_some() {
                continue;
            }
            let Some(domains) = state.bound_to(&node.content, &[number]) else { continue };
            groups.entry(domains).or_default().push((self.waste(number), number));
        }
        let mut orders = Vec::with_capacity(2 * groups.len());
        for mut members in groups.into_values() {
            members.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
            let members: Vec<usize> = members.into_iter().map(|(_, number)| number).collect();
            orders.push(self.complementary(&members));
            orders.push(members);
        }
        orders
    }

    /// Candidates in turn from two sides, those whose pods request more CPU for their memory than
    /// most and those with less: what leaves memory unused on one node and CPU on another needs
    /// less together. Each side keeps its order.
    fn complementary(&self, members: &[usize]) -> Vec<usize> {
        let shares = self.cpu_shares(members);
        let mut sorted = shares.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(middle) = sorted.get(sorted.len() / 2) else { return Vec::new() };
        let side = |is_above: bool| {
            let each = members.iter().zip(&shares);
            let of_side = each.filter(move |(_, share)| (*share > middle) == is_above);
            of_side.map(|(number, _)| *number)
        };
        let (mut above, mut below) = (side(true), side(false));
        let mut turns = Vec::with_capacity(members.len());
        while turns.len() < members.len() {
            turns.extend(above.next());
            turns.extend(below.next());
        }
        turns
    }

    /// Share of CPU in what each candidate's pods request of CPU and memory, both measured by what
    /// the pods of all of them request.
    #[expect(clippy::cast_precision_loss, reason = "it guides a choice")]
    fn cpu_shares(&self, members: &[usize]) -> Vec<f64> {
        let state = &self.state;
        let names = state.dimensions.resources();
        let dimensions = [CPU, MEMORY].map(|name| names.iter().position(|one| *one == name));
        let requested = |number: &usize| {
            dimensions.map(|dimension| {
                let Some(dimension) = dimension else { return 0.0 };
                let content = state.nodes[*number].content.iter();
                let amount = |(class, count): &(ClassId, usize)| {
                    state.classes[*class].requests[dimension] as f64 * *count as f64
                };
                content.map(amount).sum::<f64>()
            })
        };
        let each: Vec<[f64; 2]> = members.iter().map(requested).collect();
        let total = |dimension: usize| each.iter().map(|one| one[dimension]).sum::<f64>().max(1.0);
        let totals = [total(0), total(1)];
        let share = |[cpu, memory]: &[f64; 2]| {
            let (cpu, memory) = (cpu / totals[0], memory / totals[1]);
            if cpu + memory > 0.0 { cpu / (cpu + memory) } else { 0.0 }
        };
        each.iter().map(share).collect()
    }
}

fn unsupported_pod(
    pod: &PodKey,
    template: Option<&Pod>,
    unsupported: &[(&PodKey, &Unsupported)],
) -> KeepReason {
    let known = unsupported.iter().find(|(key, _)| template.is_some_and(|it| it.key == **key));
    let refusal = known.map_or(Refusal::NoPools, |(_, constraint)| Refusal::Unsupported {
        constraint: (*constraint).clone(),
    });
    KeepReason::Unplaced { pod: pod.clone(), refusal }
}

impl<'a> FleetState<'a> {
    /// Keys of the pods of removed nodes by class, in order.
    fn pods_of(&self, trial: &Trial) -> BTreeMap<ClassId, Vec<&'a PodKey>> {
        let mut pods: BTreeMap<ClassId, Vec<&'a PodKey>> = BTreeMap::new();
        for number in &trial.removed {
            for pod in &self.nodes[*number].candidate.pods {
                if let Some(base) = self.base_of(pod.template) {
                    pods.entry(base).or_default().push(&pod.key);
                }
            }
        }
        for keys in pods.values_mut() {
            keys.sort_unstable();
        }
        pods
    }

    /// A pod of a class on a removed node.
    fn pod_of(&self, trial: &Trial, class: ClassId) -> PodKey {
        let pods = self.pods_of(trial);
        let base = self.classes[class].base;
        pods.get(&base)
            .and_then(|keys| keys.last())
            .map_or_else(PodKey::default, |key| (*key).clone())
    }

    /// The launches of a replacement. The first pods of each class move to existing nodes.
    fn launches(&mut self, trial: &Trial, found: &Replacement) -> Vec<Launch> {
        let mut written: PodCounts = IndexVec::filled(0, self.classes.list.len());
        let moves = trial.moves.iter().map(|one| (one.class, one.count));
        let more = found.packing.on_existing.iter().map(|one| (one.class, one.count));
        for (class, count) in moves.chain(more) {
            written[self.classes[class].base] += count;
        }
        for (base, keys) in self.pods_of(trial) {
            self.classes.set_pods(base, keys);
        }
        let (zones, dimensions) = (self.zones.clone(), self.dimensions);
        let mut writer =
            LaunchWriter::with_zones(&self.offerings, &self.classes, dimensions, written, zones);
        writer.launches(&found.packing)
    }

    /// Counts launches against the limits of their pools.
    fn charge(&mut self, launches: &[Launch]) {
        for launch in launches {
            let snapshot = &self.fleet.snapshot;
            let pool = snapshot.pools.iter().find(|pool| pool.name == launch.pool);
            let catalogue = pool.and_then(|pool| snapshot.catalogues.get(&pool.catalogue));
            let types = catalogue.map(|catalogue| catalogue.types()).unwrap_or_default();
            if let Some(one) = types.iter().find(|one| one.name == launch.instance_type) {
                self.offerings.change_limits(&launch.pool, &one.capacity, -1);
            }
        }
    }

    /// Takes over the placements and counts of a packing on the whole cluster.
    fn take_over(&mut self, packing: Packing) {
        let ClusterState { existing, topology, .. } = &mut self.cluster;
        for one in &packing.on_existing {
            existing.take(one.node, &self.classes[one.class], one.count);
            self.receives[one.node] = true;
        }
        *topology = packing.topology;
        topology.forget_bins();
    }
}
