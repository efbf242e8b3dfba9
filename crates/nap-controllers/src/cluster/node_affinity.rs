//! Node selectors and required node affinity, as requirements on node labels.

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec};
use nap_api::requirement::Incompatible;
use nap_api::{Operator, Requirement, Requirements};
use nap_engine::Unsupported;

/// Node selector and required node affinity of a pod, as alternatives. The second value says what
/// cannot be honoured, if no alternative is left without it.
pub fn required_terms(spec: &PodSpec) -> (Vec<Requirements>, Option<Unsupported>) {
    let selector = Requirements::from_labels(spec.node_selector.iter().flatten());
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return (vec![selector], None) };
    let mut terms = Vec::new();
    let mut unsupported = None;
    for term in &required.node_selector_terms {
        let requirements = match term_requirements(term) {
            Ok(requirements) => requirements,
            Err(problem) => {
                unsupported = Some(field(&problem));
                continue;
            }
        };
        if let Err(Incompatible::Conflict { key, ours, theirs }) =
            selector.intersects(&requirements)
        {
            unsupported =
                Some(Unsupported::Selectors { key, node_selector: ours, node_affinity: theirs });
            continue;
        }
        let mut all = selector.clone();
        all.extend(&requirements);
        terms.push(all);
    }
    if terms.is_empty() {
        terms.push(selector);
        unsupported.get_or_insert_with(|| field("no terms"));
    } else {
        // The terms are alternatives: one that can be honoured is enough.
        unsupported = None;
    }
    (terms, unsupported)
}

fn field(problem: &str) -> Unsupported {
    Unsupported::Field(format!("spec.affinity.nodeAffinity ({problem})"))
}

/// Label requirements of one node selector term. `Err` names what cannot be honoured.
pub fn term_requirements(term: &NodeSelectorTerm) -> Result<Requirements, String> {
    if term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty()) {
        return Err("matchFields".to_owned());
    }
    let expressions: Vec<_> = term.match_expressions.iter().flatten().collect();
    if expressions.is_empty() {
        return Err("an empty term".to_owned());
    }
    let mut requirements = Requirements::new();
    for expression in expressions {
        let operator = match expression.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            other => return Err(format!("operator {other}")),
        };
        let values = expression.values.iter().flatten().map(String::as_str);
        requirements.add(&expression.key, Requirement::new(operator, values));
    }
    Ok(requirements)
}
