//! What is for sale, and decisions about it. What can be said before any pod is known is kept from
//! one decision to the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use kube::ResourceExt;
use nap_engine::{Plan, Snapshot, SolverCache, solve_with};

use crate::context::Context;
use crate::state::catalogues::Catalogues;

/// What is kept between decisions.
#[derive(Default)]
pub struct Kept {
    catalogues: Mutex<Arc<Catalogues>>,
    prepared: Mutex<Option<Arc<SolverCache>>>,
}

impl Context {
    /// What each pool can buy now. A pool whose instance types cannot be had is left out.
    pub async fn catalogues(&self) -> Arc<Catalogues> {
        let classes: Vec<_> = {
            let state = self.state();
            let used =
                state.pools.values().map(|pool| &pool.spec.template.spec.node_class_ref.name);
            let mut classes: Vec<_> =
                used.filter_map(|name| state.classes.get(name).cloned()).collect();
            classes.sort_by_key(|class| class.name_any());
            classes.dedup_by_key(|class| class.name_any());
            classes
        };
        let found = join_all(classes.iter().map(|class| self.cloud.instance_types(class))).await;
        let mut of_classes = BTreeMap::new();
        for (class, types) in classes.iter().zip(found) {
            match types {
                Ok(types) => {
                    of_classes.insert(class.name_any(), types);
                }
                Err(error) => {
                    tracing::warn!(nodeclass = class.name_any(), %error, "could not read instance types");
                }
            }
        }
        let mut kept = self.kept.catalogues.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = self.state().catalogues(of_classes, &kept);
        Arc::clone(&kept)
    }

    /// What the engine decides.
    pub fn solve(&self, snapshot: &Snapshot) -> Plan {
        let prepared = {
            let mut kept = self.kept.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.as_ref().filter(|prepared| prepared.suits(snapshot)) {
                Some(prepared) => Arc::clone(prepared),
                None => Arc::clone(kept.insert(Arc::new(SolverCache::new(snapshot)))),
            }
        };
        solve_with(&prepared, snapshot, &self.settings.engine)
    }
}
