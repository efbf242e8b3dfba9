//! Alternative offerings of a launch, as positions in the shared list of a catalogue.
//!
//! A plan can have thousands of launches with dozens of alternatives each. So a launch stores only
//! the positions of its alternatives in one list that all launches share.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::Alternative;

/// Other offerings for the pods of a launch, cheapest first.
#[derive(Clone, Default)]
pub struct Alternatives {
    all: Arc<[Alternative]>,
    chosen: Arc<[u32]>,
}

impl Alternatives {
    /// The entries of a list at some positions, in their order.
    pub(crate) fn of(all: &Arc<[Alternative]>, chosen: impl IntoIterator<Item = usize>) -> Self {
        let chosen = chosen.into_iter().filter_map(|index| u32::try_from(index).ok()).collect();
        Self { all: Arc::clone(all), chosen }
    }

    /// Number of alternatives.
    pub fn len(&self) -> usize {
        self.chosen.len()
    }

    /// Whether there are no alternatives.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// All alternatives, cheapest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Alternative> {
        self.chosen.iter().map(|index| &self.all[*index as usize])
    }
}

impl From<Vec<Alternative>> for Alternatives {
    fn from(list: Vec<Alternative>) -> Self {
        let all = 0..list.len();
        Self::of(&list.into(), all)
    }
}

impl Index<usize> for Alternatives {
    type Output = Alternative;

    fn index(&self, index: usize) -> &Alternative {
        &self.all[self.chosen[index] as usize]
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
