//! What must hold at every instant, whatever the policy. The checks look at the cluster from
//! outside and share no rule with the policies but the numbers.

use std::collections::BTreeSet;

use nap_units::UsdPerHour;

use super::market::{Market, POOLS};
use super::policy::{Decision, allowed, window_is_open};
use super::trace::{HOUR, Trace};
use super::world::{Reason, World};

/// Violations that are written down; further ones are only counted.
const MAX_VIOLATIONS: usize = 10;
/// Time after which a cluster in which nothing changes must have settled.
pub(super) const SETTLED_AFTER: i64 = 5 * HOUR;

/// The violations of a run, and how it went when nothing changed.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) violations: Vec<String>,
    pub(super) count: usize,
    /// Decisions in the quiet time, and seconds from its begin to the last of them.
    pub(super) quiet_decisions: usize,
    pub(super) last_quiet_decision: Option<i64>,
    next_audit: i64,
}

impl Checks {
    fn violation(&mut self, now: i64, text: &str) {
        self.count += 1;
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(format!("at {now} s: {text}"));
        }
    }

    /// A decision has begun: its nodes are tainted and its replacements launched.
    pub(super) fn began(
        &mut self,
        trace: &Trace,
        market: &Market,
        world: &World,
        decision: &Decision,
    ) {
        let now = world.now;
        if now >= trace.quiet_from {
            self.quiet_decisions += 1;
            self.last_quiet_decision = Some(now - trace.quiet_from);
        }
        for (pool, name) in POOLS.iter().enumerate() {
            let nodes = world.nodes.values().filter(|node| market.kinds[node.kind].pool == pool);
            let voluntary = |reason: Reason| reason != Reason::Interrupted;
            let (mut joined, mut going) = (0, 0);
            for node in nodes.filter(|node| node.joined) {
                joined += 1;
                going += usize::from(node.going.is_some_and(voluntary));
            }
            if going > allowed(joined) {
                let text = format!("{going} of {joined} nodes of {name} go: over the budget");
                self.violation(now, &text);
            }
        }
        if decision.reason == Reason::Drifted && !window_is_open(now) {
            self.violation(now, "a drifted node is replaced outside of the window");
        }
        let removed = decision.remove.iter().filter_map(|node| world.nodes.get(node));
        if decision.reason == Reason::Underutilized {
            let before: UsdPerHour =
                removed.clone().map(|node| market.kinds[node.kind].price).sum();
            let kinds = decision.launches.iter();
            let after: UsdPerHour = kinds.map(|kind| market.kinds[*kind].price).sum();
            if before <= after {
                self.violation(now, &format!("a step from {before} to {after} saves nothing"));
            }
        }
        for node in removed {
            let is_empty = node.pods.is_empty();
            if decision.reason == Reason::Empty && !is_empty {
                self.violation(now, "a node with pods is removed as empty");
            }
            let mut workloads = node.pods.iter().map(|pod| world.pods[pod].workload);
            if workloads.any(|workload| trace.workloads[workload].is_job) {
                self.violation(now, "a node with a job is disrupted");
            }
        }
    }

    /// A pod of a workload was evicted by choice.
    pub(super) fn evicted(&mut self, trace: &Trace, world: &World, workload: usize) {
        let own = &trace.workloads[workload];
        let unready = world.unready(workload);
        if own.max_unavailable.is_some_and(|most| unready > most) {
            let text = format!("{unready} pods of {} are unavailable: PDB", own.name);
            self.violation(world.now, &text);
        }
        if own.is_job {
            self.violation(world.now, &format!("a pod of {} is evicted", own.name));
        }
    }

    /// After everything that happens at one time: replicas and limits; and once an hour, every pod
    /// and every node.
    pub(super) fn instant(&mut self, trace: &Trace, market: &Market, world: &World) {
        let now = world.now;
        for (number, workload) in trace.workloads.iter().enumerate() {
            let (pods, wanted) = (world.of_workload[number].len(), world.desired[number]);
            if pods != wanted {
                self.violation(now, &format!("{} has {pods} of {wanted} pods", workload.name));
            }
        }
        for (pool, name) in POOLS.iter().enumerate() {
            let used = world.used(market, pool);
            if used > market.limit {
                let text = format!("{name} has {used} of {} milli-cores", market.limit);
                self.violation(now, &text);
            }
        }
        if now >= self.next_audit || now >= trace.end {
            self.next_audit = now + HOUR;
            self.audit(trace, market, world);
        }
    }

    fn audit(&mut self, trace: &Trace, market: &Market, world: &World) {
        let now = world.now;
        let listed: BTreeSet<usize> = world.of_workload.iter().flatten().copied().collect();
        if listed.len() != world.pods.len() || !world.pods.keys().all(|pod| listed.contains(pod)) {
            self.violation(now, "a pod belongs to no workload");
        }
        for (number, pod) in &world.pods {
            let is_held = match pod.node {
                Some(node) => {
                    let node = world.nodes.get(&node);
                    node.is_some_and(|node| node.joined && node.pods.contains(number))
                }
                None => world.pending.contains(number),
            };
            if !is_held {
                self.violation(now, &format!("pod {number} is lost"));
            }
        }
        for (number, node) in &world.nodes {
            let kind = &market.kinds[node.kind];
            let mut free = kind.allocatable;
            for workload in node.pods.iter().map(|pod| world.pods[pod].workload) {
                if usize::from(trace.workloads[workload].spot) != kind.pool {
                    self.violation(now, &format!("node {number} runs a pod that it must not"));
                }
                for (free, request) in free.iter_mut().zip(&market.requests[workload]) {
                    *free -= request;
                }
            }
            if free != node.free || free.iter().any(|free| *free < 0) {
                self.violation(now, &format!("node {number} has too many pods"));
            }
        }
    }

    /// At the end: a governed cluster in which nothing changes settles.
    pub(super) fn settled(&mut self, now: i64) {
        let Some(last) = self.last_quiet_decision.filter(|last| *last > SETTLED_AFTER) else {
            return;
        };
        let text = format!("a node is disrupted {last} s after the last change");
        self.violation(now, &text);
    }
}
