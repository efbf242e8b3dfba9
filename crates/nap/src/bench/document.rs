//! Results of a comparison as a table, and as the page `docs/benchmarks.md`.

use std::fmt::Write as _;

use super::args::CompareArgs;
use super::compare::{Line, Side};
use super::measure::human;

/// The results as a Markdown table with aligned columns.
pub(super) fn table(lines: &[Line]) -> String {
    let mut rows: Vec<Vec<String>> = vec![
        [
            "problem",
            "pods",
            "classes",
            "solver",
            "first plan",
            "final plan",
            "worst",
            "on core",
            "nodes",
            "$/h",
            "gap %",
            "unplaced",
            "valid",
            "peak MiB",
            "solver MiB",
            "tables",
            "faster",
            "cheaper",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for line in lines {
        if let Some(peer) = &line.peer {
            let mut row = cells(line, peer, "karpenter");
            row.extend([String::new(), String::new()]);
            rows.push(row);
        }
        let mut row = cells(line, &line.nap, "nap");
        match &line.peer {
            Some(peer) => {
                let whole = line.nap.median + line.nap.tables.unwrap_or(0.0);
                row.push(format!("{:.0} ×", peer.median / whole));
                row.push(format!("{:.1} %", (1.0 - line.nap.cost.1 / peer.cost.0) * 100.0));
            }
            None => row.extend([String::new(), String::new()]),
        }
        rows.push(row);
    }
    markdown(&rows)
}

fn cells(line: &Line, side: &Side, solver: &str) -> Vec<String> {
    let dash = || "–".to_owned();
    let (low, high) = side.cost;
    let cost =
        if high - low < 0.0005 { format!("{low:.3}") } else { format!("{low:.3}–{high:.3}") };
    vec![
        line.name.clone(),
        line.pods.to_string(),
        line.classes.to_string(),
        solver.to_owned(),
        side.first.map_or_else(dash, human),
        human(side.median),
        human(side.p99),
        side.cpu.map_or_else(dash, human),
        side.nodes.to_string(),
        cost,
        line.gap(low).map_or_else(dash, |gap| format!("{gap:.1}")),
        side.unplaced.to_string(),
        format!("{} of {}", side.valid, side.rounds),
        side.peak_mib.map_or_else(dash, |peak| format!("{peak:.0}")),
        side.solver_mib.map_or_else(dash, |growth| format!("{growth:.0}")),
        side.tables.map_or_else(dash, human),
    ]
}

/// Rows as a Markdown table with aligned columns; the first row is the heading.
pub(super) fn markdown(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(text, "| {} |", rules.join(" | "));
        }
    }
    text
}

/// The page, with the commands that reproduce it.
pub(super) fn document(args: &CompareArgs, lines: &[Line]) -> String {
    let mut text = String::from(
        "# Benchmarks\n\n\
         Made by `nap bench compare --write`, which `make bench` runs; do not edit. Times belong to the machine below and to one run: compare the two solvers with each other, not with \
         figures from elsewhere. Files and rules are described in [problem-format.md](problem-format.md). \
         Consolidation has its figures in [judges.md](judges.md#consolidation-of-fleets), and a simulated week in [week.md](week.md#figures).\n\n",
    );
    let peer = lines.iter().find_map(|line| line.peer.as_ref());
    let _ = writeln!(text, "- Machine: {}; both solvers run alternately on one core.", machine());
    let _ = writeln!(text, "- nap {}.", env!("CARGO_PKG_VERSION"));
    if let Some(peer) = peer {
        let _ = writeln!(
            text,
            "- Karpenter {}: its own scheduler as a Go module, driven by `bench/karpenter` without an API server, one worker, \
             a fresh scheduler for each solve; its time is building the scheduler, solving, and ordering types by price. Its solve is cut at a \
             minute, as it is in production. Problems with more than {} pods are left to nap alone.",
            peer.version, args.peer_up_to
        );
    }
    let _ = writeln!(
        text,
        "- {} rounds, {} solves in each; `first plan` and `final plan` are medians, `worst` is the worst p99 of a round.",
        args.rounds, args.repeat
    );
    text.push_str(
        "- `first plan` is the baseline (first fit in the incumbent's order); `final plan` is the one that is carried out.\n\
         - Plans of both are judged by the same code, which gives undecided zones and the order of binding the benefit of the doubt, and priced by the \
         same function. `gap` is the distance to nap's lower bound for the same pods, which ignores zones, spread over zones and affinity: on the mix, \
         part of the gap is the bound's.\n\
         - `tables` is the time to sort the offerings of a catalogue, once, when it is read or has changed (prices, availability). It \
         is not part of a plan's time, but `faster` includes it.\n\
         - `peak MiB` is the whole process with the problem file; `solver MiB` is its growth during the solve.\n\
         - `cheaper` compares nap with the cheapest of the other's plans, valid or not.\n\n",
    );
    text.push_str(&table(lines));
    text.push_str(&remarks(lines));
    text.push_str("\n## Commands\n\n```console\n");
    for line in lines.iter().filter(|line| !line.recipe.is_empty()) {
        let _ = writeln!(text, "{} --out {}", line.recipe, line.file);
    }
    let files: Vec<&str> = lines.iter().map(|line| line.file.as_str()).collect();
    let peer = if peer.is_some() { " --peer karpenter-bench" } else { "" };
    let _ = writeln!(
        text,
        "nap bench compare{peer} --rounds {} --repeat {} --peer-up-to {} {}",
        args.rounds,
        args.repeat,
        args.peer_up_to,
        files.join(" ")
    );
    text.push_str("```\n");
    text
}

/// Remarks below the table: growth of times with the number of pods, violations of plans.
fn remarks(lines: &[Line]) -> String {
    let mut text = String::new();
    let family = |line: &Line| line.name.replacen(&format!("-{}-", line.pods), "-", 1);
    let mut seen: Vec<String> = Vec::new();
    for line in lines.iter().filter(|line| line.pods >= 1000) {
        let name = family(line);
        if seen.contains(&name) {
            continue;
        }
        seen.push(name.clone());
        let same = |other: &&Line| other.pods >= 1000 && family(other) == name;
        let largest = lines.iter().filter(same).max_by_key(|other| other.pods);
        let Some(largest) = largest.filter(|largest| largest.pods > line.pods) else { continue };
        let exponent = |small: f64, large: f64| {
            #[expect(clippy::cast_precision_loss, reason = "counts of pods")]
            let times = largest.pods as f64 / line.pods as f64;
            (large / small).ln() / times.ln()
        };
        let first =
            line.nap.first.zip(largest.nap.first).map(|(small, large)| exponent(small, large));
        let _ = writeln!(
            text,
            "- Growth of nap's time on `{name}` from {} to {} pods: exponent {:.2} to the final plan{}.",
            line.pods,
            largest.pods,
            exponent(line.nap.median, largest.nap.median),
            first.map(|first| format!(", {first:.2} to the first")).unwrap_or_default(),
        );
    }
    for line in lines {
        let fewer = line.name.replace("-fake1500-", "-fake400-");
        let other = lines.iter().find(|other| other.name == fewer && other.name != line.name);
        if let Some((many, few)) = other.and_then(|other| line.nap.first.zip(other.nap.first)) {
            let _ = writeln!(
                text,
                "- 1,500 types with 8 offerings each take {:.2} times as long to the first plan as 400 types on `{fewer}`.",
                many / few
            );
        }
    }
    for line in lines {
        let sides = [("nap", Some(&line.nap)), ("Karpenter", line.peer.as_ref())];
        for (solver, side) in sides.into_iter().filter_map(|(solver, side)| Some((solver, side?))) {
            if side.plans > 1 {
                let _ = writeln!(
                    text,
                    "- {solver} on `{}`: {} different plans in {} rounds.",
                    line.name, side.plans, side.rounds
                );
            }
            if side.undecided > 0 {
                let _ = writeln!(
                    text,
                    "- {solver} on `{}`: for {} pods the judge found no order of binding and could not rule one out.",
                    line.name, side.undecided
                );
            }
            if let Some(wrong) = &side.wrong {
                let _ =
                    writeln!(text, "- {solver} on `{}`: a plan is not valid: {wrong}.", line.name);
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Name of the processor from `/proc/cpuinfo`.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{model}, {cores} cores")
}
