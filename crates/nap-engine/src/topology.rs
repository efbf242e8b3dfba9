//! How many pods each domain has, and how many more of a kind it may take.
//!
//! A domain is a value of a node label: a zone, a rack, a capacity type. Every node is a domain of its own by host name, and there can
//! always be one more of those; so a spread over hosts compares with nothing, whatever other nodes there are. Domains of other labels are
//! those that exist, and those that could be bought.
//!
//! Where it is not certain that a spread constraint looks at a node which is not bought yet, its pods count against their domain but do not
//! raise the emptiest one: the skew is never understated.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::Requirements;
use nap_api::labels;
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;

use crate::market::Market;
use crate::model::{Node, Rule};
use crate::rules::{At, Constraint, Counter, Coupling, Rules, is_host};

/// The values of the labels that a kind of pod depends on, in the order of [`Coupling::keys`]; `None` where the node lacks the label.
pub(crate) type Vector = Vec<Option<Rc<str>>>;

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
}

/// The counts of every counter.
#[derive(Clone)]
pub(crate) struct Topology {
    counts: Vec<BTreeMap<Rc<str>, Count>>,
    hosts: BTreeMap<(usize, usize), i64>,
    totals: Vec<i64>,
}

impl Topology {
    /// Counts what runs, and finds every domain.
    pub(crate) fn new<'a>(
        rules: &Rules<'a>,
        nodes: &[&'a Node],
        labels: &[Requirements],
        market: &mut Market<'a>,
    ) -> Self {
        let width = rules.counters.len();
        let mut topology =
            Self { counts: vec![BTreeMap::new(); width], hosts: BTreeMap::new(), totals: vec![0; width] };
        for (number, counter) in rules.counters.iter().enumerate() {
            if counter.filter.is_some() && !is_host(counter.key) {
                for value in buyable(counter, market) {
                    topology.counts[number].entry(value).or_default();
                }
            }
            for (host, node) in nodes.iter().enumerate() {
                if !passes(counter, node, &labels[host]) {
                    continue;
                }
                let counted = node.residents.iter().filter(|resident| {
                    counter.counts(&resident.namespace, &resident.labels, &resident.anti_affinity)
                });
                let pods: i64 = counted.map(|resident| i64::from(resident.count)).sum();
                topology.count(number, value_of(node, counter.key), host, pods, true);
            }
        }
        topology
    }

    fn count(&mut self, counter: usize, value: Value, host: usize, pods: i64, certain: bool) {
        match value {
            Value::Host if pods > 0 => *self.hosts.entry((counter, host)).or_default() += pods,
            Value::Host | Value::Absent => {}
            Value::Domain(value) => {
                let count = self.counts[counter].entry(value).or_default();
                count.most += pods;
                count.least += if certain { pods } else { 0 };
            }
        }
        self.totals[counter] += pods;
    }

    /// Notes that pods went somewhere. `certain` says of each counter whether it looks at the node for sure.
    pub(crate) fn record(
        &mut self,
        coupling: &Coupling,
        certain: &[bool],
        vector: &Vector,
        host: usize,
        pods: usize,
    ) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        for ((counter, at), certain) in coupling.counted.iter().zip(certain) {
            let value = match at {
                At::Host => Value::Host,
                At::Domain(position) => match &vector[*position] {
                    Some(value) => Value::Domain(Rc::clone(value)),
                    None => Value::Absent,
                },
            };
            self.count(*counter, value, host, pods, *certain);
        }
    }

    /// How many pods of a kind may go to a node in these domains, as far as rules between pods are concerned.
    pub(crate) fn allowance(&self, coupling: &Coupling, vector: &Vector, host: Host) -> usize {
        let each = coupling.constraints.iter().map(|constraint| self.allowed(constraint, vector, host));
        each.min().unwrap_or(usize::MAX)
    }

    /// How many pods of a kind a new node may have at most, whatever its domains.
    pub(crate) fn most_on_a_host(&self, coupling: &Coupling) -> usize {
        let by_host = coupling.constraints.iter().filter(|constraint| match constraint {
            Constraint::Spread { at, .. } | Constraint::Apart { at, .. } => *at == At::Host,
            Constraint::Together { .. } => false,
        });
        let each = by_host.map(|constraint| self.allowed(constraint, &Vec::new(), Host::Fresh));
        each.min().unwrap_or(usize::MAX)
    }

    fn allowed(&self, constraint: &Constraint, vector: &Vector, host: Host) -> usize {
        match constraint {
            Constraint::Spread { counter, at: At::Host, skew, own, .. } => match host {
                Host::Any => usize::MAX,
                _ => within(skew - self.on(*counter, host), *own),
            },
            Constraint::Spread { counter, at: At::Domain(position), skew, min_domains, own } => {
                match &vector[*position] {
                    Some(value) => self.within_skew(*counter, value, *skew, *min_domains, *own),
                    None => 0,
                }
            }
            Constraint::Together { counters, own } => {
                let nobody = counters.iter().all(|(counter, _)| self.totals[*counter] == 0);
                let has = |(counter, at): &(usize, At)| match at {
                    At::Host => host == Host::Any || (nobody && *own) || self.on(*counter, host) > 0,
                    At::Domain(position) => vector[*position].as_ref().is_some_and(|value| {
                        (nobody && *own)
                            || self.counts[*counter].get(value).is_some_and(|count| count.least > 0)
                    }),
                };
                if counters.iter().all(has) { usize::MAX } else { 0 }
            }
            Constraint::Apart { counter, at, own } => {
                let there = match at {
                    At::Host if host == Host::Any => return usize::MAX,
                    At::Host => self.on(*counter, host),
                    At::Domain(position) => match &vector[*position] {
                        Some(value) => self.counts[*counter].get(value).map_or(0, |count| count.most),
                        None => return usize::MAX,
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

    fn on(&self, counter: usize, host: Host) -> i64 {
        match host {
            Host::Is(host) => self.hosts.get(&(counter, host)).copied().unwrap_or(0),
            Host::Any | Host::Fresh => 0,
        }
    }

    fn within_skew(
        &self,
        counter: usize,
        value: &Rc<str>,
        skew: i64,
        min_domains: usize,
        own: bool,
    ) -> usize {
        let counts = &self.counts[counter];
        let Some(mine) = counts.get(value) else { return 0 };
        if counts.len() < min_domains {
            return within(skew - mine.most, own);
        }
        let others = counts.iter().filter(|(other, _)| *other != value).map(|(_, count)| count.least).min();
        // A domain that is counted exactly raises its own number too, and is never further ahead of itself.
        let least = if mine.most == mine.least && own {
            others.unwrap_or(i64::MAX)
        } else {
            others.map_or(mine.least, |others| others.min(mine.least))
        };
        within(least.saturating_add(skew).saturating_sub(mine.most), own)
    }

    /// How many pods of a kind bring a place up to the emptiest others: more may be allowed, but might be better off elsewhere.
    pub(crate) fn stride(&self, coupling: &Coupling, vector: &Vector) -> usize {
        let each = coupling.constraints.iter().filter_map(|constraint| match constraint {
            Constraint::Spread { counter, at: At::Domain(position), own: true, .. } => {
                let value = vector[*position].as_ref()?;
                let counts = &self.counts[*counter];
                let others = counts.iter().filter(|(other, _)| *other != value);
                let behind = others.map(|(_, count)| count.least).min()? - counts.get(value)?.most;
                Some(usize::try_from(behind).unwrap_or(0).max(1))
            }
            _ => None,
        });
        each.min().unwrap_or(usize::MAX)
    }

    /// How full a place is, as far as the kind of pod must be spread: emptier domains come first.
    pub(crate) fn load(&self, coupling: &Coupling, vector: &Vector) -> i64 {
        let each = coupling.constraints.iter().map(|constraint| match constraint {
            Constraint::Spread { counter, at: At::Domain(position), .. } => vector[*position]
                .as_ref()
                .and_then(|value| self.counts[*counter].get(value))
                .map_or(0, |count| count.most),
            _ => 0,
        });
        each.sum()
    }

    /// The rule that keeps a kind of pod from all of these places, or else from the first.
    pub(crate) fn blocking(&self, rules: &Rules<'_>, coupling: &Coupling, places: &[Vector]) -> Option<Rule> {
        let blocks = |constraint: &&Constraint, places: &[Vector]| {
            places.iter().all(|vector| self.allowed(constraint, vector, Host::Fresh) == 0)
        };
        let found =
            coupling.constraints.iter().find(|constraint| blocks(constraint, places)).or_else(|| {
                coupling.constraints.iter().find(|constraint| blocks(constraint, &places[..1]))
            })?;
        let key = |counter: usize| rules.counters[counter].key.to_owned();
        Some(match found {
            Constraint::Spread { counter, .. } => Rule::Spread(key(*counter)),
            Constraint::Together { counters, .. } => Rule::Affinity(key(counters.first()?.0)),
            Constraint::Apart { counter, .. } => Rule::AntiAffinity(key(*counter)),
        })
    }
}

/// So many more, if the pod itself is counted; else any number, as long as the rule is kept at present.
fn within(more: i64, own: bool) -> usize {
    match (more >= 0, own) {
        (false, _) => 0,
        (true, true) => usize::try_from(more).unwrap_or(usize::MAX),
        (true, false) => usize::MAX,
    }
}

enum Value {
    Host,
    Domain(Rc<str>),
    Absent,
}

fn value_of(node: &Node, key: &str) -> Value {
    if is_host(key) {
        return Value::Host;
    }
    match label_of(node, key) {
        Some(value) => Value::Domain(Rc::from(value)),
        None => Value::Absent,
    }
}

/// The value of a label of a node, whichever spelling of its key the node has.
fn label_of<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    let exact = node.labels.get(key);
    let other = || node.labels.iter().find(|(spelling, _)| labels::normalise(spelling) == key);
    exact.or_else(|| other().map(|(_, value)| value)).map(String::as_str)
}

/// The domains of a node that a kind of pod depends on.
pub(crate) fn vector_of(node: &Node, rules: &Rules<'_>, coupling: &Coupling) -> Vector {
    coupling.keys.iter().map(|key| label_of(node, rules.keys[*key]).map(Rc::from)).collect()
}

/// Whether a counter looks at a node.
fn passes(counter: &Counter<'_>, node: &Node, labels: &Requirements) -> bool {
    let Some(filter) = &counter.filter else { return true };
    filter.keys.iter().all(|key| is_host(key) || label_of(node, key).is_some())
        && filter.tolerations.is_none_or(|one| first_untolerated(&node.taints, one).is_none())
        && filter.terms.is_none_or(|terms| {
            terms.is_empty() || terms.iter().any(|term| labels.compatible(term, Undefined::Deny).is_ok())
        })
}

/// The domains that could be bought for a spread constraint.
fn buyable(counter: &Counter<'_>, market: &mut Market<'_>) -> Vec<Rc<str>> {
    let any = [Requirements::new()];
    let Some(filter) = &counter.filter else { return Vec::new() };
    let terms = filter.terms.filter(|terms| !terms.is_empty()).unwrap_or(&any);
    let mut values = Vec::new();
    for pool in 0..market.pools.len() {
        let taints = &market.pools[pool].pool.taints;
        if filter.tolerations.is_some_and(|one| first_untolerated(taints, one).is_some()) {
            continue;
        }
        for term in terms {
            let term = market.term(term);
            if let Some(signature) = market.step(pool, term) {
                values.extend(market.domains(signature, counter.key).iter().cloned());
            }
        }
    }
    values
}
