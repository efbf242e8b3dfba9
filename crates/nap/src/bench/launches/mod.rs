//! `nap bench launches`: a burst of machines against tight quotas and full zones, on the emulated
//! Azure in virtual time.
//!
//! The failures are those that a client without a quota ledger and a capacity memory meets, in the
//! published mix ([`PUBLISHED_MIX`]). Three clients launch the same burst on the same Azure:
//!
//! - nap's provider;
//! - nap's provider without ledger and memory, which leaves its batches and its shared list;
//! - a client that requests and polls each machine by itself and remembers nothing between them.
//!
//! For one machine all of them try a family that is over its quota only once.

mod clients;
mod scene;

use scene::{Counts, Failure, Scene};

use super::args::LaunchesArgs;

/// Failures of launches by kind, in tenths of a percent, as design 0012 of
/// karpenter-provider-azure states them. What is missing to 100 % is not broken down there.
const PUBLISHED_MIX: [(Failure, u64); 4] = [
    (Failure::FamilyQuota, 945),
    (Failure::Zonal, 27),
    (Failure::Allocation, 12),
    (Failure::Sku, 8),
];
/// Share of attempts that succeed there, failures for other causes left out, in percent.
const PUBLISHED_SUCCESS: u64 = 58;

/// Number of failures of a kind that the burst is laid out for.
fn wanted(failure: Failure, machines: usize) -> usize {
    let machines = u64::try_from(machines).unwrap_or(u64::MAX);
    let all = machines * (100 - PUBLISHED_SUCCESS) / PUBLISHED_SUCCESS;
    let share =
        PUBLISHED_MIX.iter().find(|(kind, _)| *kind == failure).map_or(0, |(_, share)| *share);
    usize::try_from((all * share + 500) / 1000).unwrap_or(usize::MAX)
}

/// Runs the burst with each client and prints a table.
pub(super) fn measure(args: &LaunchesArgs) -> anyhow::Result<()> {
    let clients = ["nap", "without ledger and memory", "one by one"];
    let mut results: Vec<(&str, Counts)> = Vec::new();
    for client in clients {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()?;
        let counts = runtime.block_on(async {
            let scene = Scene::new(args).await?;
            eprintln!("{} machines, {}: {client} …", args.machines, scene.layout);
            match client {
                "nap" => clients::with_memory(&scene, args).await,
                "one by one" => clients::one_by_one(&scene, args).await,
                _ => clients::without_memory(&scene, args).await,
            }
        })?;
        results.push((client, counts));
    }
    println!(
        "| client | first attempt | attempts | refused | failed later | family quota, zonal, allocation, SKU, other | ARM reads | ARM writes | requests a machine | 429 | seconds |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (client, counts) in &results {
        println!("{}", row(client, counts, args.machines));
    }
    Ok(())
}

fn row(client: &str, counts: &Counts, machines: usize) -> String {
    let Counts { reads, writes, throttled, attempts, first, seconds, .. } = counts;
    let machines = machines.max(1) as u64;
    let hundredths = (reads + writes) * 100 / machines;
    let failures = counts.failures.values().sum::<u64>();
    let mix =
        [Failure::FamilyQuota, Failure::Zonal, Failure::Allocation, Failure::Sku, Failure::Other]
            .map(|kind| percent(counts.failures.get(&kind).copied().unwrap_or(0), failures));
    format!(
        "| {client} | {} % | {attempts} | {} | {} | {} % | {reads} | {writes} | {}.{:02} | {throttled} | {seconds} |",
        percent(*first, machines),
        counts.refused.len(),
        counts.failed,
        mix.join(", "),
        hundredths / 100,
        hundredths % 100,
    )
}

/// A share with one decimal; `0.0` of nothing.
fn percent(part: u64, whole: u64) -> String {
    let tenths = (part * 1000 + whole / 2).checked_div(whole).unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}
