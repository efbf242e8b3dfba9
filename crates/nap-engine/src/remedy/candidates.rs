//! Candidate changes, from the reasons for which pools rejected a pod.

use std::collections::BTreeSet;

use nap_api::{Requirements, Toleration, labels};
use nap_units::Resources;

use crate::model::{Pod, PoolRejection, Rule};
use crate::remedy::{Change, RemedySearch};

/// A change to be tried.
pub(super) enum Attempt {
    /// The pod with a change.
    Pod(Change, Box<Pod>),
    /// The pod and equal running pods without their anti-affinity over a label.
    WithoutAntiAffinity(String),
    /// The pool without its limit on a resource.
    WithoutLimit(String),
    /// The pool without its requirement on a label.
    WithoutRequirement(String),
}

/// Proposes changes for a pod that a pool rejected.
pub(super) type Proposal = fn(&RemedySearch<'_>, &Pod, usize, &PoolRejection) -> Vec<Attempt>;

/// All proposals, the smallest changes first.
pub(super) const PROPOSALS: [Proposal; 6] =
    [tolerate, drop_requirement, request_less, drop_rule, raise_limit, allow_value];

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

/// Whether the requirements of the pod or of the pool left no offering.
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

/// Requirements without one label.
pub(super) fn without(requirements: &Requirements, key: &str) -> Requirements {
    let mut kept = Requirements::new();
    for (other, requirement) in requirements.iter().filter(|(other, _)| *other != key) {
        kept.set(other, requirement.clone());
    }
    kept
}

fn request_less(
    search: &RemedySearch<'_>,
    pod: &Pod,
    pool: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    let PoolRejection::Offerings { large_enough: 0, compatible: 1.., .. } = why else {
        return Vec::new();
    };
    let attempt = |(resource, _): (&str, i64)| {
        let amount = search.max_request(pod, pool, resource)?;
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
    search: &RemedySearch<'_>,
    _: &Pod,
    pool: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    if !matches!(why, PoolRejection::Limit(_)) {
        return Vec::new();
    }
    let headroom: &Resources = &search.base.pools[pool].headroom;
    headroom.iter().map(|(resource, _)| Attempt::WithoutLimit(resource.to_owned())).collect()
}

fn allow_value(
    search: &RemedySearch<'_>,
    _: &Pod,
    pool: usize,
    why: &PoolRejection,
) -> Vec<Attempt> {
    if !is_about_requirements(why) {
        return Vec::new();
    }
    let own = [labels::NODEPOOL, labels::AKS_NODE_CLASS];
    let keys = search.base.pools[pool].requirements.iter().map(|(key, _)| key);
    let keys = keys.filter(|key| !own.contains(key));
    keys.map(|key| Attempt::WithoutRequirement(key.to_owned())).collect()
}
