//! Guarantees of `nap bench gen`.

use clap::ValueEnum;
use nap_engine::{Options, solve};
use nap_problem::{PlanFile, judge};

use super::*;

fn args(kind: ProblemKind, pods: u32) -> GenArgs {
    GenArgs {
        kind,
        pods,
        seed: 1,
        catalogue: None,
        types: None,
        region: "eastus".to_owned(),
        case: Case::Basic,
        policy: Policy::Ignore,
        csv: None,
        times: 1,
        daemons: false,
        fleet: FleetArgs::default(),
        out: None,
    }
}

fn kinds() -> impl Iterator<Item = ProblemKind> {
    ProblemKind::value_variants().iter().copied().filter(|kind| *kind != ProblemKind::Trace)
}

#[test]
fn equal_arguments_give_equal_files() {
    for kind in kinds() {
        let text = problem(&args(kind, 200)).unwrap().to_text();
        assert!(
            text == problem(&args(kind, 200)).unwrap().to_text(),
            "{kind:?} differs from run to run"
        );
        assert!(
            text == Problem::parse(&text).unwrap().to_text(),
            "{kind:?} changes when it is read"
        );
    }
    let other = GenArgs { seed: 2, ..args(ProblemKind::Mix, 200) };
    assert_ne!(problem(&args(ProblemKind::Mix, 200)).unwrap().pods, problem(&other).unwrap().pods);
}

#[test]
fn mix_has_five_parts_and_the_remainder_is_plain() {
    let made = problem(&args(ProblemKind::Mix, 1003)).unwrap();
    let count = |part: &str| -> usize {
        made.pods
            .iter()
            .filter(|class| class.name.starts_with(part))
            .map(|class| class.replicas)
            .sum()
    };
    assert_eq!(count("plain-"), 203, "the rest of the division is plain");
    for part in ["zone-spread-", "host-spread-", "zone-together-", "host-apart-"] {
        assert_eq!(count(part), 200, "{part}");
    }
    assert!((600..730).contains(&made.pods.len()), "{} classes", made.pods.len());
    assert_eq!(made.instance_types.len(), 400);
}

#[test]
fn catalogues_have_their_stated_sizes() {
    let count = |catalogue| {
        let catalogue = Some(catalogue);
        problem(&GenArgs { catalogue, ..args(ProblemKind::OneClass, 1) })
            .unwrap()
            .instance_types
            .len()
    };
    assert_eq!(count(CatalogueKind::Fake400), 400);
    assert_eq!(count(CatalogueKind::Fake1500), 1500);
    assert_eq!(count(CatalogueKind::Kwok), 144);
    let (d, def64, all) =
        (count(CatalogueKind::D), count(CatalogueKind::Def64), count(CatalogueKind::Azure));
    assert!(100 < d && d < def64 && def64 < all, "{d} {def64} {all}");
    let thin = GenArgs {
        types: Some(40),
        catalogue: Some(CatalogueKind::Azure),
        ..args(ProblemKind::OneClass, 1)
    };
    assert_eq!(problem(&thin).unwrap().instance_types.len(), 40);
}

#[test]
fn every_kind_can_be_solved_and_judged() {
    for kind in kinds().filter(|kind| *kind != ProblemKind::Golden) {
        for daemons in [false, true] {
            let made = problem(&GenArgs { daemons, case: Case::Wide, ..args(kind, 60) }).unwrap();
            let plan = solve(&made.snapshot().unwrap(), &Options::default());
            let verdict = judge(&made, &PlanFile::of(&plan)).unwrap();
            assert_eq!(verdict.violations, [""; 0], "{}", made.name);
            match kind {
                ProblemKind::Unschedulable => assert_eq!(verdict.unplaced, 1000),
                ProblemKind::Limits => assert!(verdict.unplaced > 0 && verdict.placed > 0),
                _ => assert_eq!(verdict.unplaced, 0, "{}", made.name),
            }
        }
    }
}

#[test]
fn respected_preferences_are_refused_by_the_format() {
    let error = problem(&GenArgs { policy: Policy::Respect, ..args(ProblemKind::Preferences, 10) })
        .unwrap_err();
    assert!(error.to_string().contains("no preferences"), "{error}");
}
