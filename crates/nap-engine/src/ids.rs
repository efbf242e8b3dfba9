//! Typed indices and the vectors that they index.
//!
//! The engine interns classes, offerings, terms and domains once and works with their indices. Each
//! kind of index is a type of its own, so that the compiler rejects a pool where a class belongs.

use std::fmt;
use std::iter::Map;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};

/// An index of one kind.
pub(crate) trait Id: Copy {
    /// Makes the id of a position.
    fn new(index: usize) -> Self;
    /// Position in the vector that the id indexes.
    fn index(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(u32);

        impl Id for $name {
            fn new(index: usize) -> Self {
                debug_assert!(u32::try_from(index).is_ok(), "indices fit into 32 bits");
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A class of interchangeable pods, in placement order.
    ClassId;
    /// A set of node constraints: classes with equal terms, volumes and tolerations share it.
    NodeConstraintsId;
    /// A NodePool, in the order of [`crate::offerings::solver_cache::by_weight`].
    PoolId;
    /// An instance type of a pool's catalogue, by name.
    TypeId;
    /// An offering of a pool's catalogue, cheapest first.
    OfferingId;
    /// A distinct set of offering labels in a catalogue.
    LabelSetId;
    /// A conjunction of node requirements.
    TermId;
    /// A pool with the terms of the pods on a node: the key of an eligibility set.
    EligibilityId;
    /// A topology group: one pod count for each domain of a label.
    GroupId;
    /// A label, other than the hostname, whose values are topology domains.
    KeyId;
    /// A value of a topology label.
    DomainId;
    /// A node that exists or is in flight.
    NodeIdx;
    /// A hypothetical node of a packing.
    BinId;
    /// A shape of pods: classes that are interchangeable for packing.
    ShapeId;
}

impl EligibilityId {
    /// The eligibility set of a pool without pods, which has the index of the pool.
    pub(crate) fn of_pool(pool: PoolId) -> Self {
        Self(pool.0)
    }
}

/// Consecutive ids, from the first on.
pub(crate) type Ids<I> = Map<Range<usize>, fn(usize) -> I>;

/// A vector that is indexed by one kind of id.
pub(crate) struct IndexVec<I, T> {
    items: Vec<T>,
    id: PhantomData<fn(I) -> I>,
}

impl<I: Id, T> IndexVec<I, T> {
    /// Empty vector.
    pub(crate) fn new() -> Self {
        Self::from_iter([])
    }

    /// Empty vector with room for `capacity` items.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { items: Vec::with_capacity(capacity), id: PhantomData }
    }

    /// Vector with `len` copies of an item.
    pub(crate) fn filled(item: T, len: usize) -> Self
    where
        T: Clone,
    {
        Self { items: vec![item; len], id: PhantomData }
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Id that the next pushed item gets.
    pub(crate) fn next_id(&self) -> I {
        I::new(self.items.len())
    }

    /// Adds an item and returns its id.
    pub(crate) fn push(&mut self, item: T) -> I {
        let id = self.next_id();
        self.items.push(item);
        id
    }

    /// The item with an id; `None` beyond the end.
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// All ids, in order.
    pub(crate) fn ids(&self) -> Ids<I> {
        (0..self.items.len()).map(I::new)
    }

    /// All items, in order.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// All items with their ids, in order.
    pub(crate) fn enumerate(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + Clone {
        self.items.iter().enumerate().map(|(index, item)| (I::new(index), item))
    }

    /// All items as a slice.
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.items
    }

    /// The vector without its typed index, for operations that change its length.
    pub(crate) fn raw_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }

    /// Grows the vector with copies of `item` until it holds `id`, and returns that entry.
    pub(crate) fn grow_to(&mut self, id: I, item: T) -> &mut T
    where
        T: Clone,
    {
        if self.items.len() <= id.index() {
            self.items.resize(id.index() + 1, item);
        }
        &mut self.items[id.index()]
    }
}

impl<I: Id, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IndexVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I, T> FromIterator<T> for IndexVec<I, T> {
    fn from_iter<A: IntoIterator<Item = T>>(items: A) -> Self {
        Self { items: items.into_iter().collect(), id: PhantomData }
    }
}

impl<I, T> From<Vec<T>> for IndexVec<I, T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, id: PhantomData }
    }
}

impl<I, T> IntoIterator for IndexVec<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'v, I, T> IntoIterator for &'v IndexVec<I, T> {
    type Item = &'v T;
    type IntoIter = std::slice::Iter<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

impl<'v, I, T> IntoIterator for &'v mut IndexVec<I, T> {
    type Item = &'v mut T;
    type IntoIter = std::slice::IterMut<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter_mut()
    }
}

impl<I, T> Default for IndexVec<I, T> {
    fn default() -> Self {
        Self { items: Vec::new(), id: PhantomData }
    }
}

impl<I, T: Clone> Clone for IndexVec<I, T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), id: PhantomData }
    }
}

impl<I, T: fmt::Debug> fmt::Debug for IndexVec<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}
