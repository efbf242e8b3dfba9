//! Plans before the real scheduler: it must bind what the engine placed, and leave what the engine called unschedulable.
//!
//! The nodes of a plan are made as objects, held back by a taint, and released one by one, as the controller releases them: first the pods that
//! a node was bought for are nominated to it, then the taint goes. Lost nominations are given again more often than the controller does it, so
//! this shows what nomination can do, not how the controller's timing does. The same runs without nomination, to see what that would cost.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use nap_api::{Requirements, labels};
use nap_controlplane::{Parts, Plane};
use nap_engine::{
    CapacityType, InstanceType, Offering, Options, Plan, PodKey, Pool, Resident, Snapshot, solve,
};
use nap_units::{CPU, PODS, Resources, UsdPerHour};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// How many generated clusters are put before the scheduler, unless `NAP_CASES` says otherwise.
const CASES: u64 = 8;
/// How long the scheduler has for a case: it tries a pod again after a second.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long nothing must have happened before a case counts as settled.
const QUIET: Duration = Duration::from_millis(2500);

/// Whether pods are nominated to their nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hint {
    Nominated,
    None,
}

/// What the scheduler made of a plan. Pods that differ in nothing but their names stand in for each other.
#[derive(Debug, Default)]
struct Outcome {
    planned: usize,
    bound: usize,
    /// Pods with rules between pods that are not bound: whether their rules can be met depends on the order in which others are bound.
    late: usize,
    /// Kinds of other pods of which the scheduler bound fewer than were planned, by one pod's name.
    too_few: BTreeMap<PodKey, usize>,
    /// Kinds of pods of which it bound more: it found a place where the engine found none.
    too_many: BTreeMap<PodKey, usize>,
    /// Pods that must be spread, and that it bound beyond the plan. The engine counts every domain that a pool could make a node in; the
    /// scheduler counts those that have nodes, and so takes some of these pods: the plan is stricter, not wrong.
    stricter: usize,
    /// Where the scheduler put them.
    places: BTreeMap<PodKey, String>,
    cost: UsdPerHour,
    /// What the machines for the planned pods that are not bound would cost besides.
    more: UsdPerHour,
}

impl Outcome {
    fn agrees(&self) -> bool {
        self.late == 0 && self.too_few.is_empty() && self.too_many.is_empty()
    }
}

/// The plane that these tests share, one after the other.
static PLANE: OnceCell<Plane> = OnceCell::const_new();
static TURN: Mutex<()> = Mutex::const_new(());
static CASE: AtomicU32 = AtomicU32::new(0);

struct Bench {
    client: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    async fn start() -> Self {
        let turn = TURN.lock().await;
        let plane = PLANE.get_or_init(async || Plane::start(Parts::Scheduler).await.unwrap()).await;
        let client = plane.client().await.unwrap();
        for name in ["other", "daemons"] {
            make::<Namespace>(&Api::all(client.clone()), json!({ "metadata": { "name": name } })).await;
        }
        let urgent = json!({ "metadata": { "name": "urgent" }, "value": 1, "preemptionPolicy": "Never" });
        make::<PriorityClass>(&Api::all(client.clone()), urgent).await;
        Self { client, _turn: turn }
    }

    /// Puts a plan before the scheduler.
    async fn judge(&self, snapshot: &Snapshot, plan: &Plan, hint: Hint) -> Outcome {
        let prefix = format!("case-{}-", CASE.fetch_add(1, Ordering::Relaxed));
        let (mut nodes, mut bound) = objects::existing(snapshot, &prefix);
        let mut for_node: Vec<(String, Vec<PodKey>)> = Vec::new();
        for node in &nodes {
            let here = plan
                .placements
                .iter()
                .filter(|placement| format!("{prefix}{}", placement.node) == node.name_any());
            for_node.push((node.name_any(), here.map(|placement| placement.pod.clone()).collect()));
        }
        for (index, launch) in plan.launches.iter().enumerate() {
            let name = format!("{prefix}new-{index}");
            let (node, daemons) = objects::launched(snapshot, launch, &name);
            nodes.push(node);
            bound.extend(daemons);
            for_node.push((name, launch.pods.clone()));
        }
        let planned: BTreeMap<PodKey, String> = for_node
            .iter()
            .flat_map(|(node, pods)| pods.iter().map(|pod| (pod.clone(), node.clone())))
            .collect();
        self.create(&nodes).await;
        join_all(bound.iter().map(|pod| self.create_pod(pod))).await;
        for pod in &snapshot.pods {
            let (pod, volume) = objects::waiting(pod);
            if let Some((volume, claim)) = volume {
                self.create(&[volume]).await;
                let api: Api<PersistentVolumeClaim> =
                    Api::namespaced(self.client.clone(), &claim.namespace().unwrap());
                api.create(&PostParams::default(), &claim).await.unwrap();
            }
            self.create_pod(&pod).await;
        }
        // Machines are bought for pods that the scheduler has looked at, and come a while after.
        while self.places().await.unjudged > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // What is there is open from the beginning. Machines come up in any order, here in one that has nothing to do with the plan's.
        let launched = for_node.split_off(snapshot.nodes.len());
        let there: BTreeMap<PodKey, String> = planned
            .iter()
            .filter(|(pod, _)| for_node.iter().any(|(_, pods)| pods.contains(pod)))
            .map(|(pod, node)| (pod.clone(), node.clone()))
            .collect();
        self.open(&for_node, hint).await;
        self.settle(&there, hint).await;
        let mut launched = launched;
        launched.sort_by_cached_key(|(node, _)| scrambled(node));
        self.open(&launched, hint).await;
        let places = self.settle(&planned, hint).await;
        let mut kinds: BTreeMap<nap_engine::Pod, Vec<&PodKey>> = BTreeMap::new();
        for pod in &snapshot.pods {
            let kind = nap_engine::Pod { key: PodKey::default(), ..pod.clone() };
            kinds.entry(kind).or_default().push(&pod.key);
        }
        let mut outcome = Outcome {
            planned: planned.len(),
            cost: plan.launches.iter().map(|launch| launch.price).sum(),
            ..Outcome::default()
        };
        let mut unbound = BTreeSet::new();
        for (kind, pods) in &kinds {
            let wanted = pods.iter().filter(|key| planned.contains_key(**key)).count();
            let bound = pods.iter().filter(|key| places.contains_key(**key)).count();
            outcome.bound += bound.min(wanted);
            if bound < wanted {
                let coupled =
                    !kind.spread.is_empty() || !kind.affinity.is_empty() || !kind.anti_affinity.is_empty();
                if coupled {
                    outcome.late += wanted - bound;
                } else {
                    outcome.too_few.insert(pods[0].clone(), wanted - bound);
                }
                let waiting = pods.iter().filter(|key| !places.contains_key(**key));
                unbound.extend(waiting.take(wanted - bound).copied().cloned());
            }
            if bound > wanted && !kind.spread.is_empty() {
                outcome.stricter += bound - wanted;
            } else if bound > wanted {
                outcome.too_many.insert(pods[0].clone(), bound - wanted);
            }
        }
        outcome.more = price_of_the_rest(snapshot, &prefix, &unbound, &nodes, &places);
        outcome.places = places;
        self.clear().await;
        outcome
    }

    /// Opens nodes one after the other, each to the pods that it is for.
    async fn open(&self, nodes: &[(String, Vec<PodKey>)], hint: Hint) {
        for (node, pods) in nodes {
            if hint == Hint::Nominated {
                join_all(pods.iter().map(|pod| self.nominate(pod, node))).await;
            }
            self.release(node).await;
            if hint == Hint::Nominated {
                self.second_looks(node, pods).await;
            }
        }
    }

    /// The scheduler may have tried a pod while the node was still closed, and taken its nomination away: it gets it again, for a while.
    async fn second_looks(&self, node: &str, pods: &[PodKey]) {
        for _ in 0..20 {
            let now = self.places().await;
            let waiting: Vec<&PodKey> = pods.iter().filter(|pod| !now.bound.contains_key(*pod)).collect();
            if waiting.is_empty() {
                return;
            }
            let lost = waiting.into_iter().filter(|pod| !now.nominated.contains(*pod));
            join_all(lost.map(|pod| self.nominate(pod, node))).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn create<K>(&self, objects: &[K])
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        for object in objects {
            api.create(&PostParams::default(), object).await.unwrap();
        }
    }

    async fn create_pod(&self, pod: &Pod) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap());
        api.create(&PostParams::default(), pod).await.unwrap();
    }

    /// A pod that is bound by then refuses.
    async fn nominate(&self, key: &PodKey, node: &str) {
        let (namespace, name) = key.parts();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "status": { "nominatedNodeName": node } }));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 422 => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn release(&self, name: &str) {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = api.get(name).await.unwrap();
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let taints: Vec<_> = taints.into_iter().filter(|taint| taint.key != objects::HELD).collect();
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until everything planned is bound, or nothing happens any more; nominates again what lost its nomination. Returns where pods are.
    async fn settle(&self, planned: &BTreeMap<PodKey, String>, hint: Hint) -> BTreeMap<PodKey, String> {
        let started = tokio::time::Instant::now();
        let (mut places, mut changed) = (BTreeMap::new(), started);
        loop {
            let now = self.places().await;
            let nominated: BTreeSet<PodKey> = now.nominated;
            if now.bound.len() != places.len() {
                changed = tokio::time::Instant::now();
            }
            places = now.bound;
            let waiting: Vec<&PodKey> = planned.keys().filter(|key| !places.contains_key(*key)).collect();
            if waiting.is_empty() && now.unjudged == 0 {
                return places;
            }
            let quiet = changed.elapsed() > QUIET && started.elapsed() > QUIET;
            if started.elapsed() > PATIENCE || (quiet && (waiting.is_empty() || hint == Hint::None)) {
                return places;
            }
            if hint == Hint::Nominated {
                let lost = waiting.into_iter().filter(|key| !nominated.contains(*key));
                join_all(lost.map(|key| self.nominate(key, &planned[key]))).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn places(&self) -> Places {
        let api: Api<Pod> = Api::all(self.client.clone());
        let mut places = Places::default();
        for pod in api.list(&ListParams::default()).await.unwrap() {
            let key = PodKey::new(&pod.namespace().unwrap(), &pod.name_any());
            if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                places.bound.insert(key, node);
                continue;
            }
            let status = pod.status.unwrap_or_default();
            if status.nominated_node_name.is_some() {
                places.nominated.insert(key);
            }
            places.unjudged += usize::from(status.conditions.unwrap_or_default().is_empty());
        }
        places
    }

    async fn clear(&self) {
        let now = DeleteParams::default().grace_period(0);
        for namespace in ["default", "other", "daemons"] {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            pods.delete_collection(&now, &ListParams::default()).await.unwrap();
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
            claims.delete_collection(&now, &ListParams::default()).await.unwrap();
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.delete_collection(&now, &ListParams::default()).await.unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete_collection(&now, &ListParams::default()).await.unwrap();
    }
}

/// What machines for pods that found no place would cost, with every other pod where it is.
fn price_of_the_rest(
    snapshot: &Snapshot,
    prefix: &str,
    unbound: &BTreeSet<PodKey>,
    nodes: &[Node],
    places: &BTreeMap<PodKey, String>,
) -> UsdPerHour {
    let mut rest = snapshot.clone();
    rest.nodes = nodes
        .iter()
        .map(|node| {
            let there =
                snapshot.nodes.iter().find(|there| node.name_any() == format!("{prefix}{}", there.name));
            let mut residents = there.map(|there| there.residents.clone()).unwrap_or_default();
            let bound = snapshot.pods.iter().filter(|pod| places.get(&pod.key) == Some(&node.name_any()));
            residents.extend(bound.map(|pod| Resident {
                namespace: pod.key.parts().0.to_owned(),
                labels: pod.labels.clone(),
                anti_affinity: pod.anti_affinity.clone(),
                host_ports: pod.host_ports.clone(),
                count: 1,
            }));
            nap_engine::Node {
                name: node.name_any(),
                labels: node.labels().clone(),
                free: Resources::new(),
                residents,
                ..nap_engine::Node::default()
            }
        })
        .collect();
    rest.pods.retain(|pod| unbound.contains(&pod.key));
    solve(&rest, &Options::default()).launches.iter().map(|launch| launch.price).sum()
}

fn scrambled(name: &str) -> u64 {
    name.bytes().fold(7, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Where pods are.
#[derive(Default)]
struct Places {
    bound: BTreeMap<PodKey, String>,
    nominated: BTreeSet<PodKey>,
    /// Pods that the scheduler has not looked at yet.
    unjudged: usize,
}

async fn make<K>(api: &Api<K>, object: serde_json::Value)
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await {
        Ok(_) => {}
        // The test before made it.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => panic!("{error}"),
    }
}

/// How often a case is tried before a disagreement counts: nomination leaves a small race, which the controller settles with a second look.
const TRIES: usize = 4;

/// Every generated plan is realised with nomination, and what has no place in it has none before the scheduler either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn the_scheduler_agrees_with_the_engine() {
    let bench = Bench::start().await;
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, cases) = (number("NAP_SEED", 1), number("NAP_CASES", CASES));
    let mut disagreements = Vec::new();
    let (mut planned, mut bound, mut races, mut stricter, mut late) = (0, 0, 0, 0, 0);
    for seed in first..first + cases {
        let snapshot = nap_oracle::generate(seed);
        let plan = solve(&snapshot, &Options::default());
        let mut outcome = bench.judge(&snapshot, &plan, Hint::Nominated).await;
        planned += outcome.planned;
        bound += outcome.bound;
        for _ in 1..TRIES {
            if outcome.agrees() {
                break;
            }
            races += 1;
            outcome = bench.judge(&snapshot, &plan, Hint::Nominated).await;
        }
        stricter += outcome.stricter;
        late += outcome.late;
        if !outcome.agrees() {
            let line = format!(
                "seed {seed}: {} late, too few {:?}, too many {:?}",
                outcome.late, outcome.too_few, outcome.too_many
            );
            let file = format!("{}/disagreement-{seed}.json", env!("CARGO_TARGET_TMPDIR"));
            let shown = json!({ "snapshot": snapshot, "plan": plan, "places": outcome.places });
            std::fs::write(&file, shown.to_string()).unwrap();
            eprintln!("{line}; see {file}");
        }
        if !outcome.too_few.is_empty() || !outcome.too_many.is_empty() {
            disagreements.push(seed);
        }
    }
    eprintln!(
        "{cases} clusters: {bound} of {planned} planned pods bound at once, {races} tries again, {} disagreements; \
         {late} pods with rules between pods stayed unbound, {stricter} pods with spread constraints were bound beyond the plan",
        disagreements.len()
    );
    assert!(disagreements.is_empty(), "seeds {disagreements:?}");
    assert!(late * 20 <= planned, "{late} of {planned} planned pods depend on the order of binding");
}

/// Large pods on nodes that just hold them, small ones three to a node: a packing that a scheduler does not find by itself. With nomination it is
/// realised; what it would cost without is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn a_tight_plan_is_realised() {
    let bench = Bench::start().await;
    let snapshot = tight();
    let plan = solve(&snapshot, &Options::default());
    assert!(plan.unplaced.is_empty());
    let plain = bench.judge(&snapshot, &plan, Hint::None).await;
    let mut nominated = bench.judge(&snapshot, &plan, Hint::Nominated).await;
    for _ in 1..TRIES {
        if !nominated.agrees() {
            eprintln!(
                "nominated: {} of {} planned pods bound, once more",
                nominated.bound, nominated.planned
            );
            nominated = bench.judge(&snapshot, &plan, Hint::Nominated).await;
        }
    }
    for (how, outcome) in [("plain", &plain), ("nominated", &nominated)] {
        eprintln!(
            "{how}: {} of {} planned pods bound on machines for {}/h; the rest would cost {}/h more",
            outcome.bound, outcome.planned, outcome.cost, outcome.more
        );
    }
    assert_eq!(nominated.bound, nominated.planned, "{:?}", nominated.too_few);
}

/// 20 pods of 7 CPUs and 120 of 0.6, and machines that just hold one of the former, or three of the latter.
fn tight() -> Snapshot {
    let pod = |name: String, milli: i64| nap_engine::Pod {
        key: PodKey::new("default", &name),
        requests: Resources::new().with(CPU, milli).with(PODS, 1),
        terms: vec![Requirements::new()],
        ..nap_engine::Pod::default()
    };
    let kind = |name: &str, milli: i64, micros: i64| InstanceType {
        name: name.to_owned(),
        capacity: Resources::new().with(CPU, milli).with(PODS, 110),
        allocatable: Resources::new().with(CPU, milli).with(PODS, 110),
        requirements: Requirements::from_labels(&BTreeMap::from([(
            labels::INSTANCE_TYPE.to_owned(),
            name.to_owned(),
        )])),
        offerings: vec![Offering {
            zone: "z-1".to_owned(),
            capacity_type: CapacityType::OnDemand,
            price: UsdPerHour::from_micros(micros),
            available: true,
            requirements: Requirements::from_labels(&BTreeMap::from([
                (labels::ZONE.to_owned(), "z-1".to_owned()),
                (labels::CAPACITY_TYPE.to_owned(), "on-demand".to_owned()),
            ])),
        }],
    };
    let types = vec![kind("large", 7820, 400_000), kind("small", 1900, 90_000)];
    Snapshot {
        pods: (0..20)
            .map(|index| pod(format!("large-{index}"), 7000))
            .chain((0..120).map(|index| pod(format!("small-{index}"), 600)))
            .collect(),
        pools: vec![Pool {
            name: "pool".to_owned(),
            weight: 0,
            requirements: Requirements::from_labels(&BTreeMap::from([(
                labels::NODEPOOL.to_owned(),
                "pool".to_owned(),
            )])),
            taints: Vec::new(),
            headroom: Resources::new(),
            catalogue: "all".to_owned(),
        }],
        catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types))]),
        ..Snapshot::default()
    }
}
