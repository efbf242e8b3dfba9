//! Pods must not stay pending: every pod of the workload fits on some instance type.

use jiff::SignedDuration;
use kube::ResourceExt;

use super::Observation;

/// A pod that is pending for longer is a fault.
const MAX_PENDING: SignedDuration = SignedDuration::from_mins(30);

pub(super) fn check(seen: &Observation) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in &seen.pods {
        let created = pod.metadata.creation_timestamp.as_ref().map_or(seen.now, |time| time.0);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Pending") && seen.now.duration_since(created) > MAX_PENDING {
            faults.push(format!("pod {} is pending for too long", pod.name_any()));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{nothing, object};
    use super::*;
    use serde_json::json;

    #[test]
    fn pod_pending_longer_than_thirty_minutes_is_a_fault() {
        let pod = |created: &str, phase: &str| {
            object(json!({
                "metadata": { "name": "a", "creationTimestamp": created },
                "status": { "phase": phase },
            }))
        };
        let count = |created, phase| {
            check(&Observation { pods: vec![pod(created, phase)], ..nothing() }).len()
        };
        assert_eq!(count("2026-01-01T11:29:00Z", "Pending"), 1);
        assert_eq!(count("2026-01-01T11:31:00Z", "Pending"), 0);
        assert_eq!(count("2026-01-01T11:29:00Z", "Running"), 0);
    }
}
