//! Topology spread, pod (anti-)affinity, preferences and host ports of pods, in the engine's terms.
//! Namespace selectors are resolved against the namespaces of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    PodAffinityTerm, PodSpec, PreferredSchedulingTerm, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use nap_api::Operator;
use nap_engine::{
    HostPort, LabelRule, Namespaces, PodTerm, Preferences, RunningPods, Selector, Spread, Weighted,
};

use super::node_affinity::term_requirements;
use super::{Index, Pod, pods};

/// Selectors by which pending pods refer to running ones; running pods that no selector matches can
/// be left out of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Interest(BTreeSet<(Namespaces, Selector)>);

impl Interest {
    pub(crate) fn of<'p>(pods: impl IntoIterator<Item = &'p nap_engine::Pod>) -> Self {
        let mut interest = BTreeSet::new();
        for pod in pods {
            let own = || Namespaces::only(pod.key.parts().0);
            interest.extend(pod.spread.iter().map(|spread| (own(), spread.selector.clone())));
            interest.extend(
                pod.preferences.spread.iter().map(|spread| (own(), spread.selector.clone())),
            );
            interest.extend(pod.workload.iter().map(|workload| (own(), workload.clone())));
            let liked = pod.preferences.affinity.iter().chain(&pod.preferences.anti_affinity);
            let terms =
                pod.affinity.iter().chain(&pod.anti_affinity).chain(liked.map(|one| &one.term));
            interest.extend(terms.map(|term| (term.namespaces.clone(), term.selector.clone())));
        }
        Self(interest)
    }

    /// Whether pending pods refer to no other pods.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn includes(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().any(|(namespaces, selector)| {
            namespaces.contains(namespace) && selector.matches(labels)
        })
    }
}

impl Index {
    /// Required terms of pod affinity.
    pub(crate) fn affinity(&self, pod: &Pod) -> Vec<PodTerm> {
        let affinity = pod.spec().affinity.as_ref().and_then(|one| one.pod_affinity.as_ref());
        let terms = affinity
            .and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
        terms.into_iter().flatten().map(|term| self.term(pod, term)).collect()
    }

    /// Required terms of pod anti-affinity.
    pub(crate) fn anti_affinity(&self, pod: &Pod) -> Vec<PodTerm> {
        let affinity = pod.spec().affinity.as_ref().and_then(|one| one.pod_anti_affinity.as_ref());
        let terms = affinity
            .and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
        terms.into_iter().flatten().map(|term| self.term(pod, term)).collect()
    }

    /// Preferred terms of a pod. A preferred node affinity that cannot be parsed is dropped.
    pub(crate) fn preferences(&self, pod: &Pod) -> Preferences {
        let spec = pod.spec();
        let affinity = spec.affinity.as_ref();
        let nodes = affinity.and_then(|one| {
            one.node_affinity
                .as_ref()?
                .preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let near = affinity.and_then(|one| {
            one.pod_affinity.as_ref()?.preferred_during_scheduling_ignored_during_execution.as_ref()
        });
        let apart = affinity.and_then(|one| {
            one.pod_anti_affinity
                .as_ref()?
                .preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let weighted = |one: &WeightedPodAffinityTerm| Weighted {
            weight: one.weight,
            term: self.term(pod, &one.pod_affinity_term),
        };
        let constraints = spec.topology_spread_constraints.iter().flatten();
        let soft = constraints.filter(|one| one.when_unsatisfiable != "DoNotSchedule");
        let node = |one: &PreferredSchedulingTerm| {
            Some(Weighted { weight: one.weight, term: term_requirements(&one.preference).ok()? })
        };
        Preferences {
            nodes: nodes.into_iter().flatten().filter_map(node).collect(),
            affinity: near.into_iter().flatten().map(weighted).collect(),
            anti_affinity: apart.into_iter().flatten().map(weighted).collect(),
            spread: soft.map(|constraint| one_spread(pod, constraint)).collect(),
        }
    }

    fn term(&self, pod: &Pod, term: &PodAffinityTerm) -> PodTerm {
        let mut selector = selector(term.label_selector.as_ref());
        also(&mut selector, pod, term.match_label_keys.as_deref(), Operator::In);
        also(&mut selector, pod, term.mismatch_label_keys.as_deref(), Operator::NotIn);
        PodTerm {
            topology_key: term.topology_key.clone(),
            selector,
            namespaces: self.namespaces_of(pod, term),
        }
    }

    fn namespaces_of(&self, pod: &Pod, term: &PodAffinityTerm) -> Namespaces {
        let listed = term.namespaces.iter().flatten().cloned();
        match &term.namespace_selector {
            Some(selector) if is_empty(selector) => Namespaces::All,
            Some(selector) => {
                let chosen = self
                    .namespaces
                    .values()
                    .filter(|namespace| pods::selects(selector, namespace.labels()));
                Namespaces::Named(
                    listed.chain(chosen.map(|namespace| namespace.name_any())).collect(),
                )
            }
            None => {
                let listed: BTreeSet<String> = listed.collect();
                if listed.is_empty() {
                    Namespaces::only(pod.namespace())
                } else {
                    Namespaces::Named(listed)
                }
            }
        }
    }

    /// Pods of a node that other pods may refer to, equal ones counted together.
    pub(crate) fn residents<'p>(
        &self,
        on_it: impl Iterator<Item = &'p Pod>,
        interest: &Interest,
    ) -> Vec<RunningPods> {
        let mut residents: BTreeMap<RunningPods, u32> = BTreeMap::new();
        for pod in on_it.filter(|pod| pods::is_active(pod)) {
            let anti_affinity = self.anti_affinity(pod);
            let matters = !anti_affinity.is_empty()
                || !pod.host_ports().is_empty()
                || interest.includes(pod.namespace(), pod.labels());
            if matters {
                let resident = RunningPods {
                    namespace: pod.namespace().to_owned(),
                    labels: pod.labels().clone(),
                    anti_affinity,
                    host_ports: pod.host_ports().to_vec(),
                    count: 0,
                };
                *residents.entry(resident).or_default() += 1;
            }
        }
        residents.into_iter().map(|(resident, count)| RunningPods { count, ..resident }).collect()
    }
}

/// Topology spread constraints with `DoNotSchedule`.
pub(crate) fn spread(pod: &Pod) -> Vec<Spread> {
    let constraints = pod.spec().topology_spread_constraints.iter().flatten();
    let hard = constraints.filter(|one| one.when_unsatisfiable == "DoNotSchedule");
    hard.map(|constraint| one_spread(pod, constraint)).collect()
}

fn one_spread(pod: &Pod, constraint: &TopologySpreadConstraint) -> Spread {
    let mut selector = selector(constraint.label_selector.as_ref());
    also(&mut selector, pod, constraint.match_label_keys.as_deref(), Operator::In);
    Spread {
        topology_key: constraint.topology_key.clone(),
        max_skew: u32::try_from(constraint.max_skew).unwrap_or(0),
        min_domains: constraint.min_domains.and_then(|least| u32::try_from(least).ok()),
        selector: selector.counted_by_spread(),
        honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
    }
}

/// Host ports of a pod, those of its sidecars included, sorted and without duplicates.
pub(crate) fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars =
        sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    let mut ports: Vec<HostPort> = ports
        .filter_map(|port| {
            Some(HostPort {
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port: port.host_port.filter(|number| *number > 0)?,
                address: port.host_ip.clone().unwrap_or_default(),
            })
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// A label selector in the engine's terms. An absent one selects nothing, an empty one everything.
pub(super) fn selector(selector: Option<&LabelSelector>) -> Selector {
    let Some(selector) = selector else { return Selector::nothing() };
    let exact = selector.match_labels.iter().flatten();
    let mut rules = exact.fold(Selector::default(), |rules, (key, value)| rules.and(key, value));
    for expression in selector.match_expressions.iter().flatten() {
        let operator = match expression.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return Selector::nothing(),
        };
        let values = expression.values.iter().flatten().cloned().collect();
        rules.0.push(LabelRule { key: expression.key.clone(), operator, values });
    }
    rules
}

/// Adds `matchLabelKeys` or `mismatchLabelKeys` with the pod's own values. The API server may have
/// merged the same rules into the selector already.
fn also(selector: &mut Selector, pod: &Pod, keys: Option<&[String]>, operator: Operator) {
    for key in keys.unwrap_or_default() {
        let Some(value) = pod.labels().get(key) else { continue };
        let rule =
            LabelRule { key: key.clone(), operator, values: BTreeSet::from([value.clone()]) };
        if !selector.0.contains(&rule) {
            selector.0.push(rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::Namespace;
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod(spec: &Value) -> Pod {
        Pod::from(object::<k8s_openapi::api::core::v1::Pod>(json!({
            "metadata": { "name": "web-1", "namespace": "shop", "labels": { "app": "web", "version": "7" } },
            "spec": spec,
        })))
    }

    #[test]
    fn hard_spread_constraints_are_parsed() {
        let pod = pod(&json!({ "containers": [], "topologySpreadConstraints": [
            {
                "maxSkew": 2, "minDomains": 3, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": { "matchLabels": { "app": "web" } }, "matchLabelKeys": ["version", "absent"],
                "nodeTaintsPolicy": "Honor", "nodeAffinityPolicy": "Ignore",
            },
            { "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway" },
            { "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "DoNotSchedule" },
            {
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {}, "matchLabelKeys": ["version"],
            },
        ] }));
        let found = spread(&pod);
        assert_eq!(found.len(), 3, "ScheduleAnyway is not a hard constraint");
        assert_eq!(found[0].selector, Selector::label("app", "web").and("version", "7"));
        assert_eq!((found[0].max_skew, found[0].min_domains), (2, Some(3)));
        assert!(found[0].honor_taints && !found[0].honor_affinity);
        assert!(!found[1].selector.matches(pod.labels()), "an absent selector selects nothing");
        assert!(!found[1].honor_taints && found[1].honor_affinity);
        assert_eq!(found[2].selector, Selector::default().and("version", "7"));
    }

    #[test]
    fn a_spread_with_an_empty_selector_counts_no_pods_as_in_the_scheduler() {
        let constraint = |when: &str, keys: Value| {
            json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
                "labelSelector": {}, "matchLabelKeys": keys })
        };
        let pod = pod(&json!({ "containers": [], "topologySpreadConstraints": [
            constraint("DoNotSchedule", json!(null)),
            constraint("DoNotSchedule", json!(["absent"])),
            constraint("ScheduleAnyway", json!(null)),
        ] }));
        let preferred = Index::default().preferences(&pod).spread;
        for one in spread(&pod).iter().chain(&preferred) {
            assert!(!one.selector.matches(pod.labels()), "{one:?}");
        }
        assert_eq!((spread(&pod).len(), preferred.len()), (2, 1));
    }

    #[test]
    fn namespace_selectors_are_resolved_against_the_cluster() {
        let mut state = Index::default();
        for (name, team) in [("shop", "red"), ("data", "red"), ("other", "blue")] {
            let labels = json!({ "team": team });
            let namespace: Namespace =
                object(json!({ "metadata": { "name": name, "labels": labels } }));
            state.apply(namespace, Timestamp::UNIX_EPOCH);
        }
        let pod = pod(&json!({ "containers": [], "affinity": { "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                { "topologyKey": "zone", "labelSelector": {}, "mismatchLabelKeys": ["version"] },
                { "topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {} },
                { "topologyKey": "zone", "namespaces": ["x"],
                  "namespaceSelector": { "matchLabels": { "team": "red" } } },
            ],
        } } }));
        let terms = state.anti_affinity(&pod);
        assert_eq!(terms[0].namespaces, Namespaces::only("shop"));
        assert!(
            !terms[0].selector.matches(pod.labels()),
            "mismatchLabelKeys excludes the own version"
        );
        assert_eq!(terms[1].namespaces, Namespaces::All);
        let named = ["data", "shop", "x"].map(str::to_owned);
        assert_eq!(terms[2].namespaces, Namespaces::Named(named.into()));
    }

    #[test]
    fn only_pods_that_pending_pods_refer_to_are_residents() {
        let state = Index::default();
        let plain = pod(&json!({ "containers": [] }));
        let port = json!([{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }] }]);
        let with_port = pod(&json!({ "containers": port }));
        let no_interest = Interest::default();
        assert!(state.residents([&plain].into_iter(), &no_interest).is_empty());
        assert_eq!(
            state.residents([&with_port].into_iter(), &no_interest)[0].host_ports[0].port,
            80
        );
        let waiting = nap_engine::Pod {
            key: nap_engine::PodKey::new("shop", "web-2"),
            spread: spread(&pod(&json!({ "containers": [], "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": { "matchLabels": { "app": "web" } },
            }] }))),
            ..nap_engine::Pod::default()
        };
        let residents = state.residents([&plain, &plain].into_iter(), &Interest::of(&[waiting]));
        assert_eq!(
            (residents.len(), residents[0].count),
            (1, 2),
            "equal pods are counted together"
        );
    }
}
