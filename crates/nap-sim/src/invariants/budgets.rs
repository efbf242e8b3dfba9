//! Voluntary disruption stays within the budgets of a NodePool.
//!
//! Nodes count from their initialization until their instance terminates. Budgets with a schedule
//! are not checked, nor are those of a NodePool that is gone.

use serde_json::Value;

use super::State;

/// Looks at a node that has just been chosen for disruption.
pub(super) fn check(state: &State, name: &str) -> Option<String> {
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
    let allowed = allowed(pool, reason, total)?;
    (leaving > allowed).then(|| {
        format!(
            "NodePool {}: {leaving} of {total} nodes leave with {name}, {allowed} may for {reason}",
            chosen.pool
        )
    })
}

/// Nodes that may leave at the same time; `None` without a budget that is checked.
fn allowed(pool: &Value, reason: &str, nodes: usize) -> Option<usize> {
    let budgets = pool.pointer("/spec/disruption/budgets")?.as_array()?.iter();
    let binds = |one: &&Value| {
        let reasons = one["reasons"].as_array();
        one["schedule"].is_null() && reasons.is_none_or(|all| all.iter().any(|one| one == reason))
    };
    let allowed = budgets.filter(binds).filter_map(|budget| {
        let text = budget["nodes"].as_str()?;
        match text.strip_suffix('%') {
            Some(percent) => Some((percent.parse::<usize>().ok()? * nodes).div_ceil(100)),
            None => text.parse().ok(),
        }
    });
    allowed.min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn smallest_budget_for_the_reason_binds() {
        let allowed = |budgets: Value, reason| {
            allowed(&json!({ "spec": { "disruption": { "budgets": budgets } } }), reason, 11)
        };
        let two = json!([
            { "nodes": "50%" }, { "nodes": "1", "reasons": ["Drifted"] },
            { "nodes": "0", "schedule": "@daily", "duration": "1h" },
        ]);
        assert_eq!(allowed(two.clone(), "Drifted"), Some(1));
        assert_eq!(allowed(two, "Empty"), Some(6), "rounded up");
        assert_eq!(allowed(json!([]), "Empty"), None);
    }
}
