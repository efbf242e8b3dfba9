//! `nap bench gen fleet`: nodes with pods on them, as consolidation finds them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use nap_problem::generate::{Rng, fleets};
use nap_problem::{PlanFile, Problem};

use super::spelled;
use crate::bench::args::FleetArgs;
use crate::bench::{measure, read_plan};
use crate::user_error::UserError;

/// Percent of the pods that are removed from a packed fleet by default.
const CHURN: u32 = 40;

/// Puts nodes with pods into a problem that has a catalogue and a NodePool.
pub(super) fn populate(
    problem: &mut Problem,
    args: &FleetArgs,
    pods: usize,
    rng: &mut Rng,
) -> anyhow::Result<()> {
    let most = i64::from(args.max_cpu) * 1000;
    problem.instance_types.retain(|one| one.capacity.cpu_milli <= most);
    fleets::require_capacity_types(problem);
    let nodes = args.nodes.map(usize::try_from).transpose()?;
    if !args.fleet.is_packed() {
        let Some(nodes) = nodes else {
            let what = format!("the fleet `{}` needs a number of nodes", spelled(&args.fleet));
            return Err(UserError::new(what, "give it with `--nodes N`").into());
        };
        fleets::equal(problem, args.fleet, nodes, rng)?;
        fleets::churn(problem, usize::try_from(args.churn.unwrap_or(0))?, rng);
        return Ok(());
    }
    let pods = match nodes {
        Some(nodes) => fleets::pods_for(problem, args.fleet, nodes)?,
        None => pods,
    };
    problem.pods = fleets::pods(rng, args.fleet, pods);
    let plan = match &args.packer {
        Some(packer) => pack(problem, packer)?,
        None => fleets::first_fit(problem)?,
    };
    let nodes = nodes.unwrap_or(usize::MAX);
    fleets::pack(problem, &plan, nodes, rng);
    if nodes != usize::MAX && problem.nodes.len() < nodes {
        let what = format!("the plan has {} nodes, not {nodes}", problem.nodes.len());
        return Err(UserError::new(what, "the packer left pods unplaced, or its nodes are larger than those of first fit; give `--pods` instead of `--nodes`").into());
    }
    fleets::churn(problem, usize::try_from(args.churn.unwrap_or(CHURN))?, rng);
    Ok(())
}

/// The plan of another solver.
fn pack(problem: &Problem, packer: &Path) -> anyhow::Result<PlanFile> {
    let folder = std::env::temp_dir().join(format!("nap-bench-pack-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let (file, plan) = (folder.join("problem.json"), folder.join("plan.json"));
    let named = Problem { name: "fleet".to_owned(), ..problem.clone() };
    measure::write(&file, &named.to_text())?;
    let done = Command::new(packer)
        .arg("--problem")
        .arg(&file)
        .arg("--plan")
        .arg(&plan)
        .output()
        .with_context(|| format!("starting {}", packer.display()))?;
    let result = if done.status.success() {
        read_plan(&plan)
    } else {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{} failed: {}", packer.display(), said.trim())
    };
    std::fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    result
}

/// Parts of the name: `parts` has the kind of problem, perhaps the number of pods, and the
/// catalogue.
pub(super) fn name(args: &FleetArgs, pods: u32, parts: &[String]) -> Vec<String> {
    let size = args.nodes.map_or_else(|| format!("{pods}pods"), |nodes| nodes.to_string());
    let mut name = vec!["fleet".to_owned(), spelled(&args.fleet), size];
    name.extend(parts.last().cloned());
    if let Some(churn) = args.churn.or(args.fleet.is_packed().then_some(CHURN)) {
        name.push(format!("c{churn}"));
    }
    name
}

/// The fleet's part of the command, with the packer's file name: its plan decides what is packed.
pub(super) fn recipe(args: &FleetArgs) -> String {
    let mut words = vec![format!("--fleet {}", spelled(&args.fleet))];
    words.extend(args.nodes.map(|nodes| format!("--nodes {nodes}")));
    let churn = args.churn.unwrap_or(if args.fleet.is_packed() { CHURN } else { 0 });
    words.push(format!("--churn {churn} --max-cpu {}", args.max_cpu));
    let file = args.packer.as_ref().and_then(|path| path.file_name());
    words.extend(file.map(|file| format!("--packer {}", file.to_string_lossy())));
    words.join(" ")
}
