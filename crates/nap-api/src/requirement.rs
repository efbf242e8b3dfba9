//! The algebra of label requirements.
//!
//! A [`Requirement`] is the set of values that one label may take: a finite set, or the complement
//! of one, optionally bounded by integers. [`Requirements`] holds one per key. Two questions
//! matter: what is left when two sides both insist ([`Requirement::intersection`]), and may
//! something with these labels take something with those wishes ([`Requirements::compatible`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::labels;
use crate::values::Values;

/// The operators of a requirement, as users write them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is absent.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is an integer greater than the value.
    Gt,
    /// The label is an integer less than the value.
    Lt,
    /// The label is an integer, the value or greater.
    Gte,
    /// The label is an integer, the value or less.
    Lte,
}

/// One requirement as it is written in manifests.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirement {
    /// The label's key.
    #[schemars(
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
        )
    )]
    pub key: String,
    /// Operator between the label and the values.
    pub operator: Operator,
    /// The values; exactly one integer for the numeric operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Minimum number of distinct values among the chosen instance types (`minValues`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 50))]
    pub min_values: Option<i64>,
}

/// The values that one label may take.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Requirement {
    /// `values` are the excluded ones instead of the allowed ones.
    complement: bool,
    values: Values,
    at_least: Option<i64>,
    at_most: Option<i64>,
    min_values: Option<i64>,
}

impl Requirement {
    /// The requirement that an operator with values stands for. A numeric operator without an
    /// integer allows nothing.
    pub fn new<V: Into<Arc<str>>>(operator: Operator, values: impl IntoIterator<Item = V>) -> Self {
        let values: Values = values.into_iter().collect();
        let number = || values.first().and_then(|value| value.parse::<i64>().ok());
        let none = Self {
            complement: false,
            values: Values::default(),
            at_least: None,
            at_most: None,
            min_values: None,
        };
        let exists = Self { complement: true, ..none.clone() };
        match operator {
            Operator::In => Self { values, ..none },
            Operator::NotIn => Self { values, ..exists },
            Operator::Exists => exists,
            Operator::DoesNotExist => none,
            Operator::Gt => match number().and_then(|n| n.checked_add(1)) {
                Some(n) => Self { at_least: Some(n), ..exists },
                None => none,
            },
            Operator::Lt => match number().and_then(|n| n.checked_sub(1)) {
                Some(n) => Self { at_most: Some(n), ..exists },
                None => none,
            },
            Operator::Gte => match number() {
                Some(n) => Self { at_least: Some(n), ..exists },
                None => none,
            },
            Operator::Lte => match number() {
                Some(n) => Self { at_most: Some(n), ..exists },
                None => none,
            },
        }
    }

    /// Exactly these values.
    pub fn is_in<V: Into<Arc<str>>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::new(Operator::In, values)
    }

    /// The label must be absent.
    pub fn does_not_exist() -> Self {
        Self::is_in(Vec::<String>::new())
    }

    /// The closest single operator; bounds show as `Exists` or `NotIn`.
    pub fn operator(&self) -> Operator {
        match (self.complement, self.values.is_empty()) {
            (true, true) => Operator::Exists,
            (true, false) => Operator::NotIn,
            (false, true) => Operator::DoesNotExist,
            (false, false) => Operator::In,
        }
    }

    /// The allowed values, or the excluded ones of a complement.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The single value that is left, if only one is.
    pub fn single(&self) -> Option<&str> {
        match (self.complement, self.values.len()) {
            (false, 1) => self.values.first(),
            _ => None,
        }
    }

    /// One value that is allowed, always the same: the first of a list; otherwise the lower bound,
    /// 0 or the upper bound, or the nearest integer that is not excluded. `None` if the label must
    /// be absent.
    pub fn pick(&self) -> Option<String> {
        if !self.complement {
            return self.values.first().map(str::to_owned);
        }
        let excluded = |number: &i64| self.values.contains(&number.to_string());
        let high = self.at_most.unwrap_or(i64::MAX);
        let mut numbers: Box<dyn Iterator<Item = i64>> = match self.at_least {
            Some(low) => Box::new(low..=high),
            None => Box::new((0..=high).chain((i64::MIN..=high.min(-1)).rev())),
        };
        numbers.find(|number| !excluded(number)).map(|number| number.to_string())
    }

    /// Minimum number of distinct values (`minValues`), if any.
    pub fn min_values(&self) -> Option<i64> {
        self.min_values
    }

    /// This requirement with another `minValues`.
    #[must_use]
    pub fn with_min_values(self, min_values: Option<i64>) -> Self {
        Self { min_values, ..self }
    }

    /// The integer bounds, inclusive.
    pub fn bounds(&self) -> (Option<i64>, Option<i64>) {
        (self.at_least, self.at_most)
    }

    /// Whether the label may have this value.
    pub fn allows(&self, value: &str) -> bool {
        self.values.contains(value) != self.complement && within(value, self.at_least, self.at_most)
    }

    /// Tolerates an absent label: `NotIn` and `DoesNotExist` do.
    pub fn allows_absent(&self) -> bool {
        matches!(self.operator(), Operator::NotIn | Operator::DoesNotExist)
    }

    /// The values that both sides allow.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let at_least = self.at_least.max(other.at_least);
        let at_most = match (self.at_most, other.at_most) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let min_values = self.min_values.max(other.min_values);
        let nothing = Self { min_values, ..Self::does_not_exist() };
        if let (Some(low), Some(high)) = (at_least, at_most)
            && low > high
        {
            return nothing;
        }
        let within = |value: &str| within(value, at_least, at_most);
        let values = match (self.complement, other.complement) {
            (true, true) => self.values.union(&other.values).filtered(within),
            (true, false) => other.values.filtered(|one| within(one) && !self.values.contains(one)),
            (false, true) => self.values.filtered(|one| within(one) && !other.values.contains(one)),
            (false, false) => self.values.filtered(|one| within(one) && other.values.contains(one)),
        };
        if self.complement && other.complement {
            Self { complement: true, values, at_least, at_most, min_values }
        } else {
            Self { values, ..nothing }
        }
    }

    /// Whether any value is allowed by both sides.
    pub fn intersects(&self, other: &Self) -> bool {
        match (self.complement, other.complement) {
            (true, true) => {
                match (self.at_least.max(other.at_least), self.at_most, other.at_most) {
                    (Some(low), high, other_high) => {
                        [high, other_high].into_iter().flatten().all(|high| low <= high)
                    }
                    (None, ..) => true,
                }
            }
            (false, _) => self.values.iter().any(|value| self.allows(value) && other.allows(value)),
            (true, false) => {
                other.values.iter().any(|value| other.allows(value) && self.allows(value))
            }
        }
    }

    /// The requirement as a manifest writes it; two items when both bounds are set.
    pub fn to_specs(&self, key: &str) -> Vec<NodeSelectorRequirement> {
        let item = |operator, values: Vec<String>| NodeSelectorRequirement {
            key: key.to_owned(),
            operator,
            values,
            min_values: self.min_values,
        };
        let mut items = Vec::new();
        if let Some(low) = self.at_least {
            items.push(item(Operator::Gte, vec![low.to_string()]));
        }
        if let Some(high) = self.at_most {
            items.push(item(Operator::Lte, vec![high.to_string()]));
        }
        if items.is_empty() || !self.values.is_empty() {
            items.push(item(self.operator(), self.values.iter().map(str::to_owned).collect()));
        }
        items
    }
}

fn within(value: &str, at_least: Option<i64>, at_most: Option<i64>) -> bool {
    if at_least.is_none() && at_most.is_none() {
        return true;
    }
    let Ok(number) = value.parse::<i64>() else { return false };
    at_least.is_none_or(|low| number >= low) && at_most.is_none_or(|high| number <= high)
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter().collect::<Vec<_>>().join(", ");
        match self.operator() {
            Operator::In => write!(f, "In [{values}]")?,
            Operator::NotIn => write!(f, "NotIn [{values}]")?,
            Operator::DoesNotExist => write!(f, "DoesNotExist")?,
            _ => write!(f, "Exists")?,
        }
        if let Some(low) = self.at_least {
            write!(f, " >={low}")?;
        }
        if let Some(high) = self.at_most {
            write!(f, " <={high}")?;
        }
        Ok(())
    }
}

/// One requirement per label key. Adding to a key that is there already intersects.
///
/// There is one of these for every instance type and every node: it is a sorted list, which takes
/// less space than a map, and the keys that every type has are not copied.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "BTreeMap<String, Requirement>")]
pub struct Requirements(Vec<(Key, Requirement)>);

/// The key of a label; borrowed if it is well known.
type Key = Cow<'static, str>;

fn shared(key: &str) -> Key {
    let known = labels::WELL_KNOWN.iter().find(|one| **one == key);
    known.map_or_else(|| Cow::Owned(key.to_owned()), |known| Cow::Borrowed(*known))
}

impl From<BTreeMap<String, Requirement>> for Requirements {
    fn from(map: BTreeMap<String, Requirement>) -> Self {
        Self(map.into_iter().map(|(key, requirement)| (shared(&key), requirement)).collect())
    }
}

impl Serialize for Requirements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl fmt::Debug for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Whether labels that a side does not define can still be given to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// A hypothetical node: well-known labels are filled in by the provider.
    AllowWellKnown,
    /// A real node: what it does not have, it does not have.
    Deny,
}

/// The first key on which two sides disagree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Incompatible {
    /// The key is wanted and not defined.
    #[error("label `{key}` is not defined")]
    Undefined {
        /// The label's key.
        key: String,
    },
    /// Both define the key, and no value suits both.
    #[error("`{key}` {theirs} is not in `{key}` {ours}")]
    Conflict {
        /// The label's key.
        key: String,
        /// The node side.
        ours: String,
        /// The pod side.
        theirs: String,
    },
}

impl Requirements {
    /// No requirement at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fixed labels: each key with exactly one value.
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let mut requirements = Self::new();
        for (key, value) in labels {
            requirements.add(key, Requirement::is_in([value.as_str()]));
        }
        requirements
    }

    /// The requirements of a list in a manifest.
    pub fn from_specs<'a>(specs: impl IntoIterator<Item = &'a NodeSelectorRequirement>) -> Self {
        let mut requirements = Self::new();
        for spec in specs {
            let mut requirement =
                Requirement::new(spec.operator, spec.values.iter().map(String::as_str));
            requirement.min_values = spec.min_values;
            requirements.add(&spec.key, requirement);
        }
        requirements
    }

    /// The list as a manifest writes it, in key order.
    pub fn to_specs(&self) -> Vec<NodeSelectorRequirement> {
        self.iter().flat_map(|(key, requirement)| requirement.to_specs(key)).collect()
    }

    /// Insists on one more requirement.
    pub fn add(&mut self, key: &str, requirement: Requirement) {
        let key = labels::normalise(key);
        match self.position(key) {
            Ok(position) => {
                let mine = &mut self.0[position].1;
                *mine = mine.intersection(&requirement);
            }
            Err(position) => self.0.insert(position, (shared(key), requirement)),
        }
    }

    /// Insists on everything that the other side does.
    pub fn extend(&mut self, other: &Self) {
        for (key, requirement) in other.iter() {
            self.add(key, requirement.clone());
        }
    }

    /// Replaces what is said about a key.
    pub fn set(&mut self, key: &str, requirement: Requirement) {
        let key = labels::normalise(key);
        match self.position(key) {
            Ok(position) => self.0[position].1 = requirement,
            Err(position) => self.0.insert(position, (shared(key), requirement)),
        }
    }

    /// The requirement on a key, if any.
    pub fn get(&self, key: &str) -> Option<&Requirement> {
        self.position(key).ok().map(|position| &self.0[position].1)
    }

    /// Gives back the space that is reserved for further keys.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    /// The place of a key, or the one where it belongs.
    fn position(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(one, _)| one.as_ref().cmp(key))
    }

    /// Every key with its requirement, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Requirement)> {
        self.0.iter().map(|(key, requirement)| (key.as_ref(), requirement))
    }

    /// Nothing is required.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The labels that are fixed to one value.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.iter()
            .filter_map(|(key, one)| Some((key.to_owned(), one.single()?.to_owned())))
            .collect()
    }

    /// Whether no shared key conflicts.
    pub fn intersects(&self, other: &Self) -> Result<(), Incompatible> {
        for (key, theirs) in other.iter() {
            let Some(ours) = self.get(key) else { continue };
            let both_may_lack_it = ours.allows_absent() && theirs.allows_absent();
            if !both_may_lack_it && !ours.intersects(theirs) {
                return Err(Incompatible::Conflict {
                    key: key.to_owned(),
                    ours: ours.to_string(),
                    theirs: theirs.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Whether this (a node, or the template of one) can take what `wanted` (a pod) asks for.
    pub fn compatible(&self, wanted: &Self, undefined: Undefined) -> Result<(), Incompatible> {
        for (key, theirs) in wanted.iter() {
            let defined = self.get(key).is_some() || theirs.allows_absent();
            let allowed = undefined == Undefined::AllowWellKnown && labels::is_well_known(key);
            if !defined && !allowed {
                return Err(Incompatible::Undefined { key: key.to_owned() });
            }
        }
        self.intersects(wanted)
    }
}
