//! Remedies: the smallest single change that would give a pod a place.
//!
//! Candidates come from the reasons for which each pool rejected the pod. Each is tried on the
//! cluster that the plan leads to, by solving for that one pod. Changes that the owner of the pod
//! can make alone are tried first; among changes of one kind, the one with the cheapest node wins.
//! A pod that needs two changes at once has no remedy.

mod after;
mod candidates;

use std::sync::Arc;

use nap_api::{Requirements, Taint};
use nap_units::{MEMORY, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::classes::dimensions::holds;
use crate::explain::single_pod::with_index;
use crate::ids::{Id, OfferingId};
use crate::model::{
    CapacityType, InstanceType, Offering, Options, Plan, Pod, Preferences, Refusal, Snapshot,
};
use crate::offerings::pool_table::charge_of;
use crate::offerings::solver_cache::SolverCache;
pub use crate::remedy::after::after;
use crate::remedy::candidates::{Attempt, PROPOSALS, without};
use crate::solve::solve_with;

/// Upper limit on the changes that are tried for one pod.
const MAX_TRIES: usize = 60;

/// Upper limit on the work for one pod: the values of its node requirements times the changes that
/// are tried. A pod of ordinary size never meets it.
const MAX_WORK: usize = 400_000;

/// Granularity of proposed memory requests.
const MEBIBYTE: i64 = 1 << 20;

/// One change to a pod or to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Change {
    /// Adds a toleration to the pod.
    Tolerate {
        /// The taint.
        taint: Taint,
    },
    /// Drops the node requirements of the pod on a label.
    DropRequirement {
        /// Key of the label.
        key: String,
    },
    /// Lowers a request of the pod.
    AskForAtMost {
        /// Name of the resource.
        resource: String,
        /// New amount, in the units of [`Resources`](nap_units::Resources).
        amount: i64,
    },
    /// Drops the spread constraints of the pod over a label.
    DropSpread {
        /// Key of the label.
        key: String,
    },
    /// Drops the pod affinity of the pod over a label.
    DropAffinity {
        /// Key of the label.
        key: String,
    },
    /// Drops the pod anti-affinity over a label, of the pod and of pods with the same terms.
    DropAntiAffinity {
        /// Key of the label.
        key: String,
    },
    /// Raises a limit of a pool.
    RaiseLimit {
        /// Name of the NodePool.
        pool: String,
        /// The limited resource.
        resource: String,
        /// Increase, in the units of [`Resources`](nap_units::Resources).
        by: i64,
    },
    /// Adds a value of a label to the requirements of a pool.
    Allow {
        /// Name of the NodePool.
        pool: String,
        /// Key of the label.
        key: String,
        /// The value.
        value: String,
    },
}

/// A change, and the place that the pod would have with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// The change.
    pub change: Change,
    /// Place of the pod.
    pub place: RemedyPlacement,
}

/// Place that a pod would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RemedyPlacement {
    /// A node that exists or that the plan launches.
    Existing,
    /// A node of its own.
    New {
        /// Name of the NodePool.
        pool: String,
        /// VM size.
        instance_type: String,
        /// Value of the zone label.
        zone: String,
        /// Capacity type.
        capacity_type: CapacityType,
        /// Price of the node.
        price: UsdPerHour,
    },
}

impl RemedyPlacement {
    /// Price of the place in addition to the cost of the plan.
    pub fn price(&self) -> UsdPerHour {
        match self {
            Self::Existing => UsdPerHour::ZERO,
            Self::New { price, .. } => *price,
        }
    }
}

/// Number of values in the node requirements of a pod, required and preferred.
fn size_of(pod: &Pod) -> usize {
    let values = |requirements: &Requirements| {
        requirements.iter().map(|(_, one)| 1 + one.values().len()).sum::<usize>()
    };
    let preferred: usize = pod.preferences.nodes.iter().map(|one| values(&one.term)).sum();
    let required: usize = pod.terms.iter().map(values).sum();
    // Each preference is combined with each required term.
    required + preferred.saturating_mul(pod.terms.len().max(1))
}

/// The search for remedies of the pods that a plan left without a place.
pub struct RemedySearch<'o> {
    /// The cluster after the plan.
    base: Snapshot,
    cache: SolverCache,
    options: &'o Options,
    stopped: bool,
}

impl<'o> RemedySearch<'o> {
    /// Search for the pods of a snapshot that its plan did not place.
    pub fn new(snapshot: &Snapshot, plan: &Plan, options: &'o Options) -> Self {
        let base = after(snapshot, plan);
        Self { cache: SolverCache::new(&base), base, options, stopped: false }
    }

    /// Whether the last search ended before everything was tried.
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// The smallest change for one pod, if one change is enough. Without one,
    /// [`has_stopped`](Self::has_stopped) tells whether that is certain.
    pub fn smallest(&mut self, pod: &Pod, refusal: &Refusal) -> Option<Remedy> {
        self.stopped = false;
        let Refusal::Pools(reasons) = refusal else { return None };
        let size = size_of(pod);
        let max_tries = MAX_TRIES.min((MAX_WORK / size.max(1)).max(1));
        // Preferences of a large pod only cost time here: they never keep it from a place.
        let plain: Pod;
        let pod = if max_tries < MAX_TRIES {
            plain = Pod { preferences: Preferences::default(), ..pod.clone() };
            &plain
        } else {
            pod
        };
        let mut tries = 0;
        for propose in PROPOSALS {
            let mut best: Option<Remedy> = None;
            for reason in reasons {
                let Some(pool) = self.base.pools.iter().position(|pool| pool.name == reason.pool)
                else {
                    continue;
                };
                for attempt in propose(self, pod, pool, &reason.why) {
                    tries += 1;
                    if tries > max_tries {
                        self.stopped = true;
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
                // Anti-affinity is mutual, so equal running pods change with the pod.
                let before = self.base.nodes.clone();
                let namespace = pod.key.namespace();
                let nodes = self.base.nodes.iter_mut().map(Arc::make_mut);
                for running in nodes.flat_map(|node| &mut node.residents) {
                    if running.namespace == namespace && running.anti_affinity == pod.anti_affinity
                    {
                        running.anti_affinity.retain(|one| one.topology_key != key);
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
                let needed = charge_of(self.type_of(pool, &place)?, &resource);
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

    /// Place of a pod that is solved for alone; `None` if it has none.
    fn place(&mut self, pod: Pod) -> Option<RemedyPlacement> {
        self.base.pods = vec![pod];
        let plan = solve_with(&self.cache, &self.base, self.options);
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

    /// Instance type of a new node, if it belongs to this pool.
    fn type_of(&self, pool: usize, place: &RemedyPlacement) -> Option<&InstanceType> {
        let RemedyPlacement::New { pool: chosen, instance_type, .. } = place else { return None };
        let pool = &self.base.pools[pool];
        let catalogue =
            self.base.catalogues.get(&pool.catalogue).filter(|_| pool.name == *chosen)?;
        catalogue.types().iter().find(|one| one.name == *instance_type)
    }

    /// Value of a label on a new node.
    fn value_of(&self, pool: usize, place: &RemedyPlacement, key: &str) -> Option<String> {
        let RemedyPlacement::New { zone, capacity_type, .. } = place else { return None };
        let instance_type = self.type_of(pool, place)?;
        let mut offerings = instance_type.offerings.iter();
        let is_chosen = |one: &&Offering| one.zone == *zone && one.capacity_type == *capacity_type;
        let offering = offerings.find(is_chosen)?;
        let of_type = || instance_type.requirements.get(key);
        offering.requirements.get(key).or_else(of_type)?.single().map(str::to_owned)
    }

    /// Largest request of a resource that a pool could satisfy with everything else as it is.
    /// `None` if it is zero or no smaller than the present request.
    fn max_request(&self, pod: &Pod, pool: usize, resource: &str) -> Option<i64> {
        let name = &self.base.pools[pool].name;
        let max = with_index(&self.base, self.options, pod, |offerings, class, dimensions| {
            let dimension = dimensions.resources().iter().position(|name| *name == resource)?;
            let pool = offerings.pools.ids().find(|id| offerings.pools[*id].pool.name == *name)?;
            let funnel = offerings.funnel(pool, class);
            let mut rest = class.requests.clone();
            rest[dimension] = 0;
            let table = &offerings.pools[pool];
            let limits: Vec<i64> = table.limits.iter().map(|(_, left)| *left).collect();
            let types = funnel.compatible.ones().map(|one| table.offering(OfferingId::new(one)));
            let types = types.filter(|(row, _)| row.is_available).map(|(row, _)| row.instance_type);
            let suitable = types
                .filter(|id| table.within_limits(*id, &limits) && holds(table.free(*id), &rest));
            suitable.map(|id| table.free(id)[dimension]).max()
        });
        let max = max.flatten()?;
        let max = if resource == MEMORY { max - max.rem_euclid(MEBIBYTE) } else { max };
        (max > 0 && max < pod.requests.get(resource)).then_some(max)
    }
}
