//! Conversion of a problem to the engine's snapshot.
//!
//! The engine has a fixed set of well-known labels; a problem defines its own by its instance
//! types. The difference is expressed in the requirements of the NodePools: a label that only the
//! file knows gets a requirement that any value or none satisfies, and a label that only the engine
//! knows must not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_api::{Operator, Requirement, Requirements, labels};
use nap_engine::{Catalogue, Daemon, Node, Offering, Pod, PodKey, Pool, RunningPods, Snapshot};
use nap_units::{Resources, Rounding, UsdPerHour};

use crate::format::{ExistingNode, InstanceType, NodePool, Problem};
use crate::read::ProblemError;
use crate::terms::{NO_VALUE, Vocabulary, pool_requirements, taint};

/// Name of the catalogue of all NodePools.
const CATALOGUE: &str = "problem";

/// Labels of every node, regardless of its instance type.
const ALWAYS: [&str; 6] = [
    labels::NODEPOOL,
    labels::ZONE,
    labels::CAPACITY_TYPE,
    labels::INSTANCE_TYPE,
    labels::ARCH,
    labels::OS,
];

/// The parsed scheduling rules of a problem; one pod per class.
pub(crate) struct ParsedRules {
    pub(crate) pods: Vec<Pod>,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) pools: Vec<(Requirements, Vec<nap_api::Taint>)>,
    special: BTreeSet<String>,
}

impl Problem {
    /// Checks that every rule can be parsed.
    pub(crate) fn check_rules(&self) -> Result<(), ProblemError> {
        self.parse_rules().map(drop)
    }

    pub(crate) fn parse_rules(&self) -> Result<ParsedRules, ProblemError> {
        let vocabulary = Vocabulary::of(self);
        let pods: Vec<Pod> =
            self.pods.iter().map(|class| vocabulary.pod(class)).collect::<Result<_, _>>()?;
        let mut daemons = Vec::new();
        for class in &self.daemons {
            let pod = vocabulary.pod(class)?;
            let path = format!("daemons: {}", class.name);
            if !(pod.spread.is_empty() && pod.affinity.is_empty() && pod.anti_affinity.is_empty()) {
                return Err(ProblemError::invalid(
                    path,
                    "a daemon cannot have rules about other pods",
                ));
            }
            let meant = |other: &Pod| {
                let terms = other.affinity.iter().chain(&other.anti_affinity);
                let mut selectors = other.spread.iter().map(|spread| &spread.selector);
                selectors.any(|selector| selector.matches(&class.labels))
                    || terms.clone().any(|term| term.matches(&class.namespace, &class.labels))
            };
            if let Some(number) = pods.iter().position(meant) {
                let why = format!("a rule of `{}` must not mean a daemon", self.pods[number].name);
                return Err(ProblemError::invalid(path, why));
            }
            let Pod { requests, terms, tolerations, .. } = pod;
            daemons.push(Daemon {
                name: class.name.clone(),
                requests,
                terms,
                tolerations,
                ..Daemon::default()
            });
        }
        let mut pools = Vec::new();
        for pool in &self.node_pools {
            let path = format!("nodePools: {}: taints", pool.name);
            let taints =
                pool.taints.iter().map(|one| taint(&path, one)).collect::<Result<_, _>>()?;
            pools.push((pool_requirements(pool)?, taints));
        }
        Ok(ParsedRules { pods, daemons, pools, special: vocabulary.special.into_keys().collect() })
    }

    /// The snapshot of the problem, with every pod.
    pub fn snapshot(&self) -> Result<Snapshot, ProblemError> {
        let parsed = self.parse_rules()?;
        let known: BTreeSet<&str> = self
            .instance_types
            .iter()
            .flat_map(|kind| kind.labels.keys())
            .map(String::as_str)
            .collect();
        let mut places = Places::new();
        let catalogue: Catalogue =
            self.instance_types.iter().map(|kind| kind.read(&known, &mut places)).collect();
        catalogue.prepare();
        let mut pools = Vec::new();
        for (pool, (requirements, taints)) in self.node_pools.iter().zip(&parsed.pools) {
            let mut requirements = requirements.clone();
            for key in &parsed.special {
                if requirements.get(key).is_none() {
                    requirements.set(key, Requirement::new(Operator::NotIn, [NO_VALUE]));
                }
            }
            for key in labels::WELL_KNOWN
                .iter()
                .filter(|key| !known.contains(**key) && !ALWAYS.contains(key))
            {
                if requirements.get(key).is_none() {
                    requirements.set(key, Requirement::does_not_exist());
                }
            }
            pools.push(Pool {
                name: pool.name.clone(),
                weight: pool.weight,
                requirements,
                taints: taints.clone(),
                headroom: self.headroom(pool),
                catalogue: CATALOGUE.to_owned(),
                max_price: None,
            });
        }
        let mut pods = Vec::with_capacity(self.pending());
        for (class, pod) in self.pods.iter().zip(&parsed.pods) {
            for number in 0..class.replicas {
                let key = PodKey::new(&class.namespace, &format!("{}-{number}", class.name));
                pods.push(Pod { key, ..pod.clone() });
            }
        }
        Ok(Snapshot {
            pods,
            nodes: self.nodes.iter().map(|node| Arc::new(self.node(node, &parsed))).collect(),
            pools,
            daemons: parsed.daemons,
            catalogues: BTreeMap::from([(CATALOGUE.to_owned(), Arc::new(catalogue))]),
            ..Snapshot::default()
        })
    }

    /// Remaining limits of a NodePool: its limits less the capacity of its existing nodes.
    pub(crate) fn headroom(&self, pool: &NodePool) -> Resources {
        let limits = pool.limits.iter().map(|(name, limit)| (name.as_str(), limit));
        let mut headroom = Resources::from_quantities(limits, Rounding::Down);
        for node in self.nodes.iter().filter(|node| node.node_pool == pool.name) {
            let capacity = self.kind(&node.instance_type).map(|kind| kind.capacity.resources());
            let used = capacity.unwrap_or_default().with("nodes", 1);
            for name in pool.limits.keys() {
                headroom.set(name, headroom.get(name).saturating_sub(used.get(name)));
            }
        }
        headroom
    }

    pub(crate) fn kind(&self, name: &str) -> Option<&InstanceType> {
        self.instance_types.iter().find(|kind| kind.name == name)
    }

    /// Labels of an existing node.
    pub(crate) fn labels_of(
        &self,
        node: &ExistingNode,
        parsed: &ParsedRules,
    ) -> BTreeMap<String, String> {
        let mut own: BTreeMap<String, String> = BTreeMap::new();
        let number = self.node_pools.iter().position(|pool| pool.name == node.node_pool);
        let pool = number.map(|number| &self.node_pools[number]);
        let wanted = number.map(|number| &parsed.pools[number].0);
        if let Some(kind) = self.kind(&node.instance_type) {
            let system = (labels::OS.to_owned(), kind.os.clone());
            for (key, values) in kind.labels.iter().chain([(&system.0, &system.1)]) {
                let mut allowed: Vec<&String> = values
                    .iter()
                    .filter(|value| {
                        wanted
                            .and_then(|wanted| wanted.get(key))
                            .is_none_or(|wanted| wanted.allows(value))
                    })
                    .collect();
                allowed.sort_by_key(|value| (*value != "linux", *value));
                if let Some(value) = allowed.first() {
                    own.insert(key.clone(), (*value).clone());
                }
            }
            own.insert(labels::ARCH.to_owned(), kind.arch.clone());
        }
        own.extend(pool.into_iter().flat_map(|pool| pool.labels.clone()));
        for (key, value) in [
            (labels::INSTANCE_TYPE, &node.instance_type),
            (labels::ZONE, &node.zone),
            (labels::CAPACITY_TYPE, &node.capacity_type),
            (labels::NODEPOOL, &node.node_pool),
            (labels::HOSTNAME, &node.name),
        ] {
            own.insert(key.to_owned(), value.clone());
        }
        own
    }

    pub(crate) fn node(&self, node: &ExistingNode, parsed: &ParsedRules) -> Node {
        let own = self.labels_of(node, parsed);
        let pool = self.node_pools.iter().position(|pool| pool.name == node.node_pool);
        let taints = pool.map(|pool| parsed.pools[pool].1.clone()).unwrap_or_default();
        let mut free =
            self.kind(&node.instance_type).map(InstanceType::allocatable).unwrap_or_default();
        let suited = Requirements::from_labels(&own);
        for daemon in &parsed.daemons {
            let suits = first_untolerated(&taints, &daemon.tolerations).is_none()
                && daemon.terms.iter().any(|term| suited.compatible(term, Undefined::Deny).is_ok());
            if suits {
                free.subtract(&daemon.requests);
            }
        }
        let mut residents = Vec::new();
        for (class, pod) in self.pods.iter().zip(&parsed.pods) {
            let Some(count) = node.pods.get(&class.name) else { continue };
            for _ in 0..*count {
                free.subtract(&pod.requests);
            }
            residents.push(RunningPods {
                namespace: class.namespace.clone(),
                labels: class.labels.clone(),
                anti_affinity: pod.anti_affinity.clone(),
                host_ports: Vec::new(),
                count: u32::try_from(*count).unwrap_or(u32::MAX),
            });
        }
        Node { name: node.name.clone(), labels: own, taints, free, initialized: true, residents }
    }
}

/// Shared requirements of offerings by zone and capacity type.
type Places<'p> = BTreeMap<(&'p str, &'p str), Arc<Requirements>>;

impl InstanceType {
    /// Resources that are left for pods: capacity less overhead.
    pub(crate) fn allocatable(&self) -> Resources {
        let mut allocatable = self.capacity.resources();
        allocatable.subtract(&self.overhead.resources());
        allocatable
    }

    /// The instance type in the engine's form. `known` are the labels that some type has.
    fn read<'p>(
        &'p self,
        known: &BTreeSet<&str>,
        places: &mut Places<'p>,
    ) -> nap_engine::InstanceType {
        let mut requirements = Requirements::new();
        for key in known {
            requirements.set(key, Requirement::does_not_exist());
        }
        for (key, values) in &self.labels {
            requirements.set(key, Requirement::is_in(values.iter().map(String::as_str)));
        }
        requirements.set(labels::INSTANCE_TYPE, Requirement::is_in([self.name.as_str()]));
        requirements.set(labels::ARCH, Requirement::is_in([self.arch.as_str()]));
        requirements.set(labels::OS, Requirement::is_in(self.os.iter().map(String::as_str)));
        let offerings = self.offerings.iter().filter_map(|offer| {
            let place = (offer.zone.as_str(), offer.capacity_type.as_str());
            let requirements = places.entry(place).or_insert_with(|| {
                let mut requirements = Requirements::new();
                requirements.set(labels::ZONE, Requirement::is_in([place.0]));
                requirements.set(labels::CAPACITY_TYPE, Requirement::is_in([place.1]));
                Arc::new(requirements)
            });
            Some(Offering {
                zone: offer.zone.clone(),
                capacity_type: offer.kind()?,
                price: offer.price().unwrap_or(UsdPerHour::ZERO),
                available: offer.available,
                requirements: Arc::clone(requirements),
            })
        });
        nap_engine::InstanceType {
            name: self.name.clone(),
            requirements,
            capacity: self.capacity.resources(),
            allocatable: self.allocatable(),
            offerings: offerings.collect(),
            closed: false,
        }
    }
}
