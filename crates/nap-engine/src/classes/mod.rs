//! Pods that are alike are decided together.
//!
//! Real clusters have thousands of pods and a few dozen kinds of them. A [`Class`] is one kind: the
//! same requests, wishes, tolerations and priority. Everything after this module is work per class,
//! never per pod, until the plan is written out.

pub(crate) mod grouping;
pub(crate) mod relaxation;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nap_api::{Requirements, Taint, Toleration};
use nap_units::{CPU, MEMORY, PODS, Resources};

use crate::classes::grouping::Group;
use crate::classes::relaxation::{Level, Levels};
use crate::intern::Interner;
use crate::model::catalogue::SortedCatalogue;
use crate::model::pod_rules::HostPort;
use crate::model::{ATTACHABLE_VOLUMES, Node, Pod, PodKey, Snapshot};
use crate::offerings::daemon_overhead::DaemonOverhead;
use crate::topology::groups::{Constraint, HostSlot, TopologyProfile, TopologyRules};

/// Everything countable that anybody asks for, numbered: a resource vector becomes a short row of
/// integers. AntiAffinity from resources these are the ports of a node, of which there is one each, and
/// the slots of rules by host name.
pub(crate) struct Dimensions<'a> {
    resources: Vec<&'a str>,
    /// Protocol, number and address; no address stands for all of them.
    ports: Vec<(&'a str, i32, Option<&'a str>)>,
    slots: Vec<HostSlot<'a>>,
}

impl<'a> Dimensions<'a> {
    /// What the pods and daemons of a snapshot ask for.
    pub(crate) fn of(kinds: &[&'a Pod], snapshot: &'a Snapshot, rules: &TopologyRules<'a>) -> Self {
        let requests = kinds.iter().map(|pod| &pod.requests);
        let requests = requests.chain(snapshot.daemons.iter().map(|daemon| &daemon.requests));
        let asked = requests.flat_map(Resources::iter).filter(|(_, amount)| *amount > 0);
        let resources: BTreeSet<&str> = asked.map(|(name, _)| name).collect();
        let resources = resources.into_iter().collect();
        let asked = kinds.iter().flat_map(|pod| &pod.host_ports);
        let mut ports: Vec<_> =
            asked.map(|port| (port.protocol.as_str(), port.port, address(port))).collect();
        ports.sort_unstable();
        ports.dedup();
        Self { resources, ports, slots: rules.slots.clone() }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.resources.len() + self.ports.len() + self.slots.len()
    }

    /// The resources, which come first.
    pub(crate) fn resources(&self) -> &[&'a str] {
        &self.resources
    }

    /// What a machine without pods has.
    fn whole(&self, allocatable: &Resources) -> Vec<i64> {
        let resources = self.resources.iter().map(|name| {
            let is_unlimited = is_attachment(name) && !allocatable.contains(name);
            if is_unlimited { UNLIMITED } else { allocatable.get(name) }
        });
        resources
            .chain(self.ports.iter().map(|_| 1))
            .chain(self.slots.iter().map(HostSlot::capacity))
            .collect()
    }

    /// What is free on a machine that exists.
    pub(crate) fn free(&self, node: &Node) -> Vec<i64> {
        let mut free = self.whole(&node.free);
        let (ports, slots) = free[self.resources.len()..].split_at_mut(self.ports.len());
        for resident in &node.residents {
            for (free, port) in ports.iter_mut().zip(&self.ports) {
                if resident.host_ports.iter().any(|taken| conflicts(taken, port)) {
                    *free = 0;
                }
            }
            for (free, slot) in slots.iter_mut().zip(&self.slots) {
                if slot.taken_by(resident) {
                    *free -= i64::from(resident.count);
                }
            }
        }
        free
    }

    /// What a pod asks for: a negative amount counts as nothing.
    fn request(&self, requests: &Resources, host_ports: &[HostPort], slots: &[usize]) -> Vec<i64> {
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

    /// What each type has without pods, one after another.
    pub(crate) fn machines(&self, stock: SortedCatalogue<'_>) -> Vec<i64> {
        let width = self.len();
        let mut free = vec![0; width * stock.len()];
        for (dimension, name) in self.resources.iter().enumerate() {
            let absent = if is_attachment(name) { UNLIMITED } else { 0 };
            let amounts = stock.allocatable(name);
            for kind in 0..stock.len() {
                let amount = amounts.and_then(|amounts| amounts[kind]);
                free[kind * width + dimension] = amount.unwrap_or(absent);
            }
        }
        let others: Vec<i64> =
            self.ports.iter().map(|_| 1).chain(self.slots.iter().map(HostSlot::capacity)).collect();
        for free in free.chunks_exact_mut(width.max(1)) {
            free[self.resources.len()..].copy_from_slice(&others);
        }
        free
    }

    /// Takes off what daemons need.
    pub(crate) fn take_daemons(&self, free: &mut [i64], daemons: &DaemonOverhead) {
        if daemons.requests.is_empty() && daemons.ports.is_empty() {
            return;
        }
        for (free, name) in free.iter_mut().zip(&self.resources) {
            *free = free.saturating_sub(daemons.requests.get(name).max(0));
        }
        for (free, port) in free.iter_mut().skip(self.resources.len()).zip(&self.ports) {
            if daemons.ports.iter().any(|one| conflicts(one, port)) {
                *free = 0;
            }
        }
    }

    /// Takes off a share of the resources that are amounts, which stays free.
    pub(crate) fn take_slack(&self, free: &mut [i64], percent: u8) {
        for (free, name) in free.iter_mut().zip(&self.resources) {
            if percent > 0 && *name != PODS && !is_attachment(name) {
                *free -= (*free).max(0) / 100 * i64::from(percent.min(100));
            }
        }
    }

    /// The name of a dimension, as people would say it.
    pub(crate) fn name(&self, index: usize) -> String {
        let port = index.checked_sub(self.resources.len()).and_then(|index| self.ports.get(index));
        match (self.resources.get(index), port) {
            (Some(name), _) => (*name).to_owned(),
            (None, Some((protocol, number, _))) => format!("{HOST_PORT} {number}/{protocol}"),
            (None, None) => "places by host name".to_owned(),
        }
    }
}

/// Of what nobody limits there is this much: more than anybody asks for, and sums stay in range.
const UNLIMITED: i64 = i64::MAX / 4;

/// Whether a resource counts volumes that can be attached to a machine. A machine that does not
/// name it has no such limit.
pub(crate) fn is_attachment(resource: &str) -> bool {
    resource.starts_with(ATTACHABLE_VOLUMES)
}

/// How the name of a port among the dimensions begins.
pub(crate) const HOST_PORT: &str = "host port";

/// A pod's own terms, each with every place where its volumes can be; nothing where the two exclude
/// each other.
fn with_volumes<'a>(
    terms: &'a [Requirements],
    volumes: &'a [Requirements],
) -> Vec<Cow<'a, Requirements>> {
    let any = [Requirements::new()];
    if volumes.is_empty() {
        return if terms.is_empty() {
            vec![Cow::Owned(Requirements::new())]
        } else {
            terms.iter().map(Cow::Borrowed).collect()
        };
    }
    let terms = if terms.is_empty() { &any } else { terms };
    let each = terms.iter().flat_map(|term| {
        let agreeing = volumes.iter().filter(|volume| term.intersects(volume).is_ok());
        agreeing.map(move |volume| {
            let mut both = term.clone();
            both.extend(volume);
            Cow::Owned(both)
        })
    });
    each.collect()
}

fn address(port: &HostPort) -> Option<&str> {
    (!port.is_everywhere()).then_some(port.address.as_str())
}

/// Whether somebody who has one port keeps another from being had.
fn conflicts(taken: &HostPort, (protocol, number, at): &(&str, i32, Option<&str>)) -> bool {
    (taken.protocol.as_str(), taken.port) == (*protocol, *number)
        && (taken.is_everywhere() || at.is_none_or(|at| at == taken.address))
}

/// Which nodes a kind of pod may go to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Wish<'a> {
    terms: &'a [Requirements],
    volumes: &'a [Requirements],
    tolerations: &'a [Toleration],
    is_picky: bool,
}

/// Everything about a pod that matters.
#[derive(PartialEq, Eq, Hash)]
struct Kind<'a> {
    priority: i32,
    requests: &'a Resources,
    host_ports: &'a [HostPort],
    wish: Wish<'a>,
    profile: usize,
}

impl<'a> Kind<'a> {
    fn of(level: &'a Level<'a>, profile: usize) -> Self {
        let pod: &'a Pod = &level.pod;
        let wish = Wish {
            terms: &pod.terms,
            volumes: &pod.volume_terms,
            tolerations: &pod.tolerations,
            is_picky: level.is_picky,
        };
        Self {
            priority: pod.priority,
            requests: &pod.requests,
            host_ports: &pod.host_ports,
            wish,
            profile,
        }
    }
}

/// Pods that are alike, in one of the forms in which they are tried.
pub(crate) struct Class<'a> {
    /// The pods, in key order; none unless this is their first form.
    pub(crate) pods: Vec<&'a PodKey>,
    /// Number of the first form of these pods, which has them.
    pub(crate) base: usize,
    /// Number of their last form, which demands least. All forms come one after another.
    pub(crate) last: usize,
    /// What each asks for, by dimension.
    pub(crate) row: Vec<i64>,
    /// How many milli-cores each asks for.
    pub(crate) cpu: i64,
    /// Where each may go: the numbers of its terms, in order. None if its volumes are where it may
    /// not be.
    pub(crate) terms: Vec<usize>,
    /// Which taints each tolerates.
    tolerations: &'a [Toleration],
    /// Taints that only discourage keep it away too.
    is_picky: bool,
    /// Classes with the same terms and tolerations have the same number.
    pub(crate) wish: usize,
    /// Higher goes first.
    pub(crate) priority: i32,
    /// How it depends on other pods, if it does.
    pub(crate) coupling: Option<Rc<TopologyProfile>>,
    /// Whether each of the counters that count it looks at a new node of its own for sure.
    pub(crate) certain: Vec<bool>,
    /// It is counted by others, but nothing keeps it from being bound after them: it goes anywhere,
    /// and counts where its node is known.
    pub(crate) is_only_counted: bool,
    /// The same if nobody wanted to be near it: where nodes cannot be tied to a domain, it may go
    /// anywhere, and counts nowhere.
    pub(crate) may_ignore_domains: bool,
}

impl<'a> Class<'a> {
    /// The same pods as if they depended on nobody, with other terms.
    pub(crate) fn alone(&self, number: usize, terms: Vec<usize>) -> Class<'a> {
        Class {
            pods: Vec::new(),
            base: number,
            last: number,
            row: self.row.clone(),
            cpu: self.cpu,
            terms,
            tolerations: self.tolerations,
            is_picky: self.is_picky,
            wish: self.wish,
            priority: self.priority,
            coupling: None,
            certain: Vec::new(),
            is_only_counted: false,
            may_ignore_domains: false,
        }
    }

    /// Whether it may move from one node to another in the same domains, whoever else is there.
    pub(crate) fn is_movable(&self) -> bool {
        let is_by_domain = |coupling: &Rc<TopologyProfile>| {
            coupling.is_by_domain() && self.certain.iter().all(|certain| *certain)
        };
        !self.has_preferences() && self.coupling.as_ref().is_none_or(is_by_domain)
    }
}

impl Class<'_> {
    /// The first taint that keeps it away.
    pub(crate) fn repelled_by<'t>(&self, taints: &'t [Taint]) -> Option<&'t Taint> {
        let tolerated = |taint: &Taint| self.tolerations.iter().any(|one| one.tolerates(taint));
        taints.iter().find(|taint| (self.is_picky || taint.repels()) && !tolerated(taint))
    }

    /// Whether it is tried in several forms.
    pub(crate) fn has_preferences(&self) -> bool {
        self.base != self.last
    }

    /// Whether rules between pods decide where it may go.
    pub(crate) fn is_bound_by_rules(&self) -> bool {
        self.coupling.is_some() && !self.is_only_counted
    }
}

/// The classes of a snapshot, in the order in which they are placed.
pub(crate) struct Classes<'a> {
    pub(crate) list: Vec<Class<'a>>,
    /// The distinct terms that [`Class::terms`] refers to.
    pub(crate) terms: Vec<Cow<'a, Requirements>>,
}

impl<'a> Classes<'a> {
    /// Joins groups of pods whose differences matter to nobody.
    pub(crate) fn of(
        groups: &[Group<'a>],
        levels: &'a Levels<'a>,
        dimensions: &Dimensions<'a>,
        rules: &TopologyRules<'a>,
    ) -> Self {
        let mut kinds: Interner<Vec<Kind<'a>>> = Interner::default();
        let mut members: Vec<Vec<&'a PodKey>> = Vec::new();
        for (group, range) in groups.iter().zip(levels.starts.windows(2)) {
            let kind = |level: usize| Kind::of(&levels.list[level], rules.profile_of[level]);
            let number = kinds.number((range[0]..range[1]).map(kind).collect());
            if number == members.len() {
                members.push(Vec::new());
            }
            members[number].extend(&group.pods);
        }
        let mut terms: Interner<Cow<'a, Requirements>> = Interner::default();
        let mut wishes: Interner<Wish<'a>> = Interner::default();
        let size = |kinds: &[Kind<'_>]| {
            let [kind, ..] = kinds else { return (0, 0, 0) };
            (kind.priority, kind.requests.get(CPU), kind.requests.get(MEMORY))
        };
        let mut families: Vec<_> = kinds
            .items
            .into_iter()
            .zip(members)
            .map(|(kinds, mut pods)| {
                pods.sort_unstable();
                (Reverse(size(&kinds)), kinds, pods)
            })
            .collect();
        families.sort_by(|(a, _, a_pods), (b, _, b_pods)| {
            a.cmp(b).then_with(|| a_pods.first().cmp(&b_pods.first()))
        });
        let mut list: Vec<Class<'a>> = Vec::with_capacity(families.len());
        for (_, kinds, pods) in families {
            let base = list.len();
            let last = base + kinds.len() - 1;
            let mut pods = Some(pods);
            for kind in kinds {
                let Wish { terms: own_terms, volumes, tolerations, is_picky } = kind.wish;
                let profile = &rules.profiles[kind.profile];
                let coupling = profile.coupling.clone();
                let certain = coupling.as_ref().map(|coupling| {
                    let keys: Vec<&str> =
                        coupling.keys.iter().map(|key| rules.keys[*key]).collect();
                    let looks = |(counter, _): &(usize, _)| {
                        rules.counters[*counter].looks_at_nodes_of(own_terms, tolerations, &keys)
                    };
                    coupling.counted.iter().map(looks).collect()
                });
                let numbers =
                    with_volumes(own_terms, volumes).into_iter().map(|term| terms.number(term));
                list.push(Class {
                    pods: pods.take().unwrap_or_default(),
                    base,
                    last,
                    cpu: kind.requests.get(CPU).max(0),
                    row: dimensions.request(kind.requests, kind.host_ports, &profile.slots),
                    terms: numbers.collect(),
                    tolerations,
                    is_picky,
                    wish: wishes.number(kind.wish),
                    priority: kind.priority,
                    coupling,
                    certain: certain.unwrap_or_default(),
                    is_only_counted: false,
                    may_ignore_domains: false,
                });
            }
        }
        let mut classes = Self { list, terms: terms.items };
        classes.find_light();
        classes
    }

    /// The same pods with fewer demands, if there is such a form of them.
    pub(crate) fn fallback(&self, number: usize) -> Option<usize> {
        (number < self.list[number].last).then_some(number + 1)
    }

    /// A class that is only counted can be bound last, unless somebody wants to be near it, or its
    /// priority brings it before pods that look at it.
    fn find_light(&mut self) {
        let mut wanted: BTreeSet<usize> = BTreeSet::new();
        let mut watchers: BTreeMap<usize, i32> = BTreeMap::new();
        for class in &self.list {
            for constraint in class.coupling.iter().flat_map(|coupling| &coupling.constraints) {
                if matches!(constraint, Constraint::Affinity { .. }) {
                    wanted.extend(constraint.counters());
                    continue;
                }
                for counter in constraint.counters() {
                    let least = watchers.entry(counter).or_insert(i32::MAX);
                    *least = (*least).min(class.priority);
                }
            }
        }
        for class in &mut self.list {
            let Some(coupling) =
                class.coupling.as_ref().filter(|coupling| coupling.is_only_counted())
            else {
                continue;
            };
            let mut counters = coupling.counted.iter().map(|(counter, _)| counter);
            let can_wait = |counter: &usize| {
                watchers.get(counter).is_none_or(|watcher| *watcher >= class.priority)
            };
            class.may_ignore_domains = counters.clone().all(can_wait);
            class.is_only_counted =
                class.may_ignore_domains && !counters.any(|counter| wanted.contains(counter));
        }
    }

    /// What so many pods of each class ask for together, in the form that demands least.
    pub(crate) fn demand(&self, counts: &[usize]) -> Vec<i64> {
        let mut demand = vec![0_i64; self.list.first().map_or(0, |class| class.row.len())];
        for (class, count) in self.list.iter().zip(counts).filter(|(_, count)| **count > 0) {
            let times = i64::try_from(*count).unwrap_or(i64::MAX);
            for (demand, request) in demand.iter_mut().zip(&self.list[class.last].row) {
                *demand = demand.saturating_add(request.saturating_mul(times));
            }
        }
        demand
    }

    /// For each class, the least that it or any class after it asks for, by dimension.
    pub(crate) fn least_to_come(&self) -> Vec<Vec<i64>> {
        let mut least: Vec<Vec<i64>> = Vec::with_capacity(self.list.len());
        for class in self.list.iter().rev() {
            let row = match least.last() {
                Some(after) => class.row.iter().zip(after).map(|(a, b)| *a.min(b)).collect(),
                None => class.row.clone(),
            };
            least.push(row);
        }
        least.reverse();
        least
    }
}

/// How many more of a request fit beside what is used, at most `most`.
pub(crate) fn room(free: &[i64], used: &[i64], request: &[i64], most: usize) -> usize {
    let mut room = most;
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

/// Whether what is used fits at all.
pub(crate) fn holds(free: &[i64], used: &[i64]) -> bool {
    free.iter().zip(used).all(|(free, used)| used <= free)
}
