//! Notices that a VM will be lost, and node conditions that call for a repair.
//!
//! The node problem detector of AKS reads Azure's scheduled events and sets conditions on the Node,
//! with the time in the message: `Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT. …`.

use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use nap_cloud::{RepairPolicy, TerminationNotice};

/// A kind of scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The spot VM is evicted.
    Preempt,
    /// The VM is deleted.
    Terminate,
    /// The VM moves to another host and loses its temporary disk.
    Redeploy,
}

impl Event {
    /// The event that a true condition announces. Freeze and Reboot keep the VM, and AKS does
    /// nothing about them either.
    fn of(condition: &str, message: &str) -> Option<Self> {
        let word = match condition {
            "VMEventScheduled" => message.split_whitespace().next()?,
            "PreemptionScheduled" => "Preempt",
            other => other.strip_suffix("Scheduled")?,
        };
        match word {
            "Preempt" => Some(Self::Preempt),
            "Terminate" => Some(Self::Terminate),
            "Redeploy" => Some(Self::Redeploy),
            _ => None,
        }
    }

    /// Shortest time between the notice and the event.
    fn min_notice(self) -> SignedDuration {
        match self {
            Self::Preempt => SignedDuration::from_secs(30),
            Self::Terminate => SignedDuration::from_mins(5),
            Self::Redeploy => SignedDuration::from_mins(10),
        }
    }
}

/// The notice in a true condition of a Node, which holds since a time; `None` if it is none.
pub(crate) fn notice(
    condition: &str,
    message: &str,
    since: Timestamp,
) -> Option<TerminationNotice> {
    let event = Event::of(condition, message)?;
    let fallback = since.checked_add(event.min_notice()).unwrap_or(Timestamp::MAX);
    Some(TerminationNotice {
        deadline: deadline(message).unwrap_or(fallback),
        is_eviction: event == Event::Preempt,
    })
}

/// The time in the message of a condition.
fn deadline(message: &str) -> Option<Timestamp> {
    let (_, rest) = message.split_once("Scheduled: ")?;
    let (time, _) = rest.split_once("GMT")?;
    DateTimeParser::new().parse_timestamp(format!("{time}GMT")).ok()
}

/// Conditions of a Node that AKS calls unhealthy, and for how long each is tolerated. The kubelet
/// of a Node that is not ready ends no pod any more, so nothing is gained by a drain.
pub(crate) const REPAIR_POLICIES: [RepairPolicy; 4] = [
    not_ready("False"),
    not_ready("Unknown"),
    at_once("kubernetes.azure.com/NodeHealthy", "False"),
    at_once("PreemptionScheduled", "True"),
];

const fn not_ready(status: &'static str) -> RepairPolicy {
    let (toleration, drain_bound) = (Duration::from_mins(10), Some(Duration::ZERO));
    RepairPolicy { condition: "Ready", status, toleration, drain_bound }
}

const fn at_once(condition: &'static str, status: &'static str) -> RepairPolicy {
    RepairPolicy { condition, status, toleration: Duration::ZERO, drain_bound: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_a_loss_are_told_from_others() {
        let since: Timestamp = "2026-08-01T05:40:30Z".parse().unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let told = |event: &str| {
            format!("{event} Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. For more information, see x")
        };
        let exact = at("2026-08-01T05:41:02Z");
        for (condition, message, expected) in [
            ("PreemptionScheduled", told("Preempt"), Some((exact, true))),
            ("PreemptScheduled", String::new(), Some((at("2026-08-01T05:41:00Z"), true))),
            ("VMEventScheduled", told("Preempt"), Some((exact, true))),
            ("VMEventScheduled", told("Redeploy"), Some((exact, false))),
            ("VMEventScheduled", told("Freeze"), None),
            ("VMEventScheduled", told("Reboot"), None),
            ("VMEventScheduled", "VM has no scheduled event".to_owned(), None),
            ("TerminateScheduled", "soon".to_owned(), Some((at("2026-08-01T05:45:30Z"), false))),
            ("RebootScheduled", told("Reboot"), None),
            ("Ready", "kubelet is posting ready status".to_owned(), None),
        ] {
            let found = notice(condition, &message, since);
            let found = found.map(|notice| (notice.deadline, notice.is_eviction));
            assert_eq!(found, expected, "{condition}: {message}");
        }
    }
}
