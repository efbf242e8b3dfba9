//! Objects in memory: one global revision counter, a bounded history per collection, and the wakers
//! of the watches that follow it.
//!
//! Everything happens under one lock and in key order, so that equal requests give equal answers.
//! The history holds the value before and after each change; a list at an older revision is made by
//! undoing the newest changes, and a watch that changes sides of its selector sees
//! `ADDED`/`DELETED`.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;
use std::sync::Arc;
use std::task::Waker;

use fnv::FnvHasher;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::{Value, json};

use crate::object;
use crate::resources::GroupResource;

/// Changes kept per collection, or as many as it has objects if these are more: the pages of a long
/// list take long. A watch or page that is further behind gets 410 Gone.
pub(crate) const HISTORY_LIMIT: usize = 4096;

/// Namespace (empty for cluster-scoped objects) and name.
pub(crate) type Key = (String, String);

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) old: Option<Arc<Value>>,
    /// The object after the change; for a deletion its last state, stamped with the revision.
    pub(crate) new: Arc<Value>,
    pub(crate) deleted: bool,
}

impl Change {
    /// The object before the change, stamped with its revision.
    pub(crate) fn last_seen(&self) -> Arc<Value> {
        let mut last = (**self.old.as_ref().unwrap_or(&self.new)).clone();
        object::metadata(&mut last)
            .insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        Arc::new(last)
    }
}

/// All objects of one resource.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    pub(crate) objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Arc<Change>>,
    /// Number of changes that were dropped from the front of `history`.
    dropped: u64,
    /// The newest revision that was dropped.
    dropped_revision: u64,
    pub(crate) wakers: BTreeMap<u64, Waker>,
}

impl Collection {
    /// A collection whose history begins after `revision`.
    pub(crate) fn since(revision: u64) -> Self {
        Self { dropped_revision: revision, ..Self::default() }
    }

    /// The position right after the newest change.
    pub(crate) fn end(&self) -> u64 {
        self.dropped + self.history.len() as u64
    }

    /// The position of the first change after `revision`, or `None` when it was dropped.
    pub(crate) fn position_after(&self, revision: u64) -> Option<u64> {
        if revision < self.dropped_revision {
            return None;
        }
        let index = self.history.partition_point(|change| change.revision <= revision);
        Some(self.dropped + index as u64)
    }

    /// The changes from `position` on, or `None` when some of them were dropped.
    pub(crate) fn changes_from(&self, position: u64) -> Option<impl Iterator<Item = &Arc<Change>>> {
        let index = usize::try_from(position.checked_sub(self.dropped)?).ok()?;
        Some(self.history.range(index.min(self.history.len())..))
    }

    /// The objects as they were at `revision`, or `None` when history does not reach back.
    pub(crate) fn at_revision(&self, revision: u64) -> Option<BTreeMap<Key, Arc<Value>>> {
        if revision < self.dropped_revision {
            return None;
        }
        let mut objects = self.objects.clone();
        for change in self.history.iter().rev().take_while(|c| c.revision > revision) {
            let key = key_of(&change.new);
            match &change.old {
                Some(old) => objects.insert(key, Arc::clone(old)),
                None => objects.remove(&key),
            };
        }
        Some(objects)
    }

    fn push(&mut self, change: Change) -> Vec<Waker> {
        self.history.push_back(Arc::new(change));
        while self.history.len() > HISTORY_LIMIT.max(self.objects.len()) {
            if let Some(change) = self.history.pop_front() {
                self.dropped += 1;
                self.dropped_revision = change.revision;
            }
        }
        std::mem::take(&mut self.wakers).into_values().collect()
    }
}

pub(crate) fn key_of(object: &Value) -> Key {
    (object::namespace(object).to_owned(), object::name(object).to_owned())
}

/// A change of one object, as [`ApiServer::observe`](crate::ApiServer::observe) shows it.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// API group of the object; empty for the core group.
    pub group: &'a str,
    /// Plural name of its resource, such as `nodes`.
    pub plural: &'a str,
    /// The object before the change; `None` if it is created.
    pub old: Option<&'a Value>,
    /// The object after the change; `None` if it is removed.
    pub new: Option<&'a Value>,
}

/// Calls a function with every change of an object.
pub(crate) struct Observer(pub(crate) Box<dyn FnMut(Observed<'_>) + Send>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// All collections, the revision counter and the seeded source of names and uids.
#[derive(Debug)]
pub(crate) struct Store {
    revision: u64,
    pub(crate) collections: BTreeMap<GroupResource, Collection>,
    rng: Pcg64Mcg,
    /// Generator of an object that the cluster starts with; in use while it is created.
    aside: Option<Pcg64Mcg>,
    next_watch: u64,
    /// uid → where the object lives; what garbage collection asks.
    live: BTreeMap<String, (GroupResource, Key)>,
    /// owner uid → dependents.
    dependents: BTreeMap<String, std::collections::BTreeSet<(GroupResource, Key)>>,
    /// Objects whose uid vanished and whose dependents were not looked at yet.
    pub(crate) vanished: VecDeque<String>,
    /// Objects that were written with owners that garbage collection should look at.
    pub(crate) adopted: VecDeque<(GroupResource, Key)>,
    pub(crate) observers: Vec<Observer>,
}

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            revision: 1,
            collections: BTreeMap::new(),
            rng: Pcg64Mcg::seed_from_u64(seed),
            aside: None,
            next_watch: 0,
            live: BTreeMap::new(),
            dependents: BTreeMap::new(),
            vanished: VecDeque::new(),
            adopted: VecDeque::new(),
            observers: Vec::new(),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn watch_id(&mut self) -> u64 {
        self.next_watch += 1;
        self.next_watch
    }

    pub(crate) fn get(&self, resource: &GroupResource, key: &Key) -> Option<Arc<Value>> {
        self.collections.get(resource)?.objects.get(key).cloned()
    }

    pub(crate) fn located(&self, uid: &str) -> Option<&(GroupResource, Key)> {
        self.live.get(uid)
    }

    pub(crate) fn dependents_of(&self, uid: &str) -> Vec<(GroupResource, Key)> {
        self.dependents.get(uid).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Takes names and uids from a generator of its own until [`Self::end_aside`].
    pub(crate) fn begin_aside(&mut self, identity: &str) {
        let mut hasher = FnvHasher::default();
        hasher.write(identity.as_bytes());
        hasher.write_u64(self.revision);
        self.aside = Some(Pcg64Mcg::seed_from_u64(hasher.finish()));
    }

    pub(crate) fn end_aside(&mut self) {
        self.aside = None;
    }

    /// Five characters from the alphabet the real server uses for `generateName`.
    pub(crate) fn name_suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let rng = self.aside.as_mut().unwrap_or(&mut self.rng);
        (0..5)
            .map(|_| {
                let index = rng.random_range(0..ALPHABET.len());
                ALPHABET.get(index).copied().map_or('x', char::from)
            })
            .collect()
    }

    /// A version 4 uuid from the seeded generator.
    pub(crate) fn uid(&mut self) -> String {
        let mut bytes = [0_u8; 16];
        self.aside.as_mut().unwrap_or(&mut self.rng).fill_bytes(&mut bytes);
        let bits = u128::from_be_bytes(bytes);
        let bits = (bits & !(0xf << 76)) | (0x4 << 76);
        let bits = (bits & !(0x3 << 62)) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
        format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
    }

    /// Creates or replaces the object and tells the watches.
    pub(crate) fn put(&mut self, resource: &GroupResource, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object::metadata(&mut object)
            .insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        let key = key_of(&object);
        let object = Arc::new(object);
        let collection = self.collections.entry(resource.clone()).or_default();
        let old = collection.objects.insert(key.clone(), Arc::clone(&object));
        let wakers = collection.push(Change {
            revision: self.revision,
            old: old.clone(),
            new: Arc::clone(&object),
            deleted: false,
        });
        self.index(resource, &key, old.as_deref(), Some(&object));
        wake(wakers);
        object
    }

    /// Removes the object, returning its last state stamped with the revision of the deletion.
    pub(crate) fn remove(&mut self, resource: &GroupResource, key: &Key) -> Option<Arc<Value>> {
        let collection = self.collections.get_mut(resource)?;
        let old = collection.objects.remove(key)?;
        self.revision += 1;
        let mut last = (*old).clone();
        object::metadata(&mut last)
            .insert("resourceVersion".to_owned(), json!(self.revision.to_string()));
        let last = Arc::new(last);
        let wakers = collection.push(Change {
            revision: self.revision,
            old: Some(Arc::clone(&old)),
            new: Arc::clone(&last),
            deleted: true,
        });
        self.index(resource, key, Some(&old), None);
        wake(wakers);
        Some(last)
    }

    /// Drops a whole collection (its definition went away) and ends its watches.
    pub(crate) fn drop_collection(&mut self, resource: &GroupResource) {
        if let Some(collection) = self.collections.remove(resource) {
            wake(collection.wakers.into_values().collect());
        }
    }

    fn index(
        &mut self,
        resource: &GroupResource,
        key: &Key,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let (group, plural) = (resource.group.as_str(), resource.plural.as_str());
        for Observer(observer) in &mut self.observers {
            observer(Observed { group, plural, old, new });
        }
        let place = (resource.clone(), key.clone());
        if let Some(old) = old {
            for owner in object::owner_uids(old) {
                if let Some(set) = self.dependents.get_mut(owner) {
                    set.remove(&place);
                    if set.is_empty() {
                        self.dependents.remove(owner);
                    }
                }
            }
            if new.is_none() {
                self.live.remove(object::uid(old));
                self.vanished.push_back(object::uid(old).to_owned());
                // A foreground owner may have waited for this one.
                for owner in object::owner_uids(old) {
                    if let Some(owner) = self.live.get(owner) {
                        self.adopted.push_back(owner.clone());
                    }
                }
            }
        }
        if let Some(new) = new {
            self.live.insert(object::uid(new).to_owned(), place.clone());
            let owners = object::owner_uids(new);
            for owner in &owners {
                self.dependents.entry((*owner).to_owned()).or_default().insert(place.clone());
            }
            if old.is_none_or(|old| object::owner_uids(old) != owners) && !owners.is_empty() {
                self.adopted.push_back(place);
            }
        }
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, value: u64) -> Value {
        json!({"metadata": {"name": name, "uid": name}, "value": value})
    }

    #[test]
    fn older_revisions_can_be_listed_until_history_ends() {
        let mut store = Store::new(1);
        let resource = GroupResource::new("", "things");
        store.put(&resource, object("a", 1));
        let then = store.revision();
        store.put(&resource, object("a", 2));
        store.put(&resource, object("b", 1));
        store.remove(&resource, &(String::new(), "a".to_owned()));
        let collection = store.collections.get(&resource).unwrap();
        let past = collection.at_revision(then).unwrap();
        assert_eq!(past.len(), 1);
        assert_eq!(past.values().next().unwrap()["value"], 1);
        assert_eq!(collection.objects.len(), 1);
        for value in 0..HISTORY_LIMIT as u64 {
            store.put(&resource, object("c", value));
        }
        let collection = store.collections.get(&resource).unwrap();
        assert!(collection.at_revision(then).is_none());
        assert!(collection.position_after(then).is_none());
    }

    #[test]
    fn a_large_collection_keeps_as_many_changes_as_it_has_objects() {
        let mut store = Store::new(1);
        let resource = GroupResource::new("", "things");
        let large = HISTORY_LIMIT + 1000;
        for number in 0..large {
            store.put(&resource, object(&number.to_string(), 0));
        }
        let then = store.revision();
        for number in 0..large {
            store.put(&resource, object(&number.to_string(), 1));
        }
        let collection = store.collections.get(&resource).unwrap();
        assert_eq!(collection.at_revision(then).map(|past| past.len()), Some(large));
    }

    #[test]
    fn names_and_uids_repeat_with_the_seed() {
        let (mut a, mut b, mut c) = (Store::new(7), Store::new(7), Store::new(8));
        let uid = a.uid();
        assert_eq!(uid, b.uid());
        assert_ne!(uid, c.uid());
        assert_eq!(a.name_suffix(), b.name_suffix());
        assert_eq!(uid.as_bytes().get(14), Some(&b'4'));
    }
}
