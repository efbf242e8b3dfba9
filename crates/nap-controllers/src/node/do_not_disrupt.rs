//! Events about the `karpenter.sh/do-not-disrupt` annotation of pods that a drain comes upon.

use jiff::{SignedDuration, Timestamp};
use nap_api::duration::parse_go_duration;
use nap_api::labels;

use crate::cluster::Pod;
use crate::context::Context;
use crate::events::Severity;

/// Publishes what the annotation of a pod means for the drain. Pods without it, and those that are
/// protected for ever, have no such event.
pub fn report(context: &Context, pod: &Pod) {
    if let Some((severity, reason, message)) = event(pod, context.clock.now()) {
        context.events.publish(pod, severity, reason, &message);
    }
}

fn event(pod: &Pod, now: Timestamp) -> Option<(Severity, &'static str, String)> {
    let key = labels::DO_NOT_DISRUPT;
    let value = pod.annotations().get(key).filter(|value| value.as_str() != "true")?;
    let Some(protected) = parse_go_duration(value).filter(|duration| !duration.is_zero()) else {
        let message = format!("Ignored value {value:?} of {key}: use \"true\" or a duration");
        return Some((Severity::Warning, "InvalidDoNotDisruptAnnotation", message));
    };
    let started = pod.started()?;
    let protected = SignedDuration::try_from(protected).unwrap_or(SignedDuration::MAX);
    let until = started.checked_add(protected).unwrap_or(Timestamp::MAX);
    if until > now {
        let message = format!("Pod is protected by {key} until {until}");
        return Some((Severity::Normal, "DoNotDisruptUntil", message));
    }
    let message = format!("Protection by {key} ended at {until}");
    Some((Severity::Normal, "DoNotDisruptGracePeriodElapsed", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, pod};
    use serde_json::json;

    #[test]
    fn an_event_tells_how_long_a_pod_is_protected() {
        let reason = |value: &str, now: i64| {
            let annotations = json!({ labels::DO_NOT_DISRUPT: value });
            let object = json!({
                "metadata": { "annotations": annotations },
                "status": { "startTime": "1970-01-01T00:00:00Z" },
            });
            event(&pod("shop", "web", object).into(), at(now)).map(|(_, reason, _)| reason)
        };
        assert_eq!(reason("true", 0), None);
        assert_eq!(reason("soon", 0), Some("InvalidDoNotDisruptAnnotation"));
        assert_eq!(reason("0s", 0), Some("InvalidDoNotDisruptAnnotation"));
        assert_eq!(reason("5m", 299), Some("DoNotDisruptUntil"));
        assert_eq!(reason("5m", 300), Some("DoNotDisruptGracePeriodElapsed"));
        assert_eq!(event(&pod("shop", "web", json!({})).into(), at(0)), None);
    }
}
