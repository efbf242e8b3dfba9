//! Node classes whose machines fail for a reason that another size does not avoid.
//!
//! Azure accepts such a machine and fails it later, and its pods would be planned again at once:
//! machines would be created and deleted for ever. So the class is not ready for a while, and its
//! condition tells why.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_cloud::CloudError;

use crate::arm::Failure;

/// Hold after a failure that stays until somebody acts.
const HOLD: SignedDuration = SignedDuration::from_mins(5);
/// Minutes of hold after each passing failure in a row; the first alone holds nothing.
const PASSING_HOLDS: [i64; 5] = [0, 1, 2, 4, 8];
/// Time after a hold within which a further failure counts as one in a row.
const MEMORY: SignedDuration = SignedDuration::from_mins(30);

/// Holds by the name of the class.
#[derive(Debug, Default)]
pub(crate) struct ClassHolds(BTreeMap<String, Hold>);

#[derive(Debug)]
struct Hold {
    message: String,
    /// Time of the last failure that counted.
    at: Timestamp,
    until: Timestamp,
    /// Failures in a row.
    failures: usize,
}

impl ClassHolds {
    /// Records the failure of a machine. Machines that were created before the last failure tell
    /// nothing new.
    pub(crate) fn fail(
        &mut self,
        class: &str,
        error: &CloudError,
        created: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.0.retain(|_, hold| now < hold.until.checked_add(MEMORY).unwrap_or(Timestamp::MAX));
        let known = self.0.get(class);
        if known.is_some_and(|hold| now < hold.until || created.is_some_and(|at| at <= hold.at)) {
            return;
        }
        let failures = known.map_or(0, |hold| hold.failures) + 1;
        let hold = match Failure::of_error(error) {
            failure if failure.is_passing() => {
                let step = (failures - 1).min(PASSING_HOLDS.len() - 1);
                SignedDuration::from_mins(PASSING_HOLDS[step])
            }
            _ => HOLD,
        };
        let until = now.checked_add(hold).unwrap_or(Timestamp::MAX);
        let message = format!("machines cannot be created: {}: {}", error.code, error.message);
        self.0.insert(class.to_owned(), Hold { message, at: now, until, failures });
    }

    /// Records a machine that came to exist. One that was requested before the last failure tells
    /// nothing of it.
    pub(crate) fn succeed(&mut self, class: &str, requested: Timestamp) {
        if self.0.get(class).is_some_and(|hold| hold.at < requested) {
            self.0.remove(class);
        }
    }

    /// Why the machines of a class are not created now; `None` if they are.
    pub(crate) fn active(&self, class: &str, now: Timestamp) -> Option<&str> {
        let hold = self.0.get(class)?;
        (now < hold.until).then_some(hold.message.as_str())
    }
}

#[cfg(test)]
mod tests {
    use nap_cloud::ErrorClass;

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).unwrap()
    }

    fn error(class: ErrorClass, code: &str) -> CloudError {
        CloudError::new(class, "create machine a", code, "x")
    }

    #[test]
    fn a_failure_that_stays_holds_the_class_at_once() {
        let mut holds = ClassHolds::default();
        let denied = error(ErrorClass::CreationFailed, "KeyVaultAccessForbidden");
        holds.fail("a", &denied, None, at(0));
        let message = "machines cannot be created: KeyVaultAccessForbidden: x";
        assert_eq!(holds.active("a", at(4)), Some(message));
        assert_eq!(holds.active("b", at(4)), None);
        assert_eq!(holds.active("a", at(5)), None);
    }

    #[test]
    fn passing_failures_in_a_row_hold_for_longer_and_longer() {
        let mut holds = ClassHolds::default();
        let passing = error(ErrorClass::CreationFailed, "InternalOperationError");
        let mut minute = 0;
        for hold in [0, 1, 2, 4, 8, 8] {
            holds.fail("a", &passing, Some(at(minute)), at(minute));
            // Others that were created before say nothing new.
            holds.fail("a", &passing, Some(at(minute)), at(minute + hold));
            assert_eq!(holds.active("a", at(minute + hold)), None, "{hold}");
            if hold > 0 {
                assert!(holds.active("a", at(minute + hold - 1)).is_some(), "{hold}");
            }
            minute += hold + 1;
        }
        holds.succeed("a", at(0));
        assert!(holds.0.contains_key("a"), "the machine is older than the failure");
        holds.succeed("a", at(minute));
        holds.fail("a", &passing, None, at(minute));
        assert_eq!(holds.active("a", at(minute)), None, "the first of a new row");
        holds.fail("a", &passing, None, at(minute + 31));
        assert_eq!(holds.active("a", at(minute + 31)), None, "the row was forgotten");
    }
}
