//! From the state to what the engine reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use nap_api::nodeclaim::condition;
use nap_api::requirement::Undefined;
use nap_api::{
    NodeClaim, NodePool, Operator, Requirement, Requirements, Taint, Toleration, conditions,
    labels, taints,
};
use nap_engine::{
    ATTACHABLE_VOLUMES, Catalogue, Daemon, NODES, Node, PodKey, Pool, Snapshot, Unsupported,
};
use nap_units::{Resources, Rounding};

use super::catalogues::Catalogues;
use super::rules::{Interest, host_ports, spread};
use super::{Machine, State, claim_is, pods, pool_of, volumes};

/// A plan for a pod holds until its machine has been ready for this long. After that the scheduler
/// has had its chance.
pub const PLAN_HOLDS: Duration = Duration::from_secs(20);

impl State {
    /// What the engine reads to decide about pods that wait, and pods whose machine is going, on
    /// everything that there is.
    pub fn snapshot(&self, catalogues: &Catalogues, now: Timestamp) -> Snapshot {
        let pods = self.waiting_pods(now);
        let surroundings = self.surroundings(&Interest::of(&pods), catalogues, now);
        Snapshot { pods, ..surroundings }
    }

    /// Everything but the pods that need a place.
    pub(super) fn surroundings(
        &self,
        interest: &Interest,
        catalogues: &Catalogues,
        now: Timestamp,
    ) -> Snapshot {
        let coming = self.coming(now);
        let daemons = self.daemons();
        let machines = self.machines();
        let staying = machines.iter().filter(|machine| !machine.is_leaving());
        let node = |machine| self.node(machine, &coming, &daemons, interest, catalogues);
        let nodes = staying.map(node).collect();
        let pools = self.pools.values().filter_map(|pool| self.pool(pool, catalogues)).collect();
        // No provider has reservations to offer yet.
        let (catalogues, reservations) = (catalogues.named.clone(), BTreeMap::new());
        Snapshot { pods: Vec::new(), nodes, pools, daemons, catalogues, reservations }
    }

    /// Which machine each pod was planned onto, while that plan holds.
    pub fn planned(&self, now: Timestamp) -> BTreeMap<PodKey, String> {
        let mut planned = BTreeMap::new();
        let claims =
            self.claims.values().filter(|claim| claim.metadata.deletion_timestamp.is_none());
        for claim in claims.filter(|claim| plan_holds(claim, now)) {
            for key in planned_pods(claim) {
                if self.pods.get(&key).is_some_and(|pod| self.awaits_a_place(pod)) {
                    planned.insert(key, claim.name_any());
                }
            }
        }
        planned
    }

    /// The pods that are still to come to a machine: those that were planned onto it, by the name
    /// of its claim, and those that were promised a place on it by somebody else, by the name of
    /// its node.
    fn coming(&self, now: Timestamp) -> BTreeMap<String, Vec<Arc<Pod>>> {
        let mut coming: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        let planned = self.planned(now);
        for (key, claim) in &planned {
            coming.entry(claim.clone()).or_default().extend(self.pods.get(key).cloned());
        }
        let promises = self.promises(now);
        let waiting = self.pods.iter().filter(|(_, pod)| pods::is_provisionable(pod));
        for (key, pod) in waiting.filter(|(key, _)| !planned.contains_key(key)) {
            if let Some(node) = promises.of(key, pod) {
                coming.entry(node.to_owned()).or_default().push(Arc::clone(pod));
            }
        }
        coming
    }

    fn promises(&self, now: Timestamp) -> Promises<'_> {
        let over = self.claims.values().filter(|claim| !plan_holds(claim, now));
        let over =
            over.filter_map(|claim| Some((claim.status.as_ref()?.node_name.as_deref()?, &**claim)));
        Promises { state: self, over: over.collect() }
    }

    /// Unbound, or on a machine that is leaving.
    fn awaits_a_place(&self, pod: &Pod) -> bool {
        if !pods::is_active(pod) {
            return false;
        }
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
            return true;
        };
        self.nodes.get(node).is_none_or(|node| {
            let claim = self.claim_of_node(node);
            Machine { claim, node: Some(Arc::clone(node)) }.is_leaving()
        })
    }

    /// Pods that wait for a machine, planned or not. One that was promised a place on a node has
    /// it, as long as that node is there.
    pub fn pending(&self, now: Timestamp) -> impl Iterator<Item = (&PodKey, &Arc<Pod>)> {
        let promises = self.promises(now);
        let waiting = self.pods.iter().filter(|(_, pod)| pods::is_provisionable(pod));
        waiting.filter(move |(key, pod)| promises.of(key, pod).is_none())
    }

    fn waiting_pods(&self, now: Timestamp) -> Vec<nap_engine::Pod> {
        let planned = self.planned(now);
        let machines = self.machines();
        let pending = self.pending(now).map(|(key, pod)| (key.clone(), Arc::clone(pod)));
        let leaving = machines
            .iter()
            .filter(|machine| machine.is_deleting())
            .filter_map(|machine| machine.node.as_ref())
            .flat_map(|node| self.pods_on(&node.name_any()))
            .filter(|pod| pods::is_reschedulable(pod) && !pods::is_do_not_disrupt(pod, now))
            .filter(|pod| !self.budgets_of(pod).iter().any(|budget| never_allows(budget)))
            .map(|pod| (key(&pod), pod));
        let waiting: BTreeMap<PodKey, Arc<Pod>> = pending.chain(leaving).collect();
        waiting
            .iter()
            .filter(|(key, _)| !planned.contains_key(key))
            .map(|(_, pod)| self.engine_pod(pod))
            .collect()
    }

    fn daemons(&self) -> Vec<Daemon> {
        self.daemons
            .iter()
            .filter_map(|(name, daemon)| {
                let spec = daemon.spec.as_ref()?.template.spec.as_ref()?;
                let (terms, _) = terms(spec);
                Some(Daemon {
                    name: name.clone(),
                    requests: pods::requests(spec).ok()?,
                    terms,
                    tolerations: tolerations(spec),
                    host_ports: host_ports(spec),
                })
            })
            .collect()
    }

    fn node(
        &self,
        machine: &Machine,
        coming: &BTreeMap<String, Vec<Arc<Pod>>>,
        daemons: &[Daemon],
        interest: &Interest,
        catalogues: &Catalogues,
    ) -> Node {
        let name = machine.name();
        let (labels, taints) = labels_and_taints(machine);
        let mut free = allocatable(machine, catalogues);
        let bound =
            machine.node.as_ref().map(|node| self.pods_on(&node.name_any())).unwrap_or_default();
        for pod in bound.iter().filter(|pod| !pods::is_terminal(pod)) {
            free.subtract(&pods::occupies(pod).unwrap_or_default());
        }
        let claim = machine.claim.as_ref().map(|claim| claim.name_any());
        let node = machine.node.as_ref().map(|node| node.name_any());
        let names: BTreeSet<String> = [claim, node].into_iter().flatten().collect();
        let coming = names.iter().filter_map(|name| coming.get(name));
        let coming: Vec<&Arc<Pod>> = coming.flatten().collect();
        for spec in coming.iter().filter_map(|pod| pod.spec.as_ref()) {
            free.subtract(&pods::requests(spec).unwrap_or_default());
        }
        self.leave_attachable(machine, bound.iter().chain(coming.iter().copied()), &mut free);
        let on_it = bound.iter().map(Arc::as_ref).chain(coming.iter().copied().map(Arc::as_ref));
        let mut residents = self.residents(on_it, interest);
        let wanted = Requirements::from_labels(&labels);
        for daemon in daemons {
            let runs = bound.iter().any(|pod| {
                pod.owner_references().iter().any(|owner| {
                    owner.kind == "DaemonSet"
                        && daemon.name
                            == format!("{}/{}", pod.namespace().unwrap_or_default(), owner.name)
                })
            });
            let suits = taints::first_untolerated(&taints, &daemon.tolerations).is_none()
                && daemon.terms.iter().any(|term| wanted.compatible(term, Undefined::Deny).is_ok());
            if suits && !runs {
                free.subtract(&daemon.requests);
                residents.extend(daemon.resident());
            }
        }
        let unschedulable =
            machine.node.as_ref().and_then(|node| node.spec.as_ref()?.unschedulable) == Some(true);
        if unschedulable {
            // It takes nobody, but its pods still count.
            free = Resources::new();
        }
        Node { name, labels, taints, free, initialized: machine.is_initialized(), residents }
    }

    /// What is left of what the machine can attach. A volume of several pods is attached once.
    fn leave_attachable<'p>(
        &self,
        machine: &Machine,
        pods: impl Iterator<Item = &'p Arc<Pod>>,
        free: &mut Resources,
    ) {
        let limits = self.attach_limits(machine);
        if limits.is_empty() {
            return;
        }
        let on_it = pods.filter(|pod| !pods::is_terminal(pod));
        let attached: BTreeSet<(String, String)> =
            on_it.flat_map(|pod| self.attached(pod)).collect();
        let attached = volumes::counted(&attached);
        for (name, limit) in limits.iter() {
            free.set(name, limit.saturating_sub(attached.get(name)).max(0));
        }
    }

    fn pool(&self, pool: &NodePool, catalogues: &Catalogues) -> Option<Pool> {
        let ready = pool
            .status
            .as_ref()
            .is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY));
        if !ready || pool.metadata.deletion_timestamp.is_some() || pool.spec.replicas.is_some() {
            return None;
        }
        let name = pool.name_any();
        let catalogue = catalogues.of(&name)?;
        Some(Pool {
            weight: pool.spec.weight.unwrap_or(0),
            requirements: pool_requirements(pool),
            taints: pool.spec.template.spec.taints.clone(),
            headroom: self.headroom(pool, catalogue),
            catalogue: catalogues.of_pools.get(&name)?.clone(),
            name,
        })
    }

    /// What the pool may still add: its limits less what its machines have.
    fn headroom(&self, pool: &NodePool, catalogue: &Catalogue) -> Resources {
        let Some(limits) = &pool.spec.limits else { return Resources::new() };
        let mut headroom = Resources::from_quantities(
            limits.iter().map(|(name, quantity)| (name.as_str(), quantity)),
            Rounding::Down,
        );
        let used = self.pool_usage(&pool.name_any(), Some(catalogue));
        for (name, limit) in headroom.clone().iter() {
            headroom.set(name, limit.saturating_sub(used.get(name)));
        }
        headroom
    }

    /// What the machines of a pool have together; `nodes` counts them. A machine that was not made
    /// yet counts as the largest that its claim allows, if a catalogue is given.
    pub fn pool_usage(&self, pool: &str, catalogue: Option<&Catalogue>) -> Resources {
        let mut used = Resources::new().with(NODES, 0);
        for claim in self.claims.values().filter(|claim| pool_of(claim.as_ref()) == Some(pool)) {
            let status = claim.status.as_ref();
            let mut capacity =
                status.map(|status| quantities(&status.capacity)).unwrap_or_default();
            if capacity.is_empty() {
                capacity = catalogue.map(|catalogue| largest(claim, catalogue)).unwrap_or_default();
            }
            used.add(&capacity);
            used.add(&Resources::new().with(NODES, 1));
        }
        used
    }
}

/// The largest amounts among the instance types that a claim allows.
fn largest(claim: &NodeClaim, catalogue: &Catalogue) -> Resources {
    let requirements = Requirements::from_specs(&claim.spec.requirements);
    let Some(types) = requirements.get(labels::INSTANCE_TYPE) else { return Resources::new() };
    let allowed =
        catalogue.types().iter().filter(|instance_type| types.allows(&instance_type.name));
    allowed.fold(Resources::new(), |largest, instance_type| largest.larger(&instance_type.capacity))
}

/// Places that pods were promised on nodes that are there.
struct Promises<'s> {
    state: &'s State,
    /// The claims whose plans do not hold any more, by node. The scheduler takes a nomination away
    /// when it tries the pod in vain, and without a reason it tries only every few minutes; so what
    /// nap promised itself does not count any more.
    over: BTreeMap<&'s str, &'s NodeClaim>,
}

impl Promises<'_> {
    /// The node on which a pod was promised a place.
    fn of<'p>(&self, key: &PodKey, pod: &'p Pod) -> Option<&'p str> {
        let node = pods::nominated_node(pod).filter(|node| self.state.nodes.contains_key(*node))?;
        let is_over = self.over.get(node).is_some_and(|claim| planned_pods(claim).contains(key));
        (!is_over).then_some(node)
    }
}

/// Whether the pods that a claim was made for are still expected on it.
pub fn plan_holds(claim: &NodeClaim, now: Timestamp) -> bool {
    let holds = SignedDuration::try_from(PLAN_HOLDS).unwrap_or(SignedDuration::ZERO);
    let conditions =
        claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let since = conditions::since(conditions, condition::INITIALIZED);
    !claim_is(claim, condition::INITIALIZED)
        || since.is_none_or(|since| now.duration_since(since) < holds)
}

/// The pods that a claim was made for.
pub fn planned_pods(claim: &NodeClaim) -> BTreeSet<PodKey> {
    let text = claim.annotations().get(labels::PLANNED_PODS);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// What a pool's machines must satisfy: its requirements, its labels and its own name.
pub fn pool_requirements(pool: &NodePool) -> Requirements {
    let template = &pool.spec.template;
    let mut requirements = Requirements::from_specs(&template.spec.requirements);
    requirements.extend(&Requirements::from_labels(&template.metadata.labels));
    requirements.add(labels::NODEPOOL, Requirement::is_in([pool.name_any()]));
    requirements.add(
        labels::AKS_NODE_CLASS,
        Requirement::is_in([template.spec.node_class_ref.name.as_str()]),
    );
    requirements
}

fn quantities(list: &BTreeMap<String, nap_units::Quantity>) -> Resources {
    Resources::from_quantities(
        list.iter().map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Down,
    )
}

/// What a machine has for pods. One that was not made yet has just what its claim asks for.
fn allocatable(machine: &Machine, catalogues: &Catalogues) -> Resources {
    let of_node = machine.node.as_ref().and_then(|node| node.status.as_ref()?.allocatable.as_ref());
    let of_node = pods::node_resources(of_node);
    let Some(claim) = &machine.claim else { return of_node };
    // What it can attach is another matter: its CSINode may know better.
    let promised = claim.status.iter().flat_map(|status| &status.allocatable);
    let promised = promised.filter(|(name, _)| !name.starts_with(ATTACHABLE_VOLUMES));
    let of_claim = Resources::from_quantities(
        promised.map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Down,
    );
    if machine.is_initialized() {
        return of_node;
    }
    // A node that is starting may not report everything yet; what the claim promises stands in for
    // it.
    let mut known =
        if of_claim.is_empty() { quantities(&claim.spec.resources.requests) } else { of_claim };
    let kind = claim.labels().get(labels::INSTANCE_TYPE);
    let types = machine.pool().and_then(|pool| catalogues.of(pool));
    let kind = kind.and_then(|kind| types?.types().iter().find(|one| one.name == *kind));
    // What an overlay adds is not for the provider to know.
    for (name, amount) in kind.iter().flat_map(|kind| kind.capacity.iter()) {
        if !known.contains(name) {
            known.set(name, amount);
        }
    }
    for (name, amount) in of_node.iter().filter(|(_, amount)| *amount > 0) {
        known.set(name, amount);
    }
    known
}

/// The labels and lasting taints of a machine, those of the claim until its node was registered.
fn labels_and_taints(machine: &Machine) -> (BTreeMap<String, String>, Vec<Taint>) {
    let registered = |claim: &NodeClaim| claim_is(claim, condition::REGISTERED);
    match (&machine.claim, &machine.node) {
        (Some(claim), node) if !registered(claim) || node.is_none() => {
            let mut labels = claim.labels().clone();
            labels.extend(Requirements::from_specs(&claim.spec.requirements).labels());
            labels.insert(labels::HOSTNAME.to_owned(), machine.name());
            (labels, claim.spec.taints.clone())
        }
        (claim, Some(node)) => {
            let startup = claim
                .as_ref()
                .map(|claim| claim.spec.startup_taints.as_slice())
                .unwrap_or_default();
            let starting = claim.is_some() && !machine.is_initialized();
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            let taints = taints
                .into_iter()
                .flatten()
                .map(Taint::from)
                .filter(|taint| {
                    !starting
                        || !(taint.is_ephemeral() || startup.iter().any(|one| one.matches(taint)))
                })
                .collect();
            (node.labels().clone(), taints)
        }
        (_, None) => (BTreeMap::new(), Vec::new()),
    }
}

/// The key of a pod.
pub fn key(pod: &Pod) -> PodKey {
    PodKey::new(&pod.namespace().unwrap_or_default(), &pod.name_any())
}

fn never_allows(budget: &k8s_openapi::api::policy::v1::PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    let is = |value: &Option<IntOrString>, number: i32, text: &str| match value {
        Some(IntOrString::Int(value)) => number >= 0 && *value == number,
        Some(IntOrString::String(value)) => value == text,
        None => false,
    };
    is(&spec.max_unavailable, 0, "0%") || is(&spec.min_available, -1, "100%")
}

fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    spec.tolerations.iter().flatten().map(Toleration::from).collect()
}

impl State {
    /// The pod as the engine sees it.
    pub fn engine_pod(&self, pod: &Pod) -> nap_engine::Pod {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let (terms, field) = terms(spec);
        let mut unsupported = field.map(Unsupported::Field);
        let mut requests = pods::requests(spec).unwrap_or_else(|field| {
            unsupported = Some(Unsupported::Field(field));
            Resources::new()
        });
        requests.add(&volumes::counted(&self.attached(pod)));
        let volume_terms = self.volume_terms(pod).unwrap_or_else(|problem| {
            unsupported.get_or_insert(Unsupported::Volume(problem));
            Vec::new()
        });
        nap_engine::Pod {
            key: key(pod),
            requests,
            terms,
            tolerations: tolerations(spec),
            priority: spec.priority.unwrap_or(0),
            unsupported: unsupported.or_else(|| unsupported_field(spec).map(Unsupported::Field)),
            labels: pod.labels().clone(),
            spread: spread(pod),
            affinity: self.affinity(pod),
            anti_affinity: self.anti_affinity(pod),
            host_ports: host_ports(spec),
            volume_terms,
            preferences: self.preferences(pod),
            workload: self.workloads.of(pod),
        }
    }
}

/// The first hard constraint of a pod that the engine does not know yet.
fn unsupported_field(spec: &PodSpec) -> Option<String> {
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    claims.then(|| "spec.resourceClaims".to_owned())
}

/// Node selector and required node affinity as alternatives, and a field among them that is not
/// understood.
fn terms(spec: &PodSpec) -> (Vec<Requirements>, Option<String>) {
    let selector = Requirements::from_labels(spec.node_selector.iter().flatten());
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return (vec![selector], None) };
    let mut terms = Vec::new();
    let mut unsupported = None;
    for term in &required.node_selector_terms {
        match term_requirements(term) {
            Ok(requirements) if selector.intersects(&requirements).is_err() => {
                unsupported =
                    Some("spec.affinity.nodeAffinity (excluded by spec.nodeSelector)".to_owned());
            }
            Ok(requirements) => {
                let mut all = selector.clone();
                all.extend(&requirements);
                terms.push(all);
            }
            Err(field) => unsupported = Some(format!("spec.affinity.nodeAffinity ({field})")),
        }
    }
    if terms.is_empty() {
        terms.push(selector);
        unsupported.get_or_insert_with(|| "spec.affinity.nodeAffinity (no terms)".to_owned());
    } else {
        // Another alternative is understood: that one is enough.
        unsupported = None;
    }
    (terms, unsupported)
}

pub(super) fn term_requirements(term: &NodeSelectorTerm) -> Result<Requirements, String> {
    if term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty()) {
        return Err("matchFields".to_owned());
    }
    let expressions: Vec<_> = term.match_expressions.iter().flatten().collect();
    if expressions.is_empty() {
        return Err("an empty term".to_owned());
    }
    let mut requirements = Requirements::new();
    for expression in expressions {
        let operator = match expression.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            other => return Err(format!("operator {other}")),
        };
        let values = expression.values.iter().flatten().map(String::as_str);
        requirements.add(&expression.key, Requirement::new(operator, values));
    }
    Ok(requirements)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn room_that_a_pod_was_promised_is_taken() {
        let mut state = State::default();
        state.apply_node(object(json!({
            "metadata": { "name": "node" }, "status": { "allocatable": { "cpu": "4", "pods": "10" } },
        })));
        let pod = |name: &str, nominated: Option<&str>| {
            object(json!({
                "metadata": { "name": name, "namespace": "shop" },
                "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "3" } } }] },
                "status": {
                    "nominatedNodeName": nominated,
                    "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }],
                },
            }))
        };
        state.apply_pod(pod("promised", Some("node")));
        state.apply_pod(pod("waiting", None));
        let snapshot = state.snapshot(&Catalogues::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(snapshot.nodes[0].free.get("cpu"), 1000);
        let waiting: Vec<&str> = snapshot.pods.iter().map(|pod| pod.key.0.as_str()).collect();
        assert_eq!(waiting, ["shop/waiting"]);
    }

    /// The scheduler has not tried it again and may not do so for minutes.
    #[test]
    fn what_nap_promised_itself_does_not_outlive_the_plan() {
        let mut state = State::default();
        state.apply_node(object(json!({
            "metadata": { "name": "node" }, "spec": { "providerID": "azure:///1" },
            "status": { "allocatable": { "cpu": "4", "pods": "10" } },
        })));
        state.apply_claim(object(json!({
            "metadata": { "name": "claim", "annotations": { labels::PLANNED_PODS: r#"["shop/lost"]"# } },
            "spec": {
                "requirements": [],
                "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
            },
            "status": {
                "nodeName": "node", "providerID": "azure:///1",
                "conditions": [{
                    "type": "Initialized", "status": "True", "reason": "Initialized", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        })));
        state.apply_pod(object(json!({
            "metadata": { "name": "lost", "namespace": "shop" },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "3" } } }] },
            "status": {
                "nominatedNodeName": "node",
                "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }],
            },
        })));
        let waiting = |time: &str| {
            state
                .snapshot(&Catalogues::default(), time.parse().unwrap())
                .pods
                .iter()
                .map(|pod| pod.key.0.clone())
                .collect::<Vec<_>>()
        };
        assert!(waiting("2026-01-01T00:00:10Z").is_empty());
        assert_eq!(waiting("2026-01-01T00:01:00Z"), ["shop/lost"]);
    }
}
