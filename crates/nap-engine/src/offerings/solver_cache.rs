//! State that decisions about the same pools, daemons and catalogues share.
//!
//! Finding the daemons of every type takes longer than deciding about a few pods. A caller that
//! decides many times about the same pools, as consolidation does, keeps a [`SolverCache`] and
//! passes it to [`solve_with`](crate::solve_with).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{IndexVec, PoolId};
use crate::model::{Catalogue, Daemon, Pool, Snapshot};
use crate::offerings::daemon_overhead::DaemonOverheads;
use crate::offerings::sorted_catalogue::SortedCatalogue;

/// The pools, daemons and catalogues of a snapshot, prepared for decisions.
#[derive(Debug)]
pub struct SolverCache {
    pools: IndexVec<PoolId, (Pool, DaemonOverheads)>,
    /// Every catalogue that a pool names; `None` where it does not exist.
    catalogues: BTreeMap<String, Option<Arc<Catalogue>>>,
    daemons: Vec<Daemon>,
}

impl SolverCache {
    /// Prepares the pools, daemons and catalogues of a snapshot.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut catalogues = BTreeMap::new();
        let mut pools = IndexVec::new();
        for pool in by_weight(&snapshot.pools) {
            let catalogue = snapshot.catalogues.get(&pool.catalogue);
            let overheads = DaemonOverheads::new(pool, sorted(snapshot, pool), &snapshot.daemons);
            pools.push((pool.clone(), overheads));
            catalogues.insert(pool.catalogue.clone(), catalogue.cloned());
        }
        Self { pools, catalogues, daemons: snapshot.daemons.clone() }
    }

    /// Whether a snapshot has the same pools (apart from their headroom), daemons and catalogues.
    pub fn suits(&self, snapshot: &Snapshot) -> bool {
        let same = |mine: &Pool, theirs: &Pool| {
            mine.name == theirs.name
                && mine.weight == theirs.weight
                && mine.requirements == theirs.requirements
                && mine.taints == theirs.taints
                && mine.catalogue == theirs.catalogue
                && mine.max_price == theirs.max_price
        };
        let pools = by_weight(&snapshot.pools);
        pools.len() == self.pools.len()
            && pools.iter().zip(&self.pools).all(|(theirs, (mine, _))| same(mine, theirs))
            && self.daemons == snapshot.daemons
            && self.catalogues.iter().all(|(name, catalogue)| {
                match (catalogue, snapshot.catalogues.get(name)) {
                    (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
                    (mine, theirs) => mine.is_none() && theirs.is_none(),
                }
            })
    }

    /// Daemon overheads of each pool.
    pub(crate) fn overheads(&self) -> impl Iterator<Item = &DaemonOverheads> {
        self.pools.iter().map(|(_, overheads)| overheads)
    }
}

/// The sorted catalogue of a pool; empty if the catalogue does not exist.
pub(crate) fn sorted<'a>(snapshot: &'a Snapshot, pool: &Pool) -> SortedCatalogue<'a> {
    match snapshot.catalogues.get(&pool.catalogue) {
        Some(catalogue) => catalogue.sorted(),
        None => SortedCatalogue::empty(),
    }
}

/// Pools by weight, heaviest first, then by number of taints, then by name: of equal pools, the one
/// that repels the fewest pods is preferred for a new node.
pub(crate) fn by_weight(pools: &[Pool]) -> Vec<&Pool> {
    let mut pools: Vec<&Pool> = pools.iter().collect();
    pools.sort_by(|a, b| {
        (b.weight, a.taints.len(), &a.name).cmp(&(a.weight, b.taints.len(), &b.name))
    });
    pools
}
