//! Offerings that a plan leaves out because Azure lately refused them: the controllers of the
//! cluster remember them, and try each again from a certain time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_api::labels;
use nap_azure::{Cause, Shortage, built_in_sku};
use nap_engine::UnavailableOffering;

use super::Problem;
use super::cluster::count;
use super::format::{list, wrap};

/// Most lines for the offerings of one cause.
const MAX_LINES: usize = 4;
/// Most times that are listed for a pod.
const MAX_TIMES: usize = 5;

/// Everything that is left out, by cause; empty if nothing is.
pub fn summary(left_out: &[Shortage]) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let mut by_cause: BTreeMap<Cause, Vec<String>> = BTreeMap::new();
    for one in left_out {
        let text = format!("{one} until {}", shown(one.until));
        by_cause.entry(one.cause).or_default().push(text);
    }
    let mut text = "\nLeft out for now, as the controllers do after failed launches:\n".to_owned();
    for (cause, offerings) in by_cause {
        text.push_str(&wrap(&format!("{cause}:"), 2));
        text.push_str(&list(&offerings, 4, MAX_LINES));
    }
    text
}

/// Until when the offerings that would hold a pod are left out; empty if none is.
pub fn of_pod(problem: &Problem, unavailable: &[UnavailableOffering]) -> String {
    let mut skus = BTreeMap::new();
    let mut times: BTreeMap<(Timestamp, Cause), Vec<String>> = BTreeMap::new();
    for offering in unavailable {
        let UnavailableOffering { instance_type, zone, capacity_type } = offering;
        let sku = skus
            .entry(instance_type.clone())
            .or_insert_with_key(|size| built_in_sku(&problem.region, size));
        let Some(sku) = sku else { continue };
        let covering = problem.left_out.iter().filter(|one| one.covers(sku, zone, *capacity_type));
        if let Some(last) = covering.max_by_key(|one| one.until) {
            let name = format!("{instance_type} {capacity_type} {}", labels::zone_text(zone));
            times.entry((last.until, last.cause)).or_default().push(name);
        }
    }
    let refused: usize = times.values().map(Vec::len).sum();
    if refused == 0 {
        return String::new();
    }
    let are = if refused == 1 { "is" } else { "are" };
    let head = format!("{} that would hold it {are} left out for now:", count(refused, "offering"));
    let mut text = wrap(&head, 2);
    for ((until, cause), offerings) in times.iter().take(MAX_TIMES) {
        let others = offerings.len() - 1;
        let first = offerings.first().map_or("", String::as_str);
        let more =
            if others > 0 { format!(" and {}", count(others, "other")) } else { String::new() };
        let line = format!("until {}: {first}{more} ({cause})", shown(*until));
        text.push_str(&wrap(&line, 4));
    }
    if times.len() > MAX_TIMES {
        text.push_str(&wrap("and others until later", 4));
    }
    text
}

/// A time in whole seconds.
fn shown(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
