//! How fast an autoscaler may change the number of replicas: stabilisation and policies.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
};

/// Window of the highest recommendation before replicas are removed.
const DOWN_WINDOW: i32 = 300;
/// Longest window that a behaviour may have, in seconds.
const MAX_WINDOW: i32 = 3600;

/// Recommendations and changes of the last hour.
#[derive(Debug, Default)]
pub(super) struct History {
    recommended: Vec<(Timestamp, i32)>,
    /// Replicas that were added, or removed if negative.
    changes: Vec<(Timestamp, i32)>,
}

impl History {
    /// Records a change of the target.
    pub(super) fn scaled(&mut self, now: Timestamp, by: i32) {
        self.changes.push((now, by));
    }

    /// The recommendation that the windows of the behaviour leave.
    pub(super) fn stabilise(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        current: i32,
        wanted: i32,
        now: Timestamp,
    ) -> i32 {
        let old = before(now, MAX_WINDOW);
        self.recommended.retain(|(when, _)| *when > old);
        self.changes.retain(|(when, _)| *when > old);
        let window = |rules: Option<&HPAScalingRules>, fallback: i32| {
            rules.and_then(|rules| rules.stabilization_window_seconds).unwrap_or(fallback)
        };
        let up = window(behavior.and_then(|behavior| behavior.scale_up.as_ref()), 0);
        let down = window(behavior.and_then(|behavior| behavior.scale_down.as_ref()), DOWN_WINDOW);
        let within = |seconds: i32| {
            let since = before(now, seconds);
            self.recommended.iter().filter(move |(when, _)| *when > since).map(|(_, count)| *count)
        };
        let lowest = within(up).min().unwrap_or(wanted).min(wanted);
        let highest = within(down).max().unwrap_or(wanted).max(wanted);
        let steady = current.max(lowest).min(highest);
        self.recommended.push((now, wanted));
        steady
    }

    /// The number of replicas that the policies allow on the way to `wanted`.
    pub(super) fn limit(
        &self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        current: i32,
        wanted: i32,
        now: Timestamp,
    ) -> i32 {
        let policy = |kind: &str, value: i32| HPAScalingPolicy {
            type_: kind.to_owned(),
            value,
            period_seconds: 15,
        };
        if wanted == current {
            return wanted;
        }
        let grows = wanted > current;
        let rules = behavior.and_then(|behavior| {
            if grows { behavior.scale_up.as_ref() } else { behavior.scale_down.as_ref() }
        });
        let select = rules.and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let policies = rules.and_then(|rules| rules.policies.clone()).unwrap_or_else(|| {
            if grows {
                vec![policy("Pods", 4), policy("Percent", 100)]
            } else {
                vec![policy("Percent", 100)]
            }
        });
        let reach = policies.iter().map(|policy| {
            let since = before(now, policy.period_seconds);
            let recent: i32 = self
                .changes
                .iter()
                .filter(|(when, by)| *when > since && (*by > 0) == grows)
                .map(|(_, by)| *by)
                .sum();
            // The period began with as many replicas as there were before its changes.
            let began = current - recent;
            match (policy.type_.as_str(), grows) {
                ("Percent", true) => began + percent(began, policy.value, true),
                ("Percent", false) => began - percent(began, policy.value, false),
                (_, true) => began + policy.value,
                (_, false) => began - policy.value,
            }
        });
        let bound = match (select, grows) {
            ("Min", true) | ("Max", false) => reach.min(),
            _ => reach.max(),
        };
        let bound = bound.unwrap_or(wanted);
        if grows { wanted.min(bound.max(current)) } else { wanted.max(bound.min(current)) }
    }
}

fn before(now: Timestamp, seconds: i32) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MIN)
}

/// A percentage of a number of pods; growth rounds up.
fn percent(of: i32, value: i32, up: bool) -> i32 {
    let exact = i64::from(of) * i64::from(value);
    i32::try_from(if up { (exact + 99) / 100 } else { exact / 100 }).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn replicas_go_down_only_after_five_minutes_of_low_recommendations() {
        let mut history = History::default();
        assert_eq!(history.stabilise(None, 4, 8, at(0)), 8);
        assert_eq!(history.stabilise(None, 8, 2, at(15)), 8);
        assert_eq!(history.stabilise(None, 8, 2, at(299)), 8);
        assert_eq!(history.stabilise(None, 8, 2, at(301)), 2);
    }

    #[test]
    fn growth_is_limited_to_twice_the_replicas_or_four_more() {
        let mut history = History::default();
        assert_eq!(history.limit(None, 1, 50, at(0)), 5);
        history.scaled(at(0), 4);
        assert_eq!(history.limit(None, 5, 50, at(10)), 5);
        assert_eq!(history.limit(None, 5, 50, at(15)), 10);
        assert_eq!(history.limit(None, 10, 3, at(60)), 3);
    }

    #[test]
    fn policies_of_the_behavior_are_honoured() {
        let behavior: HorizontalPodAutoscalerBehavior = serde_json::from_value(serde_json::json!({
            "scaleUp": { "policies": [{ "type": "Pods", "value": 1, "periodSeconds": 60 }] },
            "scaleDown": { "selectPolicy": "Disabled" },
        }))
        .unwrap();
        let mut history = History::default();
        assert_eq!(history.limit(Some(&behavior), 3, 9, at(0)), 4);
        history.scaled(at(0), 1);
        assert_eq!(history.limit(Some(&behavior), 4, 9, at(59)), 4);
        assert_eq!(history.limit(Some(&behavior), 4, 9, at(61)), 5);
        assert_eq!(history.limit(Some(&behavior), 5, 1, at(61)), 5);
    }
}
