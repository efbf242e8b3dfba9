//! Whether the scheduler could bind every pod where a plan puts it, as far as pods depend on each
//! other.
//!
//! Anti-affinity holds in whatever order pods are bound, so it is judged at the end. Spread and
//! affinity depend on what is there when a pod is bound, so an order is looked for: a pod that has
//! rules goes as soon as it can without being in the way of another, and a pod that is merely
//! counted goes when that helps. A node whose zone is undecided counts as being wherever that does
//! least harm.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Requirements, Toleration, labels};
use nap_engine::{Pod, PodTerm, Selector};
use nap_units::{CPU, MEMORY};

use super::format::Problem;
use super::places::Place;

/// The most orders that are tried.
const MAX_ORDERS: u64 = 24;

/// About the most looks at a pod before no further order is tried.
const MAX_LOOKS: usize = 40_000_000;

/// What is said of a pod that is not where its affinity wants it.
const AFFINITY: &str = "affinity";

/// What keeps pods from being bound, in words: what cannot be in any order, and what no order was
/// found for.
#[derive(Default)]
pub(super) struct Obstacles {
    pub(super) wrong: Vec<String>,
    pub(super) undecided: Vec<String>,
}

/// Looks for an order in which the scheduler could bind every pod.
pub(super) fn bind(problem: &Problem, pods: &[Pod], places: &[Place]) -> Obstacles {
    let wrong = exclusions(problem, pods, places);
    let mut obstacles = Obstacles { wrong, ..Obstacles::default() };
    let rules = Rules::of(problem, pods, places);
    let mut items: Vec<Item> = Vec::new();
    let mut ranks: BTreeMap<(usize, Option<&String>), usize> = BTreeMap::new();
    for (number, place) in places.iter().enumerate() {
        let zone = place.labels.get(labels::ZONE).and_then(BTreeSet::first);
        for (class, count) in place.planned.iter().filter(|(class, _)| rules.couples(*class)) {
            for _ in 0..*count {
                let rank = ranks.entry((*class, zone)).or_default();
                items.push(Item { class: *class, place: number, rank: *rank });
                *rank += 1;
            }
        }
    }
    let mut looks = 0;
    let mut fewest: Option<Vec<(Item, &str)>> = None;
    for order in 0..MAX_ORDERS {
        if order > 0 && looks > MAX_LOOKS {
            break;
        }
        let size = |item: &Item| {
            let requests = &pods[item.class].requests;
            (Reverse(requests.get(CPU)), Reverse(requests.get(MEMORY)))
        };
        let name = |item: &Item| problem.pods[item.class].name.as_str();
        match order {
            0 => items.sort_by_key(|item| (item.rank, item.class, item.place)),
            // As solvers go: from the largest pods to the smallest, one class or all of a size
            // after another.
            1 => items.sort_by(|a, b| (size(a), name(a), a.rank).cmp(&(size(b), name(b), b.rank))),
            2 => items.sort_by_key(|item| (size(item), item.rank)),
            _ => items.sort_by_key(|item| scramble(order, item)),
        }
        let stuck = match order {
            1 => rules.in_groups(&items, |a, b| a.class == b.class, &mut looks),
            2 => rules.in_groups(&items, |a, b| size(a) == size(b), &mut looks),
            _ => rules.attempt(&items, order % 2 == 1, &mut looks),
        };
        if stuck.is_empty() {
            return obstacles;
        }
        if fewest.as_ref().is_none_or(|fewest| stuck.len() < fewest.len()) {
            fewest = Some(stuck);
        }
    }
    let stuck = fewest.unwrap_or_default();
    let impossible = rules.impossible(&items);
    for (item, why) in stuck {
        let (class, place) = (&problem.pods[item.class].name, &places[item.place]);
        let what = format!("a pod of `{class}` cannot be bound to {}: {why}", place.name);
        let spread = |rule: &Rule| matches!(rule, Rule::Spread { counter, .. } if impossible.contains(counter));
        let surely = why == AFFINITY || rules.owned[item.class].iter().any(spread);
        let list = if surely { &mut obstacles.wrong } else { &mut obstacles.undecided };
        list.push(what);
    }
    obstacles
}

/// A pod and where it goes.
#[derive(Clone, Copy)]
struct Item {
    class: usize,
    place: usize,
    /// The how manieth of its class in its zone.
    rank: usize,
}

/// A number for an item that is different in each order.
fn scramble(order: u64, item: &Item) -> u64 {
    let mut mixed = order;
    for part in [item.class, item.place, item.rank] {
        mixed = mixed.wrapping_add(part as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
    }
    mixed
}

/// A number of pods for each domain.
#[derive(Clone)]
struct Counter {
    /// For each place, the domains that it may be in.
    domains: Vec<Vec<usize>>,
    /// How many pods each domain has for certain.
    sure: Vec<usize>,
    /// How many it has at most.
    possible: Vec<usize>,
    /// How many domains have how many pods at most.
    levels: BTreeMap<usize, usize>,
    total: usize,
    /// How many pods whose spread this counts are still to be bound in each domain: those that are
    /// not counted themselves, and those that are.
    waiting: Vec<[usize; 2]>,
    /// The least skew that any of them allows.
    skew: usize,
}

impl Counter {
    /// A counter over the values of a label, on the places that are seen.
    fn new(places: &[Place], key: &str, seen: impl Fn(&Place) -> bool) -> Self {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut domains = Vec::with_capacity(places.len());
        for place in places {
            let values = place.labels.get(key).filter(|_| seen(place));
            let mut own = Vec::new();
            for value in values.into_iter().flatten() {
                let next = numbers.len();
                own.push(*numbers.entry(value).or_insert(next));
            }
            domains.push(own);
        }
        let count = numbers.len();
        let levels = if count == 0 { BTreeMap::new() } else { BTreeMap::from([(0, count)]) };
        Self {
            domains,
            sure: vec![0; count],
            possible: vec![0; count],
            levels,
            total: 0,
            waiting: vec![[0; 2]; count],
            skew: usize::MAX,
        }
    }

    fn add(&mut self, place: usize) {
        let domains = &self.domains[place];
        if let [only] = domains.as_slice() {
            self.sure[*only] += 1;
        }
        for domain in domains {
            let level = self.possible[*domain];
            self.possible[*domain] += 1;
            *self.levels.entry(level + 1).or_default() += 1;
            if let Some(count) = self.levels.get_mut(&level) {
                *count -= 1;
                if *count == 0 {
                    self.levels.remove(&level);
                }
            }
        }
        self.total += usize::from(!domains.is_empty());
    }

    /// Whether one more pod at a place would be in the way of one that waits.
    fn is_crowded_by(&self, place: usize) -> bool {
        let [only] = self.domains[place].as_slice() else { return false };
        let [others, counted] = self.waiting[*only];
        let next = self.sure[*only] + 1;
        let most = self.least().saturating_add(self.skew);
        (others > 0 && next > most) || (counted > 0 && next + 1 > most)
    }

    /// A pod whose spread this counts begins to wait, or ends.
    fn wait(&mut self, place: usize, own: usize, begins: bool) {
        if let [only] = self.domains[place].as_slice() {
            let count = &mut self.waiting[*only][own.min(1)];
            *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        }
    }

    /// How many pods the emptiest domain has at most.
    fn least(&self) -> usize {
        self.levels.first_key_value().map_or(0, |(level, _)| *level)
    }
}

/// What must hold where a pod is bound.
enum Rule {
    Spread { counter: usize, skew: usize, min_domains: usize, own: usize },
    Together { counters: Vec<usize>, own: bool },
}

/// The rules of all classes, and the counters before anything is bound.
struct Rules {
    counters: Vec<Counter>,
    /// By class.
    owned: Vec<Vec<Rule>>,
    /// By class: the counters that count it.
    counted: Vec<Vec<usize>>,
}

/// What a counter counts, and where: two rules that agree on it share a counter.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Counted<'a> {
    Labelled {
        key: &'a str,
        namespace: &'a str,
        selector: &'a Selector,
        terms: Option<&'a [Requirements]>,
        tolerations: Option<&'a [Toleration]>,
        keys: Vec<&'a str>,
    },
    Meant(&'a str, &'a [PodTerm]),
}

impl Rules {
    fn of(problem: &Problem, pods: &[Pod], places: &[Place]) -> Self {
        let mut numbers: BTreeMap<Counted<'_>, usize> = BTreeMap::new();
        let mut counters: Vec<Counter> = Vec::new();
        let mut owned = Vec::with_capacity(pods.len());
        for (class, pod) in problem.pods.iter().zip(pods) {
            let mut rules = Vec::new();
            for spread in &pod.spread {
                let keys: Vec<&str> =
                    pod.spread.iter().map(|other| other.topology_key.as_str()).collect();
                let terms = spread.honor_affinity.then_some(pod.terms.as_slice());
                let tolerations = spread.honor_taints.then_some(pod.tolerations.as_slice());
                let counter = *numbers
                    .entry(Counted::Labelled {
                        key: &spread.topology_key,
                        namespace: &class.namespace,
                        selector: &spread.selector,
                        terms,
                        tolerations,
                        keys: keys.clone(),
                    })
                    .or_insert_with(|| {
                        counters.push(Counter::new(places, &spread.topology_key, |place| {
                            keys.iter().all(|key| place.labels.contains_key(*key))
                                && place.is_seen(terms, tolerations)
                        }));
                        counters.len() - 1
                    });
                counters[counter].skew = counters[counter].skew.min(spread.max_skew as usize);
                rules.push(Rule::Spread {
                    counter,
                    skew: spread.max_skew as usize,
                    min_domains: spread.min_domains.unwrap_or(1) as usize,
                    own: usize::from(spread.selector.matches(&pod.labels)),
                });
            }
            if !pod.affinity.is_empty() {
                let together = pod.affinity.iter().map(|term| {
                    *numbers
                        .entry(Counted::Meant(&term.topology_key, &pod.affinity))
                        .or_insert_with(|| {
                            counters.push(Counter::new(places, &term.topology_key, |_| true));
                            counters.len() - 1
                        })
                });
                let counters = together.collect();
                let own =
                    pod.affinity.iter().all(|term| term.matches(&class.namespace, &pod.labels));
                rules.push(Rule::Together { counters, own });
            }
            owned.push(rules);
        }
        let counted: Vec<Vec<usize>> = problem
            .pods
            .iter()
            .map(|class| {
                let counts = |what: &Counted<'_>| match what {
                    Counted::Labelled { namespace, selector, .. } => {
                        *namespace == class.namespace && selector.matches(&class.labels)
                    }
                    Counted::Meant(_, terms) => {
                        terms.iter().all(|term| term.matches(&class.namespace, &class.labels))
                    }
                };
                numbers.iter().filter(|(what, _)| counts(what)).map(|(_, number)| *number).collect()
            })
            .collect();
        for (number, place) in places.iter().enumerate() {
            for (class, count) in &place.running {
                for counter in &counted[*class] {
                    (0..*count).for_each(|_| counters[*counter].add(number));
                }
            }
        }
        Self { counters, owned, counted }
    }

    /// Whether a class has anything to do with others.
    fn couples(&self, class: usize) -> bool {
        !self.owned[class].is_empty() || !self.counted[class].is_empty()
    }

    /// Binds pods; those that are left, and why. Where a pod must be in the way of others, it is
    /// the first, or the one that is in the way of fewest.
    fn attempt(
        &self,
        items: &[Item],
        fewest: bool,
        looks: &mut usize,
    ) -> Vec<(Item, &'static str)> {
        let mut counters = self.counters.clone();
        let (mut ruled, mut counted): (Vec<Item>, Vec<Item>) =
            items.iter().partition(|item| !self.owned[item.class].is_empty());
        for item in &ruled {
            self.wait(&mut counters, item, true);
        }
        while !ruled.is_empty() {
            // First what is in nobody's way.
            let before = (ruled.len(), counted.len());
            let mut blocked: BTreeSet<usize> = BTreeSet::new();
            *looks += ruled.len();
            ruled.retain(|item| !self.try_bind(&mut counters, item, Some(&mut blocked)));
            if ruled.len() < before.0 {
                continue;
            }
            // Then what raises the emptiest domains of what the others wait for.
            for careful in [true, false] {
                *looks += counted.len();
                let least: Vec<usize> = counters.iter().map(Counter::least).collect();
                counted.retain(|item| {
                    let helps = self.counted[item.class].iter().any(|number| {
                        let counter = &counters[*number];
                        let emptiest = |domain: &usize| counter.possible[*domain] == least[*number];
                        blocked.contains(number) && counter.domains[item.place].iter().any(emptiest)
                    });
                    let helps = helps && !(careful && self.crowds(&counters, item).is_some());
                    if helps {
                        self.add(&mut counters, item);
                    }
                    !helps
                });
                if careful && counted.len() == before.1 {
                    // Nothing that helps is harmless.
                    self.bind_few(&mut counters, &mut ruled, fewest);
                }
                if (ruled.len(), counted.len()) != before {
                    break;
                }
            }
            if (ruled.len(), counted.len()) == before {
                break;
            }
        }
        self.reasons(&counters, ruled)
    }

    /// Binds a few of the pods that are in the way of others: the first, or those that are in the
    /// way of fewest.
    fn bind_few(&self, counters: &mut [Counter], ruled: &mut Vec<Item>, fewest: bool) {
        let few = (ruled.len() / 64).max(1);
        let mut order: Vec<(usize, usize)> = Vec::new();
        for (index, item) in ruled.iter().enumerate() {
            if self.obstacle(counters, item).is_none() {
                let damage = if fewest { self.damage(counters, item) } else { 0 };
                order.push((damage, index));
            }
        }
        order.sort_unstable();
        let mut chosen: Vec<usize> = order.into_iter().take(few).map(|(_, index)| index).collect();
        chosen.sort_unstable();
        let mut index = 0;
        ruled.retain(|item| {
            let bound = chosen.binary_search(&index).is_ok() && self.try_bind(counters, item, None);
            index += 1;
            !bound
        });
    }

    /// How many waiting pods a pod would be in the way of.
    fn damage(&self, counters: &[Counter], item: &Item) -> usize {
        let crowded = self.counted[item.class].iter().map(|number| &counters[*number]);
        let crowded = crowded.filter(|counter| counter.is_crowded_by(item.place));
        let waiting = |counter: &Counter| -> usize {
            counter.domains[item.place].iter().flat_map(|domain| counter.waiting[*domain]).sum()
        };
        crowded.map(waiting).sum()
    }

    /// Binds pods group by group, in the order given; those that are left, and why. What cannot be
    /// bound yet is tried again after each group.
    fn in_groups(
        &self,
        items: &[Item],
        same: impl Fn(&Item, &Item) -> bool,
        looks: &mut usize,
    ) -> Vec<(Item, &'static str)> {
        let mut counters = self.counters.clone();
        let mut waiting: Vec<Item> = Vec::new();
        for group in items.chunk_by(same) {
            waiting.extend(group);
            let mut before = usize::MAX;
            while waiting.len() < before {
                before = waiting.len();
                *looks += before;
                waiting.retain(|item| !self.try_bind(&mut counters, item, None));
            }
        }
        self.reasons(&counters, waiting)
    }

    /// The counters whose spread cannot hold in any order: a domain's own pods exceed what the
    /// emptiest domain has in the end.
    fn impossible(&self, items: &[Item]) -> BTreeSet<usize> {
        let mut last = self.counters.clone();
        for item in items {
            self.add(&mut last, item);
            self.wait(&mut last, item, true);
        }
        let exceeds = |(before, after): (&Counter, &Counter)| {
            let most = after.least().saturating_add(after.skew);
            after.waiting.iter().zip(&before.sure).any(|([others, counted], running)| {
                (*others > 0 && *running > most) || (*counted > 0 && running + counted > most)
            })
        };
        let both = self.counters.iter().zip(&last).enumerate();
        both.filter(|(_, pair)| exceeds(*pair)).map(|(number, _)| number).collect()
    }

    /// Why pods are left.
    fn reasons(&self, counters: &[Counter], left: Vec<Item>) -> Vec<(Item, &'static str)> {
        let why = |item: Item| match self.obstacle(counters, &item) {
            Some(Rule::Together { .. }) => (item, AFFINITY),
            _ => (item, "spread"),
        };
        left.into_iter().map(why).collect()
    }

    /// Binds a pod if its rules allow it. With a set to note in what it waits for, only if it is in
    /// nobody's way.
    fn try_bind(
        &self,
        counters: &mut [Counter],
        item: &Item,
        blocked: Option<&mut BTreeSet<usize>>,
    ) -> bool {
        let obstacle = self.obstacle(counters, item);
        if let Some(blocked) = blocked {
            match obstacle {
                Some(Rule::Spread { counter, .. }) => drop(blocked.insert(*counter)),
                Some(Rule::Together { counters, .. }) => blocked.extend(counters),
                None => {
                    // It does not wait for itself.
                    self.wait(counters, item, false);
                    if let Some(counter) = self.crowds(counters, item) {
                        self.wait(counters, item, true);
                        blocked.insert(counter);
                    } else {
                        self.add(counters, item);
                        return true;
                    }
                }
            }
            return false;
        }
        if obstacle.is_none() {
            self.wait(counters, item, false);
            self.add(counters, item);
        }
        obstacle.is_none()
    }

    fn wait(&self, counters: &mut [Counter], item: &Item, begins: bool) {
        for rule in &self.owned[item.class] {
            if let Rule::Spread { counter, own, .. } = rule {
                counters[*counter].wait(item.place, *own, begins);
            }
        }
    }

    /// A counter whose waiting pods a pod would be in the way of.
    fn crowds(&self, counters: &[Counter], item: &Item) -> Option<usize> {
        self.counted[item.class]
            .iter()
            .copied()
            .find(|number| counters[*number].is_crowded_by(item.place))
    }

    fn add(&self, counters: &mut [Counter], item: &Item) {
        for counter in &self.counted[item.class] {
            counters[*counter].add(item.place);
        }
    }

    /// The first rule that keeps a pod from being bound now.
    fn obstacle(&self, counters: &[Counter], item: &Item) -> Option<&Rule> {
        self.owned[item.class].iter().find(|rule| match rule {
            Rule::Spread { counter, skew, min_domains, own } => {
                let counter = &counters[*counter];
                let enough = counter.sure.len() >= *min_domains;
                let least = if enough { counter.least() } else { 0 };
                let fits = |domain: &usize| counter.sure[*domain] + own <= least + skew;
                !counter.domains[item.place].iter().any(fits)
            }
            Rule::Together { counters: numbers, own } => {
                let first = *own && numbers.iter().all(|number| counters[*number].total == 0);
                !numbers.iter().all(|number| {
                    let counter = &counters[*number];
                    counter.domains[item.place]
                        .iter()
                        .any(|domain| first || counter.possible[*domain] > 0)
                })
            }
        })
    }
}

/// Where a domain of anti-affinity is: a value, or a place whose value is undecided.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Domain<'a> {
    Value(&'a str),
    Undecided(usize),
}

/// Who is in a domain, as far as one term of anti-affinity cares.
#[derive(Default)]
struct Inside {
    /// Pods that have the term and are not meant by it.
    owners: usize,
    /// Pods that have the term and are meant by it.
    both: usize,
    /// Pods that are meant by it, whether or not they have it.
    meant: usize,
    /// The plan put one of them there.
    planned: bool,
}

/// Pods that exclude each other and share a domain.
fn exclusions(problem: &Problem, pods: &[Pod], places: &[Place]) -> Vec<String> {
    let terms: BTreeSet<&PodTerm> = pods.iter().flat_map(|pod| &pod.anti_affinity).collect();
    let mut wrong = Vec::new();
    for term in terms {
        let roles: Vec<(bool, bool)> = problem
            .pods
            .iter()
            .zip(pods)
            .map(|(class, pod)| {
                (pod.anti_affinity.contains(term), term.matches(&class.namespace, &class.labels))
            })
            .collect();
        let mut domains: BTreeMap<Domain<'_>, Inside> = BTreeMap::new();
        for (number, place) in places.iter().enumerate() {
            let Some(values) = place.labels.get(&term.topology_key) else { continue };
            let domain = || match values.first() {
                Some(value) if values.len() == 1 => Domain::Value(value),
                _ => Domain::Undecided(number),
            };
            let running = place.running.iter().map(|one| (one, false));
            for ((class, count), planned) in
                running.chain(place.planned.iter().map(|one| (one, true)))
            {
                let (owns, is_meant) = roles[*class];
                if *count > 0 && (owns || is_meant) {
                    let inside = domains.entry(domain()).or_default();
                    inside.owners += if owns && !is_meant { *count } else { 0 };
                    inside.both += if owns && is_meant { *count } else { 0 };
                    inside.meant += if is_meant { *count } else { 0 };
                    inside.planned |= planned;
                }
            }
        }
        let clash = |inside: &&Inside| {
            inside.planned
                && ((inside.owners > 0 && inside.meant > 0)
                    || (inside.both > 0 && inside.meant > 1))
        };
        let clashes = domains.values().filter(clash).count();
        if clashes > 0 {
            let class = roles
                .iter()
                .position(|(owns, _)| *owns)
                .map_or("", |class| &problem.pods[class].name);
            wrong.push(format!(
                "anti-affinity of `{class}` over `{}` is broken in {clashes} domains",
                term.topology_key
            ));
        }
    }
    wrong
}
