//! What can be said about pools before any pod is known.
//!
//! Finding which daemons run on which type of which pool takes longer than deciding about a handful
//! of pods. Whoever decides many times about the same pools and catalogues, as consolidation does,
//! keeps a [`SolverCache`] and hands it to [`solve_with`](crate::solve_with).

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::Requirements;
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_units::Resources;

use crate::intern::Interner;
use crate::model::catalogue::{Catalogue, SortedCatalogue};
use crate::model::pod_rules::HostPort;
use crate::model::{Daemon, InstanceType, Pool, Snapshot};

/// The pools, daemons and catalogues of a snapshot, ready for decisions.
#[derive(Debug)]
pub struct SolverCache {
    /// Heaviest first.
    pub(crate) pools: Vec<PoolCache>,
    /// By the names of all catalogues that pools name, whether they exist or not.
    catalogues: BTreeMap<String, Option<Arc<Catalogue>>>,
    daemons: Vec<Daemon>,
}

/// A pool, and what daemons take on each type.
#[derive(Debug)]
pub(crate) struct PoolCache {
    pool: Pool,
    /// The distinct loads of daemons.
    pub(crate) loads: Vec<DaemonOverhead>,
    /// Which of them each type has, in the order of the stock.
    pub(crate) load_of: Vec<usize>,
}

/// What the daemons of a machine take together.
#[derive(Debug, Default)]
pub(crate) struct DaemonOverhead {
    pub(crate) requests: Resources,
    pub(crate) ports: Vec<HostPort>,
}

impl SolverCache {
    /// Prepares the pools, daemons and catalogues of a snapshot.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut catalogues = BTreeMap::new();
        let mut pools = Vec::new();
        for pool in in_order(&snapshot.pools) {
            let catalogue = snapshot.catalogues.get(&pool.catalogue);
            pools.push(PoolCache::new(pool, stock(snapshot, pool), &snapshot.daemons));
            catalogues.insert(pool.catalogue.clone(), catalogue.cloned());
        }
        Self { pools, catalogues, daemons: snapshot.daemons.clone() }
    }

    /// Whether a snapshot has the same pools (apart from what their limits leave), daemons and
    /// catalogues.
    pub fn suits(&self, snapshot: &Snapshot) -> bool {
        let same = |mine: &Pool, theirs: &Pool| {
            mine.name == theirs.name
                && mine.weight == theirs.weight
                && mine.requirements == theirs.requirements
                && mine.taints == theirs.taints
                && mine.catalogue == theirs.catalogue
        };
        let pools = in_order(&snapshot.pools);
        pools.len() == self.pools.len()
            && pools.iter().zip(&self.pools).all(|(theirs, mine)| same(&mine.pool, theirs))
            && self.daemons == snapshot.daemons
            && self.catalogues.iter().all(|(name, catalogue)| {
                match (catalogue, snapshot.catalogues.get(name)) {
                    (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
                    (mine, theirs) => mine.is_none() && theirs.is_none(),
                }
            })
    }
}

/// What a pool buys from.
pub(crate) fn stock<'a>(snapshot: &'a Snapshot, pool: &Pool) -> SortedCatalogue<'a> {
    match snapshot.catalogues.get(&pool.catalogue) {
        Some(catalogue) => catalogue.stock(),
        None => SortedCatalogue::nothing(),
    }
}

/// Heaviest first. Where all else is equal, a pool that keeps fewer pods away is the better place
/// to begin a node in.
pub(crate) fn in_order(pools: &[Pool]) -> Vec<&Pool> {
    let mut pools: Vec<&Pool> = pools.iter().collect();
    pools.sort_by(|a, b| {
        (b.weight, a.taints.len(), &a.name).cmp(&(a.weight, b.taints.len(), &b.name))
    });
    pools
}

impl PoolCache {
    fn new(pool: &Pool, stock: SortedCatalogue<'_>, daemons: &[Daemon]) -> Self {
        let tolerant = daemons
            .iter()
            .filter(|one| first_untolerated(&pool.taints, &one.tolerations).is_none());
        let daemons: Vec<&Daemon> = tolerant.collect();
        let mut sets: Interner<Vec<usize>> = Interner::default();
        let runs = |kind: usize| {
            let runs = |number: &usize| runs_on(daemons[*number], pool, stock.kind(kind));
            (0..daemons.len()).filter(runs).collect()
        };
        let load_of = (0..stock.len()).map(|kind| sets.number(runs(kind))).collect();
        let load = |set: &Vec<usize>| {
            let mut load = DaemonOverhead::default();
            for daemon in set.iter().map(|number| daemons[*number]) {
                load.requests.add(&daemon.requests);
                load.ports.extend(daemon.host_ports.iter().cloned());
            }
            load
        };
        Self { pool: pool.clone(), loads: sets.items.iter().map(load).collect(), load_of }
    }
}

/// Whether a daemon whose tolerations suit the pool runs on this type: one of its terms must suit
/// the pool and the type.
pub(crate) fn runs_on(daemon: &Daemon, pool: &Pool, instance_type: &InstanceType) -> bool {
    let suits = |term: &Requirements| {
        term.is_empty()
            || (pool.requirements.compatible(term, Undefined::AllowWellKnown).is_ok()
                && instance_type.requirements.intersects(term).is_ok())
    };
    daemon.terms.is_empty() || daemon.terms.iter().any(suits)
}
