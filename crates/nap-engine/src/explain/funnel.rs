//! The funnel of a pod: the number of offerings that each step leaves, for every pool.
//!
//! A refusal names the step at which the last offering was lost; the funnel counts all steps, to
//! show how close it was. Topology rules are no step: they leave no number of offerings.

use nap_api::Taint;
use serde::{Deserialize, Serialize};

use crate::classes::Class;
use crate::explain::single_pod::with_index;
use crate::ids::PoolId;
use crate::model::{CapacityType, Options, Pod, Snapshot};
use crate::offerings::index::OfferingIndex;

/// The offerings of one pool that are left for a pod after each step. Each number counts only
/// offerings that passed the steps before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Funnel {
    /// Name of the NodePool.
    pub pool: String,
    /// Offerings in the pool's catalogue.
    pub offerings: usize,
    /// Left after the pool's taints: all or none.
    pub tolerated: usize,
    /// First taint that is not tolerated.
    pub taint: Option<Taint>,
    /// Left after the requirements of the pool and the pod.
    pub compatible: usize,
    /// Left whose type holds the pod beside the daemons.
    pub large_enough: usize,
    /// Left in the topology of the pod's volumes.
    pub near_volumes: usize,
    /// Left that are available.
    pub available: usize,
    /// Left that fit the limits of the pool.
    pub within_limits: usize,
    /// Offerings that were left but for their availability, cheapest first.
    pub unavailable: Vec<UnavailableOffering>,
}

/// An offering that is not available at present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnavailableOffering {
    /// Instance type.
    pub instance_type: String,
    /// Zone.
    pub zone: String,
    /// Capacity type.
    pub capacity_type: CapacityType,
}

/// Computes the funnel of every pool for one pod, heaviest pool first.
pub fn funnel(snapshot: &Snapshot, options: &Options, pod: &Pod) -> Vec<Funnel> {
    let all = with_index(snapshot, options, pod, |offerings, class, _| {
        let pools = offerings.pools.ids();
        pools.map(|pool| of_pool(offerings, pool, class)).collect()
    });
    all.unwrap_or_default()
}

fn of_pool(offerings: &mut OfferingIndex<'_>, pool: PoolId, class: &Class<'_>) -> Funnel {
    let funnel = offerings.funnel(pool, class);
    let table = &offerings.pools[pool];
    let limits: Vec<i64> = table.limits.iter().map(|(_, left)| *left).collect();
    let available = funnel.available();
    let within_limits = available
        .iter()
        .filter(|id| table.within_limits(table.offering(**id).0.instance_type, &limits))
        .count();
    let unavailable = funnel.unavailable().map(|id| {
        let (row, offering) = table.offering(id);
        UnavailableOffering {
            instance_type: table.catalogue.instance_type(row.instance_type).name.clone(),
            zone: offering.zone.clone(),
            capacity_type: offering.capacity_type,
        }
    });
    Funnel {
        pool: table.pool.name.clone(),
        offerings: funnel.total,
        tolerated: if funnel.taint.is_none() { funnel.total } else { 0 },
        taint: funnel.taint.cloned(),
        compatible: funnel.compatible.count_ones(..),
        large_enough: funnel.large_enough(),
        near_volumes: funnel.large_enough_near_volumes(),
        available: available.len(),
        within_limits,
        unavailable: unavailable.collect(),
    }
}
