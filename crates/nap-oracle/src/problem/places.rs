//! The nodes of a judged plan: what is there, what is undecided about it, and whether each pod by
//! itself may be there.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Requirement, Requirements, Taint, Toleration, labels};
use nap_engine::{Daemon, Pod};
use nap_units::{Resources, UsdPerHour};

use crate::cluster::tolerated;

use super::format::{InstanceType, Problem};
use super::plan::PlannedNode;
use super::snapshot::Understood;

/// A node of the cluster that a plan would give.
pub(super) struct Place {
    pub(super) name: String,
    /// The values that each label may still have. One is what a node has for certain; a zone or a
    /// system may be undecided.
    pub(super) labels: BTreeMap<String, BTreeSet<String>>,
    pub(super) taints: Vec<Taint>,
    pub(super) free: Resources,
    /// Pods that run already: class and count.
    pub(super) running: Vec<(usize, usize)>,
    /// Pods that the plan puts here: class and count.
    pub(super) planned: Vec<(usize, usize)>,
}

impl Place {
    /// The node that exists under this number.
    pub(super) fn existing(problem: &Problem, understood: &Understood, number: usize) -> Self {
        let node = &problem.nodes[number];
        let own = problem.labels_of(node, understood);
        let pool = problem.node_pools.iter().position(|pool| pool.name == node.node_pool);
        let mut place = Self {
            name: node.name.clone(),
            labels: own.into_iter().map(|(key, value)| (key, BTreeSet::from([value]))).collect(),
            taints: pool.map(|pool| understood.pools[pool].1.clone()).unwrap_or_default(),
            free: problem
                .kind(&node.instance_type)
                .map(InstanceType::allocatable)
                .unwrap_or_default(),
            running: Vec::new(),
            planned: Vec::new(),
        };
        for (class, pod) in understood.pods.iter().enumerate() {
            if let Some(count) = node.pods.get(&problem.pods[class].name) {
                place.running.push((class, *count));
                take(&mut place.free, &pod.requests, *count);
            }
        }
        place.run_daemons(&understood.daemons);
        place
    }

    /// A planned node. What cannot be is said in words.
    pub(super) fn planned(
        problem: &Problem,
        understood: &Understood,
        number: usize,
        node: &PlannedNode,
    ) -> Result<Self, String> {
        let pool = problem.node_pools.iter().position(|pool| pool.name == node.node_pool);
        let pool = pool.ok_or_else(|| format!("pool `{}` does not exist", node.node_pool))?;
        let kind = problem.kind(&node.instance_type);
        let kind = kind.ok_or_else(|| format!("type `{}` does not exist", node.instance_type))?;
        let name = format!("new-{number}");
        let mut own: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (key, values) in &kind.labels {
            own.insert(key.clone(), values.iter().cloned().collect());
        }
        let one = |value: &str| BTreeSet::from([value.to_owned()]);
        let zones: BTreeSet<String> = node
            .open_zones
            .iter()
            .cloned()
            .chain(node.open_zones.is_empty().then(|| node.zone.clone()))
            .collect();
        for zone in zones.iter().chain([&node.zone]) {
            let offered = kind.offerings.iter().any(|offer| {
                offer.available && offer.zone == *zone && offer.capacity_type == node.capacity_type
            });
            if !offered {
                return Err(format!(
                    "{} {} is not on offer in `{zone}`",
                    kind.name, node.capacity_type
                ));
            }
        }
        own.insert(labels::ZONE.to_owned(), zones);
        own.insert(labels::OS.to_owned(), kind.os.iter().cloned().collect());
        for (key, value) in [
            (labels::ARCH, &kind.arch),
            (labels::INSTANCE_TYPE, &kind.name),
            (labels::CAPACITY_TYPE, &node.capacity_type),
            (labels::NODEPOOL, &node.node_pool),
            (labels::HOSTNAME, &name),
        ] {
            own.insert(key.to_owned(), one(value));
        }
        let (wanted, taints) = &understood.pools[pool];
        let of_types =
            |key: &str| problem.instance_types.iter().any(|kind| kind.labels.contains_key(key));
        for (key, wanted) in wanted.iter() {
            match own.get_mut(key) {
                Some(values) => {
                    values.retain(|value| wanted.allows(value));
                    if values.is_empty() {
                        return Err(format!(
                            "pool `{}` does not allow its `{key}`",
                            node.node_pool
                        ));
                    }
                }
                // A label that is not the types' own comes from the pool.
                None if !of_types(key) => drop(own.insert(key.to_owned(), listed(wanted))),
                None if wanted.allows_absent() => {}
                None => {
                    return Err(format!("pool `{}` wants `{key}`, which it lacks", node.node_pool));
                }
            }
        }
        own.retain(|_, values| !values.is_empty());
        let free = kind.allocatable();
        let mut place = Self {
            name,
            labels: own,
            taints: taints.clone(),
            free,
            running: Vec::new(),
            planned: Vec::new(),
        };
        place.run_daemons(&understood.daemons);
        Ok(place)
    }

    fn run_daemons(&mut self, daemons: &[Daemon]) {
        for daemon in daemons {
            let repelled = self.taints.iter().any(|taint| !tolerated(taint, &daemon.tolerations));
            if !repelled && daemon.terms.iter().any(|term| self.may_suit(term)) {
                self.free.subtract(&daemon.requests);
            }
        }
    }

    /// Whether labels suit a term, or may come to.
    fn may_suit(&self, term: &Requirements) -> bool {
        term.iter().all(|(key, wanted)| match self.labels.get(key) {
            Some(values) => values.iter().any(|value| wanted.allows(value)),
            None => wanted.allows_absent(),
        })
    }

    /// Whether a spread constraint that looks only at the nodes of these terms and tolerations
    /// looks at this one.
    pub(super) fn is_seen(
        &self,
        terms: Option<&[Requirements]>,
        tolerations: Option<&[Toleration]>,
    ) -> bool {
        terms.is_none_or(|terms| terms.iter().any(|term| self.may_suit(term)))
            && tolerations.is_none_or(|tolerations| {
                self.taints.iter().all(|taint| tolerated(taint, tolerations))
            })
    }

    /// Puts the planned pods here, each by itself. What is wrong is said in words.
    pub(super) fn fill(&mut self, problem: &Problem, pods: &[Pod]) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.planned.is_empty() {
            return wrong;
        }
        for (class, count) in self.planned.clone() {
            let (name, pod) = (&problem.pods[class].name, &pods[class]);
            if let Some(taint) =
                self.taints.iter().find(|taint| !tolerated(taint, &pod.tolerations))
            {
                wrong.push(format!("`{name}` does not tolerate taint `{}`", taint.key));
            }
            if let [term] = pod.terms.as_slice() {
                for (key, wanted) in term.iter() {
                    if let Some(values) = self.labels.get_mut(key) {
                        values.retain(|value| wanted.allows(value));
                    }
                }
            }
            if !pod.terms.iter().any(|term| self.may_suit(term)) {
                wrong.push(format!("`{name}` does not suit its labels"));
            }
            take(&mut self.free, &pod.requests, count);
        }
        let short: Vec<&str> = self
            .free
            .iter()
            .filter(|(_, amount)| *amount < 0)
            .map(|(resource, _)| resource)
            .collect();
        if !short.is_empty() {
            wrong.push(format!("too little {}", short.join(", ")));
        }
        wrong
    }

    /// The cheapest offering that the node still admits.
    pub(super) fn price(&self, problem: &Problem, node: &PlannedNode) -> Option<UsdPerHour> {
        let zones = self.labels.get(labels::ZONE)?;
        let kind = problem.kind(&node.instance_type)?;
        let admitted = kind.offerings.iter().filter(|offer| {
            offer.available
                && offer.capacity_type == node.capacity_type
                && zones.contains(&offer.zone)
        });
        admitted.filter_map(super::format::Offering::price).min()
    }
}

fn take(free: &mut Resources, requests: &Resources, count: usize) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    for (name, amount) in requests.iter() {
        free.set(name, free.get(name).saturating_sub(amount.saturating_mul(count)));
    }
}

fn listed(wanted: &Requirement) -> BTreeSet<String> {
    if wanted.operator() == nap_api::Operator::In {
        wanted.values().clone()
    } else {
        BTreeSet::new()
    }
}
