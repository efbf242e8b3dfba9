//! A node that is removed as empty has no pods that would have to move, neither bound to it nor
//! pending with a nomination for it. A pod that came while nap was deciding does not count.

use jiff::Timestamp;

use super::{DECIDED_WITHIN, State};

/// Looks at a node that has just been chosen for disruption.
pub(super) fn check(state: &State, name: &str, now: Timestamp) -> Option<String> {
    let chosen = &state.claims[name];
    if chosen.reason.as_deref() != Some("Empty") || chosen.node.is_empty() {
        return None;
    }
    let loses = |pod: &&super::Pod| {
        let place = pod.node.as_ref().or(pod.nominated.as_ref());
        pod.moves && place == Some(&chosen.node) && now.duration_since(pod.since) > DECIDED_WITHIN
    };
    let ((namespace, name), _) = state.pods.iter().find(|(_, pod)| loses(pod))?;
    Some(format!("node {} is removed as empty, and pod {namespace}/{name} is for it", chosen.node))
}
