//! Problems from a recipe and a seed: `nap bench gen`. The same arguments give the same bytes.

mod catalogues;
mod deployments;
mod hard;
mod mixes;
mod traces;

use anyhow::Context as _;
use clap::ValueEnum;
use nap_oracle::problem::{Amounts, LabelExpression, NodePool, PodClass, Problem};
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::args::{Case, CatalogueKind, GenArgs, Kind, Policy};
use super::measure;
use crate::user_error::UserError;

const MEBIBYTE: i64 = 1 << 20;

/// Writes the file.
pub(super) fn write(args: &GenArgs) -> anyhow::Result<()> {
    let text = problem(args)?.to_text();
    if let Some(path) = &args.out {
        return measure::write(path, &text);
    }
    print!("{text}");
    Ok(())
}

/// A problem of the table that `nap bench` prints without files.
pub(super) fn standard(kind: Kind, pods: u32, region: &str) -> anyhow::Result<Problem> {
    problem(&GenArgs {
        kind,
        pods,
        seed: 1,
        catalogue: Some(CatalogueKind::D),
        types: None,
        region: region.to_owned(),
        case: Case::Basic,
        policy: Policy::Ignore,
        csv: None,
        times: 1,
        daemons: false,
        out: None,
    })
}

/// Makes the problem that the arguments ask for.
pub(super) fn problem(args: &GenArgs) -> anyhow::Result<Problem> {
    let mut rng = Pcg64Mcg::seed_from_u64(args.seed);
    let pods = usize::try_from(args.pods)?;
    let catalogue = args.catalogue.unwrap_or(match args.kind {
        Kind::Deployments => CatalogueKind::Kwok,
        Kind::Trace => CatalogueKind::Def64,
        _ => CatalogueKind::Fake400,
    });
    let mut problem = Problem {
        version: 1,
        instance_types: catalogues::types(catalogue, &args.region)?,
        node_pools: vec![catalogues::pool(catalogue)],
        ..Problem::default()
    };
    if let Some(most) = args.types {
        problem.instance_types = catalogues::thin(problem.instance_types, most);
    }
    match args.kind {
        Kind::Mix => problem.pods = mixes::mix(&mut rng, pods),
        Kind::Plain => problem.pods = mixes::plain(&mut rng, pods),
        Kind::Preferences => {
            if args.policy == Policy::Respect {
                let hint = "`--policy ignore` writes the same pods as they count when preferences decide nothing";
                return Err(UserError::new("the problem format has no preferences", hint).into());
            }
            problem.pods = mixes::preferences(&mut rng, pods);
        }
        Kind::Deployments => problem.pods = deployments::deployments(args.case),
        Kind::Golden => {
            problem.instance_types = vec![deployments::golden_type()];
            problem.pods = deployments::golden();
        }
        Kind::Trace => {
            let path = args.csv.as_ref().ok_or_else(|| {
                UserError::new("a trace needs a file", "give one with `--csv FILE`")
            })?;
            let text =
                std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
            let times = usize::try_from(args.times)?;
            problem.pods =
                traces::pods(&text, times).with_context(|| format!("{}", path.display()))?;
        }
        Kind::Distinct => problem.pods = hard::distinct(&mut rng, pods),
        Kind::OneClass => problem.pods = hard::one_class(pods),
        Kind::Giants => problem.pods = hard::giants(&mut rng, pods, &problem.instance_types),
        Kind::Pools => hard::pools(&mut problem, &mut rng, pods),
        Kind::Limits => hard::limits(&mut problem, &mut rng, pods),
        Kind::Unschedulable => problem.pods = hard::unschedulable(&mut rng, pods),
    }
    if args.daemons {
        problem.daemons = daemons();
    }
    problem.name = name(args, catalogue);
    problem.recipe = serde_json::Value::String(recipe(args, catalogue));
    problem.check()?;
    Ok(problem)
}

fn spelled(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Whether a kind has as many pods as asked for.
fn is_sized(kind: Kind) -> bool {
    !matches!(kind, Kind::Deployments | Kind::Golden | Kind::Trace)
}

fn name(args: &GenArgs, catalogue: CatalogueKind) -> String {
    let mut parts = vec![spelled(&args.kind)];
    match args.kind {
        Kind::Deployments => parts.push(spelled(&args.case)),
        Kind::Trace => {
            let stem = args.csv.as_ref().and_then(|path| path.file_stem());
            parts.push(stem.unwrap_or_default().to_string_lossy().into_owned());
            parts.push(format!("x{}", args.times));
        }
        _ => {}
    }
    if is_sized(args.kind) {
        parts.push(args.pods.to_string());
    }
    if args.kind != Kind::Golden {
        parts.push(spelled(&catalogue));
    }
    parts.extend(args.types.map(|types| format!("t{types}")));
    parts.extend(args.daemons.then(|| "daemons".to_owned()));
    if is_sized(args.kind) {
        parts.push(format!("s{}", args.seed));
    }
    parts.join("-")
}

fn recipe(args: &GenArgs, catalogue: CatalogueKind) -> String {
    let mut words = vec![format!("nap bench gen {}", spelled(&args.kind))];
    match args.kind {
        Kind::Deployments => words.push(format!("--case {}", spelled(&args.case))),
        Kind::Preferences => words.push(format!("--policy {}", spelled(&args.policy))),
        Kind::Trace => {
            let file = args.csv.as_ref().and_then(|path| path.file_name()).unwrap_or_default();
            words.push(format!("--csv {} --times {}", file.to_string_lossy(), args.times));
        }
        _ => {}
    }
    if is_sized(args.kind) {
        words.push(format!("--pods {} --seed {}", args.pods, args.seed));
    }
    words.push(format!("--catalogue {} --region {}", spelled(&catalogue), args.region));
    words.extend(args.types.map(|types| format!("--types {types}")));
    words.extend(args.daemons.then(|| "--daemons".to_owned()));
    words.join(" ")
}

/// What a small system node runs: eight daemons that together take 350 milli-cores and 500 MiB.
fn daemons() -> Vec<PodClass> {
    let shapes =
        [(100, 150), (60, 100), (50, 60), (40, 50), (40, 50), (30, 40), (20, 30), (10, 20)];
    let daemon = |(number, (cpu, memory)): (usize, (i64, i64))| PodClass {
        name: format!("daemon-{number}"),
        namespace: "kube-system".to_owned(),
        requests: requests(cpu, memory),
        tolerations: vec![nap_oracle::problem::Toleration {
            operator: Some("Exists".to_owned()),
            ..Default::default()
        }],
        ..PodClass::default()
    };
    shapes.into_iter().enumerate().map(daemon).collect()
}

/// Milli-cores and MiB.
fn requests(cpu_milli: i64, memory_mib: i64) -> Amounts {
    Amounts { cpu_milli, memory_bytes: memory_mib * MEBIBYTE, ..Amounts::default() }
}

/// A class without rules.
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

fn named_pool(name: &str) -> NodePool {
    NodePool { name: name.to_owned(), ..NodePool::default() }
}

#[cfg(test)]
mod tests;
