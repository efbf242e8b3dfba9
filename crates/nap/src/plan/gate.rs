//! Exit codes of a plan for CI.

use nap_units::UsdPerHour;

use super::format::cents;
use crate::cli::MaxCost;
use crate::user_error::UserError;

/// Exit code if something would change or a pod stays without a place.
const CHANGES: i32 = 2;
/// Exit code if the cost exceeds `--max-cost`.
const TOO_DEAR: u8 = 3;

/// What decides about the exit code.
pub struct Gate {
    /// Whether `--exit-code` was given.
    pub exit_code: bool,
    /// The ceiling, if there is one.
    pub max_cost: Option<MaxCost>,
}

impl Gate {
    /// Fails if the cost exceeds the ceiling; with `--exit-code`, ends the process if there are
    /// changes. `mark` is `~` if the cost is an estimate.
    pub fn check(&self, cost: UsdPerHour, mark: &str, has_changes: bool) -> anyhow::Result<()> {
        match self.max_cost {
            Some(MaxCost::PerHour(most)) if cost > most => {
                return Err(too_dear(&format!("{mark}{cost}/h"), &format!("{most}/h")));
            }
            Some(MaxCost::PerMonth(most)) if cost.per_month() > most => {
                let shown = |amount: UsdPerHour| format!("{}/month", cents(amount));
                let cost = format!("{mark}{}", shown(cost.per_month()));
                return Err(too_dear(&cost, &shown(most)));
            }
            _ => {}
        }
        if self.exit_code && has_changes {
            std::process::exit(CHANGES);
        }
        Ok(())
    }
}

fn too_dear(cost: &str, most: &str) -> anyhow::Error {
    let hint = "raise --max-cost, or let the pods ask for less";
    UserError::new(format!("costs {cost}, more than --max-cost {most}"), hint)
        .with_code(TOO_DEAR)
        .into()
}
