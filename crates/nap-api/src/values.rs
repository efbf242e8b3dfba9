//! A small ordered set of label values.
//!
//! Most requirements have one value, and a region has tens of thousands of them: a node of a
//! `BTreeSet` takes ten times the space of the value. Clones share the text.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Distinct values in their order.
#[derive(Clone, Debug, Default)]
pub struct Values(Repr);

/// Few values and many of them are never confused: one value is always `One`.
#[derive(Clone, Debug, Default)]
enum Repr {
    #[default]
    Empty,
    One(Arc<str>),
    Many(Arc<[Arc<str>]>),
}

impl Values {
    /// Every value, in order.
    pub fn iter(&self) -> Iter<'_> {
        self.as_slice().iter().map(|value| &**value)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// The first value in order.
    pub fn first(&self) -> Option<&str> {
        self.as_slice().first().map(AsRef::as_ref)
    }

    /// Whether a value is in the set.
    pub fn contains(&self, value: &str) -> bool {
        match &self.0 {
            Repr::Empty => false,
            Repr::One(one) => **one == *value,
            Repr::Many(all) => all.binary_search_by(|one| (**one).cmp(value)).is_ok(),
        }
    }

    /// The values of both sets together.
    #[must_use]
    pub(crate) fn union(&self, other: &Self) -> Self {
        self.as_slice().iter().chain(other.as_slice()).cloned().collect()
    }

    /// The values that `keep` selects.
    #[must_use]
    pub(crate) fn filtered(&self, keep: impl Fn(&str) -> bool) -> Self {
        if self.iter().all(&keep) {
            return self.clone();
        }
        self.as_slice().iter().filter(|value| keep(value)).cloned().collect()
    }

    fn as_slice(&self) -> &[Arc<str>] {
        match &self.0 {
            Repr::Empty => &[],
            Repr::One(one) => std::slice::from_ref(one),
            Repr::Many(all) => all,
        }
    }
}

/// Iterator over [`Values`].
pub type Iter<'a> = std::iter::Map<std::slice::Iter<'a, Arc<str>>, fn(&'a Arc<str>) -> &'a str>;

impl<'a> IntoIterator for &'a Values {
    type Item = &'a str;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<V: Into<Arc<str>>> FromIterator<V> for Values {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        let mut values = values.into_iter().map(Into::into);
        let Some(first) = values.next() else { return Self::default() };
        let Some(second) = values.next() else { return Self(Repr::One(first)) };
        let mut all = vec![first, second];
        all.extend(values);
        all.sort_unstable();
        all.dedup();
        Self(if all.len() == 1 { Repr::One(all.swap_remove(0)) } else { Repr::Many(all.into()) })
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Values {}

impl PartialOrd for Values {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Values {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl std::hash::Hash for Values {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: &[&str]) -> Values {
        list.iter().copied().collect()
    }

    #[test]
    fn values_are_distinct_and_in_order() {
        let listed = |list: &[&str]| values(list).iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(listed(&[]), Vec::<String>::new());
        assert_eq!(listed(&["b", "b"]), ["b"]);
        assert_eq!(listed(&["c", "a", "b", "a"]), ["a", "b", "c"]);
        assert_eq!(values(&["a", "a"]), values(&["a"]));
        assert!(values(&["a"]) < values(&["a", "b"]) && values(&["a", "b"]) < values(&["b"]));
        let many = values(&["c", "a", "b"]);
        assert!(many.contains("b") && !many.contains("d") && !values(&["a"]).contains("b"));
    }

    #[test]
    fn values_are_written_as_a_list_and_read_in_any_order() {
        assert_eq!(serde_json::to_string(&values(&["b", "a"])).unwrap(), r#"["a","b"]"#);
        assert_eq!(
            serde_json::from_str::<Values>(r#"["b","a","b"]"#).unwrap(),
            values(&["a", "b"])
        );
    }
}
