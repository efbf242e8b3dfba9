//! Groups of pods with equal specs, found by digest instead of by pairwise comparison.
//!
//! Labels differ between pods that are otherwise equal (an index, the name of the pod), and matter
//! only if some selector of the snapshot mentions their key. All other labels are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use crate::intern::{Mixer, digest};
use crate::model::{Pod, PodKey, Preferences, Snapshot, Unsupported};

/// Pods with equal specs.
pub(crate) struct Group<'a> {
    /// A representative.
    pub(crate) pod: &'a Pod,
    /// All pods of the group, in key order.
    pub(crate) pods: Vec<&'a PodKey>,
}

/// The pods of a snapshot, grouped.
pub(crate) struct Groups<'a> {
    pub(crate) list: Vec<Group<'a>>,
    /// Pods with a hard constraint that cannot be planned for; they are in no group.
    pub(crate) unsupported: Vec<(&'a PodKey, &'a Unsupported)>,
}

impl<'a> Groups<'a> {
    /// Groups the pods of a snapshot, whatever their order. A key that occurs twice counts once.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mentioned = mentioned(snapshot);
        let mut unsupported = Vec::new();
        let mut list: Vec<Group<'a>> = Vec::new();
        // Index of each group by its digest and a counter for groups that share a digest.
        let mut indices: BTreeMap<(u64, u32), usize> = BTreeMap::new();
        // Pods of one workload are often adjacent.
        let mut previous: Option<usize> = None;
        for pod in distinct(&snapshot.pods) {
            if let Some(constraint) = &pod.unsupported {
                unsupported.push((&pod.key, constraint));
                continue;
            }
            if let Some(index) = previous.filter(|one| is_equal(list[*one].pod, pod, &mentioned)) {
                list[index].pods.push(&pod.key);
                continue;
            }
            let digest = content_digest(pod, &mentioned);
            let mut collisions = 0;
            let known = loop {
                match indices.get(&(digest, collisions)) {
                    Some(index) if is_equal(list[*index].pod, pod, &mentioned) => {
                        break Some(*index);
                    }
                    Some(_) => collisions += 1,
                    None => break None,
                }
            };
            if let Some(index) = known {
                list[index].pods.push(&pod.key);
            } else {
                indices.insert((digest, collisions), list.len());
                list.push(Group { pod, pods: vec![&pod.key] });
            }
            previous = Some(known.unwrap_or(list.len() - 1));
        }
        unsupported.sort_unstable();
        for group in &mut list {
            group.pods.sort_unstable();
        }
        // The order of the groups must not depend on digests.
        list.sort_unstable_by(|a, b| a.pods.first().cmp(&b.pods.first()));
        Self { list, unsupported }
    }
}

/// The pods without duplicate keys: of several pods with one key, the smallest.
fn distinct(pods: &[Pod]) -> Vec<&Pod> {
    if pods.is_sorted_by(|a, b| a.key < b.key) {
        return pods.iter().collect();
    }
    let mut keyed: Vec<(u64, usize)> =
        pods.iter().enumerate().map(|(index, pod)| (digest(&pod.key), index)).collect();
    keyed.sort_unstable();
    let mut dropped: Vec<usize> = Vec::new();
    for same in keyed.chunk_by(|(a, _), (b, _)| a == b).filter(|same| same.len() > 1) {
        let mut same: Vec<usize> = same.iter().map(|(_, index)| *index).collect();
        same.sort_by(|a, b| pods[*a].cmp(&pods[*b]));
        let duplicates = same.windows(2).filter(|pair| pods[pair[0]].key == pods[pair[1]].key);
        dropped.extend(duplicates.map(|pair| pair[1]));
    }
    dropped.sort_unstable();
    let kept = pods.iter().enumerate().filter(|(index, _)| dropped.binary_search(index).is_err());
    kept.map(|(_, pod)| pod).collect()
}

/// Keys of the labels that some selector mentions.
fn mentioned(snapshot: &Snapshot) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    for pod in &snapshot.pods {
        let Preferences { affinity, anti_affinity, spread, .. } = &pod.preferences;
        let preferred = affinity.iter().chain(anti_affinity).map(|one| &one.term);
        let terms = pod.affinity.iter().chain(&pod.anti_affinity).chain(preferred);
        let terms = terms.map(|term| &term.selector);
        let spreads = pod.spread.iter().chain(spread).map(|spread| &spread.selector);
        let selectors = spreads.chain(terms).chain(&pod.workload);
        keys.extend(selectors.flat_map(|selector| &selector.0).map(|rule| rule.key.as_str()));
    }
    let running = snapshot.nodes.iter().flat_map(|node| &node.residents);
    let terms = running.flat_map(|running| &running.anti_affinity);
    keys.extend(terms.flat_map(|term| &term.selector.0).map(|rule| rule.key.as_str()));
    keys
}

fn labels<'p>(
    pod: &'p Pod,
    mentioned: &BTreeSet<&str>,
) -> impl Iterator<Item = (&'p String, &'p String)> {
    pod.labels.iter().filter(|(key, _)| mentioned.contains(key.as_str()))
}

fn content_digest(pod: &Pod, mentioned: &BTreeSet<&str>) -> u64 {
    let mut mixer = Mixer(0);
    pod.key.namespace().hash(&mut mixer);
    let Pod { requests, terms, tolerations, priority, spread, affinity, anti_affinity, .. } = pod;
    (priority, requests, terms, tolerations, spread, affinity, anti_affinity).hash(&mut mixer);
    (&pod.host_ports, &pod.volume_terms, &pod.preferences, &pod.workload).hash(&mut mixer);
    pod.blocks_disruption.hash(&mut mixer);
    for label in labels(pod, mentioned) {
        label.hash(&mut mixer);
    }
    mixer.finish()
}

fn is_equal(one: &Pod, other: &Pod, mentioned: &BTreeSet<&str>) -> bool {
    one.key.namespace() == other.key.namespace()
        && one.priority == other.priority
        && one.requests == other.requests
        && one.terms == other.terms
        && one.tolerations == other.tolerations
        && one.spread == other.spread
        && one.affinity == other.affinity
        && one.anti_affinity == other.anti_affinity
        && one.host_ports == other.host_ports
        && one.volume_terms == other.volume_terms
        && one.preferences == other.preferences
        && one.workload == other.workload
        && one.blocks_disruption == other.blocks_disruption
        && (one.labels == other.labels || labels(one, mentioned).eq(labels(other, mentioned)))
}
