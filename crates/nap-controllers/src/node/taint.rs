//! The `karpenter.sh/disrupted` taint.

use k8s_openapi::api::core::v1::Node;
use nap_api::{Effect, Taint, taints};

/// Whether a Node carries the disrupted taint, with any effect.
pub fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == taints::DISRUPTED)
}

/// Adds the disrupted taint, which keeps new pods away. Returns whether anything changed.
pub fn add_disrupted(node: &mut Node) -> bool {
    let wanted = Taint::new(taints::DISRUPTED, Effect::NoSchedule);
    let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
    let missing = !list.iter().any(|taint| Taint::from(taint).matches(&wanted));
    if missing {
        list.retain(|taint| taint.key != taints::DISRUPTED);
        list.push((&wanted).into());
    }
    missing
}

/// Removes the disrupted taint. Returns whether anything changed.
pub fn remove_disrupted(node: &mut Node) -> bool {
    let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
    let before = list.len();
    list.retain(|taint| taint.key != taints::DISRUPTED);
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
