//! Which other offerings would do: a choice from the list of a whole catalogue.
//!
//! A plan can have thousands of launches with dozens of alternatives each, from catalogues with
//! thousands of offerings. So each launch has only the places of its alternatives in a list that
//! all of them share.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::Alternative;

/// Other offerings for the same pods, cheapest first.
#[derive(Clone, Default)]
pub struct Alternatives {
    all: Arc<[Alternative]>,
    chosen: Arc<[u32]>,
}

impl Alternatives {
    /// Those of a list at some places, in their order.
    pub(crate) fn of(all: &Arc<[Alternative]>, chosen: impl IntoIterator<Item = usize>) -> Self {
        let chosen = chosen.into_iter().filter_map(|place| u32::try_from(place).ok()).collect();
        Self { all: Arc::clone(all), chosen }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.chosen.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Alternative> {
        self.chosen.iter().map(|place| &self.all[usize::try_from(*place).unwrap_or(usize::MAX)])
    }
}

impl From<Vec<Alternative>> for Alternatives {
    fn from(list: Vec<Alternative>) -> Self {
        let places = 0..list.len();
        Self::of(&list.into(), places)
    }
}

impl Index<usize> for Alternatives {
    type Output = Alternative;

    fn index(&self, index: usize) -> &Alternative {
        &self.all[usize::try_from(self.chosen[index]).unwrap_or(usize::MAX)]
    }
}

impl PartialEq for Alternatives {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Alternatives {}

impl fmt::Debug for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Alternatives {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}
