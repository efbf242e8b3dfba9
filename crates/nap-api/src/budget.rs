//! Disruption budgets: how many nodes of a pool may be disrupted at this moment.

use jiff::{SignedDuration, Timestamp};

use crate::cron::Schedule;
use crate::disruption::{Span, union};
use crate::duration::parse_go_duration;
use crate::nodepool::{Budget, DisruptionReason};

/// Result of [`allowed`] when no budget applies.
pub const UNLIMITED: usize = i32::MAX as usize;

/// Number of nodes of a pool that may be disrupted for a reason at a moment, those being
/// disrupted included.
///
/// The smallest of all active budgets for the reason counts, and [`UNLIMITED`] if there is none. A
/// percentage rounds up. A budget that cannot be read closes the whole pool, whatever its reasons:
/// its intent is unknown.
pub fn allowed(
    budgets: &[Budget],
    reason: DisruptionReason,
    nodes_in_pool: usize,
    now: Timestamp,
) -> usize {
    let mut least = UNLIMITED;
    for budget in budgets {
        let Some(allowed) = allowed_by(budget, nodes_in_pool, now) else { return 0 };
        if budget.reasons.as_ref().is_none_or(|reasons| reasons.contains(&reason)) {
            least = least.min(allowed);
        }
    }
    least
}

/// The parts of a span in which budgets allow no node for a reason, however many nodes the pool
/// has, as a union.
pub fn closed(budgets: &[Budget], reason: DisruptionReason, within: Span) -> Vec<Span> {
    let mut closed = Vec::new();
    for budget in budgets {
        let (Some(allowed), Some(window)) = (amount(budget, 100), window(budget)) else {
            return vec![within];
        };
        let applies = budget.reasons.as_ref().is_none_or(|reasons| reasons.contains(&reason));
        if allowed > 0 || !applies {
            continue;
        }
        let Window::After(schedule, duration) = window else { return vec![within] };
        let since = within.from.checked_sub(duration).unwrap_or(Timestamp::MIN);
        let Some(first) = schedule.next_after(since) else { return vec![within] };
        let hits = std::iter::successors(Some(first), |hit| schedule.next_after(*hit));
        for hit in hits.take_while(|hit| *hit < within.until) {
            let until = hit.checked_add(duration).unwrap_or(Timestamp::MAX);
            closed.extend(Span::new(hit, until).and_then(|span| span.common(within)));
        }
    }
    union(closed)
}

/// Probable mistakes in a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// It cannot be read, which closes the whole pool.
    Unreadable,
    /// It allows nothing, at any time.
    AlwaysBlocks,
    /// It allows everything, so it does nothing.
    NeverBlocks,
}

/// Probable mistakes in a budget, judged from a moment on.
pub fn oddity(budget: &Budget, from: Timestamp) -> Option<Oddity> {
    let Some(allowed) = amount(budget, 100) else { return Some(Oddity::Unreadable) };
    if budget.nodes == "100%" {
        return Some(Oddity::NeverBlocks);
    }
    match always_active(budget, from) {
        None => Some(Oddity::Unreadable),
        Some(true) if allowed == 0 => Some(Oddity::AlwaysBlocks),
        Some(_) => None,
    }
}

/// Whether the windows of a budget leave no gap, as far as its next thousand hits show. `None` if
/// it cannot be read.
fn always_active(budget: &Budget, from: Timestamp) -> Option<bool> {
    const HITS: usize = 1000;
    let Window::After(schedule, duration) = window(budget)? else { return Some(true) };
    let hits = std::iter::successors(schedule.next_after(from), |hit| schedule.next_after(*hit));
    let hits: Vec<Timestamp> = hits.take(HITS).collect();
    Some(hits.windows(2).all(|pair| pair[0].duration_until(pair[1]) <= duration))
}

/// Number of nodes that one budget allows now; `None` if it cannot be parsed.
fn allowed_by(budget: &Budget, nodes_in_pool: usize, now: Timestamp) -> Option<usize> {
    let allowed = amount(budget, nodes_in_pool)?;
    Some(if is_active(budget, now)? { allowed } else { UNLIMITED })
}

/// Absolute number of nodes of a budget; `None` if it cannot be parsed.
fn amount(budget: &Budget, nodes_in_pool: usize) -> Option<usize> {
    Some(match budget.nodes.strip_suffix('%') {
        Some(percent) => {
            let percent: u128 = u128::from(percent.parse::<u32>().ok()?);
            usize::try_from((percent * nodes_in_pool as u128).div_ceil(100)).unwrap_or(UNLIMITED)
        }
        None => usize::try_from(budget.nodes.parse::<u64>().ok()?).unwrap_or(UNLIMITED),
    })
}

/// Whether a budget is active: always without a schedule, otherwise for its duration after each
/// hit. `None` if it cannot be read.
///
/// A schedule without any hit in the next five years counts as active, as it does for the
/// incumbent.
fn is_active(budget: &Budget, now: Timestamp) -> Option<bool> {
    let Window::After(schedule, duration) = window(budget)? else { return Some(true) };
    let since = now.checked_sub(duration).unwrap_or(Timestamp::MIN);
    Some(schedule.next_after(since).is_none_or(|hit| hit <= now))
}

/// Window in which a budget is active.
enum Window {
    Always,
    /// For a while after each hit.
    After(Schedule, SignedDuration),
}

/// Window in which a budget is active; `None` if it cannot be parsed.
fn window(budget: &Budget) -> Option<Window> {
    if budget.schedule.is_none() && budget.duration.is_none() {
        return Some(Window::Always);
    }
    let schedule = Schedule::parse(budget.schedule.as_deref()?)?;
    let duration = match &budget.duration {
        Some(text) => SignedDuration::try_from(parse_go_duration(text)?).ok()?,
        None => SignedDuration::ZERO,
    };
    Some(Window::After(schedule, duration))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DisruptionReason::{Drifted, Empty, Underutilized};

    fn budget(nodes: &str) -> Budget {
        Budget { reasons: None, nodes: nodes.to_owned(), schedule: None, duration: None }
    }

    fn scheduled(nodes: &str, schedule: &str, duration: &str) -> Budget {
        Budget {
            schedule: Some(schedule.to_owned()),
            duration: Some(duration.to_owned()),
            ..budget(nodes)
        }
    }

    fn at(budgets: &[Budget], nodes: usize, now: &str) -> usize {
        allowed(budgets, Empty, nodes, now.parse().unwrap())
    }

    #[test]
    fn percentages_round_up() {
        for (nodes, count, expected) in [
            ("10%", 1, 1),
            ("10%", 10, 1),
            ("10%", 11, 2),
            ("5%", 10, 1),
            ("0%", 50, 0),
            ("100%", 7, 7),
            ("10%", 0, 0),
            ("0", 10, 0),
            ("3", 10, 3),
            ("30", 10, 30),
        ] {
            assert_eq!(
                at(&[budget(nodes)], count, "2024-01-01T00:00:00Z"),
                expected,
                "{nodes} of {count}"
            );
        }
    }

    #[test]
    fn schedules_are_active_for_their_duration() {
        for (schedule, duration, now, active) in [
            ("@daily", "30m", "2024-01-10T00:00:00Z", true),
            ("@daily", "30m", "2024-01-10T00:29:59Z", true),
            // The window ends where the hit is no longer after the moment it is looked for from.
            ("@daily", "30m", "2024-01-10T00:30:00Z", false),
            ("@daily", "30m", "2024-01-10T23:59:00Z", false),
            ("@daily", "48h", "2024-01-10T17:00:00Z", true),
            ("@yearly", "24h", "2024-01-01T12:00:00Z", true),
            ("@yearly", "24h", "2024-01-02T12:00:00Z", false),
            ("30 6 * * SUN", "6h", "2024-03-03T00:00:00Z", false),
            ("30 6 * * SUN", "6h0m0s", "2024-03-03T12:00:00Z", true),
            ("0 0 31 2 *", "1h", "2024-03-03T12:00:00Z", true),
        ] {
            let expected = if active { 0 } else { UNLIMITED };
            assert_eq!(
                at(&[scheduled("0", schedule, duration)], 10, now),
                expected,
                "{schedule} {duration} at {now}"
            );
        }
    }

    #[test]
    fn the_strictest_budget_for_the_reason_counts() {
        let drift = Budget { reasons: Some(vec![Drifted]), ..budget("1") };
        let nothing = Budget { reasons: Some(Vec::new()), ..budget("0") };
        let budgets = [budget("5"), drift, budget("50%"), nothing];
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(allowed(&budgets, Drifted, 20, now), 1);
        assert_eq!(allowed(&budgets, Underutilized, 20, now), 5);
        assert_eq!(allowed(&budgets, Underutilized, 4, now), 2);
        assert_eq!(allowed(&[], Empty, 4, now), UNLIMITED);
        assert_eq!(allowed(&budgets[1..2], Empty, 4, now), UNLIMITED);
    }

    #[test]
    fn a_budget_that_cannot_be_read_closes_the_pool() {
        let now = "2024-01-01T00:00:00Z";
        let mut lonely_duration = budget("5");
        lonely_duration.duration = Some("1h".to_owned());
        for bad in [
            budget("x"),
            budget("-1"),
            budget("5.5%"),
            budget(""),
            scheduled("5", "* * * * tue-mon", "1h"),
            scheduled("5", "@daily", "soon"),
            lonely_duration,
        ] {
            assert_eq!(at(&[budget("5"), bad.clone()], 10, now), 0, "{bad:?}");
            let other = Budget { reasons: Some(vec![Drifted]), ..bad };
            assert_eq!(
                at(&[budget("5"), other], 10, now),
                0,
                "an error closes the pool for every reason"
            );
        }
        let mut no_duration = budget("0");
        no_duration.schedule = Some("@daily".to_owned());
        assert_eq!(at(&[no_duration], 10, now), UNLIMITED, "a window without length is never open");
    }

    #[test]
    fn the_times_without_any_budget_are_those_at_which_none_is_allowed() {
        let from: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let within = Span::new(from, from + SignedDuration::from_hours(72)).unwrap();
        for budgets in [
            vec![budget("5")],
            vec![budget("0")],
            vec![budget("5"), scheduled("0", "30 22 * * *", "3h")],
            vec![scheduled("0%", "@hourly", "20m"), scheduled("3", "@daily", "1h")],
            vec![scheduled("0", "0 0 31 2 *", "1h")],
            vec![scheduled("5", "soon", "1h")],
            vec![Budget { reasons: Some(vec![Drifted]), ..budget("0") }],
        ] {
            for reason in [Drifted, Empty] {
                let closed = closed(&budgets, reason, within);
                for minutes in 0..72 * 60 {
                    let now = from + SignedDuration::from_mins(minutes);
                    let is_closed = closed.iter().any(|span| span.contains(now));
                    let allowed = allowed(&budgets, reason, 100, now);
                    assert_eq!(is_closed, allowed == 0, "{budgets:?} at {now}");
                }
            }
        }
    }

    #[test]
    fn probable_mistakes_in_budgets_are_reported() {
        let from: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        for (budget, expected) in [
            (budget("10%"), None),
            (budget("0"), Some(Oddity::AlwaysBlocks)),
            (budget("0%"), Some(Oddity::AlwaysBlocks)),
            (budget("100%"), Some(Oddity::NeverBlocks)),
            (scheduled("0", "0 9 * * mon-fri", "8h"), None),
            (scheduled("0", "@daily", "24h"), Some(Oddity::AlwaysBlocks)),
            (scheduled("0", "@daily", "23h"), None),
            (scheduled("0", "0 0 30 2 *", "1h"), Some(Oddity::AlwaysBlocks)),
            (scheduled("0", "* * * * tue-mon", "1h"), Some(Oddity::Unreadable)),
            (scheduled("5", "@hourly", "1h"), None),
        ] {
            assert_eq!(oddity(&budget, from), expected, "{budget:?}");
        }
    }
}
