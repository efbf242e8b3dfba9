//! The part of JSONPath that printer columns use: fields, escaped dots, quoted names, indexes,
//! wildcards and equality filters.

use serde_json::Value;

/// The first value `path` finds.
pub(super) fn first<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let path = path.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
    let mut found = vec![value];
    for step in steps(path)? {
        found = found.into_iter().flat_map(|value| step.of(value)).collect();
    }
    found.into_iter().next().filter(|value| !value.is_null())
}

enum Step {
    Field(String),
    Index(i64),
    All,
    Where { path: String, equal: bool, wanted: String },
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), _) => value.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { index + length } else { *index };
                usize::try_from(index).ok().and_then(|index| items.get(index)).into_iter().collect()
            }
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::Where { path, equal, wanted }, Value::Array(items)) => items
                .iter()
                .filter(|item| {
                    let found = first(item, path).map(|found| match found {
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    });
                    (found.as_deref() == Some(wanted)) == *equal
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

fn steps(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = path.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '.' => {}
            '[' => {
                let (mut inside, mut quote) = (String::new(), None);
                for next in rest.by_ref() {
                    match quote {
                        None if next == ']' => break,
                        None if matches!(next, '\'' | '"') => quote = Some(next),
                        Some(open) if next == open => quote = None,
                        _ => {}
                    }
                    inside.push(next);
                }
                steps.push(bracket(inside.trim())?);
            }
            '*' => steps.push(Step::All),
            first => {
                let mut name = String::new();
                let mut next = Some(first);
                while let Some(character) = next {
                    match character {
                        '\\' => name.extend(rest.next()),
                        other => name.push(other),
                    }
                    next = rest.next_if(|c| !matches!(c, '.' | '['));
                }
                steps.push(Step::Field(name));
            }
        }
    }
    Some(steps)
}

fn bracket(inside: &str) -> Option<Step> {
    let unquoted = |text: &str| text.trim().trim_matches(['\'', '"']).to_owned();
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (left, right, equal) = match condition.split_once("==") {
            Some((left, right)) => (left, right, true),
            None => condition.split_once("!=").map(|(left, right)| (left, right, false))?,
        };
        let path = left.trim().strip_prefix('@')?.to_owned();
        return Some(Step::Where { path, equal, wanted: unquoted(right) });
    }
    if inside.starts_with(['\'', '"']) {
        return Some(Step::Field(unquoted(inside)));
    }
    inside.parse().ok().map(Step::Index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn jsonpath_columns_find_their_values() {
        let object = json!({
            "metadata": { "labels": { "karpenter.sh/capacity-type": "spot" } },
            "status": { "conditions": [{ "type": "A", "status": "False" }, { "type": "Ready", "status": "True" }], "n": 3 },
        });
        for (path, expected) in [
            (".status.n", json!(3)),
            (r".metadata.labels.karpenter\.sh/capacity-type", json!("spot")),
            (".metadata.labels['karpenter.sh/capacity-type']", json!("spot")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type=='Ready')].status", json!("True")),
            (".status.conditions[0].type", json!("A")),
            (".status.conditions[-1].type", json!("Ready")),
            (".status.conditions[*].type", json!("A")),
        ] {
            assert_eq!(first(&object, path), Some(&expected), "{path}");
        }
        assert_eq!(first(&object, ".status.missing.x"), None);
        assert_eq!(first(&object, ".status.conditions[x"), None);
    }
}
