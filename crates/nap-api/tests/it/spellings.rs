//! Laws of the normaliser, and of the way from a manifest to the types and back.

use nap_api::{AKSNodeClass, NodePool, NodePoolSpec, hash, normalise};
use proptest::prelude::*;
use serde_json::{Value, json};

fn maybe<T: Into<Value> + Clone + std::fmt::Debug + 'static>(
    key: &'static str,
    values: Vec<T>,
) -> impl Strategy<Value = Option<(&'static str, Value)>> {
    prop::option::of(prop::sample::select(values).prop_map(move |value| (key, value.into())))
}

fn object(fields: Vec<Option<(&'static str, Value)>>) -> Value {
    Value::Object(
        fields.into_iter().flatten().map(|(key, value)| (key.to_owned(), value)).collect(),
    )
}

fn durations() -> Vec<&'static str> {
    vec!["Never", "720h", "48h", "1h30m", "0s"]
}

fn references(old: bool) -> impl Strategy<Value = Value> {
    let current = json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "a" });
    let mut all = vec![current];
    if old {
        all.push(json!({ "name": "a" }));
        all.push(
            json!({ "apiVersion": "karpenter.azure.com/v1alpha2", "kind": "AKSNodeClass", "name": "a" }),
        );
        all.push(json!({ "kind": "AKSNodeClass", "name": "a" }));
    }
    prop::sample::select(all)
}

/// The spec of a NodePool that the schema accepts, in the current spelling or also in old ones.
fn specs(old: bool) -> impl Strategy<Value = Value> {
    let mut policies = vec!["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"];
    if old {
        policies.extend(normalise::OLD_POLICIES.map(|(old, _)| old));
    }
    let disruption = (
        maybe("consolidationPolicy", policies),
        maybe("consolidateAfter", durations()),
        maybe("expireAfter", if old { durations() } else { vec!["Never"] }),
        maybe("budgets", vec![json!([]), json!([{ "nodes": "10%", "reasons": ["Unhealthy"] }])]),
    )
        .prop_map(move |(policy, after, expire, budgets)| {
            object(vec![policy, after, expire.filter(|_| old), budgets])
        });
    let taints = vec![json!([{ "key": "a", "value": "b", "effect": "NoSchedule" }])];
    let template = (
        references(old),
        maybe("expireAfter", durations()),
        maybe("terminationGracePeriod", vec!["30s", "1h"]),
        maybe("taints", taints.clone()),
        maybe("startupTaints", taints),
    )
        .prop_map(|(reference, expire, grace, taints, startup)| {
            let requirements =
                json!([{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }]);
            object(vec![
                Some(("nodeClassRef", reference)),
                Some(("requirements", requirements)),
                expire,
                grace,
                taints,
                startup,
            ])
        });
    let more = (
        maybe("weight", vec![1, 100]),
        maybe("limits", vec![json!({ "cpu": "10", "memory": "1Gi" })]),
        prop::option::of(disruption),
    );
    (template, more).prop_map(|(template, (weight, limits, disruption))| {
        let template = json!({ "spec": template });
        object(vec![
            Some(("template", template)),
            weight,
            limits,
            disruption.map(|disruption| ("disruption", disruption)),
        ])
    })
}

proptest! {
    #[test]
    fn current_spellings_are_left_alone(spec in specs(false)) {
        let mut normalised = spec.clone();
        prop_assert_eq!(normalise::node_pool_spec(&mut normalised), vec![]);
        prop_assert_eq!(normalised, spec);
    }

    #[test]
    fn normalising_twice_is_normalising_once(spec in specs(true)) {
        let mut once = spec;
        normalise::node_pool_spec(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(normalise::node_pool_spec(&mut twice), vec![]);
        prop_assert_eq!(twice, once);
    }

    /// An old spelling has the same drift hash as the current one, so rewriting a pool replaces
    /// no node.
    #[test]
    fn spelling_does_not_drift_nodes(spec in specs(true)) {
        let mut current = spec.clone();
        normalise::node_pool_spec(&mut current);
        let read: NodePoolSpec = serde_json::from_value(spec).unwrap();
        let read_current: NodePoolSpec = serde_json::from_value(current).unwrap();
        prop_assert_eq!(hash::nodepool_hash(&read), hash::nodepool_hash(&read_current));
        prop_assert!(read_current.understood.is_empty());
    }

    /// A manifest comes back from the types with nothing but defaults added, and the types
    /// know what they wrote.
    #[test]
    fn node_pools_survive_the_types(spec in specs(false)) {
        let pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "a" }, "spec": spec,
        });
        let typed: NodePool = serde_json::from_value(pool.clone()).unwrap();
        let written = serde_json::to_value(&typed).unwrap();
        prop_assert!(holds(&written, &pool), "{} lost something of {}", written, pool);
        prop_assert_eq!(serde_json::from_value::<NodePool>(written).unwrap(), typed);
    }

    #[test]
    fn node_classes_survive_the_types(
        family in maybe("imageFamily", vec!["Ubuntu", "AzureLinux"]),
        fips in maybe("fipsMode", vec!["FIPS", "Disabled"]),
        kubelet in maybe("kubelet", vec![json!({}), json!({ "allowedUnsafeSysctls": [], "failSwapOn": false })]),
        security in maybe("security", vec![json!({}), json!({ "trustedLaunch": { "vtpm": false } })]),
        linux in maybe("linuxOSConfig", vec![json!({ "sysctls": { "netIPv4TCPTwReuse": true, "vmSwappiness": 1 } })]),
        streaming in maybe("artifactStreaming", vec![json!({ "enabled": true })]),
    ) {
        let spec = object(vec![family, fips, kubelet, security, linux, streaming]);
        let class = json!({
            "apiVersion": "karpenter.azure.com/v1beta1", "kind": "AKSNodeClass", "metadata": { "name": "a" }, "spec": spec,
        });
        let typed: AKSNodeClass = serde_json::from_value(class.clone()).unwrap();
        let written = serde_json::to_value(&typed).unwrap();
        prop_assert!(holds(&written, &class), "{} lost something of {}", written, class);
        prop_assert_eq!(serde_json::from_value::<AKSNodeClass>(written).unwrap(), typed);
    }
}

fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|there| holds(there, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len()
                && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
        }
        (whole, part) => whole == part,
    }
}
