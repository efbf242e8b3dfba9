//! Release order: the order in which the nodes of a plan should accept pods.
//!
//! kube-scheduler binds what it can to the nodes that accept pods. If nodes are released in the
//! wrong order, pods go where they leave no place for others: pods of a higher priority take room
//! planned for lower ones; a pod with an affinity fails while its peer is missing, and its room is
//! given away; a pod that spread constraints count settles in a domain that the others then cannot
//! use. Releasing nodes in slots avoids most of that.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Requirements, Toleration, taints};

use crate::model::{Launch, Plan, Pod, PodTerm, Pool, Snapshot, Spread};

/// Upper limit on the distinct pods: the work grows with the square of their number. Above it every
/// launch has slot 0.
const MAX_DISTINCT: usize = 1000;

/// Release slot of each launch: 0 is released first. All slots are 0 if the order does not matter.
pub fn release_order(snapshot: &Snapshot, plan: &Plan) -> Vec<u32> {
    let mut slots = vec![0; plan.launches.len()];
    let Some(pods) = DistinctPods::of(snapshot, plan) else { return slots };
    let pools: BTreeMap<&str, &Pool> =
        snapshot.pools.iter().map(|pool| (pool.name.as_str(), pool)).collect();
    let ranks: Vec<Rank> = pods.by_launch.iter().map(|own| Rank::of(&pods, own)).collect();
    let mut held: Vec<usize> = (0..plan.launches.len()).collect();
    let mut slot = 0;
    while !held.is_empty() {
        let others = HeldPods::of(&pods, &ranks, &held);
        let waits = |number: &usize| {
            let (own, rank) = (&pods.by_launch[*number], ranks[*number]);
            let launch = &plan.launches[*number];
            let pool = pools.get(launch.pool.as_str());
            others.precede(&pods, rank, own)
                || pool.is_some_and(|pool| others.outrank(&pods, rank, launch, pool))
        };
        let (waiting, mut next): (Vec<usize>, Vec<usize>) =
            held.iter().partition(|number| waits(number));
        held = waiting;
        if next.is_empty() {
            // The launches wait for each other: the highest rank is released.
            let first = held.iter().map(|number| ranks[*number]).max();
            (next, held) = held.iter().partition(|number| Some(ranks[**number]) == first);
        }
        for number in next {
            slots[number] = slot;
        }
        slot += 1;
    }
    slots
}

/// The highest and the lowest priority on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    highest: i32,
    lowest: i32,
}

impl Rank {
    fn of(pods: &DistinctPods<'_>, own: &BTreeSet<usize>) -> Self {
        let priorities = || own.iter().map(|pod| pods.list[*pod].priority);
        Self {
            highest: priorities().max().unwrap_or_default(),
            lowest: priorities().min().unwrap_or_default(),
        }
    }
}

/// The pods of a plan that differ in something that matters to the release order.
struct DistinctPods<'s> {
    /// A representative of each.
    list: Vec<&'s Pod>,
    /// Positions of the pods of each launch.
    by_launch: Vec<BTreeSet<usize>>,
    /// For each pod, the pods that should be bound before it.
    predecessors: Vec<Vec<Predecessor<'s>>>,
}

/// A pod that should be bound before another.
struct Predecessor<'s> {
    pod: usize,
    why: Why<'s>,
}

/// Reason why a pod should be bound before another.
enum Why<'s> {
    /// The affinity term of the other pod matches it; the term may match further pods.
    Wanted(&'s PodTerm),
    /// Its own affinity lets it begin in any domain while no pod like the other is bound.
    Begins,
    /// Its spread constraint counts the other pod.
    Spread,
}

/// Everything that tells pods apart here.
type DistinctKey<'s> = (
    &'s str,
    &'s BTreeMap<String, String>,
    i32,
    &'s [PodTerm],
    &'s [Spread],
    &'s [Toleration],
    &'s [Requirements],
);

impl<'s> DistinctPods<'s> {
    /// `None` if the order does not matter, or if there are too many distinct pods.
    fn of(snapshot: &'s Snapshot, plan: &Plan) -> Option<Self> {
        let first = snapshot.pods.first()?;
        let is_plain = |pod: &Pod| {
            pod.affinity.is_empty() && pod.spread.is_empty() && pod.priority == first.priority
        };
        if plan.launches.len() < 2 || snapshot.pods.iter().all(is_plain) {
            return None;
        }
        let pods: BTreeMap<_, _> = snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
        let mut positions: BTreeMap<DistinctKey<'s>, usize> = BTreeMap::new();
        let mut found = Self { list: Vec::new(), by_launch: Vec::new(), predecessors: Vec::new() };
        for launch in &plan.launches {
            let mut own = BTreeSet::new();
            for pod in launch.pods.iter().filter_map(|key| pods.get(key)) {
                let key: DistinctKey<'s> = (
                    pod.key.namespace(),
                    &pod.labels,
                    pod.priority,
                    &pod.affinity,
                    &pod.spread,
                    &pod.tolerations,
                    &pod.terms,
                );
                own.insert(*positions.entry(key).or_insert_with(|| {
                    found.list.push(pod);
                    found.list.len() - 1
                }));
            }
            found.by_launch.push(own);
            if found.list.len() > MAX_DISTINCT {
                return None;
            }
        }
        let all = &found.list;
        let predecessors = |pod: &&'s Pod| {
            let each = all.iter().enumerate();
            each.filter_map(|(number, other)| precedes(number, other, pod)).collect()
        };
        found.predecessors = all.iter().map(predecessors).collect();
        Some(found)
    }
}

fn matches(term: &PodTerm, pod: &Pod) -> bool {
    term.matches(pod.key.namespace(), &pod.labels)
}

/// The reason why one pod should be bound before another, if there is one.
fn precedes<'s>(number: usize, first: &'s Pod, then: &'s Pod) -> Option<Predecessor<'s>> {
    if first.priority < then.priority {
        return None;
    }
    let is_wanted = |term: &&PodTerm| matches(term, first) && !matches(term, then);
    let begins = |term: &&PodTerm| matches(term, first) && !then.affinity.contains(term);
    let is_counted = |spread: &Spread| {
        first.key.namespace() == then.key.namespace() && spread.selector.matches(&then.labels)
    };
    let why = if let Some(term) = then.affinity.iter().find(is_wanted) {
        Why::Wanted(term)
    } else if first.affinity.iter().filter(begins).any(|term| matches(term, then)) {
        Why::Begins
    } else if then.spread.is_empty() && first.spread.iter().any(is_counted) {
        Why::Spread
    } else {
        return None;
    };
    Some(Predecessor { pod: number, why })
}

/// The pods of nodes that are not released yet.
struct HeldPods {
    /// For each pod, the number of held nodes with it.
    nodes: Vec<usize>,
    /// For each pod, the highest rank of a held node with it.
    ranks: Vec<Option<Rank>>,
}

impl HeldPods {
    fn of(pods: &DistinctPods<'_>, ranks: &[Rank], held: &[usize]) -> Self {
        let count = pods.list.len();
        let mut result = Self { nodes: vec![0; count], ranks: vec![None; count] };
        for number in held {
            for pod in &pods.by_launch[*number] {
                result.nodes[*pod] += 1;
                result.ranks[*pod] = result.ranks[*pod].max(Some(ranks[*number]));
            }
        }
        result
    }

    /// Whether predecessors of these pods are on other held nodes whose rank is no lower.
    fn precede(&self, pods: &DistinctPods<'_>, rank: Rank, own: &BTreeSet<usize>) -> bool {
        own.iter().flat_map(|pod| &pods.predecessors[*pod]).any(|Predecessor { pod, why }| {
            let is_here = own.contains(pod);
            let is_settled = match why {
                Why::Wanted(term) => own.iter().any(|pod| matches(term, pods.list[*pod])),
                Why::Begins => is_here,
                Why::Spread => false,
            };
            !is_settled && self.nodes[*pod] > usize::from(is_here) && self.ranks[*pod] >= Some(rank)
        })
    }

    /// Whether pods of a higher priority on other held nodes would take room on this one.
    fn outrank(&self, pods: &DistinctPods<'_>, rank: Rank, launch: &Launch, pool: &Pool) -> bool {
        pods.list.iter().zip(&self.ranks).any(|(pod, of)| {
            pod.priority > rank.lowest
                && *of > Some(rank)
                && taints::first_untolerated(&pool.taints, &pod.tolerations).is_none()
                && pod.terms.iter().any(|term| term.intersects(&launch.requirements).is_ok())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nap_api::{Effect, Taint};
    use nap_units::{Resources, UsdPerHour};

    use super::*;
    use crate::model::pod_rules::Namespaces;
    use crate::model::{Alternatives, CapacityType, PodKey, Selector};

    /// A pod with the name of its app.
    fn pod(app: &str) -> Pod {
        Pod {
            key: PodKey::new("shop", app),
            labels: BTreeMap::from([("app".to_owned(), app.to_owned())]),
            terms: vec![Requirements::new()],
            ..Pod::default()
        }
    }

    fn near(app: &str) -> Vec<PodTerm> {
        vec![PodTerm {
            topology_key: "zone".to_owned(),
            selector: Selector::label("app", app),
            namespaces: Namespaces::All,
        }]
    }

    /// Release slots of nodes with these pods, each in a pool of its own with these taints.
    fn slots_of(nodes: &[(&[Taint], &[Pod])]) -> Vec<u32> {
        let mut snapshot = Snapshot::default();
        let mut plan = Plan::default();
        for (number, (taints, pods)) in nodes.iter().enumerate() {
            let name = format!("pool-{number}");
            snapshot.pods.extend(pods.iter().cloned());
            snapshot.pools.push(Pool {
                name: name.clone(),
                weight: 0,
                requirements: Requirements::new(),
                taints: taints.to_vec(),
                headroom: Resources::new(),
                catalogue: String::new(),
                max_price: None,
            });
            plan.launches.push(Launch {
                pool: name,
                instance_type: String::new(),
                zone: String::new(),
                capacity_type: CapacityType::OnDemand,
                price: UsdPerHour::ZERO,
                pods: pods.iter().map(|pod| pod.key.clone()).collect(),
                requests: Resources::new(),
                requirements: Arc::default(),
                alternatives: Alternatives::default(),
            });
        }
        release_order(&snapshot, &plan)
    }

    #[test]
    fn nodes_without_dependencies_share_the_first_slot() {
        assert_eq!(slots_of(&[(&[], &[pod("a")]), (&[], &[pod("b")])]), [0, 0]);
        let near_itself = Pod { affinity: near("b"), ..pod("b") };
        assert_eq!(slots_of(&[(&[], &[pod("a")]), (&[], &[near_itself])]), [0, 0]);
    }

    #[test]
    fn higher_priorities_are_released_first_unless_taints_keep_them_off_the_other_nodes() {
        let urgent = Pod { priority: 10, ..pod("urgent") };
        let mixed = [pod("b"), Pod { priority: 10, ..pod("c") }];
        assert_eq!(
            slots_of(&[(&[], &[pod("a")]), (&[], &mixed), (&[], std::slice::from_ref(&urgent))]),
            [2, 1, 0]
        );
        let taint = Taint::new("special", Effect::NoSchedule);
        assert_eq!(slots_of(&[(&[taint], &[pod("a")]), (&[], &[urgent])]), [0, 0]);
    }

    #[test]
    fn pods_with_an_affinity_are_released_after_the_pods_it_asks_for() {
        let follower = || Pod { affinity: near("leader"), ..pod("follower") };
        assert_eq!(slots_of(&[(&[], &[follower()]), (&[], &[pod("leader")])]), [1, 0]);
        let with_leader = [follower(), pod("leader")];
        assert_eq!(slots_of(&[(&[], &with_leader), (&[], &[pod("other")])]), [0, 0]);
    }

    #[test]
    fn counted_pods_are_released_after_the_pods_whose_rules_count_them() {
        let counting = Pod {
            spread: vec![Spread {
                topology_key: "zone".to_owned(),
                max_skew: 1,
                min_domains: None,
                selector: Selector::label("app", "web"),
                honor_affinity: true,
                honor_taints: false,
            }],
            ..pod("counting")
        };
        assert_eq!(slots_of(&[(&[], &[pod("web")]), (&[], &[counting])]), [1, 0]);
        let mut first = Pod { affinity: near("web"), ..pod("web") };
        first.key = PodKey::new("shop", "first");
        assert_eq!(slots_of(&[(&[], &[pod("web")]), (&[], &[first])]), [1, 0]);
    }

    #[test]
    fn nodes_that_wait_for_each_other_are_released_together() {
        let one = Pod { affinity: near("b"), ..pod("a") };
        let other = Pod { affinity: near("a"), ..pod("b") };
        assert_eq!(slots_of(&[(&[], &[one]), (&[], &[other])]), [0, 0]);
    }
}
