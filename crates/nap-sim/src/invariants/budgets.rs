//! Voluntary disruption stays within the budgets of a NodePool.
//!
//! Nodes count from their initialization until their instance terminates. Budgets of a NodePool
//! that is gone are not checked.

use jiff::Timestamp;
use serde_json::Value;

use super::calendar::Calendar;
use super::{DECIDED_WITHIN, State};

/// Looks at a node that has just been chosen for disruption.
pub(super) fn check(state: &State, name: &str, now: Timestamp) -> Option<String> {
    let chosen = &state.claims[name];
    let reason = chosen.reason.as_deref()?;
    let pool = state.pools.get(&chosen.pool)?;
    let of_pool = state.claims.values().filter(|one| one.pool == chosen.pool);
    let counted = of_pool.filter(|one| one.is_initialized && !one.instance_terminates);
    let (mut total, mut leaving) = (0, 0);
    for claim in counted {
        total += 1;
        leaving += usize::from(claim.reason.is_some() || claim.is_deleted);
    }
    let decided = now.checked_sub(DECIDED_WITHIN).unwrap_or(now);
    let allowed = allowed(pool, reason, total, now)?.max(allowed(pool, reason, total, decided)?);
    (leaving > allowed).then(|| {
        format!(
            "NodePool {}: {leaving} of {total} nodes leave with {name}, {allowed} may for {reason}",
            chosen.pool
        )
    })
}

/// Nodes that may leave at the same time; `None` without a budget that binds.
fn allowed(pool: &Value, reason: &str, nodes: usize, at: Timestamp) -> Option<usize> {
    let budgets = pool.pointer("/spec/disruption/budgets")?.as_array()?;
    let mut least: Option<usize> = None;
    for budget in budgets {
        // What cannot be read allows nothing, for any reason.
        let (Some(allowed), Some(is_active)) = (amount(budget, nodes), is_active(budget, at))
        else {
            return Some(0);
        };
        let reasons = budget["reasons"].as_array();
        let concerns = reasons.is_none_or(|all| all.iter().any(|one| one == reason));
        if is_active && concerns {
            least = Some(least.map_or(allowed, |least| least.min(allowed)));
        }
    }
    least
}

fn amount(budget: &Value, nodes: usize) -> Option<usize> {
    let text = budget["nodes"].as_str()?;
    match text.strip_suffix('%') {
        Some(percent) => Some((percent.parse::<usize>().ok()? * nodes).div_ceil(100)),
        None => text.parse().ok(),
    }
}

/// Whether a budget binds at a moment: always without a schedule. `None` if it cannot be read.
fn is_active(budget: &Value, at: Timestamp) -> Option<bool> {
    if budget["schedule"].is_null() && budget["duration"].is_null() {
        return Some(true);
    }
    let duration = budget["duration"].as_str().unwrap_or("0s");
    Some(Calendar::parse(budget["schedule"].as_str()?, duration, "UTC")?.is_open(at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn smallest_budget_for_the_reason_binds() {
        let allowed = |budgets: Value, reason, at: &str| {
            let pool = json!({ "spec": { "disruption": { "budgets": budgets } } });
            allowed(&pool, reason, 11, at.parse().unwrap())
        };
        let (night, day) = ("2026-01-01T00:30:00Z", "2026-01-01T01:00:00Z");
        let three = json!([
            { "nodes": "50%" }, { "nodes": "1", "reasons": ["Drifted"] },
            { "nodes": "0", "schedule": "@daily", "duration": "1h" },
        ]);
        assert_eq!(allowed(three.clone(), "Drifted", day), Some(1));
        assert_eq!(allowed(three.clone(), "Empty", day), Some(6), "rounded up");
        assert_eq!(allowed(three, "Empty", night), Some(0));
        assert_eq!(allowed(json!([]), "Empty", day), None);
        let unreadable = json!([{ "nodes": "5", "schedule": "soon", "duration": "1h" }]);
        assert_eq!(allowed(unreadable, "Empty", day), Some(0));
    }
}
