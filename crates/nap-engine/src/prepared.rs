//! What can be said about the market before any pod is known.
//!
//! Putting thousands of offerings in order and finding which daemons run where takes longer than deciding about a handful of pods. Whoever
//! decides many times about the same pools and catalogues, as consolidation does, keeps a [`Prepared`] and hands it to
//! [`solve_with`](crate::solve_with).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_api::{Requirement, Requirements};
use nap_units::{Resources, UsdPerHour};

use crate::coupling::HostPort;
use crate::intern::Interner;
use crate::model::{Catalogue, Daemon, InstanceType, Offering, Pool, Snapshot};

/// The pools, daemons and catalogues of a snapshot, ready for decisions.
#[derive(Debug)]
pub struct Prepared {
    /// Heaviest first.
    pub(crate) pools: Vec<PreparedPool>,
    pub(crate) stocks: Vec<Stock>,
    daemons: Vec<Daemon>,
}

/// A pool, and what daemons take on each type.
#[derive(Debug)]
pub(crate) struct PreparedPool {
    pool: Pool,
    /// Index of its stock.
    pub(crate) stock: usize,
    /// The distinct loads of daemons.
    pub(crate) loads: Vec<Load>,
    /// Which of them each type has, in the order of the stock.
    pub(crate) load_of: Vec<usize>,
}

/// What the daemons of a machine take together.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) requests: Resources,
    pub(crate) ports: Vec<HostPort>,
}

/// The types of a catalogue by name, and their offerings by price.
#[derive(Debug)]
pub(crate) struct Stock {
    name: String,
    catalogue: Option<Arc<Catalogue>>,
    /// Positions in the catalogue, by the name of the type.
    order: Vec<usize>,
    /// The names of the types, to be shared.
    pub(crate) names: Vec<Arc<str>>,
    zones: Vec<Arc<str>>,
    pub(crate) offers: Vec<Offer>,
    /// An offer with each of the distinct requirements that offerings have.
    distinct: Vec<Offer>,
    columns: Mutex<BTreeMap<String, Arc<Column>>>,
}

/// One offering: its type in the order of the stock, its position there, and the number of its requirements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) kind: usize,
    pub(crate) index: usize,
    pub(crate) wish: usize,
    zone: usize,
    pub(crate) price: UsdPerHour,
    pub(crate) is_available: bool,
}

/// What each type says about one label.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) values: Vec<Requirement>,
    /// Which of them each type has; `None` where it says nothing.
    pub(crate) value_of: Vec<Option<usize>>,
}

impl Prepared {
    /// Prepares the pools, daemons and catalogues of a snapshot.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut stocks: Vec<Stock> = Vec::new();
        let mut pools = Vec::new();
        for pool in in_order(&snapshot.pools) {
            let known = stocks.iter().position(|stock| stock.name == pool.catalogue);
            let stock = known.unwrap_or_else(|| {
                stocks.push(Stock::new(&pool.catalogue, snapshot.catalogues.get(&pool.catalogue)));
                stocks.len() - 1
            });
            pools.push(PreparedPool::new(pool, stock, &stocks[stock], &snapshot.daemons));
        }
        Self { pools, stocks, daemons: snapshot.daemons.clone() }
    }

    /// Whether a snapshot has the same pools (apart from what their limits leave), daemons and catalogues.
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
            && self.stocks.iter().all(|stock| {
                match (&stock.catalogue, snapshot.catalogues.get(&stock.name)) {
                    (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
                    (mine, theirs) => mine.is_none() && theirs.is_none(),
                }
            })
    }
}

/// Heaviest first. Where all else is equal, a pool that keeps fewer pods away is the better place to begin a node in.
pub(crate) fn in_order(pools: &[Pool]) -> Vec<&Pool> {
    let mut pools: Vec<&Pool> = pools.iter().collect();
    pools.sort_by(|a, b| (b.weight, a.taints.len(), &a.name).cmp(&(a.weight, b.taints.len(), &b.name)));
    pools
}

impl PreparedPool {
    fn new(pool: &Pool, number: usize, stock: &Stock, daemons: &[Daemon]) -> Self {
        let tolerant =
            daemons.iter().filter(|one| first_untolerated(&pool.taints, &one.tolerations).is_none());
        let daemons: Vec<&Daemon> = tolerant.collect();
        let mut sets: Interner<Vec<usize>> = Interner::default();
        let runs = |kind: usize| {
            let runs = |number: &usize| runs_on(daemons[*number], pool, stock.kind(kind));
            (0..daemons.len()).filter(runs).collect()
        };
        let load_of = (0..stock.len()).map(|kind| sets.number(runs(kind))).collect();
        let load = |set: &Vec<usize>| {
            let mut load = Load::default();
            for daemon in set.iter().map(|number| daemons[*number]) {
                load.requests.add(&daemon.requests);
                load.ports.extend(daemon.host_ports.iter().cloned());
            }
            load
        };
        Self { pool: pool.clone(), stock: number, loads: sets.items.iter().map(load).collect(), load_of }
    }
}

/// Whether a daemon whose tolerations suit the pool runs on this type: one of its terms must suit the pool and the type.
fn runs_on(daemon: &Daemon, pool: &Pool, instance_type: &InstanceType) -> bool {
    let suits = |term: &Requirements| {
        term.is_empty()
            || (pool.requirements.compatible(term, Undefined::AllowWellKnown).is_ok()
                && instance_type.requirements.intersects(term).is_ok())
    };
    daemon.terms.is_empty() || daemon.terms.iter().any(suits)
}

impl Stock {
    fn new(name: &str, catalogue: Option<&Arc<Catalogue>>) -> Self {
        let types: &[InstanceType] = catalogue.map_or(&[], |catalogue| catalogue.as_slice());
        let mut order: Vec<usize> = (0..types.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&types[*a], &types[*b]);
            a.name.cmp(&b.name).then_with(|| a.allocatable.cmp(&b.allocatable))
        });
        let mut wishes: Interner<&Requirements> = Interner::default();
        let mut distinct = Vec::new();
        let mut offers: Vec<Offer> = Vec::new();
        let mut zones: Interner<&str> = Interner::default();
        let mut before: Vec<Offer> = Vec::new();
        for (kind, position) in order.iter().enumerate() {
            for (index, offering) in types[*position].offerings.iter().enumerate() {
                // Most types are offered in the same places, in the same order.
                let same = before.get(index).filter(|before| {
                    zones.items[before.zone] == offering.zone
                        && *wishes.items[before.wish] == offering.requirements
                });
                let (wish, zone) = match same {
                    Some(same) => (same.wish, same.zone),
                    None => (wishes.number(&offering.requirements), zones.number(&offering.zone)),
                };
                let Offering { price, available: is_available, .. } = *offering;
                let offer = Offer { kind, index, wish, zone, price, is_available };
                match before.get_mut(index) {
                    Some(before) => *before = offer,
                    None => before.push(offer),
                }
                if wish == distinct.len() {
                    distinct.push(offer);
                }
                offers.push(offer);
            }
        }
        let offering = |offer: &Offer| &types[order[offer.kind]].offerings[offer.index];
        offers.sort_by(|a, b| {
            (a.price, a.kind).cmp(&(b.price, b.kind)).then_with(|| {
                let (one, other) = (offering(a), offering(b));
                (&one.zone, one.capacity_type, other.available).cmp(&(
                    &other.zone,
                    other.capacity_type,
                    one.available,
                ))
            })
        });
        Self {
            name: name.to_owned(),
            catalogue: catalogue.cloned(),
            names: order.iter().map(|position| Arc::from(types[*position].name.as_str())).collect(),
            zones: zones.items.into_iter().map(Arc::from).collect(),
            order,
            offers,
            distinct,
            columns: Mutex::default(),
        }
    }

    /// How many types there are.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// A type by its number.
    pub(crate) fn kind(&self, number: usize) -> &InstanceType {
        match &self.catalogue {
            Some(catalogue) => &catalogue[self.order[number]],
            None => unreachable!("a stock without a catalogue has no types to number"),
        }
    }

    /// An offering.
    pub(crate) fn offering(&self, offer: Offer) -> &Offering {
        &self.kind(offer.kind).offerings[offer.index]
    }

    /// The zone of an offering, to be shared.
    pub(crate) fn zone(&self, offer: Offer) -> Arc<str> {
        Arc::clone(&self.zones[offer.zone])
    }

    /// The distinct requirements that offerings have.
    pub(crate) fn wishes(&self) -> impl Iterator<Item = &Requirements> {
        self.distinct.iter().map(|offer| &self.offering(*offer).requirements)
    }

    /// What each type says about a label.
    pub(crate) fn column(&self, key: &str) -> Arc<Column> {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(column) = columns.get(key) {
            return Arc::clone(column);
        }
        let mut values: Interner<&Requirement> = Interner::default();
        let says = |kind: usize| self.kind(kind).requirements.get(key);
        let value_of = (0..self.len()).map(|kind| says(kind).map(|value| values.number(value))).collect();
        let column = Column { values: values.items.into_iter().cloned().collect(), value_of };
        let column = Arc::new(column);
        columns.insert(key.to_owned(), Arc::clone(&column));
        column
    }
}
