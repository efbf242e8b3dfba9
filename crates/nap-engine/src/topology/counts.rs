//! How many pods each domain has, and how many more of a kind it may take.
//!
//! A domain is a value of a node label: a zone, a rack, a capacity type. Every node is a domain of
//! its own by host name, and there can always be one more of those; so a spread over hosts compares
//! with nothing, whatever other nodes there are. Domains of other labels are those that exist, and
//! those that could be bought. Both change when pods are left without a place: see the module
//! `closing`.
//!
//! Where it is not certain that a spread constraint looks at a node which is not bought yet, its
//! pods count against their domain but do not raise the emptiest one: the skew is never
//! understated.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::Requirements;
use nap_api::labels;
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;

use crate::model::{Node, Rule};
use crate::offerings::index::OfferingIndex;
use crate::topology::groups::{
    At, Constraint, TopologyGroup, TopologyProfile, TopologyRules, is_host,
};

/// Stands for a label that a node lacks.
pub(crate) const ABSENT: u32 = u32::MAX;

/// The numbers of the domains that a kind of pod depends on, in the order of [`TopologyProfile::keys`];
/// [`ABSENT`] where the node lacks the label.
pub(crate) type Domains = Vec<u32>;

/// Which node is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// Whichever: rules by host name are left out.
    Any,
    /// One that does not exist yet.
    Fresh,
    /// The one with this number.
    Is(usize),
}

/// Pods in a domain: the most it may be, and what is certain.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    most: i64,
    least: i64,
    /// The rule looks at this domain at all.
    is_seen: bool,
    /// It does for sure.
    is_sure: bool,
}

/// The counts of every counter.
#[derive(Clone, Default)]
pub(crate) struct Topology {
    /// By the number of the domain.
    counts: Vec<Vec<Count>>,
    /// For each node, the counters that have pods on it and how many.
    hosts: Vec<Vec<(usize, i64)>>,
    totals: Vec<i64>,
    /// For each counter, whether it looks at each machine that exists.
    looks: Rc<[Vec<bool>]>,
    /// Which counters have no more domains than those that have nodes; see the module `closing`.
    closed: Vec<bool>,
    /// For each counter by host name, how many pods every node has at least and how many nodes
    /// there are, once there will be no more.
    floors: Option<Vec<(i64, usize)>>,
}

impl Topology {
    /// Counts what runs, and finds every domain.
    pub(crate) fn new<'a>(
        rules: &TopologyRules<'a>,
        nodes: &[&'a Node],
        labels: &[Requirements],
        offerings: &mut OfferingIndex<'a>,
        reservations: &BTreeMap<String, u32>,
    ) -> Self {
        let width = rules.counters.len();
        let mut topology = Self {
            counts: vec![Vec::new(); width],
            hosts: Vec::new(),
            totals: vec![0; width],
            looks: rules
                .counters
                .iter()
                .map(|counter| {
                    nodes
                        .iter()
                        .zip(labels)
                        .map(|(node, labels)| passes(counter, node, labels))
                        .collect()
                })
                .collect(),
            closed: vec![false; width],
            floors: None,
        };
        for (number, counter) in rules.counters.iter().enumerate() {
            let key = rules.keys.binary_search(&counter.key).ok();
            if let Some(key) = key.filter(|_| counter.filter.is_some()) {
                for value in buyable(counter, key, offerings, reservations) {
                    let domain = topology.domain(number, value);
                    (domain.is_seen, domain.is_sure) = (true, true);
                }
            }
            for (host, node) in nodes.iter().enumerate() {
                let counted = node.residents.iter().filter(|resident| {
                    counter.counts(&resident.namespace, &resident.labels, &resident.anti_affinity)
                });
                let pods: i64 = counted.map(|resident| i64::from(resident.count)).sum();
                let domain = key.map(|key| domain_of(node, key, rules, offerings));
                topology.count(number, domain, host, pods, true);
            }
        }
        topology
    }

    fn domain(&mut self, counter: usize, domain: u32) -> &mut Count {
        let counts = &mut self.counts[counter];
        let domain = usize::try_from(domain).unwrap_or(usize::MAX);
        if counts.len() <= domain {
            counts.resize(domain + 1, Count::default());
        }
        &mut counts[domain]
    }

    /// Counts pods in a domain, or on a node where every node is one.
    fn count(
        &mut self,
        counter: usize,
        domain: Option<u32>,
        host: usize,
        pods: i64,
        certain: bool,
    ) {
        // What exists is known.
        let (looks, certain) =
            self.looks[counter].get(host).map_or((true, certain), |looks| (*looks, true));
        if !looks {
            return;
        }
        match domain {
            None if pods != 0 => {
                if self.hosts.len() <= host {
                    self.hosts.resize(host + 1, Vec::new());
                }
                let here = &mut self.hosts[host];
                match here.iter_mut().find(|(known, _)| *known == counter) {
                    Some((_, count)) => *count += pods,
                    None => here.push((counter, pods)),
                }
            }
            None => {}
            // Who is in no domain is near nobody.
            Some(ABSENT) => return,
            Some(domain) => {
                let is_open = !self.closed[counter];
                let count = self.domain(counter, domain);
                count.is_seen |= is_open;
                count.is_sure |= is_open;
                count.most += pods;
                count.least += if certain { pods } else { 0 };
            }
        }
        self.totals[counter] += pods;
    }

    /// Leaves a spread constraint only the domains that have nodes: those in which there may be
    /// some that it looks at, and whether there are for sure.
    pub(crate) fn close(&mut self, counter: usize, there: &BTreeMap<u32, bool>) {
        self.closed[counter] = true;
        for count in &mut self.counts[counter] {
            (count.is_seen, count.is_sure) = (false, false);
        }
        for (domain, is_sure) in there {
            let count = self.domain(counter, *domain);
            (count.is_seen, count.is_sure) = (true, *is_sure);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.contains(&true)
    }

    /// Corrects what was counted in a domain where it was not certain whether the counter looks at
    /// the node: it does, or not.
    pub(crate) fn ascertain(&mut self, counter: usize, domain: u32, pods: usize, looks: bool) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        let count = self.domain(counter, domain);
        if looks {
            count.least += pods;
        } else {
            count.most -= pods;
        }
    }

    /// Whether a counter looks at a machine that exists.
    pub(crate) fn looks(&self, counter: usize, node: usize) -> bool {
        self.looks[counter].get(node).is_some_and(|looks| *looks)
    }

    /// There will be no more nodes.
    pub(crate) fn close_hosts(&mut self) {
        let width = self.counts.len();
        self.floors.get_or_insert_with(|| vec![(0, 0); width]);
    }

    /// So many nodes there are that a counter by host name looks at for sure, and so many pods each
    /// of them has at least.
    pub(crate) fn raise_floor(&mut self, counter: usize, pods: i64, nodes: usize) {
        self.close_hosts();
        if let Some(floors) = &mut self.floors {
            floors[counter] = (pods, nodes);
        }
    }

    /// Whether pods may be where they are only because there are no other nodes.
    pub(crate) fn counts_on_its_nodes(&self) -> bool {
        self.is_closed() || self.hosts_are_closed()
    }

    pub(crate) fn hosts_are_closed(&self) -> bool {
        self.floors.is_some()
    }

    /// How many pods every node has at least, as far as a constraint that wants so many nodes is
    /// concerned.
    fn floor(&self, counter: usize, min_domains: usize) -> i64 {
        let known = self.floors.as_ref().map(|floors| floors[counter]);
        known.filter(|(_, nodes)| *nodes >= min_domains).map_or(0, |(floor, _)| floor)
    }

    /// Whether a counter looks at a domain.
    pub(crate) fn is_seen(&self, counter: usize, domain: u32) -> bool {
        self.at(counter, domain).is_some()
    }

    fn at(&self, counter: usize, domain: u32) -> Option<Count> {
        let count = self.counts[counter].get(usize::try_from(domain).ok()?).copied();
        count.filter(|count| count.is_seen)
    }

    /// The domains that a counter looks at, apart from one.
    fn others(&self, counter: usize, domain: u32) -> impl Iterator<Item = Count> {
        let domain = usize::try_from(domain).unwrap_or(usize::MAX);
        let each = self.counts[counter].iter().enumerate();
        each.filter(move |(other, count)| *other != domain && count.is_seen)
            .map(|(_, count)| *count)
    }

    /// Notes that pods went somewhere. `certain` says of each counter whether it looks at the node
    /// for sure.
    pub(crate) fn record(
        &mut self,
        coupling: &TopologyProfile,
        certain: &[bool],
        vector: &Domains,
        host: usize,
        pods: usize,
    ) {
        self.change(coupling, certain, vector, host, pods, true);
    }

    /// Notes that pods went somewhere, or that they did not after all.
    pub(crate) fn change(
        &mut self,
        coupling: &TopologyProfile,
        certain: &[bool],
        vector: &Domains,
        host: usize,
        pods: usize,
        there: bool,
    ) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        let pods = if there { pods } else { -pods };
        for ((counter, at), certain) in coupling.counted.iter().zip(certain) {
            let domain = match at {
                At::Host => None,
                At::Domain(position) => Some(vector[*position]),
            };
            self.count(*counter, domain, host, pods, *certain);
        }
    }

    /// The same for pods that go anywhere: only what `known` says is known about their node by now.
    /// It is asked with `None` for the node itself, and with the position of a label among
    /// [`TopologyProfile::keys`].
    pub(crate) fn record_known(
        &mut self,
        coupling: &TopologyProfile,
        certain: &[bool],
        known: impl Fn(Option<usize>) -> Option<u32>,
        host: usize,
        pods: usize,
    ) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        for ((counter, at), certain) in coupling.counted.iter().zip(certain) {
            match at {
                At::Host if known(None).is_some() => {
                    self.count(*counter, None, host, pods, *certain)
                }
                At::Host => {}
                At::Domain(position) => {
                    if let Some(domain) = known(Some(*position)) {
                        self.count(*counter, Some(domain), host, pods, *certain);
                    }
                }
            }
        }
    }

    /// How many pods of a kind may go to a node in these domains, as far as rules between pods are
    /// concerned.
    pub(crate) fn allowance(
        &self,
        coupling: &TopologyProfile,
        vector: &Domains,
        host: Host,
    ) -> usize {
        let each =
            coupling.constraints.iter().map(|constraint| self.allowed(constraint, vector, host));
        each.min().unwrap_or(usize::MAX)
    }

    /// How many pods of a kind may go to a node so that nobody else's spread is upset, whoever is
    /// bound first. `skews` are the least that anybody insists on, for each counter.
    pub(crate) fn order_independent_allowance(
        &self,
        coupling: &TopologyProfile,
        vector: &Domains,
        host: Host,
        skews: &[Option<i64>],
    ) -> usize {
        let each = coupling.counted.iter().filter_map(|(counter, at)| {
            let skew = skews[*counter]?;
            match at {
                At::Host => Some(within(skew - self.on(*counter, host), true)),
                At::Domain(position) if vector[*position] == ABSENT => None,
                At::Domain(position) => {
                    Some(self.within_skew(*counter, vector[*position], skew, 1, true))
                }
            }
        });
        each.min().unwrap_or(usize::MAX)
    }

    /// How many pods of a kind a new node may have at most, whatever its domains.
    pub(crate) fn most_on_a_host(&self, coupling: &TopologyProfile) -> usize {
        let by_host = coupling.constraints.iter().filter(|constraint| match constraint {
            Constraint::Spread { at, .. } | Constraint::AntiAffinity { at, .. } => *at == At::Host,
            Constraint::Affinity { .. } => false,
        });
        let each = by_host.map(|constraint| self.allowed(constraint, &Vec::new(), Host::Fresh));
        each.min().unwrap_or(usize::MAX)
    }

    fn allowed(&self, constraint: &Constraint, vector: &Domains, host: Host) -> usize {
        match constraint {
            Constraint::Spread { counter, at: At::Host, skew, min_domains, own } => match host {
                Host::Any => usize::MAX,
                _ => within(
                    skew + self.floor(*counter, *min_domains) - self.on(*counter, host),
                    *own,
                ),
            },
            Constraint::Spread { counter, at: At::Domain(position), skew, min_domains, own } => {
                match vector[*position] {
                    ABSENT => 0,
                    domain => self.within_skew(*counter, domain, *skew, *min_domains, *own),
                }
            }
            Constraint::Affinity { counters, own } => {
                let nobody = counters.iter().all(|(counter, _)| self.totals[*counter] == 0);
                let has = |(counter, at): &(usize, At)| match at {
                    At::Host => {
                        host == Host::Any || (nobody && *own) || self.on(*counter, host) > 0
                    }
                    At::Domain(position) => {
                        vector[*position] != ABSENT
                            && ((nobody && *own)
                                || self
                                    .at(*counter, vector[*position])
                                    .is_some_and(|count| count.least > 0))
                    }
                };
                if counters.iter().all(has) { usize::MAX } else { 0 }
            }
            Constraint::AntiAffinity { counter, at, own } => {
                let there = match at {
                    At::Host if host == Host::Any => return usize::MAX,
                    At::Host => self.on(*counter, host),
                    At::Domain(position) => match vector[*position] {
                        ABSENT => return usize::MAX,
                        domain => self.at(*counter, domain).map_or(0, |count| count.most),
                    },
                };
                match (there, own) {
                    (0, true) => 1,
                    (0, false) => usize::MAX,
                    _ => 0,
                }
            }
        }
    }

    /// How many pods a node has.
    pub(crate) fn on(&self, counter: usize, host: Host) -> i64 {
        match host {
            Host::Is(host) => {
                let here = self.hosts.get(host).into_iter().flatten();
                here.filter(|(known, _)| *known == counter).map(|(_, count)| *count).sum()
            }
            Host::Any | Host::Fresh => 0,
        }
    }

    fn within_skew(
        &self,
        counter: usize,
        domain: u32,
        skew: i64,
        min_domains: usize,
        own: bool,
    ) -> usize {
        let Some(mine) = self.at(counter, domain) else { return 0 };
        let sure = || self.counts[counter].iter().filter(|count| count.is_sure).count();
        if min_domains > 1 && sure() < min_domains {
            return within(skew - mine.most, own);
        }
        let others = self.others(counter, domain).map(|count| count.least).min();
        // A domain that is counted exactly raises its own number too, and is never further ahead of
        // itself.
        let least = if mine.most == mine.least && own {
            others.unwrap_or(i64::MAX)
        } else {
            others.map_or(mine.least, |others| others.min(mine.least))
        };
        within(least.saturating_add(skew).saturating_sub(mine.most), own)
    }

    /// How many pods of a kind bring a place up to the emptiest others: more may be allowed, but
    /// might be better off elsewhere.
    pub(crate) fn stride(&self, coupling: &TopologyProfile, vector: &Domains) -> usize {
        let each = coupling.constraints.iter().filter_map(|constraint| match constraint {
            Constraint::Spread { counter, at: At::Domain(position), own: true, .. } => {
                let domain = vector[*position];
                let mine = self.at(*counter, domain)?;
                let behind =
                    self.others(*counter, domain).map(|count| count.least).min()? - mine.most;
                Some(usize::try_from(behind).unwrap_or(0).max(1))
            }
            _ => None,
        });
        each.min().unwrap_or(usize::MAX)
    }

    /// How full a place is, as far as the kind of pod must be spread: emptier domains come first.
    pub(crate) fn load(&self, coupling: &TopologyProfile, vector: &Domains) -> i64 {
        let each = coupling.constraints.iter().map(|constraint| match constraint {
            Constraint::Spread { counter, at: At::Domain(position), .. } => {
                self.at(*counter, vector[*position]).map_or(0, |count| count.most)
            }
            _ => 0,
        });
        each.sum()
    }

    /// The rule that keeps a kind of pod from all of these places, or else from the first.
    pub(crate) fn blocking(
        &self,
        rules: &TopologyRules<'_>,
        coupling: &TopologyProfile,
        places: &[Domains],
    ) -> Option<Rule> {
        let blocks = |constraint: &&Constraint, places: &[Domains]| {
            places.iter().all(|vector| self.allowed(constraint, vector, Host::Fresh) == 0)
        };
        let found =
            coupling.constraints.iter().find(|constraint| blocks(constraint, places)).or_else(
                || coupling.constraints.iter().find(|constraint| blocks(constraint, &places[..1])),
            )?;
        let key = |counter: usize| rules.counters[counter].key.to_owned();
        Some(match found {
            Constraint::Spread { counter, .. } => Rule::Spread(key(*counter)),
            Constraint::Affinity { counters, .. } => Rule::Affinity(key(counters.first()?.0)),
            Constraint::AntiAffinity { counter, .. } => Rule::AntiAffinity(key(*counter)),
        })
    }
}

/// So many more, if the pod itself is counted; else any number, as long as the rule is kept at
/// present.
fn within(more: i64, own: bool) -> usize {
    match (more >= 0, own) {
        (false, _) => 0,
        (true, true) => usize::try_from(more).unwrap_or(usize::MAX),
        (true, false) => usize::MAX,
    }
}

/// The value of a label of a node, whichever spelling of its key the node has.
fn label_of<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    let exact = node.labels.get(key);
    let other = || node.labels.iter().find(|(spelling, _)| labels::normalise(spelling) == key);
    exact.or_else(|| other().map(|(_, value)| value)).map(String::as_str)
}

/// The number of the domain that a node is in.
fn domain_of(
    node: &Node,
    key: usize,
    rules: &TopologyRules<'_>,
    offerings: &mut OfferingIndex<'_>,
) -> u32 {
    label_of(node, rules.keys[key]).map_or(ABSENT, |value| offerings.domain(key, value))
}

/// The domains of a node by every label whose values are domains.
pub(crate) fn domains_of(
    node: &Node,
    rules: &TopologyRules<'_>,
    offerings: &mut OfferingIndex<'_>,
) -> Domains {
    (0..rules.keys.len()).map(|key| domain_of(node, key, rules, offerings)).collect()
}

/// Whether a counter looks at a node.
pub(crate) fn passes(counter: &TopologyGroup<'_>, node: &Node, labels: &Requirements) -> bool {
    let Some(filter) = &counter.filter else { return true };
    filter.keys.iter().all(|key| is_host(key) || label_of(node, key).is_some())
        && filter.tolerations.is_none_or(|one| first_untolerated(&node.taints, one).is_none())
        && filter.terms.is_none_or(|terms| {
            terms.is_empty()
                || terms.iter().any(|term| labels.compatible(term, Undefined::Deny).is_ok())
        })
}

/// Whether a counter looks at new nodes of a signature: for sure, perhaps, or not at all.
pub(crate) fn looks_at(
    counter: &TopologyGroup<'_>,
    rules: &TopologyRules<'_>,
    signature: usize,
    offerings: &mut OfferingIndex<'_>,
) -> Option<bool> {
    let Some(filter) = &counter.filter else { return Some(true) };
    let taints = &offerings.pools[offerings.signature(signature).pool].pool.taints;
    if filter.tolerations.is_some_and(|one| first_untolerated(taints, one).is_some()) {
        return None;
    }
    for key in filter.keys.iter().filter(|key| !is_host(key)) {
        let key = rules.keys.binary_search(key).ok()?;
        if offerings.domains(signature, key).is_empty() {
            return None;
        }
    }
    let Some(terms) = filter.terms.filter(|terms| !terms.is_empty()) else { return Some(true) };
    let mut found = None;
    for term in terms {
        let term = offerings.term(term);
        let Some(narrowed) = offerings.step(signature, term) else { continue };
        let narrowed = &offerings.signature(narrowed).usable;
        if *narrowed == offerings.signature(signature).usable {
            return Some(true);
        }
        if !narrowed.is_clear() {
            found = Some(false);
        }
    }
    found
}

/// The domains that could be bought for a spread constraint.
fn buyable(
    counter: &TopologyGroup<'_>,
    key: usize,
    offerings: &mut OfferingIndex<'_>,
    reservations: &BTreeMap<String, u32>,
) -> Vec<u32> {
    let any = [Requirements::new()];
    let Some(filter) = &counter.filter else { return Vec::new() };
    let terms = filter.terms.filter(|terms| !terms.is_empty()).unwrap_or(&any);
    let mut values = Vec::new();
    for pool in 0..offerings.pools.len() {
        let taints = &offerings.pools[pool].pool.taints;
        if filter.tolerations.is_some_and(|one| first_untolerated(taints, one).is_some()) {
            continue;
        }
        for term in terms {
            let term = offerings.term(term);
            if let Some(signature) = offerings.step(pool, term) {
                values.extend(offerings.domains(signature, key).iter().copied());
            }
        }
        for (reservation, _) in reservations.iter().filter(|(_, machines)| **machines > 0) {
            if let Some(signature) = offerings.reserved(pool, reservation) {
                values.extend(offerings.domains(signature, key).iter().copied());
            }
        }
    }
    values
}
