//! Resource vectors: what a pod asks for and what a node has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Quantity;

/// The name of the CPU resource.
pub const CPU: &str = "cpu";
/// The name of the memory resource.
pub const MEMORY: &str = "memory";
/// The name of the pod-slot resource.
pub const PODS: &str = "pods";
/// The name of the local disk resource.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Rounding of quantities finer than a base unit: requests up, capacities down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Towards more: for requests.
    Up,
    /// Towards less: for capacities and limits.
    Down,
}

/// Amounts by resource name: milli-cores for `cpu`, whole units (bytes, counts) for everything
/// else.
///
/// A resource that is absent counts as zero. Zero amounts are kept if they were set: a limit of
/// zero is not "no limit".
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources(BTreeMap<String, i64>);

impl Resources {
    /// The empty vector.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a Kubernetes resource list. Amounts beyond `i64` saturate.
    pub fn from_quantities<'a, N: Into<String>>(
        list: impl IntoIterator<Item = (N, &'a Quantity)>,
        rounding: Rounding,
    ) -> Self {
        let mut resources = Self::new();
        for (name, quantity) in list {
            let name = name.into();
            let amount =
                if name == CPU { quantity.to_milli(rounding) } else { quantity.to_units(rounding) };
            resources.0.insert(name, amount);
        }
        resources
    }

    /// The vector as a Kubernetes resource list.
    pub fn to_quantities(&self) -> BTreeMap<String, Quantity> {
        self.0
            .iter()
            .map(|(name, amount)| {
                let quantity = match name.as_str() {
                    CPU => Quantity::from_milli(*amount),
                    MEMORY | EPHEMERAL_STORAGE => Quantity::from_bytes(*amount),
                    _ => Quantity::from_units(*amount),
                };
                (name.clone(), quantity)
            })
            .collect()
    }

    /// The amount of one resource; zero if absent.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Whether the resource was named at all, even with zero.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Sets one amount.
    pub fn set(&mut self, name: impl Into<String>, amount: i64) {
        self.0.insert(name.into(), amount);
    }

    /// This, with one amount set.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, amount: i64) -> Self {
        self.set(name, amount);
        self
    }

    /// Every named resource, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// No resource is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds another vector.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let mine = self.amount_mut(name);
            *mine = mine.saturating_add(*amount);
        }
    }

    /// Takes another vector away; the result may be negative where this had too little.
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let mine = self.amount_mut(name);
            *mine = mine.saturating_sub(*amount);
        }
    }

    /// The amount of one resource, set to zero if it was absent. Nearly all additions are of
    /// resources that are there, and need no copy of the name.
    fn amount_mut(&mut self, name: &str) -> &mut i64 {
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), 0);
        }
        self.0.get_mut(name).expect("it was inserted if it was absent")
    }

    /// The larger of both, resource by resource.
    #[must_use]
    pub fn larger(&self, other: &Self) -> Self {
        let mut result = self.clone();
        for (name, amount) in &other.0 {
            let mine = result.0.entry(name.clone()).or_insert(*amount);
            *mine = (*mine).max(*amount);
        }
        result
    }

    /// Whether this, as a request, fits into what is free. A request of zero fits anywhere.
    pub fn fits(&self, free: &Self) -> bool {
        self.first_shortage(free).is_none()
    }

    /// The first resource (in name order) of which `free` has too little.
    pub fn first_shortage(&self, free: &Self) -> Option<&str> {
        self.0
            .iter()
            .find(|(name, amount)| **amount > 0 && **amount > free.get(name))
            .map(|(name, _)| name.as_str())
    }
}

impl<N: Into<String>> FromIterator<(N, i64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (N, i64)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(name, amount)| (name.into(), amount)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_up_and_capacities_round_down() {
        let quantity: Quantity = "1500500u".parse().unwrap();
        let list = [(CPU, &quantity)];
        assert_eq!(Resources::from_quantities(list, Rounding::Up).get(CPU), 1501);
        assert_eq!(Resources::from_quantities(list, Rounding::Down).get(CPU), 1500);
    }

    #[test]
    fn a_request_fits_only_if_every_resource_does() {
        let request: Resources = [(CPU, 1000), (MEMORY, 10)].into_iter().collect();
        let free: Resources = [(CPU, 1000), (MEMORY, 9)].into_iter().collect();
        assert_eq!(request.first_shortage(&free), Some(MEMORY));
        assert!(!request.clone().with("nvidia.com/gpu", 1).fits(&free.with(MEMORY, 10)));
        assert!(Resources::new().with("nvidia.com/gpu", 0).fits(&Resources::new()));
    }
}
