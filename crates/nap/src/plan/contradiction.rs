//! Which node labels leave a pod without any compatible offering, and the values on each side.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use nap_api::Requirements;
use nap_engine::{Pod, Snapshot, funnel};

use super::Problem;

/// Maximum number of single labels and pairs that are tried.
const MAX_TRIES: usize = 60;
/// Maximum number of values that are listed.
const MAX_VALUES: usize = 6;

/// One line for each contradiction between a pod and a NodePool; empty if there is none that one or
/// two labels explain.
pub fn find(problem: &Problem, pod: &Pod, spec: Option<&PodSpec>, pool: &str) -> Vec<String> {
    let own = spec.map(within_pod).unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    // Alternatives may each fail for another reason.
    let [term] = pod.terms.as_slice() else { return Vec::new() };
    let snapshot = &problem.snapshot;
    let compatible = |keys: &[&str]| {
        let mut kept = Requirements::new();
        for (key, requirement) in term.iter().filter(|(key, _)| keys.contains(key)) {
            kept.set(key, requirement.clone());
        }
        let alone = Pod { terms: vec![kept], ..pod.clone() };
        let of_pool = funnel(snapshot, &problem.options, &alone);
        of_pool.iter().find(|steps| steps.pool == pool).is_none_or(|steps| steps.compatible > 0)
    };
    let keys: Vec<&str> = term.iter().map(|(key, _)| key).collect();
    let sides = |key: &str| {
        let wanted = term.get(key).map(ToString::to_string).unwrap_or_default();
        format!(
            "`{key}`: the pod wants {wanted}, the nodepool has {}",
            offered(snapshot, pool, key)
        )
    };
    let mut tries = 0;
    let mut found = Vec::new();
    for key in &keys {
        tries += 1;
        if tries > MAX_TRIES {
            return found;
        }
        if !compatible(&[key]) {
            found.push(sides(key));
        }
    }
    if !found.is_empty() {
        return found;
    }
    for (number, one) in keys.iter().enumerate() {
        for other in &keys[number + 1..] {
            tries += 1;
            if tries > MAX_TRIES {
                return Vec::new();
            }
            if !compatible(&[one, other]) {
                let wanted = |key: &str| term.get(key).map(ToString::to_string).unwrap_or_default();
                return vec![format!(
                    "no offering has both `{one}` {} and `{other}` {}",
                    wanted(one),
                    wanted(other)
                )];
            }
        }
    }
    Vec::new()
}

/// Values of a label that a NodePool can give to nodes.
fn offered(snapshot: &Snapshot, pool: &str, key: &str) -> String {
    let Some(pool) = snapshot.pools.iter().find(|one| one.name == pool) else {
        return "none".to_owned();
    };
    if let Some(requirement) = pool.requirements.get(key) {
        return requirement.to_string();
    }
    let types = snapshot.catalogues.get(&pool.catalogue).map(|catalogue| catalogue.types());
    let mut values = BTreeSet::new();
    for kind in types.into_iter().flatten() {
        let of_offerings = kind.offerings.iter().map(|offering| &*offering.requirements);
        for requirements in std::iter::once(&kind.requirements).chain(of_offerings) {
            values.extend(requirements.get(key).into_iter().flat_map(|one| one.values().iter()));
        }
    }
    let more = values.len().saturating_sub(MAX_VALUES);
    let shown: Vec<&str> = values.into_iter().take(MAX_VALUES).collect();
    match (shown.is_empty(), more) {
        (true, _) => "no such label".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} others", shown.join(", ")),
    }
}

/// Requirements of the pod itself that exclude each other.
pub fn within_pod(spec: &PodSpec) -> Vec<String> {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice());
    let [term] = terms.unwrap_or_default() else { return Vec::new() };
    let mut by_key: BTreeMap<&str, Vec<(String, BTreeSet<&str>)>> = BTreeMap::new();
    for (key, value) in spec.node_selector.iter().flatten() {
        let text = format!("`{value}` (nodeSelector)");
        by_key.entry(key).or_default().push((text, BTreeSet::from([value.as_str()])));
    }
    for expression in term.match_expressions.iter().flatten().filter(|one| one.operator == "In") {
        let values: BTreeSet<&str> =
            expression.values.iter().flatten().map(String::as_str).collect();
        let list: Vec<&str> = values.iter().copied().collect();
        let text = format!("In [{}] (nodeAffinity)", list.join(", "));
        by_key.entry(&expression.key).or_default().push((text, values));
    }
    let excluded = by_key.iter().filter(|(_, sides)| {
        let first = sides.first().map(|(_, values)| values.clone()).unwrap_or_default();
        sides.iter().fold(first, |left, (_, values)| &left & values).is_empty()
    });
    excluded
        .map(|(key, sides)| {
            let sides: Vec<&str> = sides.iter().map(|(text, _)| text.as_str()).collect();
            format!(
                "`{key}`: the pod itself wants {}, which exclude each other",
                sides.join(" and ")
            )
        })
        .collect()
}
