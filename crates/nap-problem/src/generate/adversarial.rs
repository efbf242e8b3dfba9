//! Problems that are hard on a solver: all pods distinct, all pods equal, huge pods, many pools,
//! exhausted limits, unschedulable pods.

use std::collections::BTreeSet;

use crate::{InstanceType, NodePool, PodClass, Problem, Taint, Toleration};
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::{MEBIBYTE, class, mixes, named_pool, requests};

/// Number of pods that fit on no instance type.
const UNSCHEDULABLE: usize = 1000;

/// Number of NodePools.
const POOLS: usize = 100;

const TEAM: &str = "example.com/team";

/// Pods of which no two have equal requests.
pub fn distinct(rng: &mut Pcg64Mcg, pods: usize) -> Vec<PodClass> {
    let mut seen = BTreeSet::new();
    let mut made = Vec::with_capacity(pods);
    while made.len() < pods {
        let shape = (rng.random_range(50..4000), rng.random_range(64..16_384));
        if seen.insert(shape) {
            made.push(class(format!("pod-{}", made.len()), 1, requests(shape.0, shape.1)));
        }
    }
    made
}

/// One class of equal pods.
pub fn one_class(pods: usize) -> Vec<PodClass> {
    vec![class("same", pods, requests(500, 1024))]
}

/// Pods of a tenth to nine tenths of the largest type.
pub fn giants(rng: &mut Pcg64Mcg, pods: usize, types: &[InstanceType]) -> Vec<PodClass> {
    let largest =
        types.iter().max_by_key(|kind| (kind.capacity.cpu_milli, kind.capacity.memory_bytes));
    let (cpu, memory) = largest.map_or((1000, 1024), |kind| {
        (kind.capacity.cpu_milli, kind.capacity.memory_bytes / MEBIBYTE)
    });
    let mut made: Vec<PodClass> = Vec::new();
    for tenth in 1..=9 {
        made.push(class(
            format!("giant-{tenth}"),
            0,
            requests(cpu * tenth / 10, memory * tenth / 10),
        ));
    }
    for _ in 0..pods {
        let drawn = rng.random_range(0..made.len());
        made[drawn].replicas += 1;
    }
    made.retain(|class| class.replicas > 0);
    made
}

/// A hundred NodePools, half of them tainted. Each class tolerates the taint of one pool, and every
/// second class selects that pool.
pub fn pools(problem: &mut Problem, rng: &mut Pcg64Mcg, pods: usize) {
    let template = problem.node_pools.first().cloned().unwrap_or_default();
    problem.node_pools.clear();
    for number in 0..POOLS {
        let team = format!("team-{number:02}");
        let mut pool = NodePool { name: team.clone(), ..template.clone() };
        pool.weight = i32::try_from(number % 3).unwrap_or(0);
        pool.labels.insert(TEAM.to_owned(), team.clone());
        if number % 2 == 1 {
            pool.taints.push(Taint {
                key: TEAM.to_owned(),
                value: team,
                effect: "NoSchedule".to_owned(),
            });
        }
        problem.node_pools.push(pool);
    }
    let mut made = Vec::new();
    for (number, mut shape) in mixes::plain(rng, pods).into_iter().enumerate() {
        let team = format!("team-{:02}", rng.random_range(0..POOLS));
        shape.name = format!("{}-{team}", shape.name);
        shape.tolerations.push(Toleration {
            key: TEAM.to_owned(),
            value: team.clone(),
            ..Toleration::default()
        });
        if number % 2 == 0 {
            shape.node_selector.insert(TEAM.to_owned(), team);
        }
        made.push(shape);
    }
    problem.pods = made;
}

/// Three NodePools of falling weight whose CPU limits together hold about two thirds of the pods.
pub fn limits(problem: &mut Problem, rng: &mut Pcg64Mcg, pods: usize) {
    problem.pods = mixes::plain(rng, pods);
    let wanted: i64 = problem
        .pods
        .iter()
        .map(|class| class.requests.cpu_milli * i64::try_from(class.replicas).unwrap_or(i64::MAX))
        .sum();
    let template = problem.node_pools.first().cloned().unwrap_or_default();
    problem.node_pools = [("first", 30, 2), ("second", 20, 3), ("third", 10, 1)]
        .into_iter()
        .map(|(name, weight, ninths)| {
            let cores = (wanted / 1000 * ninths / 9).max(1);
            let mut pool = NodePool { weight, ..named_pool(name) };
            pool.requirements.clone_from(&template.requirements);
            pool.limits
                .extend(cores.to_string().parse().ok().map(|limit| ("cpu".to_owned(), limit)));
            pool
        })
        .collect();
}

/// Plain pods, and [`UNSCHEDULABLE`] more that are too large or select a label that no node has.
pub fn unschedulable(rng: &mut Pcg64Mcg, pods: usize) -> Vec<PodClass> {
    let mut made = mixes::plain(rng, pods);
    made.push(class("too-large", UNSCHEDULABLE / 2, requests(10_000_000, 1024)));
    let mut picky = class("too-picky", UNSCHEDULABLE - UNSCHEDULABLE / 2, requests(100, 128));
    picky.node_selector.insert("example.com/unheard-of".to_owned(), "yes".to_owned());
    made.push(picky);
    made
}
