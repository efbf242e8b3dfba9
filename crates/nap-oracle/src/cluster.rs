//! A cluster of nodes and pods, with kube-scheduler's filters.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Effect, Requirements, Taint, Toleration};
use nap_engine::{ATTACHABLE_VOLUMES, HostPort, Pod, PodTerm, Selector};
use nap_units::Resources;

/// Labels of a node or a pod.
pub(crate) type Labels = BTreeMap<String, String>;

/// A running pod, with the fields that filters of other pods read.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    pub(crate) anti_affinity: Vec<PodTerm>,
    pub(crate) ports: Vec<HostPort>,
}

impl Running {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.key.parts().0.to_owned(),
            labels: pod.labels.clone(),
            anti_affinity: pod.anti_affinity.clone(),
            ports: pod.host_ports.clone(),
        }
    }
}

/// A node and its pods.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) taints: Vec<Taint>,
    pub(crate) free: Resources,
    pub(crate) pods: Vec<Running>,
}

impl NodeState {
    /// Subtracts the requests of a pod. Unlimited attachable volumes stay unlimited.
    pub(crate) fn take(&mut self, pod: &Pod) {
        for (name, amount) in pod.requests.iter() {
            if !name.starts_with(ATTACHABLE_VOLUMES) || self.free.contains(name) {
                self.free.set(name, self.free.get(name).saturating_sub(amount));
            }
        }
    }
}

/// The first filter that rejects the pod; `None` if it can be bound.
pub(crate) fn obstacle(pod: &Pod, target: usize, cluster: &[NodeState]) -> Option<String> {
    let machine = &cluster[target];
    if let Some(taint) = machine.taints.iter().find(|taint| !tolerated(taint, &pod.tolerations)) {
        return Some(format!("taint {}", taint.key));
    }
    if !selected(&pod.terms, &machine.labels) {
        return Some("node affinity".to_owned());
    }
    if !selected(&pod.volume_terms, &machine.labels) {
        return Some("volume node affinity".to_owned());
    }
    for (name, amount) in pod.requests.iter() {
        let is_unlimited = name.starts_with(ATTACHABLE_VOLUMES) && !machine.free.contains(name);
        if amount > 0 && amount > machine.free.get(name) && !is_unlimited {
            return Some(format!("not enough {name}"));
        }
    }
    let taken: Vec<&HostPort> = machine.pods.iter().flat_map(|other| &other.ports).collect();
    if pod.host_ports.iter().any(|port| taken.iter().any(|other| clash(port, other))) {
        return Some("host port".to_owned());
    }
    spread(pod, machine, cluster).or_else(|| relations(pod, machine, cluster))
}

/// Whether the tolerations cover a taint; `PreferNoSchedule` needs none.
pub(crate) fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    taint.effect == Effect::PreferNoSchedule
        || tolerations.iter().any(|one| {
            let key = one.key == taint.key || (one.key.is_empty() && one.exists);
            let effect = one.effect.is_none_or(|effect| effect == taint.effect);
            key && effect && (one.exists || one.value == taint.value)
        })
}

/// Whether labels match one of the terms; true without terms.
pub(crate) fn selected(terms: &[Requirements], labels: &Labels) -> bool {
    let suits = |term: &Requirements| {
        term.iter().all(|(key, wanted)| match labels.get(key) {
            Some(value) => wanted.allows(value),
            None => wanted.allows_absent(),
        })
    };
    terms.is_empty() || terms.iter().any(suits)
}

/// Whether two host ports conflict: same number and protocol, overlapping addresses.
pub(crate) fn clash(one: &HostPort, other: &HostPort) -> bool {
    let everywhere = |port: &HostPort| matches!(port.address.as_str(), "" | "0.0.0.0" | "::");
    one.port == other.port
        && one.protocol == other.protocol
        && (everywhere(one) || everywhere(other) || one.address == other.address)
}

fn spread(pod: &Pod, machine: &NodeState, cluster: &[NodeState]) -> Option<String> {
    let namespace = pod.key.parts().0;
    for constraint in &pod.spread {
        let key = &constraint.topology_key;
        let Some(here) = machine.labels.get(key) else {
            return Some(format!("spread: no label {key}"));
        };
        let counted = |selector: &Selector, labels: &Labels| selector.matches(labels);
        let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
        for node in cluster {
            let eligible =
                pod.spread.iter().all(|other| node.labels.contains_key(&other.topology_key))
                    && (!constraint.honor_affinity || selected(&pod.terms, &node.labels))
                    && (!constraint.honor_taints
                        || node.taints.iter().all(|taint| tolerated(taint, &pod.tolerations)));
            if let Some(value) = node.labels.get(key).filter(|_| eligible) {
                let pods = node.pods.iter().filter(|other| {
                    other.namespace == namespace && counted(&constraint.selector, &other.labels)
                });
                *counts.entry(value).or_default() +=
                    i64::try_from(pods.count()).unwrap_or(i64::MAX);
            }
        }
        let enough =
            counts.len() >= usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(0);
        let least = counts.values().copied().min().filter(|_| enough).unwrap_or(0);
        let own = i64::from(counted(&constraint.selector, &pod.labels));
        if counts.get(here).copied().unwrap_or(0) + own - least > i64::from(constraint.max_skew) {
            return Some(format!("spread over {key}: {counts:?}"));
        }
    }
    None
}

fn relations(pod: &Pod, machine: &NodeState, cluster: &[NodeState]) -> Option<String> {
    let namespace = pod.key.parts().0;
    let mut wanted: BTreeSet<(&str, &str)> = BTreeSet::new();
    for node in cluster {
        let same = |key: &str| {
            node.labels.get(key).is_some_and(|value| machine.labels.get(key) == Some(value))
        };
        for other in &node.pods {
            let excluded = pod.anti_affinity.iter().any(|term| {
                term.matches(&other.namespace, &other.labels) && same(&term.topology_key)
            });
            let excludes = other
                .anti_affinity
                .iter()
                .any(|term| term.matches(namespace, &pod.labels) && same(&term.topology_key));
            if excluded || excludes {
                return Some("anti-affinity".to_owned());
            }
            if pod.affinity.iter().all(|term| term.matches(&other.namespace, &other.labels)) {
                wanted.extend(pod.affinity.iter().filter_map(|term| {
                    Some((
                        term.topology_key.as_str(),
                        node.labels.get(&term.topology_key)?.as_str(),
                    ))
                }));
            }
        }
    }
    let first =
        wanted.is_empty() && pod.affinity.iter().all(|term| term.matches(namespace, &pod.labels));
    let fits = pod.affinity.iter().all(|term| {
        let here = machine.labels.get(&term.topology_key);
        here.is_some_and(|here| {
            first || wanted.contains(&(term.topology_key.as_str(), here.as_str()))
        })
    });
    (!fits).then(|| "affinity".to_owned())
}
