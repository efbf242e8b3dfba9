//! What exists is free: it is filled before anything is bought.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::Requirements;
use nap_api::requirement::Undefined;

use crate::classes::{Class, Classes, Dimensions};
use crate::model::{Node, Snapshot};
use crate::offerings::index::OfferingIndex;
use crate::topology::counts::{Domains, Host, Topology, domains_of, passes};
use crate::topology::groups::{TopologyGroup, TopologyProfile, TopologyRules};

/// Pods of a class on a machine that exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExistingPlacement {
    pub(crate) class: usize,
    pub(crate) node: usize,
    pub(crate) count: usize,
}

/// The machines that exist or are on their way, and what is free on them.
#[derive(Clone)]
pub(crate) struct ExistingNodes<'a> {
    /// Running machines before those on their way, then by name.
    pub(crate) nodes: Rc<[&'a Node]>,
    pub(crate) labels: Rc<[Requirements]>,
    /// The domains of each machine, by every label whose values are domains.
    pub(crate) domains: Rc<[Domains]>,
    free: Vec<Vec<i64>>,
    /// Which machines suit which wishes, as far as somebody asked.
    compatible_cache: Rc<RefCell<BTreeMap<(usize, usize), bool>>>,
}

/// Where a class could go, by domains, and from where on it is worth looking.
pub(crate) struct CandidateNodes {
    rows: Vec<(Domains, Vec<usize>, usize)>,
    /// A machine that is refused now may be allowed later, so all are looked at again.
    patient: bool,
}

impl<'a> ExistingNodes<'a> {
    pub(crate) fn of(
        snapshot: &'a Snapshot,
        dimensions: &Dimensions<'a>,
        rules: &TopologyRules<'_>,
        offerings: &mut OfferingIndex<'_>,
    ) -> Self {
        let mut nodes: Vec<&Node> = snapshot.nodes.iter().collect();
        nodes.sort_by(|a, b| (!a.initialized, a).cmp(&(!b.initialized, b)));
        Self {
            free: nodes.iter().map(|node| dimensions.free(node)).collect(),
            labels: nodes.iter().map(|node| Requirements::from_labels(&node.labels)).collect(),
            domains: nodes.iter().map(|node| domains_of(node, rules, offerings)).collect(),
            nodes: nodes.into(),
            compatible_cache: Rc::default(),
        }
    }

    /// Nothing exists.
    pub(crate) fn none() -> Self {
        let compatible_cache = Rc::default();
        Self {
            nodes: [].into(),
            labels: [].into(),
            domains: [].into(),
            free: Vec::new(),
            compatible_cache,
        }
    }

    /// The domains of a machine that a kind of pod depends on.
    fn vector(&self, node: usize, coupling: &TopologyProfile) -> Domains {
        coupling.keys.iter().map(|key| self.domains[node][*key]).collect()
    }

    /// First fit in the order of the classes. How many pods of each class are placed: its first
    /// ones.
    pub(crate) fn fill(
        &mut self,
        classes: &Classes<'_>,
        topology: &mut Topology,
    ) -> (Vec<usize>, Vec<ExistingPlacement>) {
        let mut placed = vec![0; classes.list.len()];
        let mut seated = Vec::new();
        if self.nodes.is_empty() {
            return (placed, seated);
        }
        for (number, class) in classes.list.iter().enumerate() {
            let pods = class.pods.len();
            let left = self.fill_with(number, pods, classes, topology, &mut seated);
            placed[number] = pods - left;
        }
        (placed, seated)
    }

    /// Puts pods of a class where they fit; how many are left.
    pub(crate) fn fill_with(
        &mut self,
        number: usize,
        mut left: usize,
        classes: &Classes<'_>,
        topology: &mut Topology,
        seated: &mut Vec<ExistingPlacement>,
    ) -> usize {
        let class = &classes.list[number];
        if left > 0 {
            if let Some(coupling) = class.coupling.as_ref().filter(|_| !class.is_only_counted) {
                let mut seats = self.seats(class, classes, coupling);
                while let Some((node, count)) =
                    self.seat(&mut seats, class, coupling, topology, left)
                {
                    seated.push(ExistingPlacement { class: number, node, count });
                    left -= count;
                }
            } else {
                for node in 0..self.nodes.len() {
                    if left == 0 {
                        break;
                    }
                    let count = fitting(&self.free[node], class, left);
                    if count > 0 && self.suits(node, class, classes) {
                        self.take(node, class, count);
                        if let Some(coupling) = &class.coupling {
                            let vector = self.vector(node, coupling);
                            topology.record(coupling, &class.certain, &vector, node, count);
                        }
                        seated.push(ExistingPlacement { class: number, node, count });
                        left -= count;
                    }
                }
            }
        }
        left
    }

    /// What is free on each machine by now.
    pub(crate) fn free(&self) -> &[Vec<i64>] {
        &self.free
    }

    /// The machines that a counter looks at: for sure.
    pub(crate) fn seen_by(&self, counter: &TopologyGroup<'_>) -> Vec<(usize, bool)> {
        let each = self.nodes.iter().zip(self.labels.iter()).enumerate();
        each.filter(|(_, (node, labels))| passes(counter, node, labels))
            .map(|(node, _)| (node, true))
            .collect()
    }

    /// Gives every machine more of a dimension.
    pub(crate) fn raise(&mut self, dimension: usize, by: i64) {
        for free in &mut self.free {
            free[dimension] = free[dimension].saturating_add(by);
        }
    }

    /// The machines that suit a class and have room for it, by their domains.
    pub(crate) fn seats(
        &self,
        class: &Class<'_>,
        classes: &Classes<'_>,
        coupling: &TopologyProfile,
    ) -> CandidateNodes {
        let mut rows: BTreeMap<Domains, Vec<usize>> = BTreeMap::new();
        for index in 0..self.nodes.len() {
            if fitting(&self.free[index], class, 1) == 1 && self.suits(index, class, classes) {
                rows.entry(self.vector(index, coupling)).or_default().push(index);
            }
        }
        let rows = rows.into_iter().map(|(vector, nodes)| (vector, nodes, 0)).collect();
        CandidateNodes { rows, patient: coupling.follows_hosts() }
    }

    /// Places pods of a class on the first machine that may have them, in the emptiest domain;
    /// where, and how many.
    pub(crate) fn seat(
        &mut self,
        seats: &mut CandidateNodes,
        class: &Class<'_>,
        coupling: &TopologyProfile,
        topology: &mut Topology,
        most: usize,
    ) -> Option<(usize, usize)> {
        if most == 0 || seats.rows.is_empty() {
            return None;
        }
        let mut order: Vec<(i64, usize)> = seats
            .rows
            .iter()
            .enumerate()
            .map(|(row, (vector, ..))| (topology.load(coupling, vector), row))
            .collect();
        order.sort_unstable();
        for (_, row) in order {
            let (vector, nodes, first) = &mut seats.rows[row];
            if topology.allowance(coupling, vector, Host::Any) == 0 {
                continue;
            }
            let mut position = *first;
            while let Some(node) = nodes.get(position).copied() {
                let allowed = topology.allowance(coupling, vector, Host::Is(node));
                let allowed = allowed.min(topology.stride(coupling, vector)).min(most);
                let count = fitting(&self.free[node], class, allowed);
                if count > 0 {
                    topology.record(coupling, &class.certain, vector, node, count);
                    self.take(node, class, count);
                    return Some((node, count));
                }
                position += 1;
                if !seats.patient {
                    *first = position;
                }
            }
        }
        None
    }

    fn take(&mut self, node: usize, class: &Class<'_>, count: usize) {
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        for (free, request) in self.free[node].iter_mut().zip(&class.row) {
            *free = free.saturating_sub(request.saturating_mul(times));
        }
    }

    fn suits(&self, index: usize, class: &Class<'_>, classes: &Classes<'_>) -> bool {
        let mut compatible_cache = self.compatible_cache.borrow_mut();
        *compatible_cache.entry((class.wish, index)).or_insert_with(|| {
            let labels = &self.labels[index];
            let suits =
                |term: &usize| labels.compatible(&classes.terms[*term], Undefined::Deny).is_ok();
            class.repelled_by(&self.nodes[index].taints).is_none() && class.terms.iter().any(suits)
        })
    }
}

/// How many fit. Only what a pod asks for counts: a resource that is overdrawn keeps nobody away
/// who wants none of it.
fn fitting(free: &[i64], class: &Class<'_>, most: usize) -> usize {
    let asked = free.iter().zip(&class.row).filter(|(_, request)| **request > 0);
    asked.map(|(free, request)| usize::try_from(free / request).unwrap_or(0)).fold(most, usize::min)
}
