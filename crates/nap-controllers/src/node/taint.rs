//! The taints `karpenter.sh/disrupted` and `nap.karpenter.sh/surplus`.

use k8s_openapi::api::core::v1::Node;
use nap_api::{Effect, Taint, taints};

/// Whether a Node carries the disrupted taint, with any effect.
pub fn is_disrupted(node: &Node) -> bool {
    has(node, taints::DISRUPTED)
}

/// Adds the disrupted taint, which keeps new pods away. Returns whether anything changed.
pub fn add_disrupted(node: &mut Node) -> bool {
    add(node, &Taint::new(taints::DISRUPTED, Effect::NoSchedule))
}

/// Removes the disrupted taint. Returns whether anything changed.
pub fn remove_disrupted(node: &mut Node) -> bool {
    remove(node, taints::DISRUPTED)
}

/// Whether new pods avoid a Node because the fleet could do without it.
pub fn is_surplus(node: &Node) -> bool {
    has(node, taints::SURPLUS)
}

/// Adds or removes the surplus taint. Returns whether anything changed.
pub fn set_surplus(node: &mut Node, is_surplus: bool) -> bool {
    if is_surplus {
        add(node, &Taint::new(taints::SURPLUS, Effect::PreferNoSchedule))
    } else {
        remove(node, taints::SURPLUS)
    }
}

fn has(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == key)
}

/// Adds a taint in place of those with its key and another effect.
fn add(node: &mut Node, wanted: &Taint) -> bool {
    let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
    let missing = !list.iter().any(|taint| Taint::from(taint).matches(wanted));
    if missing {
        list.retain(|taint| taint.key != wanted.key);
        list.push(wanted.into());
    }
    missing
}

fn remove(node: &mut Node, key: &str) -> bool {
    let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
    let before = list.len();
    list.retain(|taint| taint.key != key);
    list.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;
    use serde_json::json;

    #[test]
    fn the_taint_is_added_and_removed_once() {
        let mut node = node(
            "n",
            json!({ "spec": { "taints": [
            { "key": "dedicated", "effect": "NoSchedule" },
        ] } }),
        );
        assert!(add_disrupted(&mut node) && is_disrupted(&node));
        assert!(!add_disrupted(&mut node));
        assert!(remove_disrupted(&mut node) && !is_disrupted(&node));
        assert!(!remove_disrupted(&mut node));
        assert_eq!(node.spec.unwrap().taints.unwrap().len(), 1, "other taints stay");
    }

    #[test]
    fn a_taint_with_another_effect_is_replaced() {
        let mut node = node(
            "n",
            json!({ "spec": { "taints": [
            { "key": taints::DISRUPTED, "effect": "NoExecute" },
        ] } }),
        );
        assert!(add_disrupted(&mut node));
        let taints = node.spec.unwrap().taints.unwrap();
        assert_eq!((taints.len(), taints[0].effect.as_str()), (1, "NoSchedule"));
    }
}
