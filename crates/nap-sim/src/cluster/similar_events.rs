//! Events of workloads that say nearly the same, put together as client-go does it.
//!
//! After ten different messages about one object and reason within ten minutes, further ones are
//! one event that counts. One component publishes 25 events about an object, then one in five
//! minutes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

const MAX_DIFFERENT: usize = 10;
const WINDOW_SECONDS: i64 = 600;
const BURST: i64 = 25;
const SECONDS_PER_EVENT: i64 = 300;
/// Objects that are remembered; more are forgotten together.
const MAX_OBJECTS: usize = 4096;
/// Identity of the event that stands for all further ones.
const COMBINED: &str = "combined";

#[derive(Debug, Default)]
pub(super) struct SimilarEvents {
    /// Messages and the time of the last one, by uid of the object and reason.
    messages: BTreeMap<(String, String), (Timestamp, BTreeSet<String>)>,
    /// Events left and the time since which more are due, by component and uid of the object.
    allowances: BTreeMap<(String, String), (i64, Timestamp)>,
}

impl SimilarEvents {
    /// The text that an event shares with those it is counted with: its own message, or one for
    /// all that are similar. `None` if it is one too many.
    pub(super) fn identity(
        &mut self,
        now: Timestamp,
        component: &str,
        uid: &str,
        reason: &str,
        message: &str,
    ) -> Option<String> {
        if self.messages.len() >= MAX_OBJECTS || self.allowances.len() >= MAX_OBJECTS {
            *self = Self::default();
        }
        let entry = self.messages.entry((uid.to_owned(), reason.to_owned()));
        let (last, messages) = entry.or_insert_with(|| (now, BTreeSet::new()));
        if now.as_second() - last.as_second() > WINDOW_SECONDS {
            messages.clear();
        }
        *last = now;
        if messages.len() < MAX_DIFFERENT {
            messages.insert(message.to_owned());
        }
        let own = messages.len() < MAX_DIFFERENT;
        let entry = self.allowances.entry((component.to_owned(), uid.to_owned()));
        let (left, since) = entry.or_insert((BURST, now));
        let more = (now.as_second() - since.as_second()) / SECONDS_PER_EVENT;
        if more > 0 {
            *left = (*left + more).min(BURST);
            *since = now;
        }
        if *left == 0 {
            return None;
        }
        *left -= 1;
        Some(if own { message.to_owned() } else { COMBINED.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenth_message_is_combined_and_the_twenty_sixth_is_not_published() {
        let mut events = SimilarEvents::default();
        let start = Timestamp::UNIX_EPOCH;
        let mut told = |number: i64, seconds: i64| {
            let now = start + jiff::SignedDuration::from_secs(seconds);
            let message = format!("Created pod: web-{number}");
            events.identity(now, "replicaset-controller", "u", "SuccessfulCreate", &message)
        };
        let all: Vec<_> = (0..30).map(|number| told(number, number)).collect();
        assert_eq!(all[8].as_deref(), Some("Created pod: web-8"));
        assert!(all[9..25].iter().all(|one| one.as_deref() == Some(COMBINED)), "{all:?}");
        assert!(all[25..].iter().all(Option::is_none), "{all:?}");
        // One more after five minutes, and messages of their own after ten without any.
        assert_eq!(told(30, 310).as_deref(), Some(COMBINED));
        assert_eq!(told(31, 311), None);
        assert_eq!(told(32, 2000).as_deref(), Some("Created pod: web-32"));
    }
}
