//! What disruption would do now, and why each node stays, without doing anything.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::nodepool::{ConsolidationPolicy, DisruptionReason};
use nap_api::{NodePool, conditions, labels};
use nap_engine::{
    CapacityType, Consolidation, ConsolidationOptions, Fleet, KeepReason, Options, Plan,
    PriceEstimates,
};
use nap_units::UsdPerHour;

use super::blockers::{Blocked, Blocker, blockers};
use super::budgets::{Budgets, REASONS};
use super::candidates::{Candidate, capacity_type, collect, is_waived, price, price_mark};
use super::consolidation;
use super::pass::{Command, Pass, RESTS};
use crate::cluster::{Index, NodeView, claim_conditions, claim_is, pods, pool_of};
use crate::decision_memory::DecisionMemory;
use crate::provisioning::Solver;
use crate::snapshot::{Catalogues, NodeCache};

/// What disruption would do now.
#[derive(Clone, Debug, Default)]
pub struct Preview {
    /// Commands in their order, each of which counts on those before it.
    pub steps: Vec<PreviewStep>,
    /// Every node with a NodeClaim, in the order of their names.
    pub nodes: Vec<NodePreview>,
    /// What blocks disruption and costs money by that, the dearest first.
    pub blockers: Vec<BlockerPreview>,
    /// What the engine was asked about underutilized nodes, and its answer. Without candidates it
    /// is not asked, and both are empty.
    pub consolidation: (Fleet, ConsolidationOptions, Consolidation),
}

/// What blocks the disruption of nodes that consolidation would otherwise save money on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockerPreview {
    /// The pods, PodDisruptionBudgets or annotations that block the nodes together.
    pub blocker: String,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// What would be saved on them.
    pub saving: UsdPerHour,
}

/// What decisions depend on besides the cluster and the engine's options.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Texts of the ConfigMap with the records of decisions, by key.
    pub stored: BTreeMap<String, String>,
    /// The feature gate `SpotToSpotConsolidation`.
    pub spot_to_spot: bool,
    /// Whether drifted nodes that have to wait for others are replaced after them.
    pub all_rounds: bool,
    /// Prices that are estimates, for the texts.
    pub estimates: PriceEstimates,
}

/// A command that would be started.
#[derive(Clone, Debug)]
pub struct PreviewStep {
    /// Its reason.
    pub reason: DisruptionReason,
    /// Names of the nodes that it removes.
    pub nodes: Vec<String>,
    /// Price of the nodes that it removes; `None` if one is not known.
    pub price: Option<UsdPerHour>,
    /// Number of pods that move.
    pub evictions: usize,
    /// Places of the pods.
    pub plan: Plan,
}

/// A node, and why it stays.
#[derive(Clone, Debug)]
pub struct NodePreview {
    /// Name of the Node, or of the NodeClaim while there is no Node.
    pub name: String,
    /// Name of the NodeClaim.
    pub claim: String,
    /// Name of the NodePool.
    pub pool: String,
    /// VM size.
    pub instance_type: String,
    /// Capacity type; `None` if the NodeClaim does not tell.
    pub capacity_type: Option<CapacityType>,
    /// Price; `None` if its offering is no longer known.
    pub price: Option<UsdPerHour>,
    /// Number of pods that would have to move.
    pub pods: usize,
    /// Position in [`Preview::steps`] of the step that removes it.
    pub step: Option<usize>,
    /// Every reason that it stays.
    pub reasons: Vec<String>,
    /// What consolidation would save on it if nothing blocked the disruption of any node.
    pub held_saving: Option<UsdPerHour>,
    /// What a move has to pay for; `None` if consolidation does not look at the node.
    pub terms: Option<MoveTerms>,
}

/// What the saving of a move is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveTerms {
    /// Time for which the node is expected to go on costing its price, in seconds.
    pub life: i64,
    /// Pods that would be evicted.
    pub evictions: usize,
    /// What each eviction counts.
    pub eviction_cost: UsdPerHour,
    /// Time for which old and new nodes are both paid for, in seconds.
    pub overlap: i64,
}

impl fmt::Display for MoveTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, evictions, eviction_cost, overlap } = self;
        let plural = if *evictions == 1 { "" } else { "s" };
        let (life, overlap) = (life / 60, overlap / 60);
        write!(
            f,
            "A move has to pay within the {life} min that the node is expected to go on, for \
             {evictions} eviction{plural} at {eviction_cost} and {overlap} min in which a \
             replacement is paid for besides"
        )
    }
}

/// Decides about a cluster as the controllers would, at once and with everything that they do one
/// after another.
pub fn preview(
    index: &Index,
    catalogues: &Catalogues,
    options: &Options,
    known: &Known,
    now: Timestamp,
) -> Preview {
    let mut memory = DecisionMemory::default();
    memory.recall(&known.stored, now);
    // A cluster whose clock is ahead, as that of `nap try --speed`, tells nothing about this time.
    if memory.decisions.records().any(|record| record.time > now) {
        memory = DecisionMemory::default();
    }
    let (candidates, blocked) = collect(index, &memory, catalogues, now);
    let solver = Solver::detached(options.clone());
    let mut nodes = NodeCache::default();
    let mut pass = |candidates: Vec<Candidate>| {
        let candidates = (candidates, Vec::new());
        let pass = Pass::new(index, &memory, candidates, catalogues, &mut nodes, now);
        pass.with_spot_to_spot(known.spot_to_spot)
    };
    let blocked = blocked_nodes(index, &blocked, catalogues);
    let held = held_savings(&candidates, blocked, &solver, &mut pass, now);
    let mut pass = pass(candidates);
    if known.all_rounds {
        pass = pass.in_all_rounds();
    }
    let all = pass.decide_all(&solver);
    let (fleet, decision) = all.consolidation.unwrap_or_default();
    let consolidation = (fleet, solver.consolidation_options(), decision);
    let terms = move_terms(&consolidation.0, &consolidation.1);
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for candidate in all.commands.iter().flat_map(|(_, command)| &command.candidates) {
        *taken.entry(candidate.pool_name()).or_default() += 1;
    }
    let steps: Vec<PreviewStep> = all.commands.into_iter().map(step).collect();
    let mut step_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        step_of.extend(step.nodes.iter().map(|name| (name.as_str(), number)));
    }
    let budgets = Budgets::new(index, now);
    let mut nodes: Vec<NodePreview> = Vec::new();
    let mut by_blocker: BTreeMap<String, BlockerPreview> = BTreeMap::new();
    for view in index.views() {
        let Some(mut node) = describe(index, view, catalogues) else { continue };
        node.step = step_of.get(node.name.as_str()).copied();
        node.terms = terms.get(&node.name).copied();
        if node.step.is_none() {
            node.reasons = reasons(index, view, now);
            node.held_saving = held.get(&node.name).copied();
            let kept = all.kept.get(&node.name);
            let would_pay = kept == Some(&KeepReason::Budget) || node.held_saving.is_some();
            let concerned = concerning(view, node.pods, would_pay);
            let taken = taken.get(&node.pool).copied().unwrap_or(0);
            node.reasons.extend(limits(&budgets, &node.pool, &concerned, taken));
            node.reasons.extend(memory_reasons(&memory, &node.pool, now));
            let mark = price_mark(index, &node.pool, node.capacity_type, known.estimates);
            node.reasons.extend(kept.map(|reason| reason.marked(mark).to_string()));
            let unplaced = all.blocked.iter().filter(|(claim, ..)| claim.name_any() == node.claim);
            node.reasons.extend(unplaced.map(|(_, _, blocker)| blocker.to_string()));
        }
        if let Some(saving) = node.held_saving {
            let blocker = subjects(index, view, now);
            let group = by_blocker.entry(blocker.clone()).or_insert_with(|| BlockerPreview {
                blocker,
                nodes: Vec::new(),
                saving: UsdPerHour::ZERO,
            });
            group.nodes.push(node.name.clone());
            group.saving += saving;
        }
        nodes.push(node);
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let mut blockers: Vec<BlockerPreview> = by_blocker.into_values().collect();
    for one in &mut blockers {
        one.nodes.sort();
    }
    blockers.sort_by_key(|one| Reverse(one.saving));
    Preview { steps, nodes, blockers, consolidation }
}

/// The blocked nodes as candidates.
fn blocked_nodes(index: &Index, blocked: &[Blocked], catalogues: &Catalogues) -> Vec<Candidate> {
    let candidate = |(claim, node, _): &Blocked| {
        let pool = pool_of(claim.as_ref()).and_then(|pool| index.pool(pool))?;
        Some(Candidate::new(index, (claim, node, pool), catalogues, None))
    };
    blocked.iter().filter_map(candidate).collect()
}

/// What consolidation would save on blocked nodes if nothing blocked them, by node: the saving
/// beyond that on the other nodes, whatever the budgets and windows of the moment are. The saving
/// of a step counts for its nodes by their prices.
fn held_savings(
    candidates: &[Candidate],
    mut blocked: Vec<Candidate>,
    solver: &Solver,
    pass: &mut impl FnMut(Vec<Candidate>) -> Pass,
    now: Timestamp,
) -> BTreeMap<String, UsdPerHour> {
    let is_movable = |one: &&Candidate| {
        let mut unmoved = consolidation::unmoved(one.pods.iter().map(AsRef::as_ref), now);
        unmoved.next().is_none()
    };
    let free: Vec<Candidate> = candidates.iter().filter(is_movable).cloned().collect();
    blocked.extend(candidates.iter().filter(|one| !is_movable(one)).cloned());
    let held: BTreeSet<String> = blocked.iter().map(|one| one.name().to_owned()).collect();
    if held.is_empty() {
        return BTreeMap::new();
    }
    let mut savings = |candidates: Vec<Candidate>| {
        let all = pass(candidates).unhindered().decide_all(solver);
        savings(all.commands.into_iter().map(|(_, command)| command))
    };
    let without: UsdPerHour = savings(free.clone()).into_values().sum();
    let with = savings(free.into_iter().chain(blocked).collect());
    let total: UsdPerHour = with.values().copied().sum();
    let more = i128::from((total - without).micros().max(0));
    let of_held: Vec<(String, UsdPerHour)> =
        with.into_iter().filter(|(name, _)| held.contains(name)).collect();
    let sum: UsdPerHour = of_held.iter().map(|(_, saving)| *saving).sum();
    let part = |saving: UsdPerHour| {
        let most = more.min(i128::from(sum.micros()));
        let part = i128::from(saving.micros()) * most / i128::from(sum.micros().max(1));
        UsdPerHour::from_micros(i64::try_from(part).unwrap_or(i64::MAX))
    };
    let parts = of_held.into_iter().map(|(name, saving)| (name, part(saving)));
    parts.filter(|(_, saving)| *saving > UsdPerHour::ZERO).collect()
}

/// What commands save, by node.
fn savings(commands: impl Iterator<Item = Command>) -> BTreeMap<String, UsdPerHour> {
    let mut savings = BTreeMap::new();
    for Command { candidates, plan } in commands {
        let price: Option<UsdPerHour> = candidates.iter().map(|one| one.price).sum();
        let Some(price) = price.filter(|price| *price > plan.cost) else { continue };
        let saving = i128::from((price - plan.cost).micros());
        for one in &candidates {
            let own = i128::from(one.price.unwrap_or_default().micros());
            let share = saving * own / i128::from(price.micros().max(1));
            let share = UsdPerHour::from_micros(i64::try_from(share).unwrap_or(i64::MAX));
            savings.insert(one.name().to_owned(), share);
        }
    }
    savings
}

/// The pods, PodDisruptionBudgets and annotations that block a node.
fn subjects(index: &Index, view: &NodeView, now: Timestamp) -> String {
    let (Some(claim), Some(node)) = (&view.claim, &view.node) else { return String::new() };
    let blocking = blockers(index, claim, node, now).chain(unmoved(index, view, now));
    let subjects: BTreeSet<String> = blocking.map(|one| one.subject()).collect();
    subjects.into_iter().collect::<Vec<_>>().join(" and ")
}

/// Pods of a node that consolidation does not move.
fn unmoved<'i>(
    index: &'i Index,
    view: &NodeView,
    now: Timestamp,
) -> impl Iterator<Item = Blocker> + 'i {
    let name = view.name();
    let movable: Vec<_> =
        index.pods_on(&name).filter(|pod| pods::is_reschedulable(pod)).map(AsRef::as_ref).collect();
    consolidation::unmoved(movable.into_iter(), now)
}

/// Why consolidation leaves a NodePool alone for some time.
fn memory_reasons(memory: &DecisionMemory, pool: &str, now: Timestamp) -> Option<String> {
    let rests = memory.backoff.is_resting(pool, DisruptionReason::Underutilized, now);
    rests.then(|| RESTS.to_owned())
}

fn step((reason, command): (DisruptionReason, Command)) -> PreviewStep {
    let Command { candidates, plan } = command;
    PreviewStep {
        reason,
        nodes: candidates.iter().map(|one| one.name().to_owned()).collect(),
        price: candidates.iter().map(|one| one.price).sum(),
        evictions: candidates.iter().map(|one| one.pods.len()).sum(),
        plan,
    }
}

fn describe(index: &Index, view: &NodeView, catalogues: &Catalogues) -> Option<NodePreview> {
    let claim = view.claim.as_ref()?;
    let pool = view.pool().unwrap_or_default().to_owned();
    let types = catalogues.of(&pool).map(|types| types.types()).unwrap_or_default();
    let name = view.name();
    let movable = index.pods_on(&name).filter(|pod| pods::is_reschedulable(pod)).count();
    Some(NodePreview {
        name,
        claim: claim.name_any(),
        pool,
        instance_type: claim.labels().get(labels::INSTANCE_TYPE).cloned().unwrap_or_default(),
        capacity_type: capacity_type(claim),
        price: price(claim, types),
        pods: movable,
        step: None,
        reasons: Vec::new(),
        held_saving: None,
        terms: None,
    })
}

/// What a move of each node that consolidation may disrupt has to pay for, by node.
fn move_terms(fleet: &Fleet, options: &ConsolidationOptions) -> BTreeMap<String, MoveTerms> {
    let free = fleet.candidates.iter().filter(|one| !one.is_held);
    let terms = free.map(|one| {
        let terms = MoveTerms {
            life: one.remaining_life,
            evictions: one.pods.len(),
            eviction_cost: UsdPerHour::from_micros(options.eviction_cost),
            overlap: options.overlap,
        };
        (one.node.clone(), terms)
    });
    terms.collect()
}

/// The reasons for which a node would be disrupted if its NodePool allowed it.
fn concerning(view: &NodeView, pods: usize, would_pay: bool) -> Vec<DisruptionReason> {
    let Some(claim) = &view.claim else { return Vec::new() };
    let applies = |reason: &DisruptionReason| match reason {
        DisruptionReason::Empty => pods == 0 && claim_is(claim, CONSOLIDATABLE),
        DisruptionReason::Drifted => claim_is(claim, DRIFTED),
        DisruptionReason::Underutilized => would_pay,
        DisruptionReason::Unhealthy => false,
    };
    REASONS.into_iter().filter(applies).collect()
}

/// What keeps the NodePool of a node from disrupting it for some reasons, beside the nodes that are
/// taken already.
fn limits(
    budgets: &Budgets,
    pool: &str,
    concerned: &[DisruptionReason],
    taken: usize,
) -> Vec<String> {
    let limit = |reason: &DisruptionReason| {
        if let Some(notice) = budgets.notice(pool, *reason) {
            return Some(format!("nodepool \"{pool}\": {}", notice.message));
        }
        // Of consolidation, the engine tells.
        let tells = *reason == DisruptionReason::Underutilized;
        let is_used_up = !tells && budgets.left(pool, *reason) <= taken;
        let name = reason.as_str();
        is_used_up.then(|| format!("the budgets of its NodePool for {name} are used up now"))
    };
    concerned.iter().filter_map(limit).collect()
}

/// Reasons outside of the engine for which a node stays, whatever its NodePool allows.
fn reasons(index: &Index, view: &NodeView, now: Timestamp) -> Vec<String> {
    let mut reasons = Vec::new();
    let Some(claim) = &view.claim else { return reasons };
    if view.is_leaving() {
        return vec!["it is being removed already".to_owned()];
    }
    if !view.is_initialized() {
        return vec!["it is not initialized yet".to_owned()];
    }
    let Some(node) = &view.node else { return vec!["it has no Node".to_owned()] };
    let Some(pool) = view.pool().and_then(|pool| index.pool(pool)) else {
        return vec!["its NodePool does not exist".to_owned()];
    };
    if pool.spec.replicas.is_some() {
        reasons.push("its NodePool is static (spec.replicas)".to_owned());
    }
    for blocker in blockers(index, claim, node, now) {
        if !is_waived(&blocker, claim) {
            reasons.push(blocker.to_string());
        }
    }
    if !claim_is(claim, DRIFTED) {
        reasons.extend(not_consolidatable(claim, pool));
        reasons.extend(unmoved(index, view, now).map(|one| one.to_string()));
    }
    reasons
}

/// Why a node that has not drifted is not consolidated.
fn not_consolidatable(claim: &nap_api::NodeClaim, pool: &NodePool) -> Option<String> {
    if claim_is(claim, CONSOLIDATABLE) {
        let policy = pool.spec.disruption.consolidation_policy;
        let when_empty = policy == ConsolidationPolicy::WhenEmpty;
        return when_empty.then(|| "consolidationPolicy WhenEmpty: it is not empty".to_owned());
    }
    let after = &pool.spec.disruption.consolidate_after;
    if after.get().is_none() {
        return Some("consolidateAfter is Never".to_owned());
    }
    let last = claim.status.as_ref().and_then(|status| status.last_pod_event_time.clone());
    let since = last.map(|time| format!("; the last pod came or went at {}", time.0));
    let waits = conditions::get(claim_conditions(claim), CONSOLIDATABLE).is_none();
    let text = format!("no pod may come or go for {}", after.as_str());
    waits.then(|| format!("not consolidatable yet: {text}{}", since.unwrap_or_default()))
}
