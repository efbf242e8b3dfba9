//! Generators of problems: a recipe and a seed give the same bytes on every machine.
//!
//! - [`mixes`]: the pods of the incumbent's benchmark.
//! - [`deployments`]: fixed workloads of the incumbent's performance suite and of Cluster
//!   Autoscaler.
//! - [`fleets`]: nodes with pods, for consolidation.
//! - [`traces`]: pods from a CSV file.
//! - [`adversarial`]: problems that are hard on a solver.
//! - [`catalogues`]: synthetic instance types.

pub mod adversarial;
pub mod catalogues;
pub mod deployments;
pub mod fleets;
pub mod mixes;
pub mod traces;

use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use crate::{Amounts, LabelExpression, NodePool, PodClass, Problem, Toleration};

/// Bytes of a MiB.
pub const MEBIBYTE: i64 = 1 << 20;

/// The random number generator of all recipes.
pub type Rng = Pcg64Mcg;

/// The random number generator of a seed.
pub fn rng(seed: u64) -> Rng {
    Rng::seed_from_u64(seed)
}

/// The incumbent's benchmark: its pod mix on its 400 instance types. `nap bench gen mix` writes the
/// same pods.
pub fn incumbent_mix(pods: usize, seed: u64) -> Problem {
    Problem {
        version: 1,
        name: format!("mix-{pods}-fake400-s{seed}"),
        instance_types: catalogues::fake_400(),
        node_pools: vec![catalogues::fake_pool()],
        pods: mixes::mix(&mut rng(seed), pods),
        ..Problem::default()
    }
}

/// The daemons of a small system node: eight, 350 milli-cores and 500 MiB together.
pub fn daemons() -> Vec<PodClass> {
    let shapes =
        [(100, 150), (60, 100), (50, 60), (40, 50), (40, 50), (30, 40), (20, 30), (10, 20)];
    let daemon = |(number, (cpu, memory)): (usize, (i64, i64))| PodClass {
        name: format!("daemon-{number}"),
        namespace: "kube-system".to_owned(),
        requests: requests(cpu, memory),
        tolerations: vec![Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }],
        ..PodClass::default()
    };
    shapes.into_iter().enumerate().map(daemon).collect()
}

/// A NodePool without requirements, taints and limits.
pub fn named_pool(name: &str) -> NodePool {
    NodePool { name: name.to_owned(), ..NodePool::default() }
}

fn requests(cpu_milli: i64, memory_mib: i64) -> Amounts {
    Amounts { cpu_milli, memory_bytes: memory_mib * MEBIBYTE, ..Amounts::default() }
}

/// A class without scheduling rules, in the namespace `default`.
fn class(name: impl Into<String>, replicas: usize, requests: Amounts) -> PodClass {
    PodClass {
        name: name.into(),
        replicas,
        namespace: "default".to_owned(),
        requests,
        ..PodClass::default()
    }
}

fn expression(key: &str, operator: &str, values: &[&str]) -> LabelExpression {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    LabelExpression { key: key.to_owned(), operator: operator.to_owned(), values }
}
