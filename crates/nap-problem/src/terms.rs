//! Conversion of scheduling rules from their Kubernetes form to the engine's.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Effect, Operator, Requirement, Requirements, labels};
use nap_engine::{LabelRule, Namespaces, Pod, PodTerm, Selector, Spread};
use nap_units::PODS;

use crate::format::{NodePool, PodClass, Problem};
use crate::kubernetes::{
    LabelExpression, LabelSelector, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};
use crate::read::ProblemError;

/// Label of every namespace, with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A value that no label can have: it is not a valid label value.
pub(crate) const NO_VALUE: &str = "(none)";

/// Labels and namespaces of a problem, which the conversion of rules depends on.
pub(crate) struct Vocabulary {
    /// Labels of instance types that are not well known to the engine, with all their values.
    pub(crate) special: BTreeMap<String, BTreeSet<String>>,
    namespaces: BTreeSet<String>,
}

impl Vocabulary {
    pub(crate) fn of(problem: &Problem) -> Self {
        let mut special: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (key, values) in problem.instance_types.iter().flat_map(|kind| &kind.labels) {
            if !labels::is_well_known(labels::normalise(key)) {
                special.entry(key.clone()).or_default().extend(values.iter().cloned());
            }
        }
        for pool in &problem.node_pools {
            for (key, value) in &pool.labels {
                if let Some(values) = special.get_mut(key) {
                    values.insert(value.clone());
                }
            }
        }
        let namespaces = problem.pods.iter().map(|class| class.namespace.clone()).collect();
        Self { special, namespaces }
    }

    /// The requirement of one expression. For `Exists`, `Gt` and `Lt` on special labels the allowed
    /// values are listed, because the engine would accept a node without the label.
    fn requirement(
        &self,
        path: &str,
        expression: &LabelExpression,
    ) -> Result<Requirement, ProblemError> {
        let operator = operator(path, expression)?;
        let requirement = Requirement::new(operator, expression.values.iter().map(String::as_str));
        let open = !matches!(operator, Operator::In | Operator::NotIn | Operator::DoesNotExist);
        let Some(values) = self.special.get(&expression.key).filter(|_| open) else {
            return Ok(requirement);
        };
        let mut allowed: BTreeSet<&str> = values.iter().map(String::as_str).collect();
        allowed.retain(|value| requirement.allows(value));
        if allowed.is_empty() {
            // An empty list means that the label must be absent.
            allowed.insert(NO_VALUE);
        }
        Ok(Requirement::is_in(allowed))
    }

    /// A pod of a class, with an empty name.
    pub(crate) fn pod(&self, class: &PodClass) -> Result<Pod, ProblemError> {
        let path = |field: &str| format!("pods: {}: {field}", class.name);
        let mut spread = Vec::new();
        for constraint in &class.topology_spread {
            spread.extend(spread_of(&path("topologySpread"), class, constraint)?);
        }
        let related =
            |field: &str, terms: &[PodAffinityTerm]| -> Result<Vec<PodTerm>, ProblemError> {
                terms.iter().map(|term| self.pod_term(&path(field), class, term)).collect()
            };
        Ok(Pod {
            requests: class.requests.resources().with(PODS, 1),
            terms: self.terms(class)?,
            tolerations: class
                .tolerations
                .iter()
                .map(|one| toleration(&path("tolerations"), one))
                .collect::<Result<_, _>>()?,
            labels: class.labels.clone(),
            spread,
            affinity: related("podAffinity", &class.pod_affinity)?,
            anti_affinity: related("podAntiAffinity", &class.pod_anti_affinity)?,
            blocks_disruption: class.do_not_disrupt,
            ..Pod::default()
        })
    }

    fn terms(&self, class: &PodClass) -> Result<Vec<Requirements>, ProblemError> {
        let mut base = Requirements::new();
        for (key, value) in &class.node_selector {
            base.add(key, Requirement::is_in([value.as_str()]));
        }
        let path = format!("pods: {}: nodeAffinity", class.name);
        let mut terms = Vec::new();
        for term in &class.node_affinity {
            if term.match_expressions.is_empty() {
                return Err(ProblemError::invalid(
                    path,
                    "a term without expressions matches no node",
                ));
            }
            let mut all = base.clone();
            for expression in &term.match_expressions {
                all.add(&expression.key, self.requirement(&path, expression)?);
            }
            terms.push(all);
        }
        if terms.is_empty() {
            terms.push(base);
        }
        Ok(terms)
    }

    fn pod_term(
        &self,
        path: &str,
        class: &PodClass,
        term: &PodAffinityTerm,
    ) -> Result<PodTerm, ProblemError> {
        let mut meant = selector(path, term.label_selector.as_ref())?;
        if term.label_selector.is_some() {
            same_labels(&mut meant, class, &term.match_label_keys, Operator::In);
            same_labels(&mut meant, class, &term.mismatch_label_keys, Operator::NotIn);
        }
        let mut names: BTreeSet<String> = term.namespaces.iter().cloned().collect();
        let namespaces = match &term.namespace_selector {
            Some(every) if *every == LabelSelector::default() => Namespaces::All,
            Some(some) => {
                let some = selector(path, Some(some))?;
                let named = |name: &&String| {
                    some.matches(&BTreeMap::from([(NAMESPACE_NAME.to_owned(), (*name).clone())]))
                };
                names.extend(self.namespaces.iter().filter(named).cloned());
                Namespaces::Named(names)
            }
            None if names.is_empty() => Namespaces::only(&class.namespace),
            None => Namespaces::Named(names),
        };
        Ok(PodTerm { topology_key: term.topology_key.clone(), selector: meant, namespaces })
    }
}

/// Requirements of a NodePool, including its labels and its name.
pub(crate) fn pool_requirements(pool: &NodePool) -> Result<Requirements, ProblemError> {
    let path = format!("nodePools: {}: requirements", pool.name);
    let mut requirements = Requirements::from_labels(&pool.labels);
    for expression in &pool.requirements {
        let operator = operator(&path, expression)?;
        requirements.add(
            &expression.key,
            Requirement::new(operator, expression.values.iter().map(String::as_str)),
        );
    }
    requirements.add(labels::NODEPOOL, Requirement::is_in([pool.name.as_str()]));
    Ok(requirements)
}

/// A required constraint; `None` for `ScheduleAnyway`.
fn spread_of(
    path: &str,
    class: &PodClass,
    constraint: &TopologySpreadConstraint,
) -> Result<Option<Spread>, ProblemError> {
    let policy = |value: Option<&str>, default: bool| match value {
        None => Ok(default),
        Some("Honor") => Ok(true),
        Some("Ignore") => Ok(false),
        Some(other) => {
            Err(ProblemError::invalid(path, format!("`{other}` is not Honor or Ignore")))
        }
    };
    let honor_affinity = policy(constraint.node_affinity_policy.as_deref(), true)?;
    let honor_taints = policy(constraint.node_taints_policy.as_deref(), false)?;
    let mut counted = selector(path, constraint.label_selector.as_ref())?;
    if constraint.label_selector.is_some() {
        same_labels(&mut counted, class, &constraint.match_label_keys, Operator::In);
    }
    if constraint.max_skew == 0 {
        return Err(ProblemError::invalid(path, "maxSkew must be at least 1"));
    }
    match constraint.when_unsatisfiable.as_str() {
        "DoNotSchedule" => Ok(Some(Spread {
            topology_key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            selector: counted.counted_by_spread(),
            honor_affinity,
            honor_taints,
        })),
        "ScheduleAnyway" => Ok(None),
        other => Err(ProblemError::invalid(
            path,
            format!("`{other}` is not DoNotSchedule or ScheduleAnyway"),
        )),
    }
}

fn operator(path: &str, expression: &LabelExpression) -> Result<Operator, ProblemError> {
    let (operator, values) = match expression.operator.as_str() {
        "In" => (Operator::In, 1..=usize::MAX),
        "NotIn" => (Operator::NotIn, 1..=usize::MAX),
        "Exists" => (Operator::Exists, 0..=0),
        "DoesNotExist" => (Operator::DoesNotExist, 0..=0),
        "Gt" => (Operator::Gt, 1..=1),
        "Lt" => (Operator::Lt, 1..=1),
        other => return Err(ProblemError::invalid(path, format!("`{other}` is not an operator"))),
    };
    if !values.contains(&expression.values.len()) {
        let why = format!(
            "{} of `{}` has the wrong number of values",
            expression.operator, expression.key
        );
        return Err(ProblemError::invalid(path, why));
    }
    Ok(operator)
}

fn selector(path: &str, written: Option<&LabelSelector>) -> Result<Selector, ProblemError> {
    let Some(written) = written else { return Ok(Selector::nothing()) };
    let mut meant = Selector::default();
    for (key, value) in &written.match_labels {
        meant = meant.and(key, value);
    }
    for expression in &written.match_expressions {
        let operator = operator(path, expression)?;
        if matches!(operator, Operator::Gt | Operator::Lt) {
            return Err(ProblemError::invalid(
                path,
                format!("{} is not for labels of pods", expression.operator),
            ));
        }
        let values = expression.values.iter().cloned().collect();
        meant.0.push(LabelRule { key: expression.key.clone(), operator, values });
    }
    Ok(meant)
}

fn same_labels(meant: &mut Selector, class: &PodClass, keys: &[String], operator: Operator) {
    for (key, value) in keys.iter().filter_map(|key| Some((key, class.labels.get(key)?))) {
        let values = BTreeSet::from([value.clone()]);
        meant.0.push(LabelRule { key: key.clone(), operator, values });
    }
}

fn effect(path: &str, name: &str) -> Result<Effect, ProblemError> {
    match name {
        "NoSchedule" => Ok(Effect::NoSchedule),
        "PreferNoSchedule" => Ok(Effect::PreferNoSchedule),
        "NoExecute" => Ok(Effect::NoExecute),
        other => Err(ProblemError::invalid(path, format!("`{other}` is not an effect of a taint"))),
    }
}

pub(crate) fn taint(path: &str, written: &Taint) -> Result<nap_api::Taint, ProblemError> {
    let effect = effect(path, &written.effect)?;
    Ok(nap_api::Taint { key: written.key.clone(), value: written.value.clone(), effect })
}

fn toleration(path: &str, written: &Toleration) -> Result<nap_api::Toleration, ProblemError> {
    let exists = match written.operator.as_deref() {
        None | Some("" | "Equal") => false,
        Some("Exists") => true,
        Some(other) => {
            return Err(ProblemError::invalid(path, format!("`{other}` is not Equal or Exists")));
        }
    };
    let effect = match written.effect.as_deref() {
        None | Some("") => None,
        Some(name) => Some(effect(path, name)?),
    };
    Ok(nap_api::Toleration {
        key: written.key.clone(),
        value: written.value.clone(),
        exists,
        effect,
    })
}
