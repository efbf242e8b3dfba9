//! The least that any plan can cost.

use std::collections::BTreeMap;

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOutcome};
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_engine::{ATTACHABLE_VOLUMES, InstanceType, Pod, PodKey, Pool, Preferences, Snapshot};
use nap_units::{Resources, UsdPerHour};

/// The most pods of an exact solution: the work grows with the third power of three of them.
const MOST_PODS: usize = 10;

/// What placing the pods must cost at least, by a linear program over whole types and all resources, what is free on existing machines
/// taken off. `None` if the solver finds no solution.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a bound, compared with a margin"
)]
pub fn bound(snapshot: &Snapshot, pods: &[&PodKey]) -> Option<UsdPerHour> {
    let placed: Vec<&Pod> = snapshot.pods.iter().filter(|pod| pods.contains(&&pod.key)).collect();
    let mut demand: BTreeMap<&str, f64> = BTreeMap::new();
    let is_limited = |(name, _): &(&str, i64)| !name.starts_with(ATTACHABLE_VOLUMES);
    for (name, amount) in placed.iter().flat_map(|pod| pod.requests.iter()).filter(is_limited) {
        *demand.entry(name).or_default() += amount.max(0) as f64;
    }
    for node in &snapshot.nodes {
        for (name, amount) in node.free.iter().filter(is_limited) {
            *demand.entry(name).or_default() -= amount.max(0) as f64;
        }
    }
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut columns = Vec::new();
    for pool in &snapshot.pools {
        for kind in snapshot.catalogues.get(&pool.catalogue).into_iter().flat_map(|types| types.iter()) {
            let price = placed.iter().filter_map(|pod| cheapest(pool, kind, pod)).min();
            if let Some(price) = price {
                let column = problem.add_var(price.micros() as f64 / 1e6, (0.0, f64::INFINITY));
                columns.push((column, &kind.allocatable));
            }
        }
    }
    for (name, demand) in demand {
        let unit = demand.abs().max(1.0);
        let row: Vec<_> =
            columns.iter().map(|(column, has)| (*column, has.get(name).max(0) as f64 / unit)).collect();
        problem.add_constraint(row, ComparisonOp::Ge, demand / unit);
    }
    let SolveOutcome::Solution(solution) = problem.solve().ok()? else { return None };
    Some(UsdPerHour::from_micros((solution.objective() * 1e6).floor() as i64))
}

/// The price of a type of a pool for one pod, if it may go there and fits.
fn cheapest(pool: &Pool, kind: &InstanceType, pod: &Pod) -> Option<UsdPerHour> {
    if first_untolerated(&pool.taints, &pod.tolerations).is_some() || !fits(pod, kind) {
        return None;
    }
    let mut best = None;
    for term in &pod.terms {
        if pool.requirements.compatible(term, Undefined::AllowWellKnown).is_err() {
            continue;
        }
        let mut all = pool.requirements.clone();
        all.extend(term);
        if all.intersects(&kind.requirements).is_err() {
            continue;
        }
        let offers = kind.offerings.iter().filter(|offer| offer.available);
        let offers = offers.filter(|offer| all.intersects(&offer.requirements).is_ok());
        best = offers.map(|offer| offer.price).chain(best).min();
    }
    best
}

fn fits(pod: &Pod, kind: &InstanceType) -> bool {
    pod.requests.iter().all(|(name, amount)| {
        let is_unlimited = name.starts_with(ATTACHABLE_VOLUMES) && !kind.allocatable.contains(name);
        amount <= 0 || is_unlimited || amount <= kind.allocatable.get(name)
    })
}

/// The least that all pods of a small snapshot cost, exactly, by trying every partition into nodes. `None` where it does not apply: many
/// pods, several terms, or anything besides requests and terms that matters (rules between pods, existing machines, limits, weights, daemons).
pub fn enumerate(snapshot: &Snapshot) -> Option<UsdPerHour> {
    let plain = |pod: &Pod| {
        pod.spread.is_empty()
            && pod.affinity.is_empty()
            && pod.anti_affinity.is_empty()
            && pod.host_ports.is_empty()
            && pod.terms.len() == 1
            && pod.volume_terms.is_empty()
            && pod.preferences == Preferences::default()
    };
    let pods = &snapshot.pods;
    let simple = pods.len() <= MOST_PODS
        && pods.iter().all(plain)
        && snapshot.nodes.is_empty()
        && snapshot.daemons.is_empty()
        && snapshot.reservations.is_empty()
        && snapshot.pools.iter().all(|pool| pool.headroom.is_empty() && pool.weight == 0);
    if !simple {
        return None;
    }
    let all = (1_usize << pods.len()) - 1;
    let cost: Vec<Option<UsdPerHour>> = (0..=all).map(|set| together(snapshot, set)).collect();
    let mut best: Vec<Option<UsdPerHour>> = vec![None; all + 1];
    best[0] = Some(UsdPerHour::ZERO);
    for set in 1..=all {
        let first = set & set.wrapping_neg();
        let mut part = set;
        while part > 0 {
            if part & first != 0
                && let (Some(node), Some(rest)) = (cost[part], best[set ^ part])
            {
                let total: UsdPerHour = [node, rest].into_iter().sum();
                best[set] = Some(best[set].map_or(total, |known| known.min(total)));
            }
            part = (part - 1) & set;
        }
    }
    best[all]
}

/// The cheapest node for a set of pods.
fn together(snapshot: &Snapshot, set: usize) -> Option<UsdPerHour> {
    let pods: Vec<&Pod> = snapshot
        .pods
        .iter()
        .enumerate()
        .filter(|(bit, _)| set & (1 << bit) != 0)
        .map(|(_, pod)| pod)
        .collect();
    let mut requests = Resources::new();
    for pod in &pods {
        requests.add(&pod.requests);
    }
    let mut best = None;
    for pool in &snapshot.pools {
        let mut merged = Pod { requests: requests.clone(), ..Pod::default() };
        let mut wish = pool.requirements.clone();
        let mut agrees = true;
        for pod in &pods {
            agrees &= first_untolerated(&pool.taints, &pod.tolerations).is_none();
            for term in &pod.terms {
                agrees &= wish.compatible(term, Undefined::AllowWellKnown).is_ok();
                wish.extend(term);
            }
        }
        if !agrees {
            continue;
        }
        merged.terms = vec![wish];
        merged.tolerations = pods.first().map(|pod| pod.tolerations.clone()).unwrap_or_default();
        let types = snapshot.catalogues.get(&pool.catalogue).into_iter().flat_map(|types| types.iter());
        best = types.filter_map(|kind| cheapest(pool, kind, &merged)).chain(best).min();
    }
    best
}
