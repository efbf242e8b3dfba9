//! Nodes of a judged plan: their labels as far as decided, their free capacity, and the checks of
//! each pod that depend on no other pod (taints, node affinity, resources).

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Effect, Requirement, Requirements, Taint, Toleration, labels};
use nap_engine::{Daemon, Pod};
use nap_units::{Resources, UsdPerHour};

use crate::format::{InstanceType, Problem};
use crate::plan::PlannedNode;
use crate::snapshot::ParsedRules;

/// A node of the cluster as the plan would make it.
pub(super) struct JudgedNode {
    pub(super) name: String,
    /// Possible values by label; one value is certain. Zone and operating system may be undecided.
    pub(super) labels: BTreeMap<String, BTreeSet<String>>,
    pub(super) taints: Vec<Taint>,
    pub(super) free: Resources,
    /// Running pods: class and count.
    pub(super) running: Vec<(usize, usize)>,
    /// Planned pods: class and count.
    pub(super) planned: Vec<(usize, usize)>,
}

impl JudgedNode {
    /// The existing node with this index.
    pub(super) fn existing(problem: &Problem, parsed: &ParsedRules, number: usize) -> Self {
        let node = &problem.nodes[number];
        let own = problem.labels_of(node, parsed);
        let pool = problem.node_pools.iter().position(|pool| pool.name == node.node_pool);
        let mut judged = Self {
            name: node.name.clone(),
            labels: own.into_iter().map(|(key, value)| (key, BTreeSet::from([value]))).collect(),
            taints: pool.map(|pool| parsed.pools[pool].1.clone()).unwrap_or_default(),
            free: problem
                .kind(&node.instance_type)
                .map(InstanceType::allocatable)
                .unwrap_or_default(),
            running: Vec::new(),
            planned: Vec::new(),
        };
        for (class, pod) in parsed.pods.iter().enumerate() {
            if let Some(count) = node.pods.get(&problem.pods[class].name) {
                judged.running.push((class, *count));
                take(&mut judged.free, &pod.requests, *count);
            }
        }
        judged.run_daemons(&parsed.daemons);
        judged
    }

    /// A planned node, or one line of text if no such node can be launched.
    pub(super) fn planned(
        problem: &Problem,
        parsed: &ParsedRules,
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
        let (wanted, taints) = &parsed.pools[pool];
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
                // A label that no instance type has comes from the pool.
                None if !of_types(key) => drop(own.insert(key.to_owned(), listed(wanted))),
                None if wanted.allows_absent() => {}
                None => {
                    return Err(format!("pool `{}` wants `{key}`, which it lacks", node.node_pool));
                }
            }
        }
        own.retain(|_, values| !values.is_empty());
        let free = kind.allocatable();
        let mut judged = Self {
            name,
            labels: own,
            taints: taints.clone(),
            free,
            running: Vec::new(),
            planned: Vec::new(),
        };
        judged.run_daemons(&parsed.daemons);
        Ok(judged)
    }

    fn run_daemons(&mut self, daemons: &[Daemon]) {
        for daemon in daemons {
            let repelled = self.taints.iter().any(|taint| !tolerated(taint, &daemon.tolerations));
            if !repelled && daemon.terms.iter().any(|term| self.may_suit(term)) {
                self.free.subtract(&daemon.requests);
            }
        }
    }

    /// Whether the labels match a term for some choice of the undecided ones.
    fn may_suit(&self, term: &Requirements) -> bool {
        term.iter().all(|(key, wanted)| match self.labels.get(key) {
            Some(values) => values.iter().any(|value| wanted.allows(value)),
            None => wanted.allows_absent(),
        })
    }

    /// Whether a spread constraint with these node inclusion policies counts this node. `None` if
    /// node affinity or taints are ignored.
    pub(super) fn is_included(
        &self,
        terms: Option<&[Requirements]>,
        tolerations: Option<&[Toleration]>,
    ) -> bool {
        terms.is_none_or(|terms| terms.iter().any(|term| self.may_suit(term)))
            && tolerations.is_none_or(|tolerations| {
                self.taints.iter().all(|taint| tolerated(taint, tolerations))
            })
    }

    /// Places the planned pods, each by itself; returns one line of text for each violation.
    pub(super) fn place_pods(&mut self, problem: &Problem, pods: &[Pod]) -> Vec<String> {
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

    /// Price of the cheapest offering that the node still admits; `None` if there is none.
    pub(super) fn price(&self, problem: &Problem, node: &PlannedNode) -> Option<UsdPerHour> {
        let zones = self.labels.get(labels::ZONE)?;
        let kind = problem.kind(&node.instance_type)?;
        let admitted = kind.offerings.iter().filter(|offer| {
            offer.available
                && offer.capacity_type == node.capacity_type
                && zones.contains(&offer.zone)
        });
        admitted.filter_map(crate::format::Offering::price).min()
    }
}

/// Whether no effect that keeps pods off the node applies: kube-scheduler's TaintToleration filter.
fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    taint.effect == Effect::PreferNoSchedule
        || tolerations.iter().any(|one| {
            let key = one.key == taint.key || (one.key.is_empty() && one.exists);
            let effect = one.effect.is_none_or(|effect| effect == taint.effect);
            key && effect && (one.exists || one.value == taint.value)
        })
}

/// Subtracts the requests of `count` pods; may become negative.
fn take(free: &mut Resources, requests: &Resources, count: usize) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    for (name, amount) in requests.iter() {
        free.set(name, free.get(name).saturating_sub(amount.saturating_mul(count)));
    }
}

/// The values of an `In` requirement; empty for other operators.
fn listed(wanted: &Requirement) -> BTreeSet<String> {
    if wanted.operator() == nap_api::Operator::In {
        wanted.values().iter().map(str::to_owned).collect()
    } else {
        BTreeSet::new()
    }
}
