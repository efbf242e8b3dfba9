//! Text of remedies, prices, quantities and pods.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nap_api::labels;
use nap_engine::{Change, PodKey, Remedy, RemedyPlacement};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};

use crate::catalogue::Origin;

/// Maximum width of text, in columns.
pub const WIDTH: usize = 100;

/// An amount of a resource as a Kubernetes quantity.
pub fn quantity(resource: &str, amount: i64) -> String {
    let list = Resources::new().with(resource, amount).to_quantities();
    list.get(resource).map(ToString::to_string).unwrap_or_default()
}

/// Requests of a pod, without its pod slot.
pub fn requests_text(requests: &Resources) -> String {
    let asked = requests.iter().filter(|(name, amount)| *name != PODS && *amount > 0);
    let asked: Vec<String> =
        asked.map(|(name, amount)| format!("{} {name}", quantity(name, amount))).collect();
    if asked.is_empty() { "nothing".to_owned() } else { asked.join(", ") }
}

/// A change as an instruction. `limits` are those of the NodePools.
pub fn change_text(limits: &BTreeMap<String, Resources>, change: &Change) -> String {
    match change {
        Change::Tolerate { taint } => format!("let the pod tolerate `{taint}`"),
        Change::DropRequirement { key } => {
            format!("remove `{key}` from the pod's node selector or node affinity")
        }
        Change::AskForAtMost { resource, amount } => {
            format!("let the pod ask for at most {} of {resource}", quantity(resource, *amount))
        }
        Change::DropSpread { key } => format!("remove the pod's topology spread over `{key}`"),
        Change::DropAffinity { key } => {
            format!("remove the pod's affinity to other pods over `{key}`")
        }
        Change::DropAntiAffinity { key } => {
            format!("remove the anti-affinity over `{key}` from the pod and its equals")
        }
        Change::RaiseLimit { pool, resource, by } => {
            let now = limits.get(pool).map_or(0, |limits| limits.get(resource));
            let (from, to) = (quantity(resource, now), quantity(resource, now.saturating_add(*by)));
            format!("raise the limit on {resource} of nodepool \"{pool}\" from {from} to {to}")
        }
        Change::Allow { pool, key, value } => {
            format!("allow `{value}` for `{key}` in the requirements of nodepool \"{pool}\"")
        }
    }
}

/// The node that a pod gets after a remedy.
pub fn place_text(origin: &Origin, remedy: &Remedy) -> String {
    match &remedy.place {
        RemedyPlacement::Existing => "it then fits on an existing or planned node".to_owned(),
        RemedyPlacement::New { instance_type, zone, capacity_type, price, .. } => {
            format!(
                "it then gets {instance_type} {capacity_type} {} at {}",
                labels::zone_text(zone),
                price_text(origin.mark(*capacity_type), *price)
            )
        }
    }
}

/// A zone in a column of its own.
pub fn zone_cell(zone: &str) -> &str {
    if zone == labels::NO_ZONE { "no zone" } else { zone }
}

/// A price per hour and per month, each after `mark`.
pub fn price_text(mark: &str, price: UsdPerHour) -> String {
    format!("{mark}{price}/h ({mark}{}/month)", cents(price.per_month()))
}

/// Dollars and cents, rounded, with thousands separators.
pub fn cents(amount: UsdPerHour) -> String {
    let cents = (amount.micros().max(0) + 5_000) / 10_000;
    let whole = (cents / 100).to_string();
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("${grouped}.{:02}", cents % 100)
}

/// Pods grouped by workload: `default/web (3)`, `default/db-0`.
pub fn pods_text<'a>(pods: impl IntoIterator<Item = &'a PodKey>) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pod in pods {
        groups.entry(stem(pod.as_str())).or_default().push(pod.as_str());
    }
    groups
        .into_iter()
        .map(|(stem, members)| match members.as_slice() {
            [one] => (*one).to_owned(),
            members => format!("{stem} ({})", members.len()),
        })
        .collect()
}

/// A pod's name without its ordinal or the suffix of its ReplicaSet.
pub fn stem(name: &str) -> &str {
    let Some((front, last)) = name.rsplit_once('-') else { return name };
    if last.chars().all(|letter| letter.is_ascii_digit()) {
        return front;
    }
    let generated = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len())
            && part.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter))
    };
    if !generated(last, 5..=5) {
        return name;
    }
    match front.rsplit_once('-') {
        Some((stem, hash)) if generated(hash, 8..=10) => stem,
        _ => front,
    }
}

/// Items separated by commas in indented lines; beyond `max_lines`, only the number of further
/// items.
pub fn list(items: &[String], indent: usize, max_lines: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut shown = 0;
    for (index, item) in items.iter().enumerate() {
        let text = if index + 1 < items.len() { format!("{item}, ") } else { item.clone() };
        let full = lines.len() == max_lines;
        match lines.last_mut() {
            Some(line) if indent + line.len() + text.trim_end().len() <= WIDTH - 16 => {
                line.push_str(&text);
            }
            _ if full => break,
            _ => lines.push(text),
        }
        shown += 1;
    }
    if shown < items.len()
        && let Some(line) = lines.last_mut()
    {
        let _ = write!(line, "… {} more", items.len() - shown);
    }
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{:indent$}{}", "", line.trim_end());
    }
    text
}

/// Wraps text into indented lines of at most [`WIDTH`] columns.
pub fn wrap(text: &str, indent: usize) -> String {
    let mut wrapped = String::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let length = indent + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && length > WIDTH {
            let _ = writeln!(wrapped, "{:indent$}{line}", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(wrapped, "{:indent$}{line}", "");
    wrapped
}

/// vCPUs and GiB with one decimal.
pub fn size_text(requests: &Resources) -> String {
    let tenths = |amount: i64, unit: i64| {
        let tenths = (i128::from(amount.max(0)) * 10 + i128::from(unit) / 2) / i128::from(unit);
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    format!(
        "{} vCPU, {} GiB",
        tenths(requests.get(CPU), 1000),
        tenths(requests.get(MEMORY), 1 << 30)
    )
}

/// Left-aligned columns.
pub fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            format!("{cell:<width$}")
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_workload_are_counted_together() {
        let keys = [
            "a/web-1",
            "a/web-2",
            "a/api-7d4b9c6f5d-x2x4z",
            "a/api-7d4b9c6f5d-k9jqw",
            "a/db-0",
            "b/solo",
        ];
        let keys: Vec<PodKey> = keys.iter().map(|key| PodKey::from(*key)).collect();
        assert_eq!(pods_text(&keys), ["a/api (2)", "a/db-0", "a/web (2)", "b/solo"]);
    }

    #[test]
    fn money_is_rounded_and_grouped() {
        assert_eq!(cents(UsdPerHour::from_micros(1_234_567_891_234)), "$1,234,567.89");
        assert_eq!(cents(UsdPerHour::from_micros(5_000)), "$0.01");
        let price = UsdPerHour::from_micros(322_000);
        assert_eq!(price_text("", price), "$0.322/h ($235.06/month)");
        assert_eq!(price_text("~", price), "~$0.322/h (~$235.06/month)");
    }

    #[test]
    fn lists_and_wrapped_text_stay_within_the_width() {
        let items: Vec<String> =
            (0..200).map(|number| format!("namespace/workload-{number}")).collect();
        let text = list(&items, 4, 2);
        assert!(text.ends_with(" more\n") && text.lines().count() == 2, "{text}");
        let words = wrap(&"word ".repeat(60), 2);
        assert!(
            text.lines().chain(words.lines()).all(|line| line.chars().count() <= WIDTH),
            "{text}{words}"
        );
    }
}
