//! Checks beyond the schemas. Each message names the field and the remedy.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use nap_units::{Quantity, UsdPerHour};

use crate::aksnodeclass::AKSNodeClass;
use crate::cron::Schedule;
use crate::duration::parse_go_duration;
use crate::labels;
use crate::nodepool::{NodePool, NodePoolSpec};
use crate::requirement::{NodeSelectorRequirement, Operator};
use crate::taints::Taint;

/// Periods over which the kernel can enforce CPU limits.
const CFS_QUOTA_PERIODS: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(1);

/// Everything that is wrong with a NodePool; nothing if it may make nodes.
pub fn validate_nodepool(pool: &NodePool) -> Vec<String> {
    let mut problems = Vec::new();
    let spec = &pool.spec;
    if let Err(problem) = max_price(pool) {
        problems.push(problem);
    }
    template_labels(spec, &mut problems);
    taints(spec, &mut problems);
    for (index, requirement) in spec.template.spec.requirements.iter().enumerate() {
        let field = format!("spec.template.spec.requirements[{index}]");
        validate_requirement(&field, requirement, &mut problems);
        if requirement.key == labels::NODEPOOL {
            problems.push(format!(
                "{field}: key `{}` may not be required here; remove it, nodes get the pool's name by themselves",
                labels::NODEPOOL
            ));
        }
    }
    for (index, budget) in spec.disruption.budgets.iter().enumerate() {
        if budget.schedule.is_some() != budget.duration.is_some() {
            problems.push(format!(
                "spec.disruption.budgets[{index}]: set `schedule` and `duration` together, or neither"
            ));
        }
    }
    for (resource, limit) in spec.limits.iter().flatten() {
        if *limit < Quantity::from_units(0) {
            problems.push(format!(
                "spec.limits[{resource}]: `{limit}` is negative, so no node could be made; write 0 \
                 or more, or remove it"
            ));
        }
    }
    problems
}

/// Budgets of a NodePool whose schedule cannot be read, one line each: they stop all disruption of
/// its nodes. Nodes are made all the same, as the incumbent does.
pub fn unreadable_schedules(pool: &NodePool) -> Vec<String> {
    let budgets = pool.spec.disruption.budgets.iter().enumerate();
    let unreadable = budgets.filter_map(|(index, budget)| {
        let text = budget.schedule.as_deref().filter(|text| Schedule::parse(text).is_none())?;
        Some(format!(
            "spec.disruption.budgets[{index}].schedule: `{text}` cannot be read as a schedule, so no \
             node is disrupted; write five fields of cron, such as `0 9 * * mon-fri`"
        ))
    });
    unreadable.collect()
}

/// Highest price of a node, by the annotation of a NodePool; `None` without one.
pub fn max_price(pool: &NodePool) -> Result<Option<UsdPerHour>, String> {
    let key = labels::MAX_PRICE_PER_NODE_HOUR;
    let Some(text) = pool.metadata.annotations.as_ref().and_then(|all| all.get(key)) else {
        return Ok(None);
    };
    UsdPerHour::parse(text.trim()).filter(|price| *price > UsdPerHour::ZERO).map(Some).ok_or_else(
        || {
            format!(
                "metadata.annotations[{key}]: `{text}` is not a price in dollars per hour; write \
                 one such as `2.50`"
            )
        },
    )
}

/// Everything that is wrong with an AKSNodeClass beyond its schema; nothing if it may make nodes.
/// A node without what was asked for would be a surprise, so none is made.
pub fn validate_nodeclass(class: &AKSNodeClass) -> Vec<String> {
    let mut problems: Vec<String> = pinned_image_version(class).err().into_iter().collect();
    let kubelet = class.spec.kubelet.as_ref();
    let linux = class.spec.linux_os_config.as_ref();
    if let Some(text) = kubelet.and_then(|kubelet| kubelet.cpu_cfs_quota_period.as_ref()) {
        let period = parse_go_duration(text);
        let is_valid = |it: Duration| it.is_zero() || CFS_QUOTA_PERIODS.contains(&it);
        if !period.is_some_and(is_valid) {
            problems.push(format!(
                "spec.kubelet.cpuCFSQuotaPeriod: `{text}` is not a duration from `1ms` to `1s`; \
                 write one such as `100ms`"
            ));
        }
    }
    let sizes = [
        (
            "spec.kubelet.containerLogMaxSize",
            kubelet.and_then(|kubelet| kubelet.container_log_max_size.as_ref()),
        ),
        ("spec.linuxOSConfig.swapFileSize", linux.and_then(|linux| linux.swap_file_size.as_ref())),
    ];
    for (field, size) in sizes {
        // The pattern of the definition allows `10K`, which is no quantity.
        if let Some(size) = size
            && size.parse::<Quantity>().is_err()
        {
            problems.push(format!(
                "{field}: `{size}` is not a quantity; write one such as `50Mi` or `100M`"
            ));
        }
    }
    problems
}

/// Version that an annotation of an AKSNodeClass pins its images to; `None` without one.
pub fn pinned_image_version(class: &AKSNodeClass) -> Result<Option<&str>, String> {
    let key = labels::PIN_IMAGE_VERSION;
    let annotations = class.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(key)) else { return Ok(None) };
    let text = text.trim();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    if text.split('.').count() == 3 && text.split('.').all(is_number) {
        return Ok(Some(text));
    }
    Err(format!(
        "metadata.annotations[{key}]: `{text}` is not the version of a node image; write one such \
         as `202610.12.0`, or remove it"
    ))
}

fn template_labels(spec: &NodePoolSpec, problems: &mut Vec<String>) {
    let field = "spec.template.metadata.labels";
    for (key, value) in &spec.template.metadata.labels {
        if key == labels::NODEPOOL {
            problems.push(format!("{field}: `{key}` is set by nap; remove it"));
            continue;
        }
        if let Some(why) = not_a_qualified_name(key) {
            problems.push(format!("{field}: key `{key}` is not a label key: {why}"));
        }
        if let Some(why) = not_a_label_value(value) {
            problems
                .push(format!("{field}: value `{value}` of `{key}` is not a label value: {why}"));
        }
        if let Some(why) = restricted(key) {
            problems.push(format!("{field}: `{key}` may not be set: {why}"));
        }
    }
}

fn taints(spec: &NodePoolSpec, problems: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    let lists = [
        ("taints", &spec.template.spec.taints),
        ("startupTaints", &spec.template.spec.startup_taints),
    ];
    let taints = lists.into_iter().flat_map(|(list, taints)| {
        let field = move |index| format!("spec.template.spec.{list}[{index}]");
        taints.iter().enumerate().map(move |(index, taint)| (field(index), taint))
    });
    for (field, Taint { key, value, effect }) in taints {
        if let Some(why) = not_a_qualified_name(key) {
            problems.push(format!("{field}: key `{key}` is not a taint key: {why}"));
        }
        if !value.is_empty()
            && let Some(why) = not_a_qualified_name(value)
        {
            problems.push(format!("{field}: value `{value}` is not a taint value: {why}"));
        }
        if !seen.insert((key, effect)) {
            problems.push(format!(
                "{field}: `{key}:{}` is there twice; keep one, in taints or in startupTaints",
                effect.as_str()
            ));
        }
    }
}

/// Checks one requirement, wherever it stands; `field` is the path that messages begin with.
pub fn validate_requirement(
    field: &str,
    requirement: &NodeSelectorRequirement,
    problems: &mut Vec<String>,
) {
    let key = labels::normalise(&requirement.key);
    let values = &requirement.values;
    if let Some(why) = not_a_qualified_name(key) {
        problems.push(format!("{field}: key `{key}` is not a label key: {why}"));
    }
    if let Some(why) = restricted(key) {
        problems.push(format!("{field}: key `{key}` may not be required: {why}"));
    }
    for value in values {
        if let Some(why) = not_a_label_value(value) {
            problems
                .push(format!("{field}: value `{value}` of `{key}` is not a label value: {why}"));
        }
    }
    let count = i64::try_from(values.len()).unwrap_or(i64::MAX);
    match requirement.operator {
        Operator::In if values.is_empty() => {
            problems.push(format!("{field}: operator In on `{key}` needs at least one value"));
        }
        Operator::In if requirement.min_values.is_some_and(|least| count < least) => {
            problems.push(format!(
                "{field}: `{key}` lists fewer values than its minValues asks for; add values or lower it"
            ));
        }
        Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => {
            let number = |text: &String| text.parse::<i64>().is_ok_and(|number| number >= 0);
            if !matches!(values.as_slice(), [value] if number(value)) {
                problems.push(format!(
                    "{field}: operator {:?} on `{key}` needs exactly one whole number that is not negative",
                    requirement.operator
                ));
            }
        }
        _ => {}
    }
    if key == labels::CAPACITY_TYPE && requirement.operator == Operator::In && !values.is_empty() {
        let known = [
            labels::capacity_type::ON_DEMAND,
            labels::capacity_type::SPOT,
            labels::capacity_type::RESERVED,
        ];
        let valid = values.iter().filter(|value| known.contains(&value.as_str())).count();
        let least = requirement.min_values.unwrap_or(1).max(1);
        if i64::try_from(valid).unwrap_or(i64::MAX) < least {
            problems.push(format!(
                "{field}: `{key}` needs at least {least} of {}; it has {valid}",
                known.map(|value| format!("`{value}`")).join(", ")
            ));
        }
    }
}

/// Why users may not set or require a label. Well-known labels may always be required.
fn restricted(key: &str) -> Option<String> {
    if labels::is_well_known(key) {
        return None;
    }
    if key == labels::HOSTNAME {
        return Some("every node has its own".to_owned());
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |restricted: &&str| {
        domain == *restricted
            || domain.strip_suffix(*restricted).is_some_and(|prefix| prefix.ends_with('.'))
    };
    [labels::GROUP, labels::AZURE_GROUP]
        .iter()
        .find(|restricted| within(restricted))
        .map(|restricted| format!("the domain `{restricted}` is reserved"))
}

/// Why a text is not `name` or `prefix/name` by the rules of Kubernetes.
fn not_a_qualified_name(text: &str) -> Option<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if let Some(prefix) = prefix {
        let part = |part: &str| {
            let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            part.bytes().all(|byte| inner(byte) || byte == b'-')
                && part.bytes().next().is_some_and(inner)
                && part.bytes().last().is_some_and(inner)
        };
        if prefix.len() > 253 || !prefix.split('.').all(part) {
            return Some(format!(
                "`{prefix}` before the slash must be a DNS name in lower case of at most 253 characters"
            ));
        }
    }
    if name.is_empty() || !is_plain_name(name) {
        return Some(
            "the name must be 1 to 63 letters, digits, `-`, `_` or `.`, and begin and end with a letter or digit".to_owned(),
        );
    }
    None
}

fn not_a_label_value(text: &str) -> Option<&'static str> {
    (!text.is_empty() && !is_plain_name(text)).then_some(
        "it must be at most 63 letters, digits, `-`, `_` or `.`, and begin and end with a letter or digit",
    )
}

fn is_plain_name(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_alphanumeric();
    text.len() <= 63
        && text.bytes().all(|byte| alphanumeric(byte) || matches!(byte, b'-' | b'_' | b'.'))
        && text.bytes().next().is_some_and(alphanumeric)
        && text.bytes().last().is_some_and(alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn problems(metadata: &Value, spec: &Value) -> Vec<String> {
        let mut template = json!({
            "requirements": [],
            "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
        });
        let Value::Object(more) = spec else { panic!("an object is needed") };
        for (key, value) in more {
            template[key] = value.clone();
        }
        let spec = json!({ "template": { "metadata": metadata, "spec": template } });
        validate_nodepool(&NodePool::new("default", serde_json::from_value(spec).unwrap()))
    }

    fn requirement(item: &Value) -> Vec<String> {
        problems(&json!({}), &json!({ "requirements": [item] }))
    }

    #[test]
    fn a_good_pool_has_no_problems() {
        let found = problems(
            &json!({ "labels": { "team": "a", "example.com/team": "", "karpenter.sh/capacity-type": "spot" } }),
            &json!({
                "taints": [{ "key": "gpu", "value": "yes", "effect": "NoSchedule" }],
                "startupTaints": [{ "key": "gpu", "effect": "NoExecute" }],
                "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "moon"] },
                    { "key": "karpenter.azure.com/sku-cpu", "operator": "Gt", "values": ["3"] },
                    { "key": "beta.kubernetes.io/arch", "operator": "Exists" },
                    { "key": "node.kubernetes.io/anything", "operator": "NotIn", "values": ["x"] },
                ],
            }),
        );
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn invalid_labels_are_reported_by_field() {
        for (key, value, message) in [
            ("karpenter.sh/nodepool", "a", "is set by nap; remove it"),
            ("karpenter.sh/other", "a", "the domain `karpenter.sh` is reserved"),
            ("sub.karpenter.sh/other", "a", "the domain `karpenter.sh` is reserved"),
            ("karpenter.azure.com/other", "a", "the domain `karpenter.azure.com` is reserved"),
            ("kubernetes.io/hostname", "a", "every node has its own"),
            ("bad key", "a", "is not a label key"),
            ("Upper.Case/key", "a", "must be a DNS name in lower case"),
            ("key", "-bad", "value `-bad` of `key` is not a label value"),
            ("key", &"x".repeat(64), "is not a label value"),
        ] {
            let found = problems(&json!({ "labels": { key: value } }), &json!({}));
            assert_eq!(found.len(), 1, "{key}: {found:?}");
            assert!(found[0].starts_with("spec.template.metadata.labels: "), "{}", found[0]);
            assert!(found[0].contains(message), "{}", found[0]);
        }
        assert!(problems(&json!({ "labels": { "mykarpenter.sh/x": "a" } }), &json!({})).is_empty());
    }

    #[test]
    fn invalid_taints_are_reported_by_field() {
        let taint = json!({ "key": "gpu", "effect": "NoSchedule" });
        let found = problems(&json!({}), &json!({ "taints": [taint], "startupTaints": [taint] }));
        assert_eq!(
            found,
            [
                "spec.template.spec.startupTaints[0]: `gpu:NoSchedule` is there twice; keep one, in taints or in startupTaints"
            ]
        );
        let bad = json!({ "key": "a/b/c", "value": "b c", "effect": "NoSchedule" });
        assert_eq!(problems(&json!({}), &json!({ "taints": [bad] })).len(), 2);
    }

    #[test]
    fn invalid_requirements_are_reported_by_field() {
        for (item, message) in [
            (json!({ "key": "a", "operator": "In" }), "needs at least one value"),
            (
                json!({ "key": "a", "operator": "In", "values": ["x"], "minValues": 2 }),
                "fewer values than its minValues",
            ),
            (
                json!({ "key": "a", "operator": "Gt", "values": ["x"] }),
                "operator Gt on `a` needs exactly one whole number",
            ),
            (
                json!({ "key": "a", "operator": "Lte", "values": ["1", "2"] }),
                "needs exactly one whole number",
            ),
            (json!({ "key": "a", "operator": "Gte" }), "needs exactly one whole number"),
            (
                json!({ "key": "kubernetes.io/hostname", "operator": "Exists" }),
                "every node has its own",
            ),
            (
                json!({ "key": "karpenter.sh/nodepool", "operator": "Exists" }),
                "may not be required here",
            ),
            (
                json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["moon"] }),
                "at least 1 of `on-demand`, `spot`, `reserved`",
            ),
            (
                json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "moon"], "minValues": 2 }),
                "at least 2 of",
            ),
        ] {
            let found = requirement(&item);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("spec.template.spec.requirements[0]: "), "{}", found[0]);
            assert!(found[0].contains(message), "{}", found[0]);
        }
    }

    #[test]
    fn values_of_a_node_class_that_no_machine_can_have_are_refused() {
        let class = |spec: Value| {
            validate_nodeclass(&AKSNodeClass::new("d", serde_json::from_value(spec).unwrap()))
        };
        assert!(class(json!({})).is_empty());
        let good = json!({
            "fipsMode": "FIPS", "kubelet": { "cpuCFSQuotaPeriod": "1s", "containerLogMaxSize": "1Gi" },
            "linuxOSConfig": { "swapFileSize": "1500M" },
        });
        assert_eq!(class(good), Vec::<String>::new());
        for (spec, field) in [
            (json!({ "kubelet": { "cpuCFSQuotaPeriod": "2s" } }), "spec.kubelet.cpuCFSQuotaPeriod"),
            (json!({ "kubelet": { "cpuCFSQuotaPeriod": "x" } }), "spec.kubelet.cpuCFSQuotaPeriod"),
            (
                json!({ "kubelet": { "containerLogMaxSize": "10K" } }),
                "spec.kubelet.containerLogMaxSize",
            ),
            (
                json!({ "linuxOSConfig": { "swapFileSize": "1K" } }),
                "spec.linuxOSConfig.swapFileSize",
            ),
        ] {
            let found = class(spec);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("{field}: `")), "{}", found[0]);
        }
    }

    #[test]
    fn a_pinned_image_version_is_three_numbers() {
        let mut class = AKSNodeClass::default();
        assert_eq!(pinned_image_version(&class), Ok(None));
        let mut pin = |text: &str| {
            let annotation = (labels::PIN_IMAGE_VERSION.to_owned(), text.to_owned());
            class.metadata.annotations = Some([annotation].into());
            (
                pinned_image_version(&class).map(|it| it.map(str::to_owned)),
                validate_nodeclass(&class),
            )
        };
        assert_eq!(pin("202610.12.0"), (Ok(Some("202610.12.0".to_owned())), Vec::new()));
        for bad in ["", "latest", "202610.12", "202610.x.0", "AKSUbuntu-2204-202610.12.0"] {
            let (read, problems) = pin(bad);
            assert!(read.is_err() && problems.len() == 1, "{bad}");
        }
    }
}
