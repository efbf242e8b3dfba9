//! Laws that hold for all requirements.

use nap_api::{Operator, Requirement, Requirements};
use proptest::prelude::*;

fn any_requirement() -> impl Strategy<Value = Requirement> {
    let value = prop::sample::select(vec!["a", "b", "0", "1", "2", "3", "7", "-1"]);
    let values = prop::collection::vec(value, 0..4);
    let number = -2i64..9;
    let numeric =
        prop::sample::select(vec![Operator::Gt, Operator::Lt, Operator::Gte, Operator::Lte]);
    let set = prop::sample::select(vec![
        Operator::In,
        Operator::NotIn,
        Operator::Exists,
        Operator::DoesNotExist,
    ]);
    prop_oneof![
        (set, values).prop_map(|(operator, values)| match operator {
            Operator::In | Operator::NotIn => Requirement::new(operator, values),
            _ => Requirement::new(operator, Vec::<String>::new()),
        }),
        (numeric, number)
            .prop_map(|(operator, number)| Requirement::new(operator, [number.to_string()])),
    ]
}

/// Simple requirements and intersections of two of them.
fn any_state() -> impl Strategy<Value = Requirement> {
    prop_oneof![
        any_requirement(),
        (any_requirement(), any_requirement()).prop_map(|(a, b)| a.intersection(&b)),
    ]
}

const PROBES: [&str; 13] =
    ["a", "b", "c", "-3", "-1", "0", "1", "2", "3", "4", "7", "8", "1000000"];

proptest! {
    #[test]
    fn intersection_is_commutative_associative_and_idempotent(
        a in any_state(),
        b in any_state(),
        c in any_state(),
    ) {
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.intersection(&b).intersection(&c), a.intersection(&b.intersection(&c)));
        prop_assert_eq!(a.intersection(&a), a.clone());
        let anything = Requirement::new(Operator::Exists, Vec::<String>::new());
        prop_assert_eq!(a.intersection(&anything), a);
    }

    #[test]
    fn an_intersection_allows_what_both_allow(a in any_state(), b in any_state()) {
        let both = a.intersection(&b);
        for value in PROBES {
            prop_assert_eq!(both.allows(value), a.allows(value) && b.allows(value), "{}", value);
        }
    }

    #[test]
    fn intersects_says_whether_the_intersection_allows_anything(a in any_state(), b in any_state()) {
        let both = a.intersection(&b);
        prop_assert_eq!(a.intersects(&b), b.intersects(&a));
        // Two complements count as intersecting unless their bounds cross, even where everything
        // between the bounds is excluded.
        let exists = both.operator() != Operator::DoesNotExist;
        prop_assert_eq!(a.intersects(&b), exists, "{} ∩ {}", a, b);
        if PROBES.iter().any(|value| both.allows(value)) {
            prop_assert!(a.intersects(&b));
        }
    }

    #[test]
    fn a_picked_value_is_allowed(a in any_state()) {
        match a.pick() {
            Some(value) => prop_assert!(a.allows(&value), "{} of {}", value, a),
            None => prop_assert!(!PROBES.iter().any(|value| a.allows(value)), "{}", a),
        }
    }

    #[test]
    fn manifests_lose_nothing(a in any_state()) {
        let mut requirements = Requirements::new();
        requirements.add("key", a);
        prop_assert_eq!(Requirements::from_specs(&requirements.to_specs()), requirements);
    }
}
