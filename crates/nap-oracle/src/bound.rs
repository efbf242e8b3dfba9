//! Lower bound on the cost of any plan, by a linear program.
//!
//! Variables: the number of launched nodes of each instance type and zone, and the number of pods
//! of each class in each zone; both may be fractional. Every row holds in every valid plan, so the
//! optimum is a lower bound:
//!
//! - **Resources.** In a zone, requests do not exceed the allocatable resources. The same holds for
//!   any set of instance types and the pods that are confined to it, so there is a row for each
//!   distinct set of types that a class admits.
//! - **Host rules.** Pods of which a node has at most `k` (by anti-affinity, host port, or hostname
//!   spread with a skew of `k`) number at most `k` times the nodes.
//! - **Spread over zones.** When the last owner of the rule is bound in zone `v`, all other owners
//!   in `v` are bound, and no zone `u` has more counted pods than in the end: `owners(v) ≤
//!   counted(u) + max(0, skew + running(u) − running(v))`.
//! - **Anti-affinity by zone.** Of pods with mutual anti-affinity there is at most one in a zone.
//! - **Affinity by zone.** Classes that must share one zone are in each zone in equal proportion
//!   (in a plan: all or nothing).
//! - **Limits** of NodePools and **capacity reservations**.
//!
//! Spread is as the incumbent defines it: a zone that could be launched counts as a zone without
//! pods, and hostname domains are unlimited. Weights and preferences can only raise the cost and
//! are left out.

use std::collections::{BTreeMap, BTreeSet};

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOutcome, Variable};
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;
use nap_api::{Requirements, labels};
use nap_engine::{
    ATTACHABLE_VOLUMES, HostPort, Options, Pod, PodKey, PodTerm, Selector, Snapshot, Spread,
};
use nap_units::{Resources, UsdPerHour};

use crate::cluster::{NodeState, Running, clash, selected, tolerated};
use crate::knapsack_bound::knapsack_bound;
use crate::patterns::is_host;
use crate::places::{Bought, Class, Place, places};

/// Maximum number of sets of instance types with rows of their own.
const MAX_CHOICES: usize = 40;

/// Lower bound on the cost of placing these pods; `None` if the relaxation is infeasible.
pub fn bound(snapshot: &Snapshot, pods: &[&PodKey]) -> Option<UsdPerHour> {
    let wanted: BTreeSet<&PodKey> = pods.iter().copied().collect();
    let classes = Class::of(snapshot.pods.iter().filter(|pod| wanted.contains(&pod.key)));
    let places = places(snapshot, &Options::default());
    let mut relaxation = Relaxation::new(snapshot, &classes, &places);
    relaxation.resources();
    relaxation.host_rules();
    relaxation.spread_over_zones();
    relaxation.apart_by_zone();
    relaxation.together_by_zone();
    relaxation.limits();
    let whole = relaxation.knapsack_bound();
    let SolveOutcome::Solution(solution) = relaxation.problem.solve().ok()? else { return None };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounded down, with a margin for the solver's own"
    )]
    let micros = (solution.objective() * 1e6 * (1.0 - 1e-9) - 1e-3).floor().max(0.0) as i64;
    Some(whole.max(UsdPerHour::from_micros(micros)))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the margin of the bound is larger than what is lost"
)]
fn real(amount: i64) -> f64 {
    amount as f64
}

/// A zone; `None` for nodes without one.
type Zone<'a> = Option<&'a str>;

/// Requirements on a node: node affinity terms, volume terms and tolerations.
type Wishes<'a> = (&'a [Requirements], &'a [Requirements], &'a [nap_api::Toleration]);

/// NodePool, instance type, zone and reservation of a candidate, and which requirements it meets.
type Sort<'a> = (&'a str, &'a str, Zone<'a>, Option<&'a str>, Vec<bool>);

/// The cheapest candidate of a sort, and the variable that counts its launches.
struct Purchase<'a> {
    place: &'a Place<'a>,
    variable: Variable,
}

struct Relaxation<'a> {
    snapshot: &'a Snapshot,
    classes: &'a [Class<'a>],
    places: &'a [Place<'a>],
    problem: Problem,
    purchases: Vec<Purchase<'a>>,
    /// Per class, the indices of the purchases that admit it.
    choices: Vec<BTreeSet<usize>>,
    /// Per class, the variable that counts its pods in each possible zone.
    pods: Vec<BTreeMap<Zone<'a>, Variable>>,
}

fn zone(machine: &NodeState) -> Zone<'_> {
    machine.labels.get(labels::ZONE).map(String::as_str)
}

impl<'a> Relaxation<'a> {
    fn new(snapshot: &'a Snapshot, classes: &'a [Class<'a>], places: &'a [Place<'a>]) -> Self {
        // Classes with equal requirements are evaluated once.
        let mut alike: BTreeMap<Wishes<'a>, Vec<usize>> = BTreeMap::new();
        for (number, class) in classes.iter().enumerate() {
            let Pod { terms, volume_terms, tolerations, .. } = class.pod;
            alike.entry((terms, volume_terms, tolerations)).or_default().push(number);
        }
        // Of candidates that differ in the price only, the cheapest.
        let mut best: BTreeMap<Sort<'a>, &'a Place<'a>> = BTreeMap::new();
        for place in places {
            let Some(bought) = place.bought else { continue };
            let admits: Vec<bool> =
                alike.values().map(|group| may_be_on(classes[group[0]].pod, &bought)).collect();
            if !admits.contains(&true) {
                continue;
            }
            let key = (
                bought.pool.name.as_str(),
                bought.kind.name.as_str(),
                zone(&place.machine),
                bought.reservation(),
                admits,
            );
            let known = best.entry(key).or_insert(place);
            if place.price() < known.price() {
                *known = place;
            }
        }
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut purchases = Vec::new();
        let mut choices = vec![BTreeSet::new(); classes.len()];
        for ((.., admits), place) in best {
            let admitted = alike.values().zip(&admits).filter(|(_, admits)| **admits);
            for class in admitted.flat_map(|(group, _)| group) {
                if fits(classes[*class].pod, &place.machine.free) {
                    choices[*class].insert(purchases.len());
                }
            }
            let variable = problem.add_var(real(place.price()) / 1e6, (0.0, f64::INFINITY));
            purchases.push(Purchase { place, variable });
        }
        let mut pods = Vec::new();
        for (class, choices) in classes.iter().zip(&choices) {
            let needs_zone =
                class.pod.spread.iter().any(|spread| spread.topology_key == labels::ZONE)
                    || class.pod.affinity.iter().any(|term| term.topology_key == labels::ZONE);
            let bought = choices.iter().map(|choice| zone(&purchases[*choice].place.machine));
            let standing = places.iter().filter(|place| place.bought.is_none());
            let standing =
                standing.map(|place| &place.machine).filter(|machine| suits(class.pod, machine));
            let zones: BTreeSet<Zone<'a>> = bought.chain(standing.map(zone)).collect();
            let zones = zones.into_iter().filter(|zone| !needs_zone || zone.is_some());
            let zones: BTreeMap<Zone<'a>, Variable> =
                zones.map(|zone| (zone, problem.add_var(0.0, (0.0, f64::INFINITY)))).collect();
            let all: Vec<(Variable, f64)> =
                zones.values().map(|variable| (*variable, 1.0)).collect();
            problem.add_constraint(all, ComparisonOp::Eq, count(class));
            pods.push(zones);
        }
        Self { snapshot, classes, places, problem, purchases, choices, pods }
    }

    fn standing(&self) -> impl Iterator<Item = &'a NodeState> + use<'a> {
        self.places.iter().filter(|place| place.bought.is_none()).map(|place| &place.machine)
    }

    fn zones(&self) -> BTreeSet<Zone<'a>> {
        self.pods.iter().flat_map(|zones| zones.keys().copied()).collect()
    }

    /// Terms of a row: the pods of some classes in a zone, with a factor per class.
    fn in_zone(
        &self,
        classes: &[usize],
        zone: Zone<'a>,
        times: impl Fn(usize) -> f64,
    ) -> Vec<(Variable, f64)> {
        let there = classes
            .iter()
            .filter_map(|class| Some((*self.pods[*class].get(&zone)?, times(*class))));
        there.filter(|(_, factor)| *factor != 0.0).collect()
    }

    fn which(&self, is_one: impl Fn(&Class<'a>) -> bool) -> Vec<usize> {
        (0..self.classes.len()).filter(|class| is_one(&self.classes[*class])).collect()
    }

    fn resources(&mut self) {
        let names: BTreeSet<&str> = self
            .classes
            .iter()
            .flat_map(|class| class.pod.requests.iter())
            .map(|(name, _)| name)
            .collect();
        let names: Vec<&str> =
            names.into_iter().filter(|name| !name.starts_with(ATTACHABLE_VOLUMES)).collect();
        for zone_of in self.zones() {
            let here = |choice: &&usize| zone(&self.purchases[**choice].place.machine) == zone_of;
            let of: Vec<BTreeSet<usize>> = self
                .choices
                .iter()
                .map(|choices| choices.iter().filter(here).copied().collect())
                .collect();
            let everything: BTreeSet<usize> = of.iter().flatten().copied().collect();
            let distinct: BTreeSet<&BTreeSet<usize>> = of.iter().chain([&everything]).collect();
            for machines in distinct.iter().rev().take(MAX_CHOICES) {
                let captive: Vec<usize> = (0..of.len())
                    .filter(|class| {
                        self.pods[*class].contains_key(&zone_of) && of[*class].is_subset(machines)
                    })
                    .collect();
                let standing: Vec<&NodeState> = self
                    .standing()
                    .filter(|machine| zone(machine) == zone_of)
                    .filter(|machine| {
                        captive.iter().any(|class| suits(self.classes[*class].pod, machine))
                    })
                    .collect();
                for name in &names {
                    let has = machines
                        .iter()
                        .map(|choice| self.purchases[*choice].place.machine.free.get(name).max(0));
                    let unit = real(has.max().unwrap_or(1).max(1));
                    let asks = |class: usize| {
                        real(self.classes[class].pod.requests.get(name).max(0)) / unit
                    };
                    let mut row = self.in_zone(&captive, zone_of, asks);
                    if row.is_empty() {
                        continue;
                    }
                    for Purchase { place, variable } in
                        machines.iter().map(|choice| &self.purchases[*choice])
                    {
                        row.push((*variable, -real(place.machine.free.get(name).max(0)) / unit));
                    }
                    let free: i64 =
                        standing.iter().map(|machine| machine.free.get(name).max(0)).sum();
                    self.problem.add_constraint(row, ComparisonOp::Le, real(free) / unit);
                }
            }
        }
    }

    /// Rows that bound the pods per node.
    fn host_rules(&mut self) {
        let mut groups: BTreeSet<HostRule<'a>> = BTreeSet::new();
        for class in self.classes {
            groups.extend(
                class
                    .pod
                    .anti_affinity
                    .iter()
                    .filter(|term| is_host(&term.topology_key))
                    .map(HostRule::Apart),
            );
            groups.extend(
                class.pod.host_ports.iter().filter(|port| port.is_everywhere()).map(HostRule::Port),
            );
            let spreads = class.pod.spread.iter().filter(|spread| is_host(&spread.topology_key));
            groups.extend(spreads.map(|spread| {
                HostRule::Spread(class.namespace(), &spread.selector, spread.max_skew)
            }));
        }
        for rule in groups {
            let members = self.which(|class| rule.binds(class));
            for zone_of in self.zones() {
                let mut row = self.in_zone(&members, zone_of, |_| 1.0);
                if row.is_empty() {
                    continue;
                }
                let choices: BTreeSet<usize> =
                    members.iter().flat_map(|class| &self.choices[*class]).copied().collect();
                let here = choices.iter().map(|choice| &self.purchases[*choice]);
                let here = here.filter(|one| zone(&one.place.machine) == zone_of);
                row.extend(here.map(|one| (one.variable, -rule.most())));
                let standing = self.standing().filter(|machine| zone(machine) == zone_of);
                let left: f64 = standing.map(|machine| rule.left(&machine.pods)).sum();
                self.problem.add_constraint(row, ComparisonOp::Le, left);
            }
        }
    }

    /// The knapsack bound; 0 if there are existing nodes or reservations, which it does not model.
    fn knapsack_bound(&self) -> UsdPerHour {
        if self.standing().next().is_some() || !self.snapshot.reservations.is_empty() {
            return UsdPerHour::ZERO;
        }
        let terms: BTreeSet<&PodTerm> =
            self.classes.iter().flat_map(|class| &class.pod.anti_affinity).collect();
        let groups = terms.into_iter().filter(|term| is_host(&term.topology_key)).map(|term| {
            self.classes.iter().map(|class| exclude_each_other(term, class)).collect::<Vec<bool>>()
        });
        let size = |group: &Vec<bool>| -> usize {
            self.classes
                .iter()
                .zip(group)
                .filter(|(_, is_in)| **is_in)
                .map(|(class, _)| class.count())
                .sum()
        };
        let exclusive = groups.max_by_key(size).unwrap_or_else(|| vec![false; self.classes.len()]);
        let bought: Vec<&Place<'_>> = self.purchases.iter().map(|one| one.place).collect();
        knapsack_bound(self.classes, &bought, &exclusive)
    }

    fn spread_over_zones(&mut self) {
        let mut rules: BTreeMap<ZoneSpread<'a>, usize> = BTreeMap::new();
        for (number, class) in self.classes.iter().enumerate() {
            for spread in
                class.pod.spread.iter().filter(|spread| spread.topology_key == labels::ZONE)
            {
                rules.entry(ZoneSpread::of(class, spread)).or_insert(number);
            }
        }
        for (rule, first) in rules {
            let (spread, first) = (rule.spread, &self.classes[first]);
            let is_counted = |class: &Class<'_>| {
                class.namespace() == rule.namespace && spread.selector.matches(&class.pod.labels)
            };
            let has_it = |class: &Class<'a>| {
                class.pod.spread.iter().any(|one| ZoneSpread::of(class, one) == rule)
            };
            let counted = self.which(is_counted);
            let members = self.which(|class| is_counted(class) && has_it(class));
            let mut running: BTreeMap<&'a str, i64> = BTreeMap::new();
            for Place { machine, .. } in self.places {
                let is_seen = first
                    .pod
                    .spread
                    .iter()
                    .all(|other| machine.labels.contains_key(&other.topology_key))
                    && (!spread.honor_affinity || selected(&first.pod.terms, &machine.labels))
                    && (!spread.honor_taints
                        || machine
                            .taints
                            .iter()
                            .all(|taint| tolerated(taint, &first.pod.tolerations)));
                if let Some(zone) = zone(machine).filter(|_| is_seen) {
                    let pods = machine.pods.iter().filter(|pod| {
                        pod.namespace == rule.namespace && spread.selector.matches(&pod.labels)
                    });
                    *running.entry(zone).or_default() += i64::try_from(pods.count()).unwrap_or(0);
                }
            }
            let is_short = running.len() < spread.min_domains.unwrap_or(1) as usize;
            for (here, have) in &running {
                let ours = self.in_zone(&members, Some(here), |_| 1.0);
                let ahead = |least: i64| real((i64::from(spread.max_skew) + least - have).max(0));
                if is_short {
                    self.problem.add_constraint(ours, ComparisonOp::Le, ahead(0));
                    continue;
                }
                for (there, least) in running.iter().filter(|(there, _)| *there != here) {
                    let mut row = ours.clone();
                    row.extend(self.in_zone(&counted, Some(there), |_| -1.0));
                    self.problem.add_constraint(row, ComparisonOp::Le, ahead(*least));
                }
            }
        }
    }

    fn apart_by_zone(&mut self) {
        let terms: BTreeSet<&PodTerm> =
            self.classes.iter().flat_map(|class| &class.pod.anti_affinity).collect();
        for term in terms.into_iter().filter(|term| term.topology_key == labels::ZONE) {
            let members = self.which(|class| exclude_each_other(term, class));
            for zone in self.zones().into_iter().flatten() {
                let row = self.in_zone(&members, Some(zone), |_| 1.0);
                self.problem.add_constraint(row, ComparisonOp::Le, 1.0);
            }
        }
    }

    fn together_by_zone(&mut self) {
        let lists: BTreeSet<&[PodTerm]> =
            self.classes.iter().map(|class| class.pod.affinity.as_slice()).collect();
        for terms in lists.into_iter().filter(|terms| !terms.is_empty()) {
            let is_meant = |namespace: &str, labels: &BTreeMap<String, String>| {
                terms.iter().all(|term| {
                    term.topology_key == labels::ZONE && term.matches(namespace, labels)
                })
            };
            let members = self.which(|class| class.pod.affinity == terms);
            let meant = self.which(|class| is_meant(class.namespace(), &class.pod.labels));
            let runs = self
                .standing()
                .flat_map(|machine| &machine.pods)
                .any(|pod| is_meant(&pod.namespace, &pod.labels));
            if runs || members != meant {
                continue;
            }
            // Share of the pods in each zone.
            let mut parts = Vec::new();
            for zone in self.zones() {
                let part = self.problem.add_var(0.0, (0.0, 1.0));
                parts.push((part, 1.0));
                for class in &members {
                    let mut row = vec![(part, -count(&self.classes[*class]))];
                    row.extend(self.pods[*class].get(&zone).map(|pods| (*pods, 1.0)));
                    self.problem.add_constraint(row, ComparisonOp::Eq, 0.0);
                }
            }
            self.problem.add_constraint(parts, ComparisonOp::Eq, 1.0);
        }
    }

    fn limits(&mut self) {
        for (name, count) in &self.snapshot.reservations {
            let part = self.purchases.iter().filter(|one| one.bought().reservation() == Some(name));
            let row: Vec<_> = part.map(|one| (one.variable, 1.0)).collect();
            self.problem.add_constraint(row, ComparisonOp::Le, f64::from(*count));
        }
        for pool in &self.snapshot.pools {
            for (name, headroom) in pool.headroom.iter() {
                let mut row = Vec::new();
                for one in self.purchases.iter().filter(|one| one.bought().pool.name == pool.name) {
                    let used =
                        if name == "nodes" { 1 } else { one.bought().kind.capacity.get(name) };
                    row.push((one.variable, real(used) / real(headroom.max(1))));
                }
                self.problem.add_constraint(
                    row,
                    ComparisonOp::Le,
                    if headroom > 0 { 1.0 } else { 0.0 },
                );
            }
        }
    }
}

impl<'a> Purchase<'a> {
    fn bought(&self) -> Bought<'a> {
        self.place.bought.expect("what is bought is not there yet")
    }
}

/// A rule that bounds the number of certain pods on a node.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum HostRule<'a> {
    /// Mutual anti-affinity by hostname: one pod.
    Apart(&'a PodTerm),
    /// The same host port on all addresses: one pod.
    Port(&'a HostPort),
    /// Hostname spread: namespace, selector and maximum skew.
    Spread(&'a str, &'a Selector, u32),
}

impl HostRule<'_> {
    fn most(&self) -> f64 {
        match self {
            Self::Apart(_) | Self::Port(_) => 1.0,
            Self::Spread(_, _, skew) => f64::from(*skew),
        }
    }

    /// Whether the rule bounds the pods of a class.
    fn binds(&self, class: &Class<'_>) -> bool {
        let pod = class.pod;
        match self {
            Self::Apart(term) => exclude_each_other(term, class),
            Self::Port(port) => {
                pod.host_ports.iter().any(|one| one.is_everywhere() && clash(one, port))
            }
            Self::Spread(namespace, selector, skew) => {
                let has_it = |spread: &Spread| {
                    is_host(&spread.topology_key)
                        && spread.selector == **selector
                        && spread.max_skew == *skew
                };
                class.namespace() == *namespace
                    && selector.matches(&pod.labels)
                    && pod.spread.iter().any(has_it)
            }
        }
    }

    /// Number of further pods that a node with these running pods may have.
    fn left(&self, running: &[Running]) -> f64 {
        let taken = running.iter().filter(|pod| match self {
            Self::Apart(term) => {
                term.matches(&pod.namespace, &pod.labels) || pod.anti_affinity.contains(term)
            }
            Self::Port(port) => pod.ports.iter().any(|one| clash(one, port)),
            Self::Spread(namespace, selector, _) => {
                pod.namespace == *namespace && selector.matches(&pod.labels)
            }
        });
        (self.most() - real(i64::try_from(taken.count()).unwrap_or(i64::MAX))).max(0.0)
    }
}

/// A zone spread constraint with the node inclusion policies of its owner; equal ones share rows.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ZoneSpread<'a> {
    namespace: &'a str,
    spread: &'a Spread,
    keys: BTreeSet<&'a str>,
    terms: Option<&'a [Requirements]>,
    tolerations: Option<&'a [nap_api::Toleration]>,
}

impl<'a> ZoneSpread<'a> {
    fn of(class: &Class<'a>, spread: &'a Spread) -> Self {
        Self {
            namespace: class.namespace(),
            spread,
            keys: class.pod.spread.iter().map(|spread| spread.topology_key.as_str()).collect(),
            terms: spread.honor_affinity.then_some(&class.pod.terms),
            tolerations: spread.honor_taints.then_some(&class.pod.tolerations),
        }
    }
}

fn count(class: &Class<'_>) -> f64 {
    real(i64::try_from(class.count()).unwrap_or(i64::MAX))
}

/// Whether pods of a class have the term and match it.
fn exclude_each_other(term: &PodTerm, class: &Class<'_>) -> bool {
    class.pod.anti_affinity.contains(term) && term.matches(class.namespace(), &class.pod.labels)
}

/// Whether a pod may run on an existing node, regardless of other pods.
fn suits(pod: &Pod, machine: &NodeState) -> bool {
    machine.taints.iter().all(|taint| tolerated(taint, &pod.tolerations))
        && selected(&pod.terms, &machine.labels)
        && selected(&pod.volume_terms, &machine.labels)
        && fits(pod, &machine.free)
}

/// Whether a pod may run on a candidate for some choice of the labels that the NodePool leaves
/// open.
fn may_be_on(pod: &Pod, bought: &Bought<'_>) -> bool {
    let allows = |term: &Requirements| {
        let mut all = bought.pool.requirements.clone();
        all.extend(term);
        bought.pool.requirements.compatible(term, Undefined::AllowWellKnown).is_ok()
            && all.intersects(&bought.kind.requirements).is_ok()
            && all.intersects(&bought.offering.requirements).is_ok()
    };
    let any = |terms: &[Requirements]| terms.is_empty() || terms.iter().any(allows);
    first_untolerated(&bought.pool.taints, &pod.tolerations).is_none()
        && any(&pod.terms)
        && any(&pod.volume_terms)
}

fn fits(pod: &Pod, free: &Resources) -> bool {
    pod.requests.iter().all(|(name, amount)| {
        let is_unlimited = name.starts_with(ATTACHABLE_VOLUMES) && !free.contains(name);
        amount <= 0 || is_unlimited || amount <= free.get(name)
    })
}
