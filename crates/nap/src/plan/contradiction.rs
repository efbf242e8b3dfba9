//! Which node labels leave a pod without any compatible offering, and the values on each side.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec};
use nap_api::Requirements;
use nap_engine::{Pod, Snapshot, funnel};

use super::Problem;

/// Maximum number of single labels and pairs that are tried.
const MAX_TRIES: usize = 60;
/// Maximum number of values that are listed.
const MAX_VALUES: usize = 6;
/// Maximum number of lines about the requirements of a pod itself.
const MAX_LINES: usize = 3;

/// One line for each contradiction between a pod and a NodePool; empty if there is none that one or
/// two labels explain.
pub fn find(problem: &Problem, pod: &Pod, spec: Option<&PodSpec>, pool: &str) -> Vec<String> {
    let own = spec.map(within_pod).unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    // Alternatives may each fail for another reason.
    let [term] = pod.terms.as_slice() else { return Vec::new() };
    let snapshot = &problem.snapshot;
    let compatible = |keys: &[&str]| {
        let mut kept = Requirements::new();
        for (key, requirement) in term.iter().filter(|(key, _)| keys.contains(key)) {
            kept.set(key, requirement.clone());
        }
        let alone = Pod { terms: vec![kept], ..pod.clone() };
        let of_pool = funnel(snapshot, &problem.options, &alone);
        of_pool.iter().find(|steps| steps.pool == pool).is_none_or(|steps| steps.compatible > 0)
    };
    let keys: Vec<&str> = term.iter().map(|(key, _)| key).collect();
    let sides = |key: &str| {
        let wanted = term.get(key).map(ToString::to_string).unwrap_or_default();
        // `DoesNotExist`, or a number that is none.
        let pod = match wanted.as_str() {
            "DoesNotExist" => "the pod leaves no value of it".to_owned(),
            _ => format!("the pod wants {wanted}"),
        };
        format!("`{key}`: {pod}, the nodepool has {}", offered(snapshot, pool, key))
    };
    let mut tries = 0;
    let mut found = Vec::new();
    for key in &keys {
        tries += 1;
        if tries > MAX_TRIES {
            return found;
        }
        if !compatible(&[key]) {
            found.push(sides(key));
        }
    }
    if !found.is_empty() {
        return found;
    }
    for (number, one) in keys.iter().enumerate() {
        for other in &keys[number + 1..] {
            tries += 1;
            if tries > MAX_TRIES {
                return Vec::new();
            }
            if !compatible(&[one, other]) {
                let wanted = |key: &str| term.get(key).map(ToString::to_string).unwrap_or_default();
                return vec![format!(
                    "no offering has both `{one}` {} and `{other}` {}",
                    wanted(one),
                    wanted(other)
                )];
            }
        }
    }
    Vec::new()
}

/// Values of a label that a NodePool can give to nodes.
fn offered(snapshot: &Snapshot, pool: &str, key: &str) -> String {
    let Some(pool) = snapshot.pools.iter().find(|one| one.name == pool) else {
        return "none".to_owned();
    };
    if let Some(requirement) = pool.requirements.get(key) {
        return requirement.to_string();
    }
    let types = snapshot.catalogues.get(&pool.catalogue).map(|catalogue| catalogue.types());
    let mut values = BTreeSet::new();
    for kind in types.into_iter().flatten() {
        let of_offerings = kind.offerings.iter().map(|offering| &*offering.requirements);
        for requirements in std::iter::once(&kind.requirements).chain(of_offerings) {
            values.extend(requirements.get(key).into_iter().flat_map(|one| one.values().iter()));
        }
    }
    let more = values.len().saturating_sub(MAX_VALUES);
    let shown: Vec<&str> = values.into_iter().take(MAX_VALUES).collect();
    match (shown.is_empty(), more) {
        (true, _) => "no such label".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} others", shown.join(", ")),
    }
}

/// Requirements of the pod itself that exclude each other. Of several terms, each must have such
/// requirements, or the pod has a choice.
pub fn within_pod(spec: &PodSpec) -> Vec<String> {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice());
    let terms = terms.unwrap_or_default();
    let mut lines = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let found = within_term(spec, term);
        if found.is_empty() {
            return Vec::new();
        }
        let which = match terms.len() {
            1 => String::new(),
            _ => format!("nodeSelectorTerms[{index}]: "),
        };
        lines.extend(found.into_iter().map(|line| format!("{which}{line}")));
    }
    lines.truncate(MAX_LINES);
    lines
}

/// What the requirements of one label ask for, and the text of each.
#[derive(Default)]
struct Sides<'s> {
    texts: Vec<String>,
    /// Values that are left; `None` for any.
    values: Option<BTreeSet<&'s str>>,
    excluded: BTreeSet<&'s str>,
    above: Option<i64>,
    below: Option<i64>,
    present: bool,
    absent: bool,
    /// A bound that is no number.
    unreadable: Option<&'s str>,
}

impl<'s> Sides<'s> {
    fn add(&mut self, operator: &str, values: BTreeSet<&'s str>, origin: &str) {
        let list: Vec<&str> = values.iter().copied().collect();
        self.texts.push(match operator {
            "" => format!("`{}` ({origin})", list.join("")),
            "Exists" | "DoesNotExist" => format!("{operator} ({origin})"),
            "Gt" | "Lt" => format!("{operator} {} ({origin})", list.join("")),
            _ => format!("{operator} [{}] ({origin})", list.join(", ")),
        });
        self.present |= !["NotIn", "DoesNotExist"].contains(&operator);
        match operator {
            "" | "In" => {
                self.values = Some(match &self.values {
                    Some(left) => left & &values,
                    None => values,
                });
            }
            "NotIn" => self.excluded.extend(values),
            "DoesNotExist" => self.absent = true,
            "Gt" | "Lt" => match list.first().map(|text| (text.parse::<i64>(), *text)) {
                Some((Ok(bound), _)) if operator == "Gt" => {
                    self.above = Some(self.above.map_or(bound, |other| other.max(bound)));
                }
                Some((Ok(bound), _)) => {
                    self.below = Some(self.below.map_or(bound, |other| other.min(bound)));
                }
                Some((Err(_), text)) => self.unreadable = Some(text),
                None => {}
            },
            _ => {}
        }
    }

    fn allows(&self, value: &str) -> bool {
        let number = || value.parse::<i64>().ok();
        let bounded = self.above.is_some() || self.below.is_some();
        !self.excluded.contains(value)
            && (!bounded || number().is_some())
            && self.above.is_none_or(|bound| number().is_some_and(|value| value > bound))
            && self.below.is_none_or(|bound| number().is_some_and(|value| value < bound))
    }

    fn exclude_each_other(&self) -> bool {
        let none_left =
            self.values.as_ref().is_some_and(|left| !left.iter().any(|value| self.allows(value)));
        let none_between = matches!((self.above, self.below), (Some(low), Some(high))
            if low.saturating_add(1) >= high);
        none_left || none_between || (self.present && self.absent)
    }
}

fn within_term(spec: &PodSpec, term: &NodeSelectorTerm) -> Vec<String> {
    let mut by_key: BTreeMap<&str, Sides<'_>> = BTreeMap::new();
    for (key, value) in spec.node_selector.iter().flatten() {
        let sides = by_key.entry(key).or_default();
        sides.add("", BTreeSet::from([value.as_str()]), "nodeSelector");
    }
    for expression in term.match_expressions.iter().flatten() {
        let values = expression.values.iter().flatten().map(String::as_str).collect();
        by_key.entry(&expression.key).or_default().add(
            &expression.operator,
            values,
            "nodeAffinity",
        );
    }
    let lines = by_key.iter().filter_map(|(key, sides)| match sides.unreadable {
        Some(text) => Some(format!("`{key}`: the pod itself wants a number, and `{text}` is none")),
        None if sides.exclude_each_other() => Some(format!(
            "`{key}`: the pod itself wants {}, which exclude each other",
            sides.texts.join(" and ")
        )),
        None => None,
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(selector: &str, terms: &str) -> Vec<String> {
        let text = format!(
            r#"{{"nodeSelector": {{{selector}}}, "containers": [], "affinity": {{"nodeAffinity":
            {{"requiredDuringSchedulingIgnoredDuringExecution": {{"nodeSelectorTerms": [{terms}]}}}}}}}}"#
        );
        within_pod(&serde_json::from_str(&text).unwrap())
    }

    fn term(expressions: &[(&str, &str, &[&str])]) -> String {
        let one = |(key, operator, values): &(&str, &str, &[&str])| {
            serde_json::json!({ "key": key, "operator": operator, "values": values }).to_string()
        };
        let all: Vec<String> = expressions.iter().map(one).collect();
        format!(r#"{{"matchExpressions": [{}]}}"#, all.join(","))
    }

    #[test]
    fn requirements_that_exclude_each_other_are_named() {
        let both = |a: (&str, &str, &[&str]), b: (&str, &str, &[&str])| found("", &term(&[a, b]));
        let end = "which exclude each other";
        assert_eq!(
            both(("a", "In", &["x"]), ("a", "NotIn", &["x"])),
            [format!(
                "`a`: the pod itself wants In [x] (nodeAffinity) and NotIn [x] (nodeAffinity), {end}"
            )]
        );
        assert_eq!(
            both(("a", "Gt", &["4"]), ("a", "Lt", &["5"])),
            [format!(
                "`a`: the pod itself wants Gt 4 (nodeAffinity) and Lt 5 (nodeAffinity), {end}"
            )]
        );
        assert_eq!(both(("a", "Exists", &[]), ("a", "DoesNotExist", &[])).len(), 1);
        assert_eq!(both(("a", "In", &["2", "8"]), ("a", "Gt", &["8"])).len(), 1);
        let number = "`a`: the pod itself wants a number, and `many` is none";
        assert_eq!(found("", &term(&[("a", "Gt", &["many"])])), [number]);
        let selected = found(r#""a": "x""#, &term(&[("a", "NotIn", &["x"])]));
        assert!(selected[0].contains("`x` (nodeSelector) and NotIn [x]"), "{selected:?}");
        for sound in [
            both(("a", "In", &["x", "y"]), ("a", "NotIn", &["x"])),
            both(("a", "Gt", &["4"]), ("a", "Lt", &["6"])),
            both(("a", "NotIn", &["x"]), ("a", "DoesNotExist", &[])),
        ] {
            assert_eq!(sound, [""; 0]);
        }
    }

    #[test]
    fn of_several_terms_each_must_have_a_contradiction() {
        let wrong = term(&[("a", "In", &["x"]), ("a", "NotIn", &["x"])]);
        let lines = found("", &[wrong.as_str(); 5].join(","));
        assert_eq!(lines.len(), MAX_LINES, "{lines:?}");
        assert!(lines[1].starts_with("nodeSelectorTerms[1]: `a`: "), "{lines:?}");
        let sound = term(&[("a", "In", &["x"])]);
        assert_eq!(found("", &format!("{wrong},{sound}")), [""; 0]);
    }
}
