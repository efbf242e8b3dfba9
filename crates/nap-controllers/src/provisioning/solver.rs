//! Calls of the engine, with the catalogues and the solver cache kept between them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use kube::ResourceExt;
use nap_engine::{Plan, Snapshot, SolverCache, solve_with};

use crate::context::Context;
use crate::snapshot::Catalogues;

/// State that is kept between calls of the engine because it does not depend on pods.
#[derive(Default)]
pub struct SolverState {
    catalogues: Mutex<Arc<Catalogues>>,
    cache: Mutex<Option<Arc<SolverCache>>>,
}

impl Context {
    /// The catalogue of each NodePool. A NodePool whose instance types cannot be read is left out.
    pub async fn catalogues(&self) -> Arc<Catalogues> {
        let classes: Vec<_> = {
            let index = self.index();
            let used = index.pools().map(|(_, pool)| &pool.spec.template.spec.node_class_ref.name);
            let mut classes: Vec<_> = used.filter_map(|name| index.class(name).cloned()).collect();
            classes.sort_by_key(|class| class.name_any());
            classes.dedup_by_key(|class| class.name_any());
            classes
        };
        let found = join_all(classes.iter().map(|class| self.cloud.instance_types(class))).await;
        let mut of_classes = BTreeMap::new();
        for (class, types) in classes.iter().zip(found) {
            let nodeclass = class.name_any();
            match types {
                Ok(types) => drop(of_classes.insert(nodeclass, types)),
                Err(error) => tracing::warn!(nodeclass, %error, "instance types unavailable"),
            }
        }
        let mut kept = self.solver.catalogues.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Catalogues::build(&self.index(), of_classes, &kept);
        Arc::clone(&kept)
    }

    /// The engine's plan for a snapshot.
    pub fn solve(&self, snapshot: &Snapshot) -> Plan {
        let cache = {
            let mut kept = self.solver.cache.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.as_ref().filter(|cache| cache.suits(snapshot)) {
                Some(cache) => Arc::clone(cache),
                None => Arc::clone(kept.insert(Arc::new(SolverCache::new(snapshot)))),
            }
        };
        solve_with(&cache, snapshot, &self.settings.engine)
    }
}
