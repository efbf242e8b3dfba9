//! Placement of pods on nodes that stay.

use std::rc::Rc;

use crate::consolidate::receivers::{Receivers, Row};
use crate::consolidate::state::{FleetState, Move};
use crate::ids::{ClassId, NodeIdx};
use crate::topology::counts::{Host, HostQuery};
use crate::topology::groups::TopologyProfile;

impl FleetState<'_> {
    /// Places pods of a class on nodes that stay; returns how many are left.
    pub(super) fn place(&mut self, class: ClassId, count: usize, moves: &mut Vec<Move>) -> usize {
        let known = self.receivers[class].take();
        let mut receivers = known.unwrap_or_else(|| {
            let Self { divisions, cluster, order, .. } = self;
            Receivers::new(&self.classes[class], divisions, &cluster.existing, order)
        });
        for row in &mut receivers.rows {
            self.begin_row(class, row);
        }
        let mut left = count;
        while left > 0 {
            let found = match receivers.profile.clone() {
                Some(profile) => self.next_constrained(class, left, &profile, &mut receivers),
                None => self.next_in_row(class, left, &mut receivers, 0, None),
            };
            let Some((node, count)) = found else { break };
            let one = Move { class, node, count };
            self.take(one);
            moves.push(one);
            left -= count;
        }
        self.receivers[class] = Some(receivers);
        left
    }

    /// Forgets the nodes that turned out to be full once they are many.
    fn begin_row(&self, class: ClassId, row: &mut Row) {
        if row.full * 2 > row.found.len() {
            row.found.retain(|node| !self.is_full(class, *node));
        }
        (row.from, row.full) = (0, 0);
    }

    /// The next node in the emptiest domains that the rules of a class allow.
    fn next_constrained(
        &self,
        class: ClassId,
        max: usize,
        profile: &Rc<TopologyProfile>,
        receivers: &mut Receivers,
    ) -> Option<(NodeIdx, usize)> {
        let topology = &self.cluster.topology;
        let load = |(number, row): (usize, &(_, _))| {
            let (domains, _): &(_, Vec<NodeIdx>) = row;
            (topology.load(profile, domains), number)
        };
        let mut order: Vec<(i64, usize)> = receivers.nodes.iter().enumerate().map(load).collect();
        order.sort_unstable();
        for (_, row) in order {
            let domains = &receivers.nodes[row].0;
            let allowed = topology.allowance(profile, domains, HostQuery::Any);
            if allowed.is_none() {
                continue;
            }
            let max = allowed.min(topology.stride(profile, domains)).of(max);
            let found = self.next_in_row(class, max, receivers, row, Some(profile));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The next node of a row that takes pods, and how many.
    fn next_in_row(
        &self,
        class: ClassId,
        max: usize,
        receivers: &mut Receivers,
        number: usize,
        profile: Option<&Rc<TopologyProfile>>,
    ) -> Option<(NodeIdx, usize)> {
        let Receivers { nodes, rows, has_host_rules, retries_nodes, .. } = receivers;
        let (domains, nodes) = nodes.get(number)?;
        let row = &mut rows[number];
        let existing = &self.cluster.existing;
        let mut position = row.from;
        loop {
            if position == row.found.len() {
                let node = nodes.get(row.seen).copied()?;
                row.seen += 1;
                let of_class = &self.classes[class];
                let is_out = self.is_full(class, node)
                    || !existing.is_compatible(node, of_class, &self.classes);
                if !is_out {
                    row.found.push(node);
                }
                continue;
            }
            let node = row.found[position];
            let room = self.room(class, node, max);
            let allowed = match profile.filter(|_| *has_host_rules && room > 0) {
                Some(profile) => {
                    let query = HostQuery::On(Host::Existing(node));
                    self.cluster.topology.allowance(profile, domains, query).of(room)
                }
                None => room,
            };
            if allowed > 0 {
                return Some((node, allowed));
            }
            row.full += usize::from(room == 0 && self.is_settled(node));
            let is_passed = room == 0 || !*retries_nodes;
            if is_passed && position == row.from {
                row.from += 1;
            }
            position += 1;
        }
    }

    /// Whether a node has no room for a class and will have none later.
    fn is_full(&self, class: ClassId, node: NodeIdx) -> bool {
        self.is_settled(node) && self.room(class, node, 1) == 0
    }

    /// Whether no trial concerns a node: room that is taken on trial, or a node that is removed on
    /// trial, may come back.
    fn is_settled(&self, node: NodeIdx) -> bool {
        self.gone[node] || !self.leaving[node] && self.on_trial[node] == 0
    }

    fn room(&self, class: ClassId, node: NodeIdx, max: usize) -> usize {
        if self.leaving[node] {
            return 0;
        }
        self.cluster.existing.room(node, &self.classes[class], max)
    }

    /// Places pods of a class at given places; `false` if they do not suffice.
    pub(super) fn place_at(
        &mut self,
        class: ClassId,
        mut count: usize,
        places: &mut Vec<(NodeIdx, usize)>,
        moves: &mut Vec<Move>,
    ) -> bool {
        while count > 0 {
            let Some((node, room)) = places.last_mut() else { return false };
            let node = *node;
            let taken = self.allowed(class, node, count.min(*room));
            if taken == 0 {
                return false;
            }
            *room -= taken;
            if *room == 0 {
                places.pop();
            }
            let one = Move { class, node, count: taken };
            self.take(one);
            moves.push(one);
            count -= taken;
        }
        true
    }

    /// Number of pods of a class, out of `count`, that room and rules allow on a node.
    fn allowed(&self, class: ClassId, node: NodeIdx, count: usize) -> usize {
        let room = self.room(class, node, count);
        let of_class = &self.classes[class];
        match &of_class.topology {
            Some(profile) if of_class.is_constrained() => {
                let domains = self.cluster.existing.domains_of(node, profile);
                let query = HostQuery::On(Host::Existing(node));
                self.cluster.topology.allowance(profile, &domains, query).of(room)
            }
            _ => room,
        }
    }

    /// Places pods on trial.
    fn take(&mut self, one: Move) {
        self.cluster.existing.take(one.node, &self.classes[one.class], one.count);
        self.count(one, true);
        self.on_trial[one.node] += 1;
    }

    /// Undoes a placement.
    pub(super) fn take_back(&mut self, one: Move) {
        self.on_trial[one.node] -= 1;
        self.cluster.existing.give_back(one.node, &self.classes[one.class], one.count);
        self.count(one, false);
    }
}
