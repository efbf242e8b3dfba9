//! Notes below a plan: the origin of its prices and zones, and sizes that not everybody gets.

use std::collections::BTreeSet;

use nap_engine::Launch;

use super::Problem;
use super::format::wrap;
use crate::catalogue::caution;

/// Notes on launches, as indented lines.
pub fn footnotes<'a>(
    problem: &Problem,
    launches: impl IntoIterator<Item = &'a Launch>,
    indent: usize,
) -> String {
    let launches: Vec<&Launch> = launches.into_iter().collect();
    let spot = launches.iter().any(|launch| problem.origin.is_estimate(launch.capacity_type));
    let mut text = wrap(&problem.origin.text(spot), indent);
    let sizes: BTreeSet<&str> = launches.iter().map(|launch| &*launch.instance_type).collect();
    for caution in sizes.into_iter().filter_map(|size| caution(size, &problem.region)) {
        text.push_str(&wrap(&caution, indent));
    }
    text
}
