//! English for the reasons to keep a node.

use std::fmt;

use nap_units::UsdPerHour;

use crate::model::KeepReason;

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receives => f.write_str("it takes pods of nodes that are removed"),
            Self::Budget => f.write_str("the disruption budgets of its NodePool are used up"),
            Self::EvictionBudget { workload, evictions: 0 } => {
                write!(f, "the pods of {workload} have been moved as often as they may be in a day")
            }
            Self::EvictionBudget { workload, evictions } => write!(
                f,
                "it has more pods of {workload} than the {evictions} that may still be moved today"
            ),
            Self::Unplaced { pod, refusal } => {
                write!(f, "pod {pod} would have no place: {refusal}")
            }
            Self::NoCheaper { cost } if cost.micros() == i64::MAX => {
                f.write_str("no cheaper nodes hold its pods within the limits")
            }
            Self::NoCheaper { cost } => {
                write!(f, "no cheaper nodes hold its pods: others cost at least {cost}/h")
            }
            Self::SmallSaving { saving, least } => {
                write!(f, "a replacement would save {saving}/h, less than the least of {least}/h")
            }
            Self::Payback { saving, gain, effort } => write!(
                f,
                "the saving of {saving}/h comes to {} over its expected remaining life, less than \
                 the {} that moving its pods costs",
                dollars(*gain),
                dollars(*effort),
            ),
            Self::Balanced { score } => write!(
                f,
                "policy Balanced: saving over disruption scores {}.{:03}, less than 0.5",
                score / 1000,
                score % 1000,
            ),
            Self::SpotToSpot => f.write_str(
                "a spot node would be replaced by a spot node, which its NodePool does not allow",
            ),
            Self::FewSpotTypes { types } => write!(
                f,
                "a spot node is replaced by spot only if 15 cheaper types are on sale, not {types}",
            ),
        }
    }
}

/// An amount of micro-dollars.
fn dollars(micros: i64) -> UsdPerHour {
    UsdPerHour::from_micros(micros)
}
