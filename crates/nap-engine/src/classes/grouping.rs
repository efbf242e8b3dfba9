//! Pods that are written alike, found without comparing every pod with every other.
//!
//! Labels differ between pods that are otherwise alike (an index, the name of the pod), and matter
//! only where somebody selects by them. So only labels that some selector of the snapshot mentions
//! are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use crate::intern::{Mixer, digest};
use crate::model::{Pod, PodKey, Preferences, Snapshot};

/// Pods that are written alike.
pub(crate) struct Group<'a> {
    /// One of them: what it asks for holds for all.
    pub(crate) pod: &'a Pod,
    /// All of them, in key order.
    pub(crate) pods: Vec<&'a PodKey>,
}

/// The pods of a snapshot.
pub(crate) struct Groups<'a> {
    pub(crate) list: Vec<Group<'a>>,
    /// Pods that no group holds, for a constraint that the engine does not know: the pod and the
    /// field.
    pub(crate) unsupported: Vec<(&'a PodKey, &'a str)>,
}

impl<'a> Groups<'a> {
    /// Groups the pods of a snapshot. The order of the pods in it does not matter; a key that comes
    /// twice counts once.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mentioned = mentioned(snapshot);
        let mut unsupported = Vec::new();
        let mut list: Vec<Group<'a>> = Vec::new();
        // By digest, and a counter for those that share one.
        let mut numbers: BTreeMap<(u64, u32), usize> = BTreeMap::new();
        // Pods of one workload often follow each other.
        let mut before: Option<usize> = None;
        for pod in distinct(&snapshot.pods) {
            if let Some(field) = &pod.unsupported {
                unsupported.push((&pod.key, field.as_str()));
                continue;
            }
            if let Some(number) = before.filter(|number| alike(list[*number].pod, pod, &mentioned))
            {
                list[number].pods.push(&pod.key);
                continue;
            }
            let digest = content(pod, &mentioned);
            let mut place = 0;
            let known = loop {
                match numbers.get(&(digest, place)) {
                    Some(number) if alike(list[*number].pod, pod, &mentioned) => {
                        break Some(*number);
                    }
                    Some(_) => place += 1,
                    None => break None,
                }
            };
            if let Some(number) = known {
                list[number].pods.push(&pod.key);
            } else {
                numbers.insert((digest, place), list.len());
                list.push(Group { pod, pods: vec![&pod.key] });
            }
            before = Some(known.unwrap_or(list.len() - 1));
        }
        unsupported.sort_unstable();
        for group in &mut list {
            group.pods.sort_unstable();
        }
        // Digests say nothing to anybody: what follows sees the groups in the order of their first
        // pods.
        list.sort_unstable_by(|a, b| a.pods.first().cmp(&b.pods.first()));
        Self { list, unsupported }
    }
}

/// Each key once, with the least of the pods that have it.
fn distinct(pods: &[Pod]) -> Vec<&Pod> {
    if pods.is_sorted_by(|a, b| a.key < b.key) {
        return pods.iter().collect();
    }
    let mut keyed: Vec<(u64, usize)> =
        pods.iter().enumerate().map(|(index, pod)| (digest(&pod.key), index)).collect();
    keyed.sort_unstable();
    let mut spare: Vec<usize> = Vec::new();
    for same in keyed.chunk_by(|(a, _), (b, _)| a == b).filter(|same| same.len() > 1) {
        let mut same: Vec<usize> = same.iter().map(|(_, index)| *index).collect();
        same.sort_by(|a, b| pods[*a].cmp(&pods[*b]));
        let doubles = same.windows(2).filter(|pair| pods[pair[0]].key == pods[pair[1]].key);
        spare.extend(doubles.map(|pair| pair[1]));
    }
    spare.sort_unstable();
    let kept = pods.iter().enumerate().filter(|(index, _)| spare.binary_search(index).is_err());
    kept.map(|(_, pod)| pod).collect()
}

/// The keys of the labels that somebody selects pods by.
fn mentioned(snapshot: &Snapshot) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    for pod in &snapshot.pods {
        let Preferences { affinity, anti_affinity, spread, .. } = &pod.preferences;
        let liked = affinity.iter().chain(anti_affinity).map(|one| &one.term);
        let terms =
            pod.affinity.iter().chain(&pod.anti_affinity).chain(liked).map(|term| &term.selector);
        let spreads = pod.spread.iter().chain(spread).map(|spread| &spread.selector);
        let selectors = spreads.chain(terms).chain(&pod.workload);
        keys.extend(selectors.flat_map(|selector| &selector.0).map(|rule| rule.key.as_str()));
    }
    let residents = snapshot.nodes.iter().flat_map(|node| &node.residents);
    let terms = residents.flat_map(|resident| &resident.anti_affinity);
    keys.extend(terms.flat_map(|term| &term.selector.0).map(|rule| rule.key.as_str()));
    keys
}

fn labels<'p>(
    pod: &'p Pod,
    mentioned: &BTreeSet<&str>,
) -> impl Iterator<Item = (&'p String, &'p String)> {
    pod.labels.iter().filter(|(key, _)| mentioned.contains(key.as_str()))
}

fn content(pod: &Pod, mentioned: &BTreeSet<&str>) -> u64 {
    let mut mixer = Mixer(0);
    pod.key.parts().0.hash(&mut mixer);
    let Pod { requests, terms, tolerations, priority, spread, affinity, anti_affinity, .. } = pod;
    (priority, requests, terms, tolerations, spread, affinity, anti_affinity).hash(&mut mixer);
    (&pod.host_ports, &pod.volume_terms, &pod.preferences, &pod.workload).hash(&mut mixer);
    for label in labels(pod, mentioned) {
        label.hash(&mut mixer);
    }
    mixer.finish()
}

fn alike(one: &Pod, other: &Pod, mentioned: &BTreeSet<&str>) -> bool {
    one.key.parts().0 == other.key.parts().0
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
        && (one.labels == other.labels || labels(one, mentioned).eq(labels(other, mentioned)))
}
