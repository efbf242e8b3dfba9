//! The course of the week: what happens next, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use nap_engine::{Options, Snapshot, solve};
use nap_units::{CPU, UsdPerHour};

use super::checks::Checks;
use super::market::{Market, pod_number};
use super::policy::{Decision, Policy, View, places};
use super::trace::{Change, DAY, HOUR, SplitMix, Trace};
use super::world::{Reason, Reserved, Tally, World};

/// Shortest time between two passes over all nodes, and longest.
const PASS_EVERY: i64 = 10;
const MAX_PASS_EVERY: i64 = 300;
/// Shortest and longest time that a node takes to join.
const JOIN: (i64, i64) = (60, 90);
/// Time after which a launch without stock fails, and for which its size is then not tried.
const LAUNCH_FAILS: i64 = 5;
const AVOIDED: i64 = HOUR;
/// Time between two attempts to evict the pods of a node.
const DRAIN_EVERY: i64 = 5;
/// Notice of a spot eviction.
const NOTICE: i64 = 30;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start { pod: usize },
    Join { node: usize },
    Fail { node: usize },
    Dies { node: usize },
    Drain { node: usize },
    Unmark,
}

/// A decision that is being carried out.
struct Command {
    reason: Reason,
    pool: usize,
    remove: Vec<usize>,
    replacements: Vec<usize>,
    is_draining: bool,
}

/// A run of one policy.
pub(super) struct Simulation<'s> {
    trace: &'s Trace,
    market: &'s mut Market,
    policy: &'s mut dyn Policy,
    world: World,
    checks: Checks,
    events: BTreeSet<(i64, Event)>,
    commands: Vec<Command>,
    /// Where pods that wait will go, as of a version of the cluster.
    reserved: Reserved,
    reserved_version: Option<u64>,
    is_out_of_stock: bool,
    passes: usize,
}

/// What came of a run.
pub(super) struct Outcome {
    pub(super) tally: Tally,
    pub(super) checks: Checks,
    pub(super) passes: usize,
    /// Cost of the nodes at the end.
    pub(super) cost_at_rest: UsdPerHour,
    /// Cost of a plan for the pods at the end, on an empty cluster.
    pub(super) fresh_plan: UsdPerHour,
}

impl<'s> Simulation<'s> {
    pub(super) fn new(
        trace: &'s Trace,
        market: &'s mut Market,
        policy: &'s mut dyn Policy,
    ) -> Self {
        market.mark(false);
        let world = World::new(trace, market);
        Self {
            trace,
            market,
            policy,
            world,
            checks: Checks::default(),
            events: BTreeSet::new(),
            commands: Vec::new(),
            reserved: Reserved::new(),
            reserved_version: None,
            is_out_of_stock: false,
            passes: 0,
        }
    }

    /// Runs to the end. `progress` is told of every day.
    pub(super) fn run(mut self, mut progress: impl FnMut(i64, &World)) -> Outcome {
        let mut changes = self.trace.changes.iter().peekable();
        let (mut last_pass, mut pass_at, mut passed_version) = (0, 0, None);
        let mut next_day = DAY;
        loop {
            let change_at = changes.peek().map_or(i64::MAX, |(at, _)| *at);
            let event_at = self.events.first().map_or(i64::MAX, |(at, _)| *at);
            let now = change_at.min(event_at).min(pass_at).min(self.trace.end);
            self.world.now = now;
            if now >= next_day {
                progress(next_day / DAY, &self.world);
                next_day += DAY;
            }
            if now >= self.trace.end {
                break;
            }
            while let Some((_, change)) = changes.next_if(|(at, _)| *at == now) {
                self.change(*change);
            }
            while let Some((at, event)) = self.events.first().copied().filter(|(at, _)| *at == now)
            {
                self.events.remove(&(at, event));
                self.happens(event);
            }
            self.settle();
            if now >= pass_at {
                passed_version = Some(self.world.version);
                let again = self.pass();
                last_pass = now;
                pass_at = (now + MAX_PASS_EVERY).min(again.unwrap_or(i64::MAX)).max(now + 1);
                self.settle();
            }
            if passed_version != Some(self.world.version) {
                pass_at = pass_at.min((last_pass + PASS_EVERY).max(now + 1));
            }
            self.checks.instant(self.trace, self.market, &self.world);
        }
        self.checks.instant(self.trace, self.market, &self.world);
        let prices = self.world.nodes.values().map(|node| self.market.kinds[node.kind].price);
        let cost_at_rest = prices.sum();
        let fresh_plan = self.fresh_plan();
        self.world.close(self.market);
        Outcome {
            tally: self.world.tally,
            checks: self.checks,
            passes: self.passes,
            cost_at_rest,
            fresh_plan,
        }
    }

    /// Cost of a plan for all pods on an empty cluster.
    fn fresh_plan(&self) -> UsdPerHour {
        let pods = self.world.pods.iter();
        let pods = pods.map(|(number, pod)| self.market.pod(pod.workload, *number)).collect();
        let mut snapshot = Snapshot { pods, ..self.market.base.clone() };
        for pool in &mut snapshot.pools {
            pool.headroom.set(CPU, self.market.limit);
        }
        solve(&snapshot, &Options::default()).cost
    }

    fn at(&mut self, time: i64, event: Event) {
        self.events.insert((time, event));
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Scale { workload, replicas } => {
                self.world.scale(self.market, workload, replicas);
            }
            Change::SpotEviction { draw } => self.evict_spot(draw),
            Change::ImageUpgrade => {
                self.world.image += 1;
                self.world.version += 1;
            }
            Change::StockOut { is_out } => self.is_out_of_stock = is_out,
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Start { pod } => self.world.start(pod),
            Event::Join { node } => {
                self.world.join(node);
                self.drain_if_replaced(node);
            }
            Event::Fail { node } => {
                self.world.remove(self.market, node);
                self.market.mark(true);
                self.at(self.world.now + AVOIDED, Event::Unmark);
                self.give_up(node);
            }
            Event::Dies { node } => self.die(node),
            Event::Drain { node } => self.drain(node),
            Event::Unmark => {
                self.market.mark(false);
                self.world.version += 1;
            }
        }
    }

    /// Binds pods, and launches nodes for those that wait.
    fn settle(&mut self) {
        for (pod, ready) in self.world.schedule(self.trace, self.market) {
            self.at(ready, Event::Start { pod });
        }
        if self.reserved_version == Some(self.world.version) {
            return;
        }
        let going = self.world.nodes.values().filter(|node| node.going.is_some());
        let mut waiting: Vec<usize> = going.flat_map(|node| node.pods.iter().copied()).collect();
        waiting.extend(&self.world.pending);
        self.reserved.clear();
        if !waiting.is_empty() {
            self.place(&waiting);
        }
        self.reserved_version = Some(self.world.version);
    }

    /// Reserves places for pods, on new nodes where it must be.
    fn place(&mut self, waiting: &[usize]) {
        let none = Reserved::new();
        let mut snapshot = self.world.snapshot(self.market, &BTreeSet::new(), &none);
        let pods = waiting.iter();
        snapshot.pods =
            pods.map(|pod| self.market.pod(self.world.pods[pod].workload, *pod)).collect();
        let plan = self.policy.solve(&snapshot);
        for (node, workload) in places(&self.world, &plan) {
            self.reserved.entry(node).or_default().push(workload);
        }
        let mut needy = BTreeMap::new();
        for launch in &plan.launches {
            let Some(kind) = self.market.kind(launch) else { continue };
            let node = self.launch(kind);
            self.world.grown[self.market.kinds[kind].pool] = Some(self.world.now);
            for pod in launch.pods.iter().filter_map(pod_number) {
                let workload = self.world.pods[&pod].workload;
                self.reserved.entry(node).or_default().push(workload);
                needy.insert(workload, self.world.desired[workload]);
            }
        }
        if !needy.is_empty() {
            self.policy.launches(&needy, self.world.now);
        }
    }

    fn launch(&mut self, kind: usize) -> usize {
        let is_scarce = self.market.kinds[kind].instance_type == self.market.scarce;
        let is_doomed = self.is_out_of_stock && is_scarce;
        let node = self.world.launch(self.market, kind, is_doomed);
        if is_doomed {
            self.at(self.world.now + LAUNCH_FAILS, Event::Fail { node });
        } else {
            let seed = u64::try_from(node).unwrap_or_default();
            let joins = self.world.now + SplitMix(seed).between(JOIN.0, JOIN.1);
            self.at(joins, Event::Join { node });
        }
        node
    }

    /// Lets the policy decide. Returns when it wants to decide again.
    fn pass(&mut self) -> Option<i64> {
        self.passes += 1;
        let mut view = View {
            trace: self.trace,
            market: self.market,
            world: &mut self.world,
            reserved: &self.reserved,
        };
        let passed = self.policy.pass(&mut view);
        if let Some(surplus) = &passed.surplus {
            for (number, node) in &mut self.world.nodes {
                node.is_avoided = surplus.contains(number);
            }
        }
        for decision in passed.decisions {
            self.begin(&decision);
        }
        passed.again
    }

    /// Taints nodes and launches what replaces them.
    fn begin(&mut self, decision: &Decision) {
        let Decision { reason, remove, launches } = decision;
        let mut moved: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for number in remove {
            let Some(node) = self.world.nodes.get_mut(number) else { continue };
            node.going = Some(*reason);
            let of_pool = moved.entry(self.market.kinds[node.kind].pool).or_default();
            let workloads = node.pods.iter().map(|pod| self.world.pods[pod].workload);
            of_pool.extend(workloads.map(|one| (one, self.world.desired[one])));
        }
        self.world.version += 1;
        let replacements = launches.iter().map(|kind| self.launch(*kind)).collect();
        self.checks.began(self.trace, self.market, &self.world, decision);
        for (pool, moved) in &moved {
            self.policy.began(decision, *pool, moved, self.world.now);
        }
        self.commands.push(Command {
            reason: *reason,
            pool: moved.keys().next().copied().unwrap_or_default(),
            remove: remove.clone(),
            replacements,
            is_draining: launches.is_empty(),
        });
        if launches.is_empty() {
            for node in remove {
                self.drain(*node);
            }
        }
    }

    /// Drains the nodes of the command that a node was the last replacement of.
    fn drain_if_replaced(&mut self, joined: usize) {
        let has_joined = |node: &usize| self.world.nodes.get(node).is_some_and(|node| node.joined);
        let mut ready = Vec::new();
        for command in self.commands.iter_mut().filter(|one| one.replacements.contains(&joined)) {
            if !command.is_draining && command.replacements.iter().all(has_joined) {
                command.is_draining = true;
                ready.extend(command.remove.iter().copied());
            }
        }
        for node in ready {
            self.drain(node);
        }
    }

    /// Gives up the command that waits for a node that will not join. Its nodes stay.
    fn give_up(&mut self, lost: usize) {
        let waits = |one: &Command| !one.is_draining && one.replacements.contains(&lost);
        let Some(found) = self.commands.iter().position(waits) else { return };
        let command = self.commands.remove(found);
        for node in &command.remove {
            let node = self.world.nodes.get_mut(node);
            if let Some(node) = node.filter(|node| node.going != Some(Reason::Interrupted)) {
                node.going = None;
            }
        }
        self.world.version += 1;
        self.policy.ended(command.reason, command.pool, false, self.world.now);
    }

    /// Evicts the pods of a node that may be evicted now, and removes it if none is left.
    fn drain(&mut self, number: usize) {
        let Some(node) = self.world.nodes.get(&number) else { return };
        let Some(reason) = node.going else { return };
        for pod in node.pods.iter().copied().collect::<Vec<_>>() {
            let workload = self.world.pods[&pod].workload;
            let most = self.trace.workloads[workload].max_unavailable;
            let is_ready = self.world.pods[&pod].is_ready;
            let unready = self.world.unready(workload) + usize::from(is_ready);
            let may_go = |most: usize| unready <= most;
            if most.is_none_or(may_go) {
                self.world.evict(self.market, pod, reason);
                if reason != Reason::Interrupted {
                    self.checks.evicted(self.trace, &self.world, workload);
                }
            }
        }
        if self.world.nodes.get(&number).is_some_and(|node| node.pods.is_empty()) {
            self.gone(number);
        } else {
            self.at(self.world.now + DRAIN_EVERY, Event::Drain { node: number });
        }
    }

    fn gone(&mut self, number: usize) {
        self.world.remove(self.market, number);
        let world = &self.world;
        let mut done = Vec::new();
        self.commands.retain(|command| {
            let is_done = !command.remove.iter().any(|node| world.nodes.contains_key(node));
            if is_done {
                done.push((command.reason, command.pool));
            }
            !is_done
        });
        for (reason, pool) in done {
            self.policy.ended(reason, pool, true, self.world.now);
        }
    }

    fn evict_spot(&mut self, draw: u64) {
        let is_spot = |node: &super::world::Node| {
            node.joined
                && self.market.kinds[node.kind].pool == 1
                && node.going != Some(Reason::Interrupted)
        };
        let nodes = self.world.nodes.iter().filter(|(_, node)| is_spot(node));
        let nodes: Vec<usize> = nodes.map(|(number, _)| *number).collect();
        let count = u64::try_from(nodes.len()).unwrap_or(0).max(1);
        let Some(number) = usize::try_from(draw % count).ok().and_then(|index| nodes.get(index))
        else {
            return;
        };
        if let Some(node) = self.world.nodes.get_mut(number) {
            node.going = Some(Reason::Interrupted);
        }
        self.world.version += 1;
        self.at(self.world.now, Event::Drain { node: *number });
        self.at(self.world.now + NOTICE, Event::Dies { node: *number });
    }

    /// A spot node is gone, with every pod that is still on it.
    fn die(&mut self, number: usize) {
        let Some(node) = self.world.nodes.get(&number) else { return };
        for pod in node.pods.iter().copied().collect::<Vec<_>>() {
            self.world.evict(self.market, pod, Reason::Interrupted);
        }
        self.gone(number);
        self.give_up(number);
    }
}
