//! In which order the machines of a plan should be opened to pods.
//!
//! kube-scheduler binds what it can to whatever is open. If machines come up in the wrong order,
//! pods go where they leave no place for others: those of a higher priority take room that is kept
//! for lower ones; a pod that must be near another is tried in vain, and its room is given away;
//! one that others count settles where they can no longer be. Machines that are opened by turns
//! avoid most of that.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Requirements, Toleration, taints};

use crate::model::pod_rules::{PodTerm, Spread};
use crate::model::{Launch, Plan, Pod, Pool, Snapshot};

/// With more kinds of pods than this every machine has the first turn: it would take too long to
/// find out.
const MAX_KINDS: usize = 1000;

/// Whose turn it is when, by launch: 0 goes first. All are 0 if the order does not matter.
pub fn release_order(snapshot: &Snapshot, plan: &Plan) -> Vec<u32> {
    let mut turns = vec![0; plan.launches.len()];
    let Some(kinds) = Kinds::of(snapshot, plan) else { return turns };
    let pools: BTreeMap<&str, &Pool> =
        snapshot.pools.iter().map(|pool| (pool.name.as_str(), pool)).collect();
    let ranks: Vec<Rank> = kinds.by_launch.iter().map(|own| Rank::of(&kinds, own)).collect();
    let mut closed: Vec<usize> = (0..plan.launches.len()).collect();
    let mut turn = 0;
    while !closed.is_empty() {
        let others = Closed::of(&kinds, &ranks, &closed);
        let waits = |number: &usize| {
            let (own, rank) = (&kinds.by_launch[*number], ranks[*number]);
            let launch = &plan.launches[*number];
            let pool = pools.get(launch.pool.as_str());
            others.precede(&kinds, rank, own)
                || pool.is_some_and(|pool| others.outrank(&kinds, rank, launch, pool))
        };
        let (waiting, mut next): (Vec<usize>, Vec<usize>) =
            closed.iter().partition(|number| waits(number));
        closed = waiting;
        if next.is_empty() {
            // They wait for each other. Priority decides, if anything.
            let first = closed.iter().map(|number| ranks[*number]).max();
            (next, closed) = closed.iter().partition(|number| Some(ranks[**number]) == first);
        }
        for number in next {
            turns[number] = turn;
        }
        turn += 1;
    }
    turns
}

/// The highest and the lowest priority on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    highest: i32,
    lowest: i32,
}

impl Rank {
    fn of(kinds: &Kinds<'_>, own: &BTreeSet<usize>) -> Self {
        let priorities = || own.iter().map(|kind| kinds.pods[*kind].priority);
        Self {
            highest: priorities().max().unwrap_or_default(),
            lowest: priorities().min().unwrap_or_default(),
        }
    }
}

/// Pods that are alike in what matters here.
struct Kinds<'s> {
    /// One of each kind.
    pods: Vec<&'s Pod>,
    by_launch: Vec<BTreeSet<usize>>,
    /// By kind, which others should be bound before.
    predecessors: Vec<Vec<Predecessor<'s>>>,
}

/// A kind that should be bound before another.
struct Predecessor<'s> {
    kind: usize,
    why: Why<'s>,
}

/// Why a kind should be bound before another.
enum Why<'s> {
    /// This means it. Somebody else may be meant too.
    Wanted(&'s PodTerm),
    /// It may begin anywhere, as long as there is nobody like the other.
    Begins,
    /// It must be spread, and the other counts.
    Spread,
}

/// What tells kinds apart.
type Looks<'s> = (
    &'s str,
    &'s BTreeMap<String, String>,
    i32,
    &'s [PodTerm],
    &'s [Spread],
    &'s [Toleration],
    &'s [Requirements],
);

impl<'s> Kinds<'s> {
    /// `None` where the order does not matter, or cannot be found out.
    fn of(snapshot: &'s Snapshot, plan: &Plan) -> Option<Self> {
        let first = snapshot.pods.first()?;
        let is_plain = |pod: &Pod| {
            pod.affinity.is_empty() && pod.spread.is_empty() && pod.priority == first.priority
        };
        if plan.launches.len() < 2 || snapshot.pods.iter().all(is_plain) {
            return None;
        }
        let pods: BTreeMap<_, _> = snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
        let mut numbers: BTreeMap<Looks<'s>, usize> = BTreeMap::new();
        let mut kinds = Self { pods: Vec::new(), by_launch: Vec::new(), predecessors: Vec::new() };
        for launch in &plan.launches {
            let mut own = BTreeSet::new();
            for pod in launch.pods.iter().filter_map(|key| pods.get(key)) {
                let looks: Looks<'s> = (
                    pod.key.parts().0,
                    &pod.labels,
                    pod.priority,
                    &pod.affinity,
                    &pod.spread,
                    &pod.tolerations,
                    &pod.terms,
                );
                own.insert(*numbers.entry(looks).or_insert_with(|| {
                    kinds.pods.push(pod);
                    kinds.pods.len() - 1
                }));
            }
            kinds.by_launch.push(own);
            if kinds.pods.len() > MAX_KINDS {
                return None;
            }
        }
        let all = &kinds.pods;
        kinds.predecessors = all
            .iter()
            .map(|pod| {
                all.iter()
                    .enumerate()
                    .filter_map(|(kind, other)| precedes(kind, other, pod))
                    .collect()
            })
            .collect();
        Some(kinds)
    }
}

fn is_meant(term: &PodTerm, pod: &Pod) -> bool {
    term.matches(pod.key.parts().0, &pod.labels)
}

/// Whether a kind should be bound before another.
fn precedes<'s>(kind: usize, first: &'s Pod, then: &'s Pod) -> Option<Predecessor<'s>> {
    if first.priority < then.priority {
        return None;
    }
    let is_wanted = |term: &&PodTerm| is_meant(term, first) && !is_meant(term, then);
    let begins = |term: &&PodTerm| is_meant(term, first) && !then.affinity.contains(term);
    let is_counted = |spread: &Spread| {
        first.key.parts().0 == then.key.parts().0 && spread.selector.matches(&then.labels)
    };
    let why = if let Some(term) = then.affinity.iter().find(is_wanted) {
        Why::Wanted(term)
    } else if first.affinity.iter().filter(begins).any(|term| is_meant(term, then)) {
        Why::Begins
    } else if then.spread.is_empty() && first.spread.iter().any(is_counted) {
        Why::Spread
    } else {
        return None;
    };
    Some(Predecessor { kind, why })
}

/// What waits for machines that are not open yet.
struct Closed {
    /// By kind, how many machines are for it.
    machines: Vec<usize>,
    /// By kind, the highest rank of a machine for it.
    ranks: Vec<Option<Rank>>,
}

impl Closed {
    fn of(kinds: &Kinds<'_>, ranks: &[Rank], closed: &[usize]) -> Self {
        let count = kinds.pods.len();
        let mut result = Self { machines: vec![0; count], ranks: vec![None; count] };
        for number in closed {
            for kind in &kinds.by_launch[*number] {
                result.machines[*kind] += 1;
                result.ranks[*kind] = result.ranks[*kind].max(Some(ranks[*number]));
            }
        }
        result
    }

    /// Whether pods that should be bound before these wait for other machines, whose rank is not
    /// lower.
    fn precede(&self, kinds: &Kinds<'_>, rank: Rank, own: &BTreeSet<usize>) -> bool {
        own.iter().flat_map(|kind| &kinds.predecessors[*kind]).any(|Predecessor { kind, why }| {
            let is_here = own.contains(kind);
            let is_settled = match why {
                Why::Wanted(term) => own.iter().any(|kind| is_meant(term, kinds.pods[*kind])),
                Why::Begins => is_here,
                Why::Spread => false,
            };
            !is_settled
                && self.machines[*kind] > usize::from(is_here)
                && self.ranks[*kind] >= Some(rank)
        })
    }

    /// Whether pods of a higher priority wait for other machines, and would take room on this one.
    fn outrank(&self, kinds: &Kinds<'_>, rank: Rank, launch: &Launch, pool: &Pool) -> bool {
        kinds.pods.iter().zip(&self.ranks).any(|(pod, of)| {
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
    use crate::model::pod_rules::{Namespaces, Selector};
    use crate::model::{CapacityType, PodKey};

    /// A pod that is called like its app.
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

    /// The turns of machines for such pods, each in a pool of its own that has the taints.
    fn turns_of(machines: &[(&[Taint], &[Pod])]) -> Vec<u32> {
        let mut snapshot = Snapshot::default();
        let mut plan = Plan::default();
        for (number, (taints, pods)) in machines.iter().enumerate() {
            let name = format!("pool-{number}");
            snapshot.pods.extend(pods.iter().cloned());
            snapshot.pools.push(Pool {
                name: name.clone(),
                weight: 0,
                requirements: Requirements::new(),
                taints: taints.to_vec(),
                headroom: Resources::new(),
                catalogue: String::new(),
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
                alternatives: crate::Alternatives::default(),
            });
        }
        release_order(&snapshot, &plan)
    }

    #[test]
    fn where_the_order_does_not_matter_nobody_waits() {
        assert_eq!(turns_of(&[(&[], &[pod("a")]), (&[], &[pod("b")])]), [0, 0]);
        let near_itself = Pod { affinity: near("b"), ..pod("b") };
        assert_eq!(turns_of(&[(&[], &[pod("a")]), (&[], &[near_itself])]), [0, 0]);
    }

    #[test]
    fn machines_for_urgent_pods_go_first_unless_those_must_not_run_on_the_others() {
        let urgent = Pod { priority: 10, ..pod("urgent") };
        let mixed = [pod("b"), Pod { priority: 10, ..pod("c") }];
        assert_eq!(
            turns_of(&[(&[], &[pod("a")]), (&[], &mixed), (&[], std::slice::from_ref(&urgent))]),
            [2, 1, 0]
        );
        let taint = Taint::new("special", Effect::NoSchedule);
        assert_eq!(turns_of(&[(&[taint], &[pod("a")]), (&[], &[urgent])]), [0, 0]);
    }

    #[test]
    fn pods_come_after_those_that_they_must_be_near() {
        let follower = || Pod { affinity: near("leader"), ..pod("follower") };
        assert_eq!(turns_of(&[(&[], &[follower()]), (&[], &[pod("leader")])]), [1, 0]);
        let with_leader = [follower(), pod("leader")];
        assert_eq!(turns_of(&[(&[], &with_leader), (&[], &[pod("other")])]), [0, 0]);
    }

    #[test]
    fn pods_that_others_count_or_would_have_to_be_near_come_after_them() {
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
        assert_eq!(turns_of(&[(&[], &[pod("web")]), (&[], &[counting])]), [1, 0]);
        let mut first = Pod { affinity: near("web"), ..pod("web") };
        first.key = PodKey::new("shop", "first");
        assert_eq!(turns_of(&[(&[], &[pod("web")]), (&[], &[first])]), [1, 0]);
    }

    #[test]
    fn who_wait_for_each_other_are_opened_together() {
        let one = Pod { affinity: near("b"), ..pod("a") };
        let other = Pod { affinity: near("a"), ..pod("b") };
        assert_eq!(turns_of(&[(&[], &[one]), (&[], &[other])]), [0, 0]);
    }
}
