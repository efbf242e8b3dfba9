//! What the lower bound on the cost of a plan leaves out. Where that binds, the distance to the
//! bound says nothing about how good the plan is.

use nap_api::labels;
use nap_engine::{Pod, PodTerm, Pool, PreferencePolicy, Snapshot};
use serde::Serialize;

use super::{Decision, Problem};

/// Percentage above the lower bound from which on a plan does not reach it.
pub const REACHED: f64 = 0.05;

/// Something that a plan must keep to and that the lower bound ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LeftOut {
    /// Rules of pods over zones and other domains of several nodes, apart from anti-affinity to
    /// their own kind.
    ZoneRules,
    /// Affinity to other pods on a node, and anti-affinity to pods of another kind on it.
    NodeRules,
    /// Preferences of pods that hold like requirements while that leaves a place.
    Preferences,
    /// Weights of NodePools: a cheaper pool of a lower weight is not used.
    Weights,
    /// Limits of NodePools that leave no room for another VM.
    Limits,
}

impl LeftOut {
    fn text(self) -> &'static str {
        match self {
            Self::ZoneRules => "their rules over zones",
            Self::NodeRules => "which pods share nodes",
            Self::Preferences => "their preferences",
            Self::Weights => "the weights of NodePools",
            Self::Limits => "the limits of NodePools",
        }
    }
}

/// What the lower bound of a plan leaves out; empty if it knows every rule that binds.
pub fn leaves_out(problem: &Problem, decision: &Decision) -> Vec<LeftOut> {
    let Snapshot { pods, pools, .. } = &problem.snapshot;
    let options = &problem.options;
    let weight = pools.first().map(|pool| pool.weight);
    let prefers = options.preferences == PreferencePolicy::Respect
        && pods.iter().any(|pod| {
            let own = &pod.preferences;
            let spread = pod.workload.is_some() && !options.default_spread.is_empty();
            let none = own.nodes.is_empty() && own.affinity.is_empty();
            spread || !none || !own.anti_affinity.is_empty() || !own.spread.is_empty()
        });
    let all = [
        (LeftOut::ZoneRules, pods.iter().any(has_zone_rules)),
        (LeftOut::NodeRules, pods.iter().any(has_node_rules)),
        (LeftOut::Preferences, prefers),
        (LeftOut::Weights, pools.iter().any(|pool| Some(pool.weight) != weight)),
        (LeftOut::Limits, pools.iter().any(|pool| is_full(problem, decision, pool))),
    ];
    all.into_iter().filter_map(|(one, applies)| applies.then_some(one)).collect()
}

/// The same as the end of a sentence; `None` if nothing is left out.
pub fn text(left_out: &[LeftOut]) -> Option<String> {
    let (last, others) = left_out.split_last()?;
    let others: Vec<&str> = others.iter().map(|one| one.text()).collect();
    let and = if others.is_empty() { "" } else { " and " };
    Some(format!("this bound leaves out {}{and}{}", others.join(", "), last.text()))
}

fn is_over_nodes(term: &PodTerm) -> bool {
    term.topology_key == labels::HOSTNAME
}

fn matches_itself(pod: &Pod, term: &PodTerm) -> bool {
    term.matches(pod.key.namespace(), &pod.labels)
}

fn has_zone_rules(pod: &Pod) -> bool {
    pod.spread.iter().any(|one| one.topology_key != labels::HOSTNAME)
        || pod.affinity.iter().any(|one| !is_over_nodes(one))
        || pod.anti_affinity.iter().any(|one| !is_over_nodes(one) && !matches_itself(pod, one))
}

fn has_node_rules(pod: &Pod) -> bool {
    pod.affinity.iter().any(is_over_nodes)
        || pod.anti_affinity.iter().any(|one| is_over_nodes(one) && !matches_itself(pod, one))
}

/// Whether a limit of a pool leaves no room for another of its largest VMs in the plan, or, if the
/// plan has none of it, for any size.
fn is_full(problem: &Problem, decision: &Decision, pool: &Pool) -> bool {
    let catalogue = problem.snapshot.catalogues.get(&pool.catalogue);
    let types = catalogue.map(|catalogue| catalogue.types()).unwrap_or_default();
    let of_pool = decision.plan.launches.iter().filter(|launch| launch.pool == pool.name);
    let launched: Vec<_> = of_pool
        .filter_map(|launch| types.iter().find(|one| one.name == launch.instance_type))
        .collect();
    pool.headroom.iter().any(|(resource, room)| {
        let amount = |capacity: &nap_units::Resources| match resource {
            nap_engine::NODES => 1,
            _ => capacity.get(resource),
        };
        let used: i64 = launched.iter().map(|one| amount(&one.capacity)).sum();
        let largest = launched.iter().map(|one| amount(&one.capacity)).max();
        let next = largest.or_else(|| types.iter().map(|one| amount(&one.capacity)).min());
        next.is_some_and(|next| room - used < next)
    })
}
