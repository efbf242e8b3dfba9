//! `nap bench gen`: problems from command-line arguments. The same arguments give the same bytes.

mod catalogues;
mod fleets;

use std::collections::BTreeSet;

use anyhow::Context as _;
use clap::ValueEnum;
use nap_problem::generate::catalogues::thin;
use nap_problem::generate::deployments::{self, Case};
use nap_problem::generate::{adversarial, daemons, mixes, rng, traces};
use nap_problem::{InstanceType, Problem};

use nap_problem::generate::fleets::FleetKind;

use super::args::{CatalogueKind, FleetArgs, GenArgs, Policy, ProblemKind};
use super::measure;
use crate::user_error::UserError;

/// Writes the problem file.
pub(super) fn write(args: &GenArgs) -> anyhow::Result<()> {
    let text = problem(args)?.to_text();
    if let Some(path) = &args.out {
        return measure::write(path, &text);
    }
    crate::output::write_last(&text)
}

/// A problem of the table that `nap bench` prints when no file is given.
pub(super) fn standard(kind: ProblemKind, pods: u32, region: &str) -> anyhow::Result<Problem> {
    problem(&azure(kind, pods, region))
}

/// A fleet of the table that `nap bench disruption` prints.
pub(super) fn fleet(
    kind: FleetKind,
    nodes: u32,
    churn: Option<u32>,
    seed: u64,
    region: &str,
) -> anyhow::Result<Problem> {
    let fleet = FleetArgs { fleet: kind, nodes: Some(nodes), churn, ..FleetArgs::default() };
    problem(&GenArgs { seed, fleet, ..azure(ProblemKind::Fleet, 1000, region) })
}

/// The VM sizes of Azure's D family that the other benches use, with spot offerings.
pub(super) fn d_family_with_spot(region: &str) -> anyhow::Result<Vec<InstanceType>> {
    let family = catalogues::types(CatalogueKind::D, region)?;
    let names: BTreeSet<String> = family.into_iter().map(|one| one.name).collect();
    let mut types = catalogues::types(CatalogueKind::Azure, region)?;
    types.retain(|one| names.contains(&one.name));
    Ok(types)
}

/// Arguments of a problem on Azure's D family.
fn azure(kind: ProblemKind, pods: u32, region: &str) -> GenArgs {
    GenArgs {
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
        fleet: FleetArgs::default(),
        out: None,
    }
}

/// Generates the problem that the arguments describe.
pub(super) fn problem(args: &GenArgs) -> anyhow::Result<Problem> {
    let mut rng = rng(args.seed);
    let pods = usize::try_from(args.pods)?;
    let catalogue = args.catalogue.unwrap_or(match args.kind {
        ProblemKind::Deployments => CatalogueKind::Kwok,
        ProblemKind::Trace => CatalogueKind::Def64,
        ProblemKind::Fleet => CatalogueKind::D,
        _ => CatalogueKind::Fake400,
    });
    let mut problem = Problem {
        version: 1,
        instance_types: catalogues::types(catalogue, &args.region)?,
        node_pools: vec![catalogues::pool(catalogue)],
        ..Problem::default()
    };
    if let Some(count) = args.types {
        problem.instance_types = thin(problem.instance_types, count);
    }
    match args.kind {
        ProblemKind::Mix => problem.pods = mixes::mix(&mut rng, pods),
        ProblemKind::Plain => problem.pods = mixes::plain(&mut rng, pods),
        ProblemKind::Preferences => {
            if args.policy == Policy::Respect {
                let hint = "`--policy ignore` writes the same pods as they count when preferences decide nothing";
                return Err(UserError::new("the problem format has no preferences", hint).into());
            }
            problem.pods = mixes::preferences(&mut rng, pods);
        }
        ProblemKind::Deployments => problem.pods = deployments::deployments(args.case),
        ProblemKind::Golden => {
            problem.instance_types = vec![deployments::golden_type()];
            problem.pods = deployments::golden();
        }
        ProblemKind::Trace => {
            let path = args.csv.as_ref().ok_or_else(|| {
                UserError::new("a trace needs a file", "give one with `--csv FILE`")
            })?;
            let text =
                std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
            let times = usize::try_from(args.times)?;
            problem.pods =
                traces::pods(&text, times).with_context(|| format!("{}", path.display()))?;
        }
        ProblemKind::Distinct => problem.pods = adversarial::distinct(&mut rng, pods),
        ProblemKind::OneClass => problem.pods = adversarial::one_class(pods),
        ProblemKind::Giants => {
            problem.pods = adversarial::giants(&mut rng, pods, &problem.instance_types);
        }
        ProblemKind::Pools => adversarial::pools(&mut problem, &mut rng, pods),
        ProblemKind::Limits => adversarial::limits(&mut problem, &mut rng, pods),
        ProblemKind::Unschedulable => problem.pods = adversarial::unschedulable(&mut rng, pods),
        ProblemKind::Fleet => {}
    }
    if args.daemons {
        problem.daemons = daemons();
    }
    if args.kind == ProblemKind::Fleet {
        fleets::populate(&mut problem, &args.fleet, pods, &mut rng)?;
    }
    problem.name = name(args, catalogue);
    problem.recipe = serde_json::Value::String(recipe(args, catalogue));
    problem.check()?;
    Ok(problem)
}

fn spelled(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Whether `--pods` sets the number of pods of a kind.
fn is_sized(kind: ProblemKind) -> bool {
    !matches!(kind, ProblemKind::Deployments | ProblemKind::Golden | ProblemKind::Trace)
}

fn name(args: &GenArgs, catalogue: CatalogueKind) -> String {
    let mut parts = vec![spelled(&args.kind)];
    match args.kind {
        ProblemKind::Deployments => parts.push(spelled(&args.case)),
        ProblemKind::Trace => {
            let stem = args.csv.as_ref().and_then(|path| path.file_stem());
            parts.push(stem.unwrap_or_default().to_string_lossy().into_owned());
            parts.push(format!("x{}", args.times));
        }
        _ => {}
    }
    if is_sized(args.kind) {
        parts.push(args.pods.to_string());
    }
    if args.kind != ProblemKind::Golden {
        parts.push(spelled(&catalogue));
    }
    if args.kind == ProblemKind::Fleet {
        parts = fleets::name(&args.fleet, args.pods, &parts);
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
        ProblemKind::Deployments => words.push(format!("--case {}", spelled(&args.case))),
        ProblemKind::Preferences => words.push(format!("--policy {}", spelled(&args.policy))),
        ProblemKind::Trace => {
            let file = args.csv.as_ref().and_then(|path| path.file_name()).unwrap_or_default();
            words.push(format!("--csv {} --times {}", file.to_string_lossy(), args.times));
        }
        ProblemKind::Fleet => words.push(fleets::recipe(&args.fleet)),
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

#[cfg(test)]
mod tests;
