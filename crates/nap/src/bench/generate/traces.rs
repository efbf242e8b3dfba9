//! Pods from a table of requests, as traces of real clusters have them.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use nap_oracle::problem::PodClass;

use super::{class, requests};

/// The classes of a CSV file. Rows that ask for GPUs are left out: shares of a GPU cannot be said
/// in the format.
pub(super) fn pods(text: &str, times: usize) -> anyhow::Result<Vec<PodClass>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let column = |name: &str| header.iter().position(|cell| *cell == name);
    let cpu = column("cpu_milli").context("there is no column `cpu_milli`")?;
    let memory = column("memory_mib").context("there is no column `memory_mib`")?;
    let (replicas, gpu) = (column("replicas"), column("gpu"));
    let mut shapes: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    for (index, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |column: usize| -> anyhow::Result<i64> {
            let cell = cells.get(column).copied().unwrap_or_default();
            let number = cell.parse().ok().filter(|number: &i64| *number >= 0);
            number.with_context(|| format!("line {}: `{cell}` is not a whole number", index + 2))
        };
        if gpu.map(number).transpose()?.is_some_and(|gpus| gpus > 0) {
            continue;
        }
        let replicas = replicas.map(number).transpose()?.unwrap_or(1);
        *shapes.entry((number(cpu)?, number(memory)?)).or_default() +=
            usize::try_from(replicas)? * times;
    }
    ensure!(!shapes.is_empty(), "no row without a GPU");
    let made = shapes.into_iter().filter(|(_, replicas)| *replicas > 0).map(
        |((cpu, memory), replicas)| {
            class(format!("shape-{cpu}m-{memory}mi"), replicas, requests(cpu, memory))
        },
    );
    Ok(made.collect())
}
