//! Dimensions: everything countable that pods request, as positions of an integer vector.
//!
//! Besides resources these are host ports, of which each node has one of a kind, and the host slots
//! of topology rules by hostname.

use std::collections::BTreeSet;

use nap_units::{PODS, Resources};

use crate::model::{ATTACHABLE_VOLUMES, HostPort, Node, Pod, Shortage, Snapshot};
use crate::topology::groups::{HostSlot, TopologyRules};

/// Capacity of an unlimited dimension: larger than any request, and small enough that sums cannot
/// overflow.
const UNLIMITED: i64 = i64::MAX / 4;

/// Protocol, number and address of a host port; `None` stands for all addresses.
type Port<'a> = (&'a str, i32, Option<&'a str>);

/// The dimensions of a snapshot: resources first, then host ports, then host slots.
pub(crate) struct Dimensions<'a> {
    resources: Vec<&'a str>,
    ports: Vec<Port<'a>>,
    slots: Vec<HostSlot<'a>>,
}

impl<'a> Dimensions<'a> {
    /// Finds the dimensions that the pods and daemons of a snapshot request.
    pub(crate) fn of(pods: &[&'a Pod], snapshot: &'a Snapshot, rules: &TopologyRules<'a>) -> Self {
        let requests = pods.iter().map(|pod| &pod.requests);
        let requests = requests.chain(snapshot.daemons.iter().map(|daemon| &daemon.requests));
        let requested = requests.flat_map(Resources::iter).filter(|(_, amount)| *amount > 0);
        let resources: BTreeSet<&str> = requested.map(|(name, _)| name).collect();
        let requested = pods.iter().flat_map(|pod| &pod.host_ports);
        let mut ports: Vec<_> =
            requested.map(|port| (port.protocol.as_str(), port.port, address(port))).collect();
        ports.sort_unstable();
        ports.dedup();
        Self { resources: resources.into_iter().collect(), ports, slots: rules.slots.clone() }
    }

    /// Number of dimensions.
    pub(crate) fn len(&self) -> usize {
        self.resources.len() + self.ports.len() + self.slots.len()
    }

    /// Names of the resources.
    pub(crate) fn resources(&self) -> &[&'a str] {
        &self.resources
    }

    /// Capacity of an empty node in the dimensions that are no resources.
    pub(crate) fn ports_and_slots(&self) -> impl Iterator<Item = i64> {
        self.ports.iter().map(|_| 1).chain(self.slots.iter().map(HostSlot::capacity))
    }

    /// Free capacity of an existing node.
    pub(crate) fn free(&self, node: &Node) -> Vec<i64> {
        let amount = |name: &&str| {
            if node.free.contains(name) { node.free.get(name) } else { amount_if_unnamed(name) }
        };
        let resources = self.resources.iter().map(amount);
        let mut free: Vec<i64> = resources.chain(self.ports_and_slots()).collect();
        let (ports, slots) = free[self.resources.len()..].split_at_mut(self.ports.len());
        for running in &node.residents {
            self.take_ports(ports, &running.host_ports);
            for (free, slot) in slots.iter_mut().zip(&self.slots) {
                if slot.taken_by(running) {
                    *free -= i64::from(running.count);
                }
            }
        }
        free
    }

    /// Request of a pod; a negative amount counts as zero.
    pub(crate) fn request(
        &self,
        requests: &Resources,
        host_ports: &[HostPort],
        slots: &[usize],
    ) -> Vec<i64> {
        let resources = self.resources.iter().map(|name| requests.get(name).max(0));
        let ports = self.ports.iter().map(|(protocol, number, at)| {
            i64::from(host_ports.iter().any(|port| {
                (port.protocol.as_str(), port.port) == (*protocol, *number)
                    && (port.is_everywhere() || address(port) == *at)
            }))
        });
        let slots = (0..self.slots.len()).map(|slot| i64::from(slots.contains(&slot)));
        resources.chain(ports).chain(slots).collect()
    }

    /// Takes the requests and ports of daemons off the capacity of a node.
    pub(crate) fn take(&self, free: &mut [i64], requests: &Resources, ports: &[HostPort]) {
        if requests.is_empty() && ports.is_empty() {
            return;
        }
        let (resources, rest) = free.split_at_mut(self.resources.len());
        for (free, name) in resources.iter_mut().zip(&self.resources) {
            *free = free.saturating_sub(requests.get(name).max(0));
        }
        self.take_ports(rest, ports);
    }

    fn take_ports(&self, free: &mut [i64], taken: &[HostPort]) {
        for (free, port) in free.iter_mut().zip(&self.ports) {
            if taken.iter().any(|taken| conflicts(taken, port)) {
                *free = 0;
            }
        }
    }

    /// Takes a share of every resource that is an amount off the capacity of a node.
    pub(crate) fn take_slack(&self, free: &mut [i64], percent: u8) {
        for (free, name) in free.iter_mut().zip(&self.resources) {
            if percent > 0 && *name != PODS && !is_attachment(name) {
                *free -= (*free).max(0) / 100 * i64::from(percent.min(100));
            }
        }
    }

    /// A dimension as the reason of a refusal.
    pub(crate) fn shortage(&self, index: usize) -> Shortage {
        let port = index.checked_sub(self.resources.len()).and_then(|index| self.ports.get(index));
        match (self.resources.get(index), port) {
            (Some(name), _) => Shortage::Resource((*name).to_owned()),
            (None, Some((protocol, port, _))) => {
                Shortage::HostPort { port: *port, protocol: (*protocol).to_owned() }
            }
            (None, None) => Shortage::HostSlot,
        }
    }
}

/// Whether a resource counts volumes that can be attached to a node.
pub(crate) fn is_attachment(resource: &str) -> bool {
    resource.starts_with(ATTACHABLE_VOLUMES)
}

/// Amount of a resource on a node that does not name it: attachable volumes are then unlimited.
pub(crate) fn amount_if_unnamed(resource: &str) -> i64 {
    if is_attachment(resource) { UNLIMITED } else { 0 }
}

fn address(port: &HostPort) -> Option<&str> {
    (!port.is_everywhere()).then_some(port.address.as_str())
}

/// Whether two host ports conflict: same protocol and number, overlapping addresses.
fn conflicts(taken: &HostPort, (protocol, number, at): &Port<'_>) -> bool {
    (taken.protocol.as_str(), taken.port) == (*protocol, *number)
        && (taken.is_everywhere() || at.is_none_or(|at| at == taken.address))
}

/// Number of further requests that fit beside what is used, at most `max`.
pub(crate) fn room(free: &[i64], used: &[i64], request: &[i64], max: usize) -> usize {
    let mut room = max;
    for ((free, used), request) in free.iter().zip(used).zip(request) {
        if used > free {
            return 0;
        }
        if *request > 0 {
            let times = free.saturating_sub(*used) / request;
            room = room.min(usize::try_from(times).unwrap_or(usize::MAX));
        }
        if room == 0 {
            return 0;
        }
    }
    room
}

/// Number of requests that fit onto an empty node, at most `max`.
pub(crate) fn room_when_empty(free: &[i64], request: &[i64], max: usize) -> usize {
    let mut room = max;
    for (free, request) in free.iter().zip(request) {
        if *free < 0 {
            return 0;
        }
        if *request > 0 {
            room = room.min(usize::try_from(free / request).unwrap_or(usize::MAX));
        }
    }
    room
}

/// Whether a node with this capacity holds what is used.
pub(crate) fn holds(free: &[i64], used: &[i64]) -> bool {
    free.iter().zip(used).all(|(free, used)| used <= free)
}

/// Adds `count` requests to what is used.
pub(crate) fn add_requests(used: &mut [i64], request: &[i64], count: usize) {
    let times = i64::try_from(count).unwrap_or(i64::MAX);
    for (used, request) in used.iter_mut().zip(request) {
        *used = used.saturating_add(request.saturating_mul(times));
    }
}

/// Sum of what is used and `count` requests.
pub(crate) fn with_requests(used: &[i64], request: &[i64], count: usize) -> Vec<i64> {
    let mut with = used.to_vec();
    add_requests(&mut with, request, count);
    with
}
