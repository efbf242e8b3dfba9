//! Notes below a plan: the origin of its prices and zones, the cost of a node besides its price,
//! and sizes that are closed to new subscriptions.

use std::collections::BTreeSet;

use nap_engine::Launch;
use nap_units::UsdPerHour;

use super::Problem;
use super::format::wrap;
use crate::catalogue::caution;

/// The origin of the prices of a text without launches.
pub fn origin_note(problem: &Problem, text: &str) -> String {
    wrap(&problem.origin.text(text.contains("~$")), 0)
}

/// Notes on launches, as indented lines.
pub fn footnotes<'a>(
    problem: &Problem,
    launches: impl IntoIterator<Item = &'a Launch>,
    indent: usize,
) -> String {
    let launches: Vec<&Launch> = launches.into_iter().collect();
    let spot = launches.iter().any(|launch| problem.origin.is_estimate(launch.capacity_type));
    let mut text = wrap(&problem.origin.text(spot), indent);
    let node_cost = problem.options.node_cost;
    if launches.len() > 1 && node_cost > UsdPerHour::ZERO {
        let note = format!(
            "Between plans of nearly the same price, each VM counts {node_cost}/h more than its price \
             (--node-cost)."
        );
        text.push_str(&wrap(&note, indent));
    }
    let sizes: BTreeSet<&str> = launches.iter().map(|launch| &*launch.instance_type).collect();
    for caution in sizes.into_iter().filter_map(|size| caution(size, &problem.region)) {
        text.push_str(&wrap(&caution, indent));
    }
    text
}
