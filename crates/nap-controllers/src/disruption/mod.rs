//! Fewer and cheaper machines: removes empty ones, replaces drifted ones, and moves pods to cheaper
//! ones.
//!
//! A pass looks at what was started before, then at candidates, method by method, and starts at
//! most one method's work. A command lives in the cluster itself (a mark on the old claim, an
//! annotation on its replacement), so a restart finds it.

mod candidates;
mod commands;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::nodepool::{ConsolidationPolicy, DisruptionReason};
use nap_api::{budget, conditions};
use nap_engine::{CapacityType, Plan};
use nap_units::UsdPerHour;

use crate::context::{Context, Error, Outcome};
use crate::state::removals::Removals;
use crate::state::{State, claim_is, is_ready};
use candidates::Candidate;

/// How often candidates are looked for.
const PASS: Duration = Duration::from_secs(10);
/// A cluster in which nothing changes is looked at this often all the same.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(5);
/// A machine is replaced by at most this many smaller ones.
const MAX_REPLACEMENTS: usize = 3;
/// A replacement that saves less than this is not worth moving pods for.
const LEAST_SAVING_PERCENT: i64 = 2;
/// What is found must still hold after this long: a machine that is empty for a moment is left
/// alone.
const STILL_HOLDS: SignedDuration = SignedDuration::from_secs(15);

/// One pass.
pub async fn reconcile(context: &Context) -> Outcome {
    if !context.state().is_synced() {
        return Ok(Some(Duration::from_secs(1)));
    }
    commands::progress(context).await?;
    if nothing_changed(&context.state(), context.clock.now()) {
        return Ok(Some(PASS));
    }
    if must_wait(&context.state(), context.clock.now()) {
        return Ok(Some(PASS));
    }
    let changes = context.state().changes;
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    let (mut candidates, blocked) = candidates::collect(&context.state(), &catalogues, now);
    candidates::report(context, &blocked).await;
    candidates.sort_by(|a, b| (b.price, a.name()).cmp(&(a.price, b.name())));
    let mut budgets = Budgets::default();
    let found = find_empty(context, &candidates, &mut budgets, now);
    if !found.due.is_empty() {
        for candidate in found.due {
            commands::start(
                context,
                candidate,
                DisruptionReason::Empty,
                &Plan::default(),
                &catalogues,
            )
            .await?;
        }
        return Ok(Some(Duration::from_secs(1)));
    }
    if context.state().machines().iter().any(crate::state::Machine::is_leaving) {
        // Pods are on the move: what fits where is not settled yet.
        return Ok(Some(PASS));
    }
    let names = candidates.iter().map(Candidate::name);
    let mut removals = context.state().removals(names, &catalogues, now);
    if let Some((candidate, plan)) =
        find_drifted(context, &candidates, &mut removals, &mut budgets, now)
    {
        commands::start(context, candidate, DisruptionReason::Drifted, &plan, &catalogues).await?;
        return Ok(Some(Duration::from_secs(1)));
    }
    let (underutilized, wait) =
        find_underutilized(context, &candidates, &mut removals, &mut budgets, now);
    if let Some((candidate, plan)) = underutilized {
        commands::start(context, candidate, DisruptionReason::Underutilized, &plan, &catalogues)
            .await?;
        return Ok(Some(Duration::from_secs(1)));
    }
    let wait = [found.wait, wait].into_iter().flatten().min();
    let mut state = context.state();
    let held = state.nominated.values().any(|until| *until > now) || !state.planned(now).is_empty();
    if wait.is_none() && !held {
        state.nothing_to_disrupt = Some((changes, now));
    }
    drop(state);
    Ok(Some(wait.map_or(PASS, |wait| wait.min(PASS))))
}

/// The last pass found nothing, and nothing has changed since. Prices and budgets change by
/// themselves: after a while it is worth another look.
fn nothing_changed(state: &State, now: Timestamp) -> bool {
    state.nothing_to_disrupt.is_some_and(|(changes, when)| {
        changes == state.changes && now.duration_since(when) < LOOK_AGAIN
    })
}

/// Pods that were not planned for yet come first.
fn must_wait(state: &State, now: Timestamp) -> bool {
    let planned = state.planned(now);
    state.pending(now).any(|(key, _)| !planned.contains_key(key) && !state.hopeless.contains(key))
}

/// How many more machines of each pool may be disrupted for a reason, counted once per pass.
#[derive(Default)]
struct Budgets(BTreeMap<(String, DisruptionReason), usize>);

impl Budgets {
    /// How many are left.
    fn left(
        &mut self,
        state: &State,
        candidate: &Candidate,
        reason: DisruptionReason,
        now: Timestamp,
    ) -> usize {
        let pool = candidate.pool.name_any();
        *self.0.entry((pool.clone(), reason)).or_insert_with(|| {
            let machines = state.machines();
            let mine: Vec<_> = machines
                .iter()
                .filter(|machine| machine.pool() == Some(&pool) && machine.is_initialized())
                .collect();
            let consuming = mine
                .iter()
                .filter(|machine| {
                    machine.is_leaving()
                        || machine.node.as_ref().is_some_and(|node| !is_ready(node))
                })
                .count();
            budget::allowed(&candidate.pool.spec.disruption.budgets, reason, mine.len(), now)
                .saturating_sub(consuming)
        })
    }

    /// Takes one.
    fn take(&mut self, candidate: &Candidate, reason: DisruptionReason) {
        if let Some(left) = self.0.get_mut(&(candidate.pool.name_any(), reason)) {
            *left = left.saturating_sub(1);
        }
    }
}

struct Found<'a> {
    due: Vec<&'a Candidate>,
    wait: Option<Duration>,
}

fn find_empty<'a>(
    context: &Context,
    candidates: &'a [Candidate],
    budgets: &mut Budgets,
    now: Timestamp,
) -> Found<'a> {
    let mut state = context.state();
    let empty: Vec<&Candidate> = candidates
        .iter()
        .filter(|candidate| candidate.pods.is_empty() && claim_is(&candidate.claim, CONSOLIDATABLE))
        .collect();
    state.seen_empty.retain(|name, _| empty.iter().any(|candidate| candidate.name() == name));
    let mut found = Found { due: Vec::new(), wait: None };
    for candidate in empty {
        let since = *state.seen_empty.entry(candidate.name().to_owned()).or_insert(now);
        let left = STILL_HOLDS - now.duration_since(since);
        if left.is_positive() {
            let left = Duration::try_from(left).unwrap_or_default();
            found.wait = Some(found.wait.map_or(left, |wait| wait.min(left)));
        } else if budgets.left(&state, candidate, DisruptionReason::Empty, now) > 0 {
            budgets.take(candidate, DisruptionReason::Empty);
            found.due.push(candidate);
        }
    }
    found
}

fn find_drifted<'a>(
    context: &Context,
    candidates: &'a [Candidate],
    removals: &mut Removals,
    budgets: &mut Budgets,
    now: Timestamp,
) -> Option<(&'a Candidate, Plan)> {
    let state = context.state();
    let mut drifted: Vec<&Candidate> =
        candidates.iter().filter(|candidate| claim_is(&candidate.claim, DRIFTED)).collect();
    let since = |candidate: &Candidate| {
        candidate
            .claim
            .status
            .as_ref()
            .and_then(|status| conditions::since(&status.conditions, DRIFTED))
    };
    drifted.sort_by_key(|candidate| {
        (!candidate.pods.is_empty(), since(candidate), candidate.name().to_owned())
    });
    for candidate in drifted {
        if budgets.left(&state, candidate, DisruptionReason::Drifted, now) == 0 {
            continue;
        }
        let plan = removals.without(candidate.name(), |snapshot| context.solve(snapshot));
        if plan.unplaced.is_empty() {
            return Some((candidate, plan));
        }
    }
    None
}

/// The candidate whose removal or replacement saves most, if it has been worth it for long enough.
fn find_underutilized<'a>(
    context: &Context,
    candidates: &'a [Candidate],
    removals: &mut Removals,
    budgets: &mut Budgets,
    now: Timestamp,
) -> (Option<(&'a Candidate, Plan)>, Option<Duration>) {
    let mut state = context.state();
    let mut best: Option<(&Candidate, Plan)> = None;
    for candidate in candidates {
        let consolidates = candidate.pool.spec.disruption.consolidation_policy
            == ConsolidationPolicy::WhenEmptyOrUnderutilized;
        let Some(price) = candidate.price else { continue };
        let wanted = consolidates
            && !candidate.pods.is_empty()
            && claim_is(&candidate.claim, CONSOLIDATABLE);
        if !wanted || budgets.left(&state, candidate, DisruptionReason::Underutilized, now) == 0 {
            continue;
        }
        let plan = removals.without(candidate.name(), |snapshot| context.solve(snapshot));
        if !plan.unplaced.is_empty() || !is_worth_it(&plan, price) {
            continue;
        }
        // Spot for spot only moves pods towards what is taken back next.
        let spot_for_spot = candidate.capacity_type == Some(CapacityType::Spot)
            && plan.launches.iter().any(|launch| launch.capacity_type == CapacityType::Spot);
        let saves_more = best.as_ref().is_none_or(|(other, other_plan)| {
            price - plan.cost > other.price.unwrap_or_default() - other_plan.cost
        });
        if !spot_for_spot && saves_more {
            best = Some((candidate, plan));
        }
    }
    let Some((candidate, plan)) = best else {
        state.seen_underutilized = None;
        return (None, None);
    };
    let since = match &state.seen_underutilized {
        Some((name, since)) if name == candidate.name() => *since,
        _ => now,
    };
    state.seen_underutilized = Some((candidate.name().to_owned(), since));
    let left = STILL_HOLDS - now.duration_since(since);
    if left.is_positive() {
        return (None, Some(Duration::try_from(left).unwrap_or_default()));
    }
    state.seen_underutilized = None;
    (Some((candidate, plan)), None)
}

/// Whether a saving is worth moving pods for. To delete a machine always is; a replacement must
/// save something that a user would notice, and must not scatter the pods.
fn is_worth_it(plan: &Plan, price: UsdPerHour) -> bool {
    let saving = (price - plan.cost).micros();
    if plan.launches.is_empty() {
        return saving > 0;
    }
    plan.launches.len() <= MAX_REPLACEMENTS
        && saving * 100 >= price.micros() * LEAST_SAVING_PERCENT
        && saving > 0
}

/// Errors are those of the commands.
type Result<T> = std::result::Result<T, Error>;
