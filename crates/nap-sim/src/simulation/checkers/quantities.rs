//! Resource amounts of pods and nodes, counted after the Kubernetes documentation.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Thousandths by resource name.
pub(super) type Amounts = BTreeMap<String, i64>;

/// Reads Kubernetes quantities, rounded up to thousandths; one that cannot be read counts as 0.
pub(super) fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let read = |quantity: &Quantity| quantity.0.parse::<nap_units::Quantity>().ok();
    let milli = |quantity: &Quantity| {
        read(quantity).map_or(0, |quantity| quantity.to_milli(nap_units::Rounding::Up))
    };
    quantities.into_iter().flatten().map(|(name, one)| (name.clone(), milli(one))).collect()
}

/// Adds `other` to `sum`.
pub(super) fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        *sum.entry(name.clone()).or_default() += amount;
    }
}

/// Requests of a pod: the containers together, or the largest init container if that is more, and
/// the overhead. Sidecars are not in the workload.
pub(super) fn requests(spec: &PodSpec) -> Amounts {
    let of = |container: &Container| {
        amounts(container.resources.as_ref().and_then(|resources| resources.requests.as_ref()))
    };
    let mut sum = Amounts::new();
    for container in &spec.containers {
        add(&mut sum, &of(container));
    }
    for container in spec.init_containers.iter().flatten() {
        for (name, amount) in of(container) {
            let known = sum.entry(name).or_default();
            *known = amount.max(*known);
        }
    }
    add(&mut sum, &amounts(spec.overhead.as_ref()));
    sum
}
