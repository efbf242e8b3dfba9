//! Pods from a CSV table of requests, the form in which traces of real clusters are published.

use std::collections::BTreeMap;

use crate::PodClass;

use super::{class, requests};

/// Why a trace is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TraceError {
    /// The header lacks a required column.
    #[error("there is no column `{0}`")]
    Column(&'static str),
    /// A cell is not a whole number.
    #[error("line {line}: `{cell}` is not a whole number")]
    Number {
        /// Line of the file; the header is line 1.
        line: usize,
        /// The cell's text.
        cell: String,
    },
    /// No row is left.
    #[error("no row without a GPU")]
    Empty,
}

/// Reads a trace: one class per distinct pair of requests, each pod repeated `times` times. Rows
/// with GPUs are left out: the format cannot express shares of a GPU.
pub fn pods(text: &str, times: usize) -> Result<Vec<PodClass>, TraceError> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let column = |name: &str| header.iter().position(|cell| *cell == name);
    let cpu = column("cpu_milli").ok_or(TraceError::Column("cpu_milli"))?;
    let memory = column("memory_mib").ok_or(TraceError::Column("memory_mib"))?;
    let (replicas, gpu) = (column("replicas"), column("gpu"));
    let mut shapes: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    for (index, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |column: usize| -> Result<i64, TraceError> {
            let cell = cells.get(column).copied().unwrap_or_default();
            let number = cell.parse().ok().filter(|number: &i64| *number >= 0);
            number.ok_or_else(|| TraceError::Number { line: index + 2, cell: cell.to_owned() })
        };
        if gpu.map(number).transpose()?.is_some_and(|gpus| gpus > 0) {
            continue;
        }
        let replicas = replicas.map(number).transpose()?.unwrap_or(1);
        let replicas = usize::try_from(replicas).unwrap_or(usize::MAX);
        let count = shapes.entry((number(cpu)?, number(memory)?)).or_default();
        *count = count.saturating_add(replicas.saturating_mul(times));
    }
    if shapes.is_empty() {
        return Err(TraceError::Empty);
    }
    let made = shapes.into_iter().filter(|(_, replicas)| *replicas > 0).map(
        |((cpu, memory), replicas)| {
            class(format!("shape-{cpu}m-{memory}mi"), replicas, requests(cpu, memory))
        },
    );
    Ok(made.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name_and_gpu_rows_left_out() {
        let text = "pod,memory_mib,cpu_milli,gpu\na,128,100,0\nb,128,100,0\nc,256,100,0\nd,1,1,1\n";
        let pods = pods(text, 3).unwrap();
        let counts: Vec<(&str, usize)> =
            pods.iter().map(|class| (class.name.as_str(), class.replicas)).collect();
        assert_eq!(counts, [("shape-100m-128mi", 6), ("shape-100m-256mi", 3)]);
    }

    #[test]
    fn unreadable_traces_are_refused() {
        for (text, word) in [
            ("pod,cpu_milli\na,1\n", "memory_mib"),
            ("cpu_milli,memory_mib\n1,2\nx,2\n", "line 3"),
            ("cpu_milli,memory_mib,gpu\n1,2,1\n", "no row"),
        ] {
            let error = pods(text, 1).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
