//! Daemon overhead: the requests of the daemons that a new node of each type will run.

use nap_api::Requirements;
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_units::Resources;

use crate::ids::{IndexVec, TypeId};
use crate::intern::Interner;
use crate::model::{Daemon, HostPort, InstanceType, Pool};
use crate::offerings::sorted_catalogue::SortedCatalogue;

/// Sum of the requests and host ports of the daemons on a node.
#[derive(Debug, Default)]
pub(crate) struct DaemonOverhead {
    pub(crate) requests: Resources,
    pub(crate) ports: Vec<HostPort>,
}

/// The daemon overhead of each type of a pool.
#[derive(Debug)]
pub(crate) struct DaemonOverheads {
    distinct: Vec<DaemonOverhead>,
    of_type: IndexVec<TypeId, usize>,
}

impl DaemonOverheads {
    pub(crate) fn new(pool: &Pool, catalogue: SortedCatalogue<'_>, daemons: &[Daemon]) -> Self {
        let daemons = tolerant_daemons(pool, daemons);
        let mut sets: Interner<Vec<usize>> = Interner::default();
        let set = |id: TypeId| {
            let instance_type = catalogue.instance_type(id);
            let runs = |number: &usize| runs_on(daemons[*number], pool, instance_type);
            (0..daemons.len()).filter(runs).collect()
        };
        let of_type = catalogue.ids().map(|id| sets.intern(set(id))).collect();
        let overhead = |set: &Vec<usize>| {
            let mut overhead = DaemonOverhead::default();
            for daemon in set.iter().map(|number| daemons[*number]) {
                overhead.requests.add(&daemon.requests);
                overhead.ports.extend(daemon.host_ports.iter().cloned());
            }
            overhead
        };
        Self { distinct: sets.items.iter().map(overhead).collect(), of_type }
    }

    /// Overhead of a node of one type.
    pub(crate) fn of(&self, instance_type: TypeId) -> &DaemonOverhead {
        &self.distinct[self.of_type[instance_type]]
    }
}

/// The daemons that tolerate the taints of a pool.
pub(crate) fn tolerant_daemons<'a>(pool: &Pool, daemons: &'a [Daemon]) -> Vec<&'a Daemon> {
    let tolerates =
        |daemon: &&Daemon| first_untolerated(&pool.taints, &daemon.tolerations).is_none();
    daemons.iter().filter(tolerates).collect()
}

/// Whether a daemon that tolerates a pool's taints runs on one of its types: one of the daemon's
/// terms must be compatible with the pool and the type.
pub(crate) fn runs_on(daemon: &Daemon, pool: &Pool, instance_type: &InstanceType) -> bool {
    let suits = |term: &Requirements| {
        term.is_empty()
            || (pool.requirements.compatible(term, Undefined::AllowWellKnown).is_ok()
                && instance_type.requirements.intersects(term).is_ok())
    };
    daemon.terms.is_empty() || daemon.terms.iter().any(suits)
}
