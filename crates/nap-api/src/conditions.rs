//! Status conditions, by the incumbent's transition rules.
//!
//! `lastTransitionTime` moves only when the status does. `Ready` is the sum of an object's
//! dependents: true when all are, false when one is, unknown otherwise.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition that sums up the others.
pub const READY: &str = "Ready";

/// `True`, `False` or `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Not known yet.
    Unknown,
}

impl Status {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The condition of a type, if it is there.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition is there and true.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Time of the last transition of a condition; `None` if it is absent.
pub fn since(conditions: &[Condition], type_: &str) -> Option<Timestamp> {
    get(conditions, type_).map(|condition| condition.last_transition_time.0)
}

/// Writes one condition. Returns whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Status,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let fresh = Condition {
        type_: type_.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: Time(now),
    };
    if let Some(old) = conditions.iter_mut().find(|condition| condition.type_ == type_) {
        let kept =
            if old.status == fresh.status { old.last_transition_time.clone() } else { Time(now) };
        let fresh = Condition { last_transition_time: kept, ..fresh };
        let changed = *old != fresh;
        *old = fresh;
        changed
    } else {
        conditions.push(fresh);
        true
    }
}

/// Writes a true condition: its reason is its own name.
pub fn set_true(
    conditions: &mut Vec<Condition>,
    type_: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    set(conditions, type_, Status::True, type_, "", generation, now)
}

/// Removes a condition. Returns whether it was there.
pub fn clear(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

/// Adds missing dependents as unknown. Their transition is the creation of the object, so that
/// timeouts of a condition count from there.
pub fn initialise(
    conditions: &mut Vec<Condition>,
    dependents: &[&str],
    generation: Option<i64>,
    created: Timestamp,
) {
    for type_ in dependents {
        if get(conditions, type_).is_none() {
            let (reason, message) = ("AwaitingReconciliation", "object is awaiting reconciliation");
            set(conditions, type_, Status::Unknown, reason, message, generation, created);
        }
    }
}

/// Adds missing dependents as unknown and recomputes `Ready`, which comes last. A dependent that
/// was observed at another generation counts as unknown. Returns whether anything changed.
pub fn summarise(
    conditions: &mut Vec<Condition>,
    dependents: &[&str],
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let before = conditions.clone();
    initialise(conditions, dependents, generation, now);
    let is_current = |condition: &Condition| {
        condition.observed_generation.is_none() || condition.observed_generation == generation
    };
    let mut unhealthy: Vec<&Condition> = conditions
        .iter()
        .filter(|condition| {
            dependents.contains(&condition.type_.as_str())
                && !(condition.status == "True" && is_current(condition))
        })
        .collect();
    unhealthy.sort_by(|a, b| {
        (b.last_transition_time.0, &a.type_).cmp(&(a.last_transition_time.0, &b.type_))
    });
    let message: Vec<String> =
        unhealthy.iter().map(|c| format!("{}={}", c.type_, c.status)).collect();
    let is_false = |condition: &&Condition| condition.status == "False" && is_current(condition);
    let any_false = unhealthy.iter().any(is_false);
    let (status, reason) = match (unhealthy.is_empty(), any_false) {
        (true, _) => (Status::True, READY),
        (false, true) => (Status::False, "UnhealthyDependents"),
        (false, false) => (Status::Unknown, "ReconcilingDependents"),
    };
    set(conditions, READY, status, reason, &message.join(", "), generation, now);
    if let Some(position) = conditions.iter().position(|condition| condition.type_ == READY) {
        let ready = conditions.remove(position);
        conditions.push(ready);
    }
    *conditions != before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_sums_up_its_dependents_and_times_move_only_with_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        summarise(&mut conditions, &["A", "B"], Some(1), at(1));
        assert_eq!(get(&conditions, READY).unwrap().status, "Unknown");
        set_true(&mut conditions, "A", Some(1), at(2));
        set(&mut conditions, "B", Status::False, "Broken", "it broke", Some(1), at(3));
        summarise(&mut conditions, &["A", "B"], Some(1), at(3));
        let ready = get(&conditions, READY).unwrap();
        assert_eq!((ready.status.as_str(), ready.message.as_str()), ("False", "B=False"));
        set(&mut conditions, "B", Status::False, "Broken", "still", Some(1), at(9));
        assert_eq!(since(&conditions, "B"), Some(at(3)));
        set_true(&mut conditions, "B", Some(1), at(10));
        assert!(summarise(&mut conditions, &["A", "B"], Some(1), at(10)));
        assert!(is_true(&conditions, READY));
        assert!(!summarise(&mut conditions, &["A", "B"], Some(1), at(11)));
    }

    #[test]
    fn ready_holds_only_for_the_generation_that_was_observed() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ready = |conditions: &[Condition]| get(conditions, READY).unwrap().status.clone();
        let mut conditions = Vec::new();
        set_true(&mut conditions, "A", Some(1), at(1));
        summarise(&mut conditions, &["A"], Some(1), at(1));
        assert_eq!(ready(&conditions), "True");
        summarise(&mut conditions, &["A"], Some(2), at(2));
        assert_eq!(ready(&conditions), "Unknown");
        set(&mut conditions, "A", Status::False, "Broken", "", Some(2), at(3));
        summarise(&mut conditions, &["A"], Some(2), at(3));
        assert_eq!(ready(&conditions), "False");
        summarise(&mut conditions, &["A"], Some(3), at(4));
        assert_eq!(ready(&conditions), "Unknown");
    }

    #[test]
    fn missing_dependents_count_from_the_creation_of_the_object() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        set_true(&mut conditions, "A", Some(1), at(9));
        initialise(&mut conditions, &["A", "B"], Some(1), at(2));
        assert_eq!((since(&conditions, "A"), since(&conditions, "B")), (Some(at(9)), Some(at(2))));
        assert_eq!(get(&conditions, "B").unwrap().status, "Unknown");
    }
}
