//! Requirements of pods that no NodePool can meet, and what is said about them.

use super::{containers, pod, said};

#[test]
fn contradictions_are_named_with_both_sides() {
    let selector = |selector: &str| pod("p", &format!("{selector}, {}", containers("1")));
    let affinity = |expressions: &str| {
        format!(
            "affinity: {{ nodeAffinity: {{ requiredDuringSchedulingIgnoredDuringExecution: {{ nodeSelectorTerms: [{{ matchExpressions: [{expressions}] }}] }} }} }}"
        )
    };
    for (test, yaml, expected) in [
        (
            "pool",
            selector("nodeSelector: { kubernetes.io/arch: arm64, kubernetes.io/os: windows }"),
            "`kubernetes.io/os`: the pod wants In [windows], the nodepool has In [linux]",
        ),
        (
            "pair",
            selector(
                "nodeSelector: { karpenter.azure.com/sku-cpu: \"2\", karpenter.azure.com/sku-memory: \"1048576\" }",
            ),
            "`karpenter.azure.com/sku-memory`: the pod wants In [1048576], the nodepool has",
        ),
        (
            "itself",
            selector(&format!(
                "nodeSelector: {{ kubernetes.io/arch: amd64 }}, {}",
                affinity(
                    "{ key: kubernetes.io/os, operator: In, values: [linux] }, { key: kubernetes.io/os, operator: In, values: [windows] }"
                )
            )),
            "`kubernetes.io/os`: the pod itself wants In [linux] (nodeAffinity) and In [windows]",
        ),
        (
            "selector",
            selector(&format!(
                "nodeSelector: {{ kubernetes.io/arch: arm64 }}, {}",
                affinity("{ key: kubernetes.io/arch, operator: In, values: [amd64] }")
            )),
            "`kubernetes.io/arch`: the pod itself wants `arm64` (nodeSelector) and In [amd64]",
        ),
    ] {
        let (said, _) = said(&["explain", "pod", "p"], &format!("contradiction-{test}"), &yaml);
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(expected), "{test}: {said}");
    }
}

/// Contradictions in the table of a plan, without `nap explain` of each pod.
#[test]
fn plans_name_contradictions_below_pods_without_a_place() {
    let term = |expression: &str| {
        format!(
            "affinity: {{ nodeAffinity: {{ requiredDuringSchedulingIgnoredDuringExecution: {{ nodeSelectorTerms: [{{ matchExpressions: [{expression}] }}] }} }} }}, {}",
            containers("1")
        )
    };
    for (test, spec, expected) in [
        (
            "zone",
            format!("nodeSelector: {{ topology.kubernetes.io/zone: mars-1 }}, {}", containers("1")),
            "`topology.kubernetes.io/zone`: the pod wants In [mars-1], the nodepool has",
        ),
        (
            "number",
            term("{ key: karpenter.azure.com/sku-cpu, operator: Gt, values: [many] }"),
            "`karpenter.azure.com/sku-cpu`: the pod leaves no value of it, the nodepool has",
        ),
        (
            "selector",
            format!(
                "nodeSelector: {{ kubernetes.io/arch: arm64 }}, {}",
                term("{ key: kubernetes.io/arch, operator: In, values: [amd64] }")
            ),
            "`kubernetes.io/arch`: the node selector wants In [arm64] and the node affinity In \
             [amd64], which exclude each other",
        ),
    ] {
        let (said, _) = said(&["plan"], &format!("named-{test}"), &pod("p", &spec));
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(expected), "{test}: {said}");
    }
}

#[test]
fn a_pod_with_very_many_requirements_ends_the_search_for_a_change() {
    let values: Vec<String> = (0..50).map(|value| format!("v{value}")).collect();
    let expression = |key: usize| {
        format!("{{ key: k{key}.example.com/x, operator: In, values: [{}] }}", values.join(", "))
    };
    let expressions: Vec<String> = (0..40).map(expression).collect();
    let term = format!("{{ matchExpressions: [{}] }}", expressions.join(", "));
    let terms = vec![term; 40].join(", ");
    let affinity = format!(
        "affinity: {{ nodeAffinity: {{ requiredDuringSchedulingIgnoredDuringExecution: {{ nodeSelectorTerms: [{terms}] }} }} }}"
    );
    let yaml = pod("odd", &format!("{affinity}, {}", containers("1")));
    let (said, _) = said(&["explain", "pod", "odd"], "odd", &yaml);
    assert!(said.contains("Stopped looking for a change"), "{said}");
}
