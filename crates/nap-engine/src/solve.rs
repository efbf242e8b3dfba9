//! Solving a snapshot, step by step.

use std::rc::Rc;

use nap_units::UsdPerHour;

use crate::classes::dimensions::Dimensions;
use crate::classes::grouping::Groups;
use crate::classes::relaxation::Levels;
use crate::classes::{Class, Classes, PodCounts};
use crate::explain::refusal::RefusalBuilder;
use crate::ids::IndexVec;
use crate::model::{Options, Placement, Plan, Pod, PreferencePolicy, Refusal, Snapshot, Unplaced};
use crate::offerings::index::OfferingIndex;
use crate::offerings::shadow_prices::shadow_prices;
use crate::offerings::solver_cache::SolverCache;
use crate::optimize::lower_bound::{PodDuals, lower_bound, reserved_capacity};
use crate::optimize::portfolio::{Candidate, Outcome, Score, baseline, best_packing};
use crate::packing::existing::{ExistingNodes, ExistingPlacement};
use crate::packing::packer::{ClusterState, PackingProblem};
use crate::packing::result::Packing;
use crate::plan::launches::LaunchWriter;
use crate::topology::counts::{Allowance, Topology};
use crate::topology::groups::TopologyRules;

/// Decides where the pods of a snapshot go.
///
/// It cannot fail: a pod that cannot be placed is in the plan with its refusal. Equal snapshots
/// give byte-equal plans, in whatever order pods, nodes and pools are listed.
pub fn solve(snapshot: &Snapshot, options: &Options) -> Plan {
    decide(&SolverCache::new(snapshot), snapshot, options, Effort::Portfolio)
}

/// The plan of the baseline alone: first fit in the incumbent's order, then the cheapest type for
/// each node. [`solve`] is never worse; this plan has no lower bound.
pub fn solve_first_fit(snapshot: &Snapshot, options: &Options) -> Plan {
    decide(&SolverCache::new(snapshot), snapshot, options, Effort::Baseline)
}

/// [`solve`] with the cache of an earlier decision. A cache of other pools, daemons or catalogues
/// is ignored.
pub fn solve_with(cache: &SolverCache, snapshot: &Snapshot, options: &Options) -> Plan {
    if cache.suits(snapshot) {
        decide(cache, snapshot, options, Effort::Portfolio)
    } else {
        solve(snapshot, options)
    }
}

/// Strategies of a decision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// The baseline alone.
    Baseline,
    /// The baseline and all other strategies.
    Portfolio,
}

/// A plan with its score.
struct Decision {
    plan: Plan,
    score: Score,
    /// Ignoring preferences might place more pods.
    may_ignore_preferences: bool,
}

/// The better of several plans: no pod goes without a place for the preferences of others, nor for
/// slack.
fn decide(cache: &SolverCache, snapshot: &Snapshot, options: &Options, effort: Effort) -> Plan {
    let mut best = attempt(cache, snapshot, options, effort);
    let mut options = options.clone();
    if options.slack_percent > 0 && best.score.leaves_pods() {
        options.slack_percent = 0;
        let tight = attempt(cache, snapshot, &options, effort);
        if tight.score.unplaced < best.score.unplaced {
            best = tight;
        }
    }
    if best.may_ignore_preferences {
        options.preferences = PreferencePolicy::Ignore;
        let other = attempt(cache, snapshot, &options, effort);
        if other.score < best.score {
            best = other;
        }
    }
    best.plan
}

/// One decision with fixed options, in eight steps.
fn attempt(
    cache: &SolverCache,
    snapshot: &Snapshot,
    options: &Options,
    effort: Effort,
) -> Decision {
    // 1. Group equal pods.
    let groups = Groups::of(snapshot);
    // 2. Unfold preferences into relaxation levels, and find the classes and their topology.
    let levels = Levels::of(&groups.list, snapshot, options);
    let pods: Vec<&Pod> = levels.list.iter().map(|level| &*level.pod).collect();
    let rules = Rc::new(TopologyRules::of(&pods, snapshot));
    let dimensions = Dimensions::of(&pods, snapshot, &rules);
    let classes = Classes::of(&groups.list, &levels, &dimensions, &rules);
    // 3. Index the offerings of each pool.
    let mut offerings =
        OfferingIndex::new(cache, snapshot, options, &dimensions, &classes, &rules.keys);
    // 4. Fill existing nodes.
    let (cluster, placed, placements) =
        fill_existing(snapshot, &dimensions, &classes, rules, &mut offerings);
    // 5. Pack the rest by a portfolio of strategies.
    let pending: PodCounts =
        classes.list.iter().zip(&placed).map(|(class, placed)| class.pods.len() - placed).collect();
    let prices = match effort {
        Effort::Baseline => Vec::new(),
        Effort::Portfolio => shadow_prices(&offerings, &classes.demand(&pending)),
    };
    let problem = PackingProblem {
        classes: &classes,
        pending: &pending,
        max_pods: max_pods(options),
        reservations: &snapshot.reservations,
        smallest_ahead: &classes.smallest_ahead(),
        shadow_prices: &prices,
    };
    let Outcome { best, baseline_leaves_pods, pod_duals } = match effort {
        Effort::Baseline => baseline(&mut offerings, &problem, &cluster),
        Effort::Portfolio => best_packing(&mut offerings, &problem, &cluster),
    };
    let Candidate { score, packing, tier } = best;
    // 6. Refuse the pods without a place.
    let mut plan = Plan { tier, ..Plan::default() };
    plan.unplaced = refuse(&groups, &classes, &dimensions, &cluster, &packing, &mut offerings);
    // 7. Write placements and launches.
    let (placements, written) = write_placements(&classes, &cluster, &placements, &packing);
    plan.placements = placements;
    let mut writer = LaunchWriter::new(&offerings, &classes, &dimensions, snapshot, written);
    plan.launches = writer.launches(&packing);
    plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
    // 8. Bound the cost.
    if effort == Effort::Portfolio && !classes.list.is_empty() {
        let free = cluster.existing.nodes.iter().map(|node| dimensions.free(node));
        let mut free: Vec<Vec<i64>> = free.collect();
        free.extend(reserved_capacity(&mut offerings, &snapshot.reservations));
        let bound = bound(&mut offerings, &classes, &packing, &free, pod_duals.as_ref());
        plan.lower_bound = Some(bound);
    }
    let has_preferences = classes.list.iter().any(Class::has_preferences);
    let may_ignore_preferences = baseline_leaves_pods && has_preferences;
    Decision { plan, score, may_ignore_preferences }
}

/// Upper limit on the pods of a new node: at least one, if there is a limit.
pub(crate) fn max_pods(options: &Options) -> Allowance {
    options.max_pods_per_node.map_or(Allowance::Unlimited, |max| {
        Allowance::AtMost(usize::try_from(max).unwrap_or(usize::MAX).max(1))
    })
}

/// Places pods on existing nodes. Returns the cluster, the number of pods placed of each class, and
/// the placements.
fn fill_existing<'a>(
    snapshot: &'a Snapshot,
    dimensions: &Dimensions<'a>,
    classes: &Classes<'a>,
    rules: Rc<TopologyRules<'a>>,
    offerings: &mut OfferingIndex<'a>,
) -> (ClusterState<'a>, PodCounts, Vec<ExistingPlacement>) {
    let mut existing = ExistingNodes::of(snapshot, dimensions, offerings);
    let launchable = offerings.launchable_domains(&rules, &snapshot.reservations);
    let ExistingNodes { nodes, labels, domains, .. } = &existing;
    let mut topology = Topology::new(&rules, nodes, labels, domains, &launchable);
    let (placed, placements) = existing.fill(classes, &mut topology);
    let min_skews = Rc::new(rules.min_skews());
    (ClusterState { existing, topology, min_skews, rules }, placed, placements)
}

/// The pods without a place, in key order, with their refusals.
fn refuse<'a>(
    groups: &Groups<'_>,
    classes: &Classes<'a>,
    dimensions: &Dimensions<'a>,
    cluster: &ClusterState<'a>,
    packing: &Packing,
    offerings: &mut OfferingIndex<'a>,
) -> Vec<Unplaced> {
    let mut refused = Vec::new();
    for (pod, constraint) in &groups.unsupported {
        let refusal = Refusal::Unsupported { constraint: (*constraint).clone() };
        refused.push(Unplaced { pod: (*pod).clone(), refusal });
    }
    let rules = &cluster.rules;
    let mut builder = RefusalBuilder { offerings, rules, dimensions, packing };
    let each = classes.list.iter().zip(&packing.unplaced);
    for (class, unplaced) in each.filter(|(_, unplaced)| **unplaced > 0) {
        let refusal = builder.refusal(&classes[class.last]);
        for pod in class.pods.iter().skip(class.pods.len() - unplaced) {
            refused.push(Unplaced { pod: (*pod).clone(), refusal: refusal.clone() });
        }
    }
    refused.sort_by(|a, b| a.pod.cmp(&b.pod));
    refused
}

/// The pods on existing nodes, in key order, and their number for each class.
fn write_placements(
    classes: &Classes<'_>,
    cluster: &ClusterState<'_>,
    before: &[ExistingPlacement],
    packing: &Packing,
) -> (Vec<Placement>, PodCounts) {
    let mut written: PodCounts = IndexVec::filled(0, classes.list.len());
    let mut placements = Vec::new();
    for ExistingPlacement { class, node, count } in before.iter().chain(&packing.on_existing) {
        let base = classes[*class].base;
        let pods = classes[base].pods.iter().skip(written[base]).take(*count);
        let node = &cluster.existing.nodes[*node].name;
        placements.extend(pods.map(|pod| Placement { pod: (*pod).clone(), node: node.clone() }));
        written[base] += count;
    }
    placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    (placements, written)
}

/// Lower bound on the cost of placing the pods that a packing placed. Pods over the host limit are
/// left out: the bound knows only what a new node may take.
fn bound(
    offerings: &mut OfferingIndex<'_>,
    classes: &Classes<'_>,
    packing: &Packing,
    free: &[Vec<i64>],
    pod_duals: Option<&PodDuals>,
) -> UsdPerHour {
    let left_out = packing.unplaced.iter().zip(&packing.over_host_limit);
    let left_out = left_out.map(|(unplaced, over_host_limit)| unplaced + over_host_limit);
    let classes_left_out = classes.list.iter().zip(left_out);
    let placed: PodCounts =
        classes_left_out.map(|(class, left_out)| class.pods.len() - left_out).collect();
    lower_bound(offerings, classes, &placed, free, pod_duals)
}
