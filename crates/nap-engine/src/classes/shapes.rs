//! Shapes: classes that are interchangeable for one purpose.

use std::hash::Hash;

use crate::ids::{ClassId, Id, IndexVec, ShapeId};
use crate::intern::Interner;

/// Classes grouped by a key, in the order of their first members.
pub(crate) struct Shapes {
    /// Classes of each shape; never empty.
    pub(crate) members: IndexVec<ShapeId, Vec<ClassId>>,
    /// Shape of each class; `None` for classes that were left out.
    pub(crate) of_class: IndexVec<ClassId, Option<ShapeId>>,
}

impl Shapes {
    /// Groups classes by a key. `len` is the number of all classes.
    pub(crate) fn of<K: Hash + Eq>(
        classes: impl IntoIterator<Item = ClassId>,
        len: usize,
        key: impl Fn(ClassId) -> K,
    ) -> Self {
        let mut keys: Interner<K> = Interner::default();
        let mut members: IndexVec<ShapeId, Vec<ClassId>> = IndexVec::new();
        let mut of_class = IndexVec::filled(None, len);
        for class in classes {
            let shape = ShapeId::new(keys.intern(key(class)));
            if shape == members.next_id() {
                members.push(Vec::new());
            }
            members[shape].push(class);
            of_class[class] = Some(shape);
        }
        Self { members, of_class }
    }

    /// Number of shapes.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }
}
