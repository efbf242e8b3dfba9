//! How many offerings of each pool are left for a pod, step by step.
//!
//! A refusal names the step at which the last offering was lost; a funnel counts all of them, for
//! whoever wants to see how close it was. TopologyRules between pods are not counted here: they have no
//! number of offerings.

use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_api::{Requirements, Taint};
use nap_units::{CPU, Resources};
use serde::{Deserialize, Serialize};

use crate::model::{
    ATTACHABLE_VOLUMES, Daemon, InstanceType, Offering, Options, Pod, Pool, Snapshot,
};
use crate::offerings::daemon_overhead::{in_order, runs_on};

/// The offerings of one pool that are left for a pod after each step. Each number counts only what
/// passed the steps before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Funnel {
    /// The NodePool's name.
    pub pool: String,
    /// Offerings in the pool's catalogue.
    pub offerings: usize,
    /// Left after the pool's taints: all or none.
    pub tolerated: usize,
    /// The first taint that is not tolerated.
    pub taint: Option<Taint>,
    /// Left after the requirements of the pool and the pod.
    pub compatible: usize,
    /// Those that hold the pod besides the daemons.
    pub large_enough: usize,
    /// Those that are where the pod's volumes are or can be.
    pub near_volumes: usize,
    /// Those that can be had at present.
    pub available: usize,
    /// Those that the pool's limits still allow.
    pub within_limits: usize,
}

/// The funnel of every pool for one pod, heaviest pool first.
pub fn funnel(snapshot: &Snapshot, options: &Options, pod: &Pod) -> Vec<Funnel> {
    in_order(&snapshot.pools)
        .into_iter()
        .map(|pool| of_pool(snapshot, options, pool, pod))
        .collect()
}

fn of_pool(snapshot: &Snapshot, options: &Options, pool: &Pool, pod: &Pod) -> Funnel {
    let mut funnel = Funnel { pool: pool.name.clone(), ..Funnel::default() };
    funnel.taint = first_untolerated(&pool.taints, &pod.tolerations).cloned();
    let wishes = wishes(pool, pod);
    let daemons = daemons_of(pool, &snapshot.daemons);
    for kind in
        snapshot.catalogues.get(&pool.catalogue).into_iter().flat_map(|catalogue| catalogue.iter())
    {
        funnel.offerings += kind.offerings.len();
        if funnel.taint.is_some() {
            continue;
        }
        funnel.tolerated += kind.offerings.len();
        let large = holds(&free(kind, pool, &daemons), &pod.requests) && allows_size(options, kind);
        let allowed = within(pool, kind);
        for offering in &kind.offerings {
            if !wishes.iter().any(|wish| suits(wish, kind, offering)) {
                continue;
            }
            funnel.compatible += 1;
            if !large {
                continue;
            }
            funnel.large_enough += 1;
            if !near_volumes(pod, &wishes, kind, offering) {
                continue;
            }
            funnel.near_volumes += 1;
            funnel.available += usize::from(offering.available);
            funnel.within_limits += usize::from(offering.available && allowed);
        }
    }
    funnel
}

/// What the pool and each alternative of the pod insist on together, where they agree.
pub(crate) fn wishes(pool: &Pool, pod: &Pod) -> Vec<Requirements> {
    let together = |term: &Requirements| {
        pool.requirements.compatible(term, Undefined::AllowWellKnown).ok()?;
        let mut both = pool.requirements.clone();
        both.extend(term);
        Some(both)
    };
    pod.terms.iter().filter_map(together).collect()
}

/// Whether an offering satisfies a wish.
pub(crate) fn suits(wish: &Requirements, kind: &InstanceType, offering: &Offering) -> bool {
    wish.intersects(&kind.requirements).is_ok() && wish.intersects(&offering.requirements).is_ok()
}

fn near_volumes(
    pod: &Pod,
    wishes: &[Requirements],
    kind: &InstanceType,
    offering: &Offering,
) -> bool {
    pod.volume_terms.is_empty()
        || wishes.iter().any(|wish| {
            pod.volume_terms.iter().any(|place| {
                let mut both = wish.clone();
                both.extend(place);
                wish.compatible(place, Undefined::AllowWellKnown).is_ok()
                    && suits(&both, kind, offering)
            })
        })
}

/// The daemons whose tolerations suit a pool.
pub(crate) fn daemons_of<'a>(pool: &Pool, daemons: &'a [Daemon]) -> Vec<&'a Daemon> {
    daemons
        .iter()
        .filter(|one| first_untolerated(&pool.taints, &one.tolerations).is_none())
        .collect()
}

/// What a type has for pods once its daemons run.
pub(crate) fn free(kind: &InstanceType, pool: &Pool, daemons: &[&Daemon]) -> Resources {
    let mut free = kind.allocatable.clone();
    for daemon in daemons.iter().filter(|daemon| runs_on(daemon, pool, kind)) {
        take(&mut free, &daemon.requests);
    }
    free
}

fn allows_size(options: &Options, kind: &InstanceType) -> bool {
    options.max_cpu_per_node.is_none_or(|most| kind.capacity.get(CPU) <= most.saturating_mul(1000))
}

/// Whether the pool's limits allow one more machine of this type.
pub(crate) fn within(pool: &Pool, kind: &InstanceType) -> bool {
    pool.headroom.iter().all(|(name, left)| charge(kind, name) <= left)
}

/// What a machine of this type counts against a limit.
pub(crate) fn charge(kind: &InstanceType, limit: &str) -> i64 {
    if limit == "nodes" { 1 } else { kind.capacity.get(limit).max(0) }
}

/// What of a request a machine counts at all: volumes only if it says how many can be attached.
fn counted(free: &Resources, requests: &Resources) -> Resources {
    let counts = |name: &str| !name.starts_with(ATTACHABLE_VOLUMES) || free.contains(name);
    requests.iter().filter(|(name, _)| counts(name)).collect()
}

/// Whether a request fits into what is free.
pub(crate) fn holds(free: &Resources, requests: &Resources) -> bool {
    counted(free, requests).fits(free)
}

/// Takes a request off what is free.
pub(crate) fn take(free: &mut Resources, requests: &Resources) {
    free.subtract(&counted(free, requests));
}
