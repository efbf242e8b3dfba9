//! Calls of the engine, with the catalogues and the solver cache kept between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use jiff::Timestamp;
use kube::ResourceExt;
use nap_engine::{
    Consolidation, ConsolidationCache, ConsolidationOptions, Fleet, Options, Plan, PodKey,
    Snapshot, SolverCache, consolidate, solve_with,
};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::decisions::Digests;
use crate::decisions::inputs::{self, Input};
use crate::snapshot::{Catalogues, NodeCache, snapshot_moving};

/// State that is kept between calls of the engine because it does not depend on pods.
#[derive(Default)]
pub struct SolverState {
    catalogues: Mutex<Arc<Catalogues>>,
    cache: Mutex<Option<Arc<SolverCache>>>,
    consolidation: Mutex<ConsolidationCache>,
    nodes: Mutex<NodeCache>,
    digests: Mutex<Digests>,
    planning: AtomicBool,
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

    /// The snapshot for provisioning. Pods that are `moved` are planned again.
    pub fn snapshot(
        &self,
        catalogues: &Catalogues,
        moved: &BTreeSet<PodKey>,
        now: Timestamp,
    ) -> Snapshot {
        snapshot_moving(&self.index(), catalogues, &mut self.solver.nodes(), moved, now)
    }

    /// Computes something on a thread of its own if the settings say so: watches, drains and
    /// registrations go on meanwhile.
    pub async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Solver) -> T + Send + 'static,
    ) -> T {
        let solver = Solver {
            state: Arc::clone(&self.solver),
            options: self.settings.engine.clone(),
            keeps_inputs: self.settings.keeps_inputs,
        };
        if !self.settings.solve_on_worker_thread {
            return work(&solver);
        }
        let mut worker = JoinSet::new();
        worker.spawn_blocking(move || work(&solver));
        match worker.join_next().await {
            Some(Ok(result)) => result,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The process is about to end.
            _ => std::future::pending().await,
        }
    }

    /// The engine's plan for pending pods, made aside.
    pub async fn plan(&self, snapshot: &Arc<Snapshot>) -> Plan {
        let snapshot = Arc::clone(snapshot);
        let _planning = Planning::begin(&self.solver.planning);
        self.aside(move |solver| solver.solve(&snapshot)).await
    }
}

/// The engine with its options and caches.
pub struct Solver {
    state: Arc<SolverState>,
    options: Options,
    /// Whether inputs are packed, to be kept in the cluster.
    keeps_inputs: bool,
}

impl Solver {
    /// The engine with caches of its own.
    pub fn detached(options: Options) -> Self {
        Self { state: Arc::default(), options, keeps_inputs: false }
    }

    /// The engine's plan for a snapshot.
    pub fn solve(&self, snapshot: &Snapshot) -> Plan {
        solve_with(&self.state.cache_for(snapshot), snapshot, &self.options)
    }

    /// Digests of the engine's input.
    pub fn digests(&self) -> MutexGuard<'_, Digests> {
        self.state.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a decision of consolidation was made from.
    pub fn input(&self, fleet: &Fleet, decision: &Consolidation) -> Input {
        let pack = || inputs::pack(fleet, &self.consolidation_options(), decision);
        Input { digest: self.digests().fleet(fleet), file: self.keeps_inputs.then(pack) }
    }

    /// The options of consolidation.
    pub fn consolidation_options(&self) -> ConsolidationOptions {
        ConsolidationOptions { solve: self.options.clone(), ..ConsolidationOptions::default() }
    }

    /// The engine's decision which nodes of a fleet to remove or to replace.
    pub fn consolidate(&self, fleet: &Fleet) -> Consolidation {
        let options = self.consolidation_options();
        let mut cache = self.state.consolidation.lock().unwrap_or_else(PoisonError::into_inner);
        consolidate(fleet, &options, &mut cache)
    }
}

/// A plan that is being made, until it is dropped: the reconcile that waits for it may be.
struct Planning<'a>(&'a AtomicBool);

impl<'a> Planning<'a> {
    fn begin(planning: &'a AtomicBool) -> Self {
        planning.store(true, Ordering::Release);
        Self(planning)
    }
}

impl Drop for Planning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl SolverState {
    /// Whether a plan for pending pods is being made. It may count on nodes that look unused.
    pub fn is_planning(&self) -> bool {
        self.planning.load(Ordering::Acquire)
    }

    /// The catalogues that were used last.
    pub fn catalogues(&self) -> Arc<Catalogues> {
        Arc::clone(&self.catalogues.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nodes of earlier snapshots. Lock it after the index.
    pub fn nodes(&self) -> MutexGuard<'_, NodeCache> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache_for(&self, snapshot: &Snapshot) -> Arc<SolverCache> {
        let mut kept = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.as_ref().filter(|cache| cache.suits(snapshot)) {
            Some(cache) => Arc::clone(cache),
            None => Arc::clone(kept.insert(Arc::new(SolverCache::new(snapshot)))),
        }
    }
}
