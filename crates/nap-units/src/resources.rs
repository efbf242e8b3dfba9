//! Resource vectors: what a pod asks for and what a node has.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

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
///
/// A list in name order: there are few resources, and one vector or more for every instance type,
/// node and pending pod.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "BTreeMap<String, i64>")]
pub struct Resources(Vec<(Name, i64)>);

/// The name of a resource; borrowed if every node has it.
type Name = Cow<'static, str>;

fn shared(name: &str) -> Name {
    let known = [CPU, MEMORY, PODS, EPHEMERAL_STORAGE].into_iter().find(|one| *one == name);
    known.map_or_else(|| Cow::Owned(name.to_owned()), Cow::Borrowed)
}

impl From<BTreeMap<String, i64>> for Resources {
    fn from(map: BTreeMap<String, i64>) -> Self {
        Self(map.into_iter().map(|(name, amount)| (shared(&name), amount)).collect())
    }
}

impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Resources {
    /// The empty vector.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a Kubernetes resource list. Amounts beyond `i64` saturate.
    pub fn from_quantities<'a, N: AsRef<str>>(
        list: impl IntoIterator<Item = (N, &'a Quantity)>,
        rounding: Rounding,
    ) -> Self {
        let mut resources = Self::new();
        for (name, quantity) in list {
            let name = name.as_ref();
            let amount =
                if name == CPU { quantity.to_milli(rounding) } else { quantity.to_units(rounding) };
            resources.set(name, amount);
        }
        resources
    }

    /// The vector as a Kubernetes resource list.
    pub fn to_quantities(&self) -> BTreeMap<String, Quantity> {
        self.iter()
            .map(|(name, amount)| {
                let quantity = match name {
                    CPU => Quantity::from_milli(amount),
                    MEMORY | EPHEMERAL_STORAGE => Quantity::from_bytes(amount),
                    _ => Quantity::from_units(amount),
                };
                (name.to_owned(), quantity)
            })
            .collect()
    }

    /// The amount of one resource; zero if absent.
    pub fn get(&self, name: &str) -> i64 {
        self.position(name).map_or(0, |position| self.0[position].1)
    }

    /// Whether the resource was named at all, even with zero.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_ok()
    }

    /// Sets one amount.
    pub fn set(&mut self, name: impl AsRef<str>, amount: i64) {
        *self.amount_mut(name.as_ref()) = amount;
    }

    /// This, with one amount set.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<str>, amount: i64) -> Self {
        self.set(name, amount);
        self
    }

    /// Every named resource, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_ref(), *amount))
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

    /// The amount of one resource, set to zero if it was absent.
    fn amount_mut(&mut self, name: &str) -> &mut i64 {
        let position = self.position(name).unwrap_or_else(|position| {
            self.0.insert(position, (shared(name), 0));
            position
        });
        &mut self.0[position].1
    }

    /// The place of a resource, or the one where it belongs.
    fn position(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(one, _)| one.as_ref().cmp(name))
    }

    /// The larger of both, resource by resource.
    #[must_use]
    pub fn larger(&self, other: &Self) -> Self {
        let mut result = self.clone();
        for (name, amount) in other.iter() {
            let larger = result.position(name).map_or(amount, |at| result.0[at].1.max(amount));
            result.set(name, larger);
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
            .find(|(name, amount)| *amount > 0 && *amount > free.get(name))
            .map(|(name, _)| name.as_ref())
    }
}

impl<N: AsRef<str>> FromIterator<(N, i64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (N, i64)>>(iter: I) -> Self {
        let mut resources = Self::new();
        for (name, amount) in iter {
            resources.set(name, amount);
        }
        resources
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
