//! The smallest single change that would give a pod a place.
//!
//! Candidates come from the reasons for which each pool refused the pod. Each is tried on what the
//! cluster would be once the plan is carried out, by solving for that one pod. Kinds of changes are
//! tried in a fixed order, those that its owner can make alone first; among changes of one kind,
//! the one with the cheapest machine wins. A pod that needs two changes at once has no smallest
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_api::{Requirement, Requirements, Taint, Toleration, labels};
use nap_units::{MEMORY, Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::explain::funnel::{charge, daemons_of, free, holds, suits, take, wishes, within};
use crate::model::pod_rules::RunningPods;
use crate::model::{
    CapacityType, Launch, Node, Options, Plan, Pod, Pool, PoolRejection, RESERVATION_ID, Refusal,
    Rule, Snapshot,
};
use crate::offerings::daemon_overhead::{SolverCache, runs_on};
use crate::solve::solve_with;

/// The most changes that are tried for one pod.
const MAX_TRIES: usize = 60;

/// Memory is asked for in whole mebibytes.
const MEBIBYTE: i64 = 1 << 20;

/// One change to a pod or to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Change {
    /// The pod tolerates a taint.
    Tolerate {
        /// The taint.
        taint: Taint,
    },
    /// The pod no longer asks for anything about a label of its node.
    DropRequirement {
        /// The label's key.
        key: String,
    },
    /// The pod asks for less of a resource.
    AskForAtMost {
        /// The resource's name.
        resource: String,
        /// How much, in the units of [`Resources`].
        amount: i64,
    },
    /// The pod no longer has its spread constraints over a label.
    DropSpread {
        /// The label's key.
        key: String,
    },
    /// The pod no longer has its pod affinity over a label.
    DropAffinity {
        /// The label's key.
        key: String,
    },
    /// The pod and its equals no longer have their pod anti-affinity over a label.
    DropAntiAffinity {
        /// The label's key.
        key: String,
    },
    /// A limit of a pool is raised.
    RaiseLimit {
        /// The NodePool's name.
        pool: String,
        /// The limited resource.
        resource: String,
        /// By how much, in the units of [`Resources`].
        by: i64,
    },
    /// A pool allows one more value of a label.
    Allow {
        /// The NodePool's name.
        pool: String,
        /// The label's key.
        key: String,
        /// The value.
        value: String,
    },
}

/// A change, and where the pod would go with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// The change.
    pub change: Change,
    /// Where the pod would go.
    pub place: RemedyPlacement,
}

/// Where a pod would go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RemedyPlacement {
    /// Onto a machine that exists, or that the plan makes anyway.
    Existing,
    /// Onto a machine of its own.
    New {
        /// The NodePool's name.
        pool: String,
        /// The VM size.
        instance_type: String,
        /// The zone.
        zone: String,
        /// How it is paid for.
        capacity_type: CapacityType,
        /// What it costs.
        price: UsdPerHour,
    },
}

impl RemedyPlacement {
    /// What the pod's place would cost besides what the plan costs.
    pub fn price(&self) -> UsdPerHour {
        match self {
            Self::Existing => UsdPerHour::ZERO,
            Self::New { price, .. } => *price,
        }
    }
}

/// What the cluster would be once the plan is carried out, without the pods that have no place.
pub fn after(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let pods: BTreeMap<_, _> = snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
    let mut after = Snapshot { pods: Vec::new(), ..snapshot.clone() };
    let names: BTreeMap<&str, usize> = snapshot
        .nodes
        .iter()
        .enumerate()
        .map(|(number, node)| (node.name.as_str(), number))
        .collect();
    for placement in &plan.placements {
        let number = names.get(placement.node.as_str());
        let node = number.and_then(|number| after.nodes.get_mut(*number));
        if let (Some(node), Some(pod)) = (node, pods.get(&placement.pod)) {
            take(&mut node.free, &pod.requests);
            node.residents.push(resident(pod));
        }
    }
    for (number, launch) in plan.launches.iter().enumerate() {
        let residents =
            launch.pods.iter().filter_map(|key| pods.get(key)).map(|pod| resident(pod)).collect();
        if let Some(node) = launched(&mut after, launch, number, residents) {
            after.nodes.push(node);
        }
    }
    after
}

fn resident(pod: &Pod) -> RunningPods {
    RunningPods {
        namespace: pod.key.parts().0.to_owned(),
        labels: pod.labels.clone(),
        anti_affinity: pod.anti_affinity.clone(),
        host_ports: pod.host_ports.clone(),
        count: 1,
    }
}

/// A launch as a machine on its way. Takes what it counts off the pool's limits.
fn launched(
    after: &mut Snapshot,
    launch: &Launch,
    number: usize,
    mut residents: Vec<RunningPods>,
) -> Option<Node> {
    let pool = after.pools.iter_mut().find(|pool| pool.name == launch.pool)?;
    let catalogue = Arc::clone(after.catalogues.get(&pool.catalogue)?);
    let kind = catalogue.iter().find(|kind| kind.name == launch.instance_type)?;
    for (name, left) in pool.headroom.clone().iter() {
        pool.headroom.set(name, left.saturating_sub(charge(kind, name)));
    }
    let name = format!("launch-{}", number + 1);
    let chosen = kind
        .offerings
        .iter()
        .find(|one| one.zone == launch.zone && one.capacity_type == launch.capacity_type)?;
    let reservation = chosen.requirements.get(RESERVATION_ID).and_then(Requirement::single);
    if let Some(left) = reservation.and_then(|id| after.reservations.get_mut(id)) {
        *left = left.saturating_sub(1);
    }
    let mut all = pool.requirements.labels();
    all.extend(launch.requirements.labels());
    all.extend(kind.requirements.labels());
    all.extend(chosen.requirements.labels());
    all.insert(labels::HOSTNAME.to_owned(), name.clone());
    let daemons = daemons_of(pool, &after.daemons);
    let daemons = daemons.iter().filter(|one| runs_on(one, pool, kind));
    residents.extend(daemons.filter_map(|one| one.resident()));
    let mut free = kind.allocatable.clone();
    take(&mut free, &launch.requests);
    Some(Node {
        name,
        labels: all,
        taints: pool.taints.clone(),
        free,
        initialized: false,
        residents,
    })
}

/// Tries single changes for pods that a plan left without a place.
pub struct RemedySearch<'o> {
    base: Snapshot,
    prepared: SolverCache,
    options: &'o Options,
}

impl<'o> RemedySearch<'o> {
    /// For the pods of a snapshot that its plan did not place.
    pub fn new(snapshot: &Snapshot, plan: &Plan, options: &'o Options) -> Self {
        let base = after(snapshot, plan);
        Self { prepared: SolverCache::new(&base), base, options }
    }

    /// The smallest change for one pod, if one change is enough.
    pub fn smallest(&mut self, pod: &Pod, refusal: &Refusal) -> Option<Remedy> {
        let Refusal::Pools(reasons) = refusal else { return None };
        let mut tries = 0;
        for kind in KINDS {
            let mut best: Option<Remedy> = None;
            for reason in reasons {
                let Some(pool) = self.base.pools.iter().position(|pool| pool.name == reason.pool)
                else {
                    continue;
                };
                for attempt in kind(self, pod, pool, &reason.why) {
                    tries += 1;
                    if tries > MAX_TRIES {
                        return best;
                    }
                    let found = self.attempt(pod, pool, attempt);
                    if let Some(found) = found
                        && best.as_ref().is_none_or(|best| found.place.price() < best.place.price())
                    {
                        best = Some(found);
                    }
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    fn attempt(&mut self, pod: &Pod, pool: usize, attempt: Attempt) -> Option<Remedy> {
        match attempt {
            Attempt::Pod(change, changed) => {
                let place = self.place(*changed)?;
                Some(Remedy { change, place })
            }
            Attempt::WithoutAntiAffinity(key) => {
                // Its equals keep it away as much as it keeps them away, so they change with it.
                let before = self.base.nodes.clone();
                let namespace = pod.key.parts().0;
                for resident in self.base.nodes.iter_mut().flat_map(|node| &mut node.residents) {
                    if resident.namespace == namespace
                        && resident.anti_affinity == pod.anti_affinity
                    {
                        resident.anti_affinity.retain(|one| one.topology_key != key);
                    }
                }
                let mut changed = pod.clone();
                changed.anti_affinity.retain(|one| one.topology_key != key);
                let place = self.place(changed);
                self.base.nodes = before;
                place.map(|place| Remedy { change: Change::DropAntiAffinity { key }, place })
            }
            Attempt::WithoutLimit(resource) => {
                let before = self.base.pools[pool].headroom.clone();
                let unlimited = before.iter().filter(|(name, _)| *name != resource).collect();
                self.base.pools[pool].headroom = unlimited;
                let place = self.place(pod.clone());
                self.base.pools[pool].headroom = before;
                let place = place?;
                let needed = charge(self.kind_of(pool, &place)?, &resource);
                let by = needed.saturating_sub(self.base.pools[pool].headroom.get(&resource));
                let name = self.base.pools[pool].name.clone();
                Some(Remedy { change: Change::RaiseLimit { pool: name, resource, by }, place })
            }
            Attempt::WithoutRequirement(key) => {
                let before = self.base.pools[pool].requirements.clone();
                self.base.pools[pool].requirements = without(&before, &key);
                let place = self.place(pod.clone());
                self.base.pools[pool].requirements = before;
                let place = place?;
                let value = self.value_of(pool, &place, &key)?;
                let pool = self.base.pools[pool].name.clone();
                Some(Remedy { change: Change::Allow { pool, key, value }, place })
            }
        }
    }

    /// Where a pod would go, by itself.
    fn place(&mut self, pod: Pod) -> Option<RemedyPlacement> {
        self.base.pods = vec![pod];
        let plan = solve_with(&self.prepared, &self.base, self.options);
        self.base.pods.clear();
        match (plan.unplaced.is_empty(), plan.launches.first()) {
            (false, _) => None,
            (true, None) => Some(RemedyPlacement::Existing),
            (true, Some(launch)) => Some(RemedyPlacement::New {
                pool: launch.pool.clone(),
                instance_type: launch.instance_type.clone(),
                zone: launch.zone.clone(),
                capacity_type: launch.capacity_type,
                price: launch.price,
            }),
        }
    }

    /// The type of a new machine, if it belongs to this pool.
    fn kind_of(&self, pool: usize, place: &RemedyPlacement) -> Option<&crate::InstanceType> {
        let RemedyPlacement::New { pool: chosen, instance_type, .. } = place else { return None };
        let pool = &self.base.pools[pool];
        let catalogue =
            self.base.catalogues.get(&pool.catalogue).filter(|_| pool.name == *chosen)?;
        catalogue.iter().find(|kind| kind.name == *instance_type)
    }

    /// What a new machine says about a label.
    fn value_of(&self, pool: usize, place: &RemedyPlacement, key: &str) -> Option<String> {
        let RemedyPlacement::New { zone, capacity_type, .. } = place else { return None };
        let kind = self.kind_of(pool, place)?;
        let is_it =
            |one: &&crate::Offering| one.zone == *zone && one.capacity_type == *capacity_type;
        let offering = kind.offerings.iter().find(is_it)?;
        let says = offering.requirements.get(key).or_else(|| kind.requirements.get(key))?;
        says.single().map(str::to_owned)
    }

    /// The most of a resource that the pod could ask for in a pool, everything else as it is.
    fn most(&self, pod: &Pod, pool: &Pool, resource: &str) -> Option<i64> {
        let mut rest = pod.requests.clone();
        rest.set(resource, 0);
        let wishes = wishes(pool, pod);
        let daemons = daemons_of(pool, &self.base.daemons);
        let catalogue = self.base.catalogues.get(&pool.catalogue)?;
        let suitable = catalogue.iter().filter(|kind| {
            let mut offerings = kind.offerings.iter().filter(|offering| offering.available);
            within(pool, kind)
                && offerings.any(|offering| wishes.iter().any(|wish| suits(wish, kind, offering)))
        });
        let room =
            suitable.map(|kind| free(kind, pool, &daemons)).filter(|free| holds(free, &rest));
        let most = room.map(|free| free.get(resource)).max()?;
        let most = if resource == MEMORY { most - most.rem_euclid(MEBIBYTE) } else { most };
        (most > 0 && most < pod.requests.get(resource)).then_some(most)
    }
}

/// Something to try.
enum Attempt {
    /// The pod as it would be with a change.
    Pod(Change, Box<Pod>),
    WithoutAntiAffinity(String),
    WithoutLimit(String),
    WithoutRequirement(String),
}

type Kind = fn(&RemedySearch<'_>, &Pod, usize, &PoolRejection) -> Vec<Attempt>;

/// The kinds of changes, the smallest first.
const KINDS: [Kind; 6] =
    [tolerate, drop_requirement, ask_for_less, drop_rule, raise_limit, open_pool];

fn changed(change: Change, pod: &Pod, edit: impl FnOnce(&mut Pod)) -> Attempt {
    let mut pod = Box::new(pod.clone());
    edit(&mut pod);
    Attempt::Pod(change, pod)
}

fn tolerate(_: &RemedySearch<'_>, pod: &Pod, _: usize, why: &PoolRejection) -> Vec<Attempt> {
    let PoolRejection::Taint(taint) = why else { return Vec::new() };
    let toleration = Toleration {
        key: taint.key.clone(),
        value: taint.value.clone(),
        exists: false,
        effect: Some(taint.effect),
    };
    let change = Change::Tolerate { taint: taint.clone() };
    vec![changed(change, pod, |pod| pod.tolerations.push(toleration))]
}

/// Whether requirements, of the pod or of the pool, left nothing to choose from.
fn is_about_requirements(why: &PoolRejection) -> bool {
    matches!(why, PoolRejection::Requirements(_) | PoolRejection::Offerings { .. })
}

fn drop_requirement(
    _: &RemedySearch<'_>,
    pod: &Pod,
    _: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    if !is_about_requirements(why) {
        return Vec::new();
    }
    let keys: BTreeSet<&str> =
        pod.terms.iter().flat_map(|term| term.iter().map(|(key, _)| key)).collect();
    let attempt = |key: &str| {
        changed(Change::DropRequirement { key: key.to_owned() }, pod, |pod| {
            pod.terms = pod.terms.iter().map(|term| without(term, key)).collect();
        })
    };
    keys.into_iter().map(attempt).collect()
}

fn without(requirements: &Requirements, key: &str) -> Requirements {
    let mut kept = Requirements::new();
    for (other, requirement) in requirements.iter().filter(|(other, _)| *other != key) {
        kept.set(other, requirement.clone());
    }
    kept
}

fn ask_for_less(
    changes: &RemedySearch<'_>,
    pod: &Pod,
    pool: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    let PoolRejection::Offerings { large_enough: 0, compatible: 1.., .. } = why else {
        return Vec::new();
    };
    let attempt = |(resource, _): (&str, i64)| {
        let amount = changes.most(pod, &changes.base.pools[pool], resource)?;
        let change = Change::AskForAtMost { resource: resource.to_owned(), amount };
        Some(changed(change, pod, |pod| pod.requests.set(resource, amount)))
    };
    pod.requests.iter().filter_map(attempt).collect()
}

fn drop_rule(_: &RemedySearch<'_>, pod: &Pod, _: usize, why: &PoolRejection) -> Vec<Attempt> {
    let PoolRejection::Rule(rule) = why else { return Vec::new() };
    let attempt = match rule.clone() {
        Rule::Spread(key) => changed(Change::DropSpread { key: key.clone() }, pod, |pod| {
            pod.spread.retain(|one| one.topology_key != key);
        }),
        Rule::Affinity(key) => changed(Change::DropAffinity { key: key.clone() }, pod, |pod| {
            pod.affinity.retain(|one| one.topology_key != key);
        }),
        Rule::AntiAffinity(key) => Attempt::WithoutAntiAffinity(key),
    };
    vec![attempt]
}

fn raise_limit(
    changes: &RemedySearch<'_>,
    _: &Pod,
    pool: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    if !matches!(why, PoolRejection::Limit(_)) {
        return Vec::new();
    }
    let headroom: &Resources = &changes.base.pools[pool].headroom;
    headroom.iter().map(|(resource, _)| Attempt::WithoutLimit(resource.to_owned())).collect()
}

fn open_pool(
    changes: &RemedySearch<'_>,
    _: &Pod,
    pool: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    if !is_about_requirements(why) {
        return Vec::new();
    }
    let own = [labels::NODEPOOL, labels::AKS_NODE_CLASS];
    let keys = changes.base.pools[pool].requirements.iter().map(|(key, _)| key);
    let keys = keys.filter(|key| !own.contains(key));
    keys.map(|key| Attempt::WithoutRequirement(key.to_owned())).collect()
}
