//! Random fleets from a seed: the pods of a generated snapshot, bound to nodes by the oracle's own
//! scheduler without any care for cost, and some of them gone again.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_engine::{Candidate, CapacityType, Fleet, Options, Pod, PodKey, PoolRules, RunningPod};

use crate::cluster::{NodeState, obstacle};
use crate::generate::{Dice, generate};
use crate::places::places;
use crate::steps::{change, into_node, receive, with_node};

/// The fleet of a seed, equal on every machine.
pub fn generate_fleet(seed: u64) -> Fleet {
    let mut dice = Dice::new(seed ^ 0xF1EE_7000);
    let mut snapshot = generate(seed);
    let pods = std::mem::take(&mut snapshot.pods);
    let places: Vec<Vacancy> = places(&snapshot, &Options::default())
        .into_iter()
        .filter_map(|place| {
            let bought = place.bought?;
            // Which node of a reservation a decision gives back is unknown to a fleet.
            (bought.offering.capacity_type != CapacityType::Reserved).then(|| Vacancy {
                machine: place.machine,
                candidate: Candidate {
                    pool: bought.pool.name.clone(),
                    instance_type: bought.kind.name.clone(),
                    capacity_type: Some(bought.offering.capacity_type),
                    price: bought.offering.price,
                    capacity: bought.kind.capacity.clone(),
                    ..Candidate::default()
                },
            })
        })
        .collect();
    let mut cluster: Vec<NodeState> =
        snapshot.nodes.iter().map(|node| crate::check::existing(node)).collect();
    // With every pod, also those that go again.
    let mut full = cluster.clone();
    let standing = cluster.len();
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut bound: Vec<(Pod, usize)> = Vec::new();
    for pod in pods.into_iter().filter(|pod| pod.unsupported.is_none()) {
        let crowded = dice.chance(40);
        let fits = |cluster: &[NodeState], target: usize| obstacle(&pod, target, cluster).is_none();
        let mut target = (0..full.len()).find(|target| crowded && fits(&full, *target));
        for _ in 0..MAX_DRAWS {
            if target.is_some() || places.is_empty() {
                break;
            }
            let vacancy = dice.pick(&places);
            full.push(vacancy.named(candidates.len()));
            if fits(&full, full.len() - 1) {
                target = Some(full.len() - 1);
                let machine = vacancy.named(candidates.len());
                let node = machine.name.clone();
                cluster.push(machine);
                candidates.push(Candidate { node, ..vacancy.candidate.clone() });
            } else {
                full.pop();
            }
        }
        if let Some(target) = target {
            receive(&mut full[target], &pod);
            bound.push((pod, target));
        }
    }
    let leaving = dice.between(0, 60);
    let mut templates: BTreeMap<Pod, usize> = BTreeMap::new();
    let mut list: Vec<Pod> = Vec::new();
    for (pod, target) in bound {
        if dice.chance(leaving) {
            continue;
        }
        let nameless = Pod { key: PodKey::new(pod.key.namespace(), ""), ..pod.clone() };
        let template = *templates.entry(nameless).or_insert_with(|| {
            list.push(pod.clone());
            list.len() - 1
        });
        receive(&mut cluster[target], &pod);
        if target >= standing {
            candidates[target - standing].pods.push(RunningPod { key: pod.key, template });
        }
    }
    let mut pools: BTreeMap<String, PoolRules> = BTreeMap::new();
    for one in &mut candidates {
        let moves = i64::try_from(one.pods.len()).unwrap_or(0);
        one.disruption_cost = 1000 + 1000 * moves;
        one.remaining_life = *dice.pick(&[0, 600, 3_600, 86_400, 86_400]);
        one.min_saving_percent = *dice.pick(&[0, 0, 0, 30, 60]);
        for pool in snapshot.pools.iter_mut().filter(|pool| pool.name == one.pool) {
            change(&mut pool.headroom, &with_node(&one.capacity), i64::saturating_sub);
        }
        let rules = pools.entry(one.pool.clone()).or_insert_with(|| PoolRules {
            budget: usize::try_from(dice.between(0, 6)).unwrap_or(0),
            balanced: dice.chance(20),
            spot_to_spot: dice.chance(50),
            ..PoolRules::default()
        });
        rules.cost += one.price;
        rules.disruption_cost += one.disruption_cost;
    }
    // Some nodes must stay, such as those with pods that must not be evicted.
    candidates.retain(|_| !dice.chance(10));
    let initialized: Vec<bool> = snapshot.nodes.iter().map(|node| node.initialized).collect();
    let nodes = cluster.into_iter().enumerate().map(|(number, state)| {
        let mut node = into_node(state);
        node.initialized = initialized.get(number).copied().unwrap_or(true);
        Arc::new(node)
    });
    snapshot.nodes = nodes.collect();
    Fleet { snapshot, templates: list, candidates, pools, workloads: Vec::new() }
}

/// Number of offerings that are tried for a pod.
const MAX_DRAWS: usize = 6;

/// A node that could be launched.
struct Vacancy {
    machine: NodeState,
    candidate: Candidate,
}

impl Vacancy {
    fn named(&self, number: usize) -> NodeState {
        let mut machine = self.machine.clone();
        machine.name = format!("c{number}");
        machine.labels.insert(nap_api::labels::HOSTNAME.to_owned(), machine.name.clone());
        machine
    }
}
