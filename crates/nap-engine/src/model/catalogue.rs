//! The instance types that one node class can launch.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use nap_api::Requirements;
use serde::{Deserialize, Serialize, Serializer};

use crate::intern::Interner;
use crate::model::{InstanceType, Offering};

/// The instance types that one node class can launch.
///
/// Sorting thousands of offerings takes longer than a small decision, so a catalogue keeps the
/// tables that decisions derive from its types until [`Catalogue::edit`] is called.
#[derive(Default, Deserialize)]
#[serde(from = "Vec<InstanceType>")]
pub struct Catalogue {
    types: Vec<InstanceType>,
    derived: Derived,
}

/// Tables derived from the types by a later stage; empty until first asked for.
type Derived = OnceLock<Box<dyn Any + Send + Sync>>;

impl Catalogue {
    /// Catalogue without types.
    pub(crate) const fn empty() -> Self {
        Self { types: Vec::new(), derived: OnceLock::new() }
    }

    /// The instance types.
    pub fn types(&self) -> &[InstanceType] {
        &self.types
    }

    /// The instance types, to be changed. Drops the tables derived from them.
    pub fn edit(&mut self) -> &mut Vec<InstanceType> {
        self.derived.take();
        &mut self.types
    }

    /// Tables derived from the types, computed on first use. `None` if another type of tables was
    /// derived before: a catalogue keeps one.
    pub(crate) fn derived<T: Any + Send + Sync>(
        &self,
        derive: impl FnOnce(&[InstanceType]) -> T,
    ) -> Option<&T> {
        self.derived.get_or_init(|| Box::new(derive(&self.types))).downcast_ref()
    }
}

impl From<Vec<InstanceType>> for Catalogue {
    fn from(types: Vec<InstanceType>) -> Self {
        Self::from_iter(types)
    }
}

impl FromIterator<InstanceType> for Catalogue {
    fn from_iter<I: IntoIterator<Item = InstanceType>>(types: I) -> Self {
        let mut shared = SharedRequirements::default();
        let slim = |mut one: InstanceType| {
            one.requirements.shrink();
            shared.share(&mut one.offerings);
            one
        };
        let mut types: Vec<InstanceType> = types.into_iter().map(slim).collect();
        types.shrink_to_fit();
        Self { types, derived: OnceLock::new() }
    }
}

/// Makes offerings share equal requirements: there are thousands of offerings, but few combinations
/// of zone and capacity type.
#[derive(Default)]
struct SharedRequirements {
    known: Interner<Arc<Requirements>>,
    /// Those of the type before, in the order of its offerings. Most types are offered in the same
    /// zones, in the same order.
    before: Vec<Arc<Requirements>>,
}

impl SharedRequirements {
    fn share(&mut self, offerings: &mut [Offering]) {
        self.before.resize_with(self.before.len().max(offerings.len()), Arc::default);
        for (offering, before) in offerings.iter_mut().zip(&mut self.before) {
            if offering.requirements != *before {
                let number = self.known.intern(Arc::clone(&offering.requirements));
                *before = Arc::clone(&self.known.items[number]);
            }
            offering.requirements = Arc::clone(before);
        }
    }
}

impl Serialize for Catalogue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.types.serialize(serializer)
    }
}

impl Clone for Catalogue {
    fn clone(&self) -> Self {
        Self { types: self.types.clone(), derived: OnceLock::new() }
    }
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.types.fmt(f)
    }
}

impl PartialEq for Catalogue {
    fn eq(&self, other: &Self) -> bool {
        self.types == other.types
    }
}

impl Eq for Catalogue {}
