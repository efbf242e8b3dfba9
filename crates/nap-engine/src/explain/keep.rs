//! English for the reasons to keep a node.
//!
//! Prices that may be estimates are marked: [`KeepReason::marked`] takes the mark.

use std::fmt;

use nap_units::UsdPerHour;

use crate::model::KeepReason;

impl KeepReason {
    /// The text with a mark before each price of a node: `~` if one of them may be an estimate.
    pub fn marked<'r>(&'r self, mark: &'r str) -> impl fmt::Display + 'r {
        Marked(self, mark)
    }
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Marked(self, "").fmt(f)
    }
}

struct Marked<'r>(&'r KeepReason, &'r str);

impl fmt::Display for Marked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reason, mark) = self;
        match reason {
            KeepReason::Receives => f.write_str("it takes pods of nodes that are removed"),
            KeepReason::Budget => f.write_str(
                "it would pay, but the disruption budgets of its NodePool allow no further \
                 disruption now",
            ),
            KeepReason::Steps { max } => {
                write!(f, "it would pay, and waits for a later pass: one has at most {max} steps")
            }
            KeepReason::EvictionBudget { workload, evictions: 0 } => {
                write!(f, "the pods of {workload} have been moved as often as they may be in a day")
            }
            KeepReason::EvictionBudget { workload, evictions } => write!(
                f,
                "it has more pods of {workload} than the {evictions} that may still be moved today"
            ),
            KeepReason::Unplaced { pod, refusal } => {
                write!(f, "pod {pod} would have no place: {refusal}")
            }
            KeepReason::NoCheaper { cost } if cost.micros() == i64::MAX => {
                f.write_str("no cheaper nodes hold its pods within the limits")
            }
            KeepReason::NoCheaper { cost } => {
                write!(f, "no cheaper nodes hold its pods: others cost at least {mark}{cost}/h")
            }
            KeepReason::SmallSaving { saving, least, percent, grows } => {
                write!(
                    f,
                    "a replacement would save {mark}{saving}/h at most, less than the least of \
                     {mark}{least}/h"
                )?;
                match (percent, grows) {
                    (0, _) => Ok(()),
                    (_, false) => write!(f, ": {percent} % of its price"),
                    (_, true) => write!(
                        f,
                        ": {percent} % of its price while the NodePool grows, which it does for an \
                         hour after a launch for pending pods"
                    ),
                }
            }
            KeepReason::Payback {
                saving,
                gain,
                effort,
                life,
                evictions,
                eviction_cost,
                overlap,
            } => {
                let (gain, effort) = (dollars(*gain), dollars(*effort));
                write!(f, "the saving of {mark}{saving}/h comes to {mark}{gain} over ")?;
                match life {
                    0 => f.write_str("its expected remaining life")?,
                    _ => write!(f, "the {} that it is expected to go on", time(*life))?,
                }
                write!(f, ", less than the {effort} that moving its pods costs")?;
                if *eviction_cost > 0 {
                    let (each, plural) =
                        (dollars(*eviction_cost), if *evictions == 1 { "" } else { "s" });
                    write!(f, ": {evictions} eviction{plural} at {each}")?;
                }
                if *overlap > 0 {
                    let overlap = time(*overlap);
                    write!(f, ", and {overlap} in which old and new nodes are both paid for")?;
                }
                Ok(())
            }
            KeepReason::Balanced { score } => write!(
                f,
                "policy Balanced: saving over disruption scores {}.{:03}, less than 0.5",
                score / 1000,
                score % 1000,
            ),
            KeepReason::SpotToSpot => f.write_str(
                "a spot node would be replaced by a spot node, which its NodePool does not allow",
            ),
            KeepReason::FewSpotTypes { types } => write!(
                f,
                "a spot node is replaced by spot only if 15 cheaper types are on sale, not {types}",
            ),
        }
    }
}

/// A time of some seconds, in minutes or hours.
fn time(seconds: i64) -> String {
    match seconds / 60 {
        minutes if minutes >= 120 && minutes % 60 == 0 => format!("{} h", minutes / 60),
        minutes => format!("{minutes} min"),
    }
}

/// An amount of micro-dollars.
fn dollars(micros: i64) -> UsdPerHour {
    UsdPerHour::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saves(micros: i64) -> UsdPerHour {
        UsdPerHour::from_micros(micros)
    }

    #[test]
    fn a_small_saving_names_the_least_share_and_why_it_is_large() {
        let words = |percent, grows| {
            let (saving, least) = (saves(80_000), saves(96_000));
            KeepReason::SmallSaving { saving, least, percent, grows }.to_string()
        };
        assert_eq!(
            words(15, false),
            "a replacement would save $0.080/h at most, less than the least of $0.096/h: 15 % of \
             its price"
        );
        let grows = words(60, true);
        assert!(grows.contains(": 60 % of its price while the NodePool grows"), "{grows}");
    }

    #[test]
    fn a_move_that_does_not_pay_back_names_every_default_that_was_used() {
        let words = |evictions, overlap| {
            let (saving, gain, effort) = (saves(20_000), 5000, 8700);
            let (life, eviction_cost) = (900, 500);
            KeepReason::Payback { saving, gain, effort, life, evictions, eviction_cost, overlap }
                .to_string()
        };
        assert_eq!(
            words(4, 300),
            "the saving of $0.020/h comes to $0.005 over the 15 min that it is expected to go \
             on, less than the $0.0087 that moving its pods costs: 4 evictions at $0.0005, and \
             5 min in which old and new nodes are both paid for"
        );
        let removal = words(1, 0);
        assert!(removal.ends_with("1 eviction at $0.0005"), "{removal}");
        assert_eq!((time(14_400), time(5400)), ("4 h".to_owned(), "90 min".to_owned()));
    }

    #[test]
    fn prices_that_may_be_estimates_are_marked() {
        let reason = KeepReason::NoCheaper { cost: saves(96_000) };
        let text = "no cheaper nodes hold its pods: others cost at least ~$0.096/h";
        assert_eq!(reason.marked("~").to_string(), text);
        assert_eq!(reason.to_string(), text.replace('~', ""));
    }
}
