//! Distance of plans from the optimum, where the optimum is known.

use std::cell::Cell;
use std::sync::Arc;

use nap_api::labels;
use nap_engine::{CapacityType, Options, PodKey, PreferencePolicy, Snapshot, solve};
use nap_oracle::{bound, check, exact, generate, scenario, with_every_domain};
use nap_units::UsdPerHour;

use crate::judge::{judge, seeds};

/// Maximum number of pods of a small case.
const SMALL: usize = 12;

fn ignoring() -> Options {
    Options { preferences: PreferencePolicy::Ignore, ..Options::default() }
}

/// A small snapshot without features that the exact solver refuses: weights, `minValues` and
/// unsupported fields.
fn small(seed: u64) -> Snapshot {
    let mut snapshot = generate(seed);
    snapshot.pods.truncate(SMALL);
    for pod in &mut snapshot.pods {
        pod.unsupported = None;
    }
    for pool in &mut snapshot.pools {
        pool.weight = 0;
        for key in [labels::INSTANCE_TYPE, labels::ZONE] {
            if let Some(wanted) = pool.requirements.get(key) {
                let wanted = wanted.clone().with_min_values(None);
                pool.requirements.set(key, wanted);
            }
        }
    }
    snapshot
}

fn all(snapshot: &Snapshot) -> Vec<&PodKey> {
    snapshot.pods.iter().map(|pod| &pod.key).collect()
}

#[test]
fn plan_costs_at_least_the_optimum_and_bounds_at_most() {
    let solved = Cell::new(0);
    judge(
        "optimum",
        |seed| (small(seed), ignoring()),
        |snapshot, options| {
            let best = exact(snapshot, options).ok()?;
            solved.set(solved.get() + 1);
            let plan = solve(snapshot, options);
            let keeps_the_rules = check(&with_every_domain(snapshot), options, &plan).is_empty();
            let is_complete = plan.unplaced.is_empty() && keeps_the_rules;
            let Some(best) = best.map(|best| best.cost) else {
                return is_complete
                    .then(|| format!("there is no plan, and yet one for {}", plan.cost));
            };
            let outside = bound(snapshot, &all(snapshot));
            let own = plan.lower_bound.filter(|_| is_complete);
            let wrong = is_complete && plan.cost < best
                || outside.is_none_or(|bound| bound > best)
                || own.is_some_and(|bound| bound > best);
            wrong.then(|| {
                format!("optimum {best}, plan {}, bounds {own:?} and {outside:?}", plan.cost)
            })
        },
    );
    assert_solved(solved.get());
}

/// Fails if the exact solver solved less than [`MIN_SOLVED`] percent of the cases.
fn assert_solved(solved: usize) {
    let cases = usize::try_from(seeds().end - seeds().start).unwrap();
    assert!(solved * 100 >= cases * MIN_SOLVED, "only {solved} of {cases} cases were solved");
}

/// A percentile of a sorted list.
fn at(sorted: &[i64], percent: usize) -> i64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
fn small_plans_are_as_close_to_the_optimum_as_measured() {
    let options = ignoring();
    let (mut ratios, mut incomplete, mut known) = (Vec::new(), 0, 0);
    for snapshot in seeds().map(small) {
        let Ok(Some(best)) = exact(&snapshot, &options) else { continue };
        known += 1;
        let plan = solve(&snapshot, &options);
        if !plan.unplaced.is_empty() {
            incomplete += 1;
        } else if best.cost > UsdPerHour::ZERO && snapshot.reservations.is_empty() {
            // In thousandths. Reserved capacity is almost free, which makes ratios meaningless.
            ratios.push(plan.cost.micros() * 1000 / best.cost.micros());
        }
    }
    ratios.sort_unstable();
    let (half, p95, worst) = (at(&ratios, 50), at(&ratios, 95), at(&ratios, 100));
    println!(
        "{known} optima known, {incomplete} incomplete; per mille of the optimum: {half}, {p95}, {worst}"
    );
    assert_solved(known);
    assert!(
        half <= 1000 && p95 <= MAX_P95 && worst <= MAX_WORST,
        "{half}, {p95}, {worst} per mille of the optimum"
    );
    assert!(
        incomplete * 100 <= known * MAX_INCOMPLETE,
        "{incomplete} of {known} plans leave pods unplaced that the optimum places"
    );
}

/// Cost of the 95th percentile of small plans and of the worst, in thousandths of the optimum, as
/// measured over the default number of cases (348 optima known, 13 plans incomplete); 5,000 cases
/// give the figures of `docs/judges.md`. The generator's prices differ far more than real ones,
/// with spot at a quarter in single zones.
const MAX_P95: i64 = 2000;
const MAX_WORST: i64 = 9301;
/// Percentage of cases with a complete optimum whose plan may leave pods unplaced.
const MAX_INCOMPLETE: usize = 4;
/// Percentage of cases that the exact solver must solve.
const MIN_SOLVED: usize = 30;

/// The snapshot without one offering. Others have its zone and capacity type, so no domain is lost.
fn with_less(snapshot: &Snapshot, seed: u64) -> Option<Snapshot> {
    let mut spare = Vec::new();
    for (name, types) in &snapshot.catalogues {
        for (kind, of) in types.types().iter().enumerate() {
            for (number, one) in of.offerings.iter().enumerate() {
                let others = types.types().iter().enumerate().filter(|(other, _)| *other != kind);
                let mut others =
                    others.flat_map(|(_, other)| &other.offerings).filter(|other| other.available);
                let is_spare = others.any(|other| {
                    (&other.zone, other.capacity_type) == (&one.zone, one.capacity_type)
                });
                if one.available && is_spare && one.capacity_type != CapacityType::Reserved {
                    spare.push((name.clone(), kind, number));
                }
            }
        }
    }
    let pick = usize::try_from(seed.wrapping_mul(7919)).unwrap_or(0) % spare.len().max(1);
    let (name, kind, number) = spare.get(pick)?;
    let mut less = snapshot.clone();
    Arc::make_mut(less.catalogues.get_mut(name)?).edit()[*kind].offerings[*number].available =
        false;
    Some(less)
}

#[test]
fn another_offering_raises_the_cost_in_at_most_two_percent_of_cases() {
    let options = ignoring();
    let (mut compared, mut dearer, mut worst) = (0, 0, (1000, 0));
    for seed in seeds() {
        let mut snapshot = generate(seed);
        for pool in &mut snapshot.pools {
            pool.weight = 0;
        }
        let Some(less) = with_less(&snapshot, seed) else { continue };
        let (with, without) = (solve(&snapshot, &options), solve(&less, &options));
        let is_equal = with
            .unplaced
            .iter()
            .map(|one| &one.pod)
            .eq(without.unplaced.iter().map(|one| &one.pod));
        if !is_equal || without.cost == UsdPerHour::ZERO {
            continue;
        }
        compared += 1;
        dearer += usize::from(with.cost.micros() * 100 > without.cost.micros() * 101);
        worst = worst.max((with.cost.micros() * 1000 / without.cost.micros(), seed));
    }
    println!(
        "{compared} compared, {dearer} dearer by more than 1 %, the worst {worst:?} (per mille, seed)"
    );
    let case = || scenario(&generate(worst.1), &options);
    assert!(
        dearer * 100 <= compared * 2,
        "{dearer} of {compared} are dearer by more than 1 %: {}",
        case()
    );
    assert!(worst.0 <= 4000, "{} per mille with an offering more: {}", worst.0, case());
}
