//! A NodePool whose consolidation was undone rests from consolidation.
//!
//! A move is undone if, within ten minutes, a new node is launched for pods of the moved workload
//! although that has no more pods than before. The NodePool then rests for a minute, twice as long
//! each time that it happens again within an hour, for an hour at most, until one of its
//! replacements succeeds. Where the number of pods changed meanwhile, and a restart is between, nap
//! has the benefit of the doubt.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Claim, DECIDED_WITHIN, Pod, text};

/// Time after a move within which a new node undoes it.
const UNDONE_WITHIN: SignedDuration = SignedDuration::from_mins(10);
const FIRST_REST: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_REST: SignedDuration = SignedDuration::from_hours(1);
/// Time after its plan within which a NodeClaim is created: the rest begins with the plan.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(20);
/// Time for which a number of pods must have held.
const STEADY: SignedDuration = SignedDuration::from_mins(1);

/// Moves that may be undone, and rests.
#[derive(Default)]
pub(super) struct Undo {
    /// Number of pods of each workload since a time, from old to new.
    counts: BTreeMap<String, Vec<(Timestamp, usize)>>,
    moves: Vec<Move>,
    /// Rests by NodePool.
    rests: BTreeMap<String, Rest>,
}

/// A node that consolidation has chosen.
struct Move {
    at: Timestamp,
    pool: String,
    /// Pods of each workload that it moves.
    pods: BTreeMap<String, usize>,
}

#[derive(Clone, Copy)]
struct Rest {
    from: Timestamp,
    until: Timestamp,
    length: SignedDuration,
}

/// The workload of a pod; `None` without a controller. A Deployment is one over its ReplicaSets.
pub(super) fn workload(pod: &Value) -> Option<String> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let (kind, name) = (owner["kind"].as_str()?, owner["name"].as_str()?);
    let hash = text(pod, "/metadata/labels/pod-template-hash").filter(|_| kind == "ReplicaSet");
    let name = match hash.and_then(|hash| name.strip_suffix(&hash)?.strip_suffix('-')) {
        Some(deployment) => format!("Deployment/{deployment}"),
        None => format!("{kind}/{name}"),
    };
    Some(format!("{}/{name}", text(pod, "/metadata/namespace")?))
}

impl Undo {
    /// Takes in that a workload has one pod more or less.
    pub(super) fn count(&mut self, workload: &str, is_more: bool, now: Timestamp) {
        let counts = self.counts.entry(workload.to_owned()).or_default();
        let last = counts.last().map_or(0, |(_, count)| *count);
        counts.push((now, if is_more { last + 1 } else { last.saturating_sub(1) }));
        let old = counts.iter().take_while(|(at, _)| now.duration_since(*at) > STEADY).count();
        counts.drain(..old.saturating_sub(1));
    }

    /// Fewest and most pods of a workload within the last minute.
    fn range(&self, workload: &str, now: Timestamp) -> (usize, usize) {
        let counts = self.counts.get(workload).map_or(&[][..], Vec::as_slice);
        let old = counts.iter().take_while(|(at, _)| now.duration_since(*at) > STEADY).count();
        let recent = counts[old.saturating_sub(1)..].iter().map(|(_, count)| *count);
        recent.fold((usize::MAX, 0), |(least, most), one| (least.min(one), most.max(one)))
    }

    /// Looks at a node that has just been chosen for consolidation, with the workloads of its pods.
    pub(super) fn check(
        &mut self,
        chosen: &Claim,
        workloads: BTreeSet<&str>,
        now: Timestamp,
    ) -> Option<String> {
        self.moves.retain(|one| now.duration_since(one.at) < UNDONE_WITHIN);
        let least = |name: &str| (name.to_owned(), self.range(name, now).0);
        let pods = workloads.into_iter().map(least).collect();
        self.moves.push(Move { at: now, pool: chosen.pool.clone(), pods });
        let rest = self.rests.get(&chosen.pool)?;
        let rests = now.duration_since(rest.from) > DECIDED_WITHIN && now < rest.until;
        rests.then(|| {
            let seconds = now.duration_since(rest.from).as_secs();
            let (pool, node) = (&chosen.pool, &chosen.node);
            format!("NodePool {pool}: node {node} is consolidated {seconds} s after an undone move")
        })
    }

    /// Looks at a NodeClaim that has just been created for pending pods.
    pub(super) fn launched(&mut self, pods: &[&Pod], now: Timestamp) {
        let mut undone = BTreeSet::new();
        for workload in pods.iter().filter_map(|pod| pod.workload.as_deref()) {
            let most = self.range(workload, now).1;
            let is_undone = |one: &&Move| {
                now.duration_since(one.at) < UNDONE_WITHIN
                    && one.pods.get(workload).is_some_and(|before| most <= *before)
            };
            undone.extend(self.moves.iter().filter(is_undone).map(|one| one.pool.clone()));
        }
        for pool in undone {
            let before = self.rests.get(&pool).copied();
            // The NodeClaims of one plan are one failure.
            if before.is_some_and(|rest| now < rest.until) {
                continue;
            }
            let again = before.filter(|rest| now.duration_since(rest.until) < LONGEST_REST);
            let length = again.map_or(FIRST_REST, |rest| (rest.length * 2).min(LONGEST_REST));
            let rest = Rest { from: now, until: now + length - CREATED_WITHIN, length };
            self.rests.insert(pool, rest);
        }
    }

    /// Takes in that a consolidation with replacements has succeeded.
    pub(super) fn succeeded(&mut self, pool: &str) {
        self.rests.remove(pool);
    }

    /// Takes in that nap starts, or that another replica leads: moves are forgotten, and rests that
    /// may not have been stored.
    pub(super) fn restarted(&mut self, now: Timestamp) {
        self.moves.clear();
        self.rests.retain(|_, rest| now.duration_since(rest.from) > DECIDED_WITHIN);
    }
}
