//! Exact optimum of small cases, by a mixed-integer program over node patterns.
//!
//! A variable counts the nodes of one candidate that hold one *pattern* of pods (`patterns.rs`). So
//! all rules about a single node are settled before the solver starts, there is no symmetry between
//! equal nodes, and the relaxation is tight. Rules over wider domains are linear rows over the
//! patterns in each domain: spread, affinity and anti-affinity by zone or any other label, limits,
//! and reservations.
//!
//! Spread is as the incumbent defines it: a domain that could be launched counts as one without
//! pods, and hostname domains are unlimited. Cases that the program does not model are refused, and
//! its own plan must pass the checker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use microlp::{
    ComparisonOp, OptimizationDirection, Problem, SolutionStatus, SolveOptions, Variable,
};
use nap_engine::{
    Alternatives, Launch, Options, Placement, Plan, PodTerm, PreferencePolicy, Snapshot, Spread,
};
use nap_units::{Resources, UsdPerHour};

use crate::check::{check, with_default_spread};
use crate::cluster::{NodeState, selected, tolerated};
use crate::patterns::{Company, Pattern, is_host};
use crate::places::{Class, Place, places, with_every_domain};

/// Maximum number of patterns of one candidate.
const MAX_PATTERNS: usize = 3000;
/// Maximum number of variables.
const MAX_COLUMNS: usize = 12_000;
/// Maximum number of nodes of the branch-and-bound tree.
const MAX_BRANCHES: u64 = 4000;

/// Reason why the optimum is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotModelled(pub &'static str);

/// The cheapest plan that places every pod; `None` if no plan does. Preferences must be ignored by
/// the options or absent.
pub fn exact(snapshot: &Snapshot, options: &Options) -> Result<Option<Plan>, NotModelled> {
    let snapshot = &with_default_spread(snapshot, options);
    refuse(snapshot, options)?;
    let classes = Class::of(&snapshot.pods);
    let most = options.max_pods_per_node.map_or(usize::MAX, |most| most as usize);
    let model = Model::new(snapshot, &classes, places(snapshot, options), most)?;
    let Some(chosen) = model.solve()? else { return Ok(None) };
    let plan = model.plan(&chosen);
    if check(&with_every_domain(snapshot), options, &plan).is_empty() {
        Ok(Some(plan))
    } else {
        Err(NotModelled("its plan cannot be bound in any order"))
    }
}

/// Refuses snapshots that the program does not model.
fn refuse(snapshot: &Snapshot, options: &Options) -> Result<(), NotModelled> {
    let no =
        |is_there: bool, what: &'static str| if is_there { Err(NotModelled(what)) } else { Ok(()) };
    let weights: BTreeSet<i32> = snapshot.pools.iter().map(|pool| pool.weight).collect();
    no(weights.len() > 1, "weights")?;
    let mut wanted = snapshot.pools.iter().flat_map(|pool| pool.requirements.iter());
    no(wanted.any(|(_, one)| one.min_values().is_some()), "minValues")?;
    no(options.node_cost != UsdPerHour::ZERO, "a cost of nodes")?;
    no(snapshot.pods.iter().any(|pod| pod.unsupported.is_some()), "unsupported fields")?;
    if options.preferences == PreferencePolicy::Respect {
        let taints = snapshot.pools.iter().flat_map(|pool| &pool.taints);
        let mut taints = taints.chain(snapshot.nodes.iter().flat_map(|node| &node.taints));
        let likes =
            snapshot.pods.iter().any(|pod| pod.preferences != nap_engine::Preferences::default());
        no(
            likes || taints.any(|taint| taint.effect == nap_api::Effect::PreferNoSchedule),
            "preferences",
        )?;
    }
    // Labels whose value the offering leaves open are not modelled.
    let terms = snapshot.pods.iter().flat_map(|pod| pod.terms.iter().chain(&pod.volume_terms));
    let terms = terms.chain(snapshot.daemons.iter().flat_map(|daemon| &daemon.terms));
    let keys: BTreeSet<&str> =
        terms.flat_map(nap_api::Requirements::iter).map(|(key, _)| key).collect();
    for place in places(snapshot, options) {
        let Some(bought) = place.bought else { continue };
        let says =
            [&bought.pool.requirements, &bought.kind.requirements, &bought.offering.requirements];
        let mut said = says.iter().flat_map(|one| one.iter());
        let open = said.any(|(key, one)| {
            keys.contains(key) && !one.allows_absent() && !place.machine.labels.contains_key(key)
        });
        no(open, "labels that the pods decide")?;
    }
    Ok(())
}

/// A variable: nodes of one candidate, each with this pattern.
struct Column {
    pattern: Pattern,
    place: usize,
    /// Indices of the hostname affinities whose first pod the pattern holds.
    firsts: Vec<usize>,
}

/// The required affinity terms of a group of classes, all with one topology key.
struct Affinity<'a> {
    terms: &'a [PodTerm],
    key: &'a str,
    /// Classes that have the terms and match them themselves.
    followers: Vec<usize>,
    strangers: Vec<usize>,
    /// Classes that match the terms without having them.
    seeds: Vec<usize>,
    /// Domains with a running pod that matches.
    known: BTreeSet<&'a str>,
}

struct Model<'a> {
    snapshot: &'a Snapshot,
    classes: &'a [Class<'a>],
    places: Vec<Place<'a>>,
    columns: Vec<Column>,
}

/// The mixed-integer program under construction.
struct Program {
    problem: Problem,
    columns: Vec<Variable>,
}

impl Program {
    fn row(&mut self, terms: Vec<(Variable, f64)>, comparison: ComparisonOp, right: f64) {
        let terms: Vec<_> = terms.into_iter().filter(|(_, factor)| *factor != 0.0).collect();
        self.problem.add_constraint(terms, comparison, right);
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers of pods, and prices far below 2^52")]
fn real(number: usize) -> f64 {
    number as f64
}

impl<'a> Model<'a> {
    fn new(
        snapshot: &'a Snapshot,
        classes: &'a [Class<'a>],
        places: Vec<Place<'a>>,
        most: usize,
    ) -> Result<Self, NotModelled> {
        let mut model = Self { snapshot, classes, places, columns: Vec::new() };
        let affinities = model.affinities()?;
        let company = Company::new(classes, most);
        let standing: Vec<NodeState> = model
            .places
            .iter()
            .filter(|one| one.bought.is_none())
            .map(|one| one.machine.clone())
            .collect();
        let keys = model.keys();
        // Of candidates that differ in the price only, the cheapest.
        let mut best: BTreeMap<(Pattern, Vec<Option<&str>>, String), usize> = BTreeMap::new();
        for (number, place) in model.places.iter().enumerate() {
            let admitted = company.admitted(place, &standing);
            let patterns = company.patterns(place, &admitted, MAX_PATTERNS);
            let patterns = patterns.ok_or(NotModelled("too many patterns"))?;
            let domains: Vec<Option<&str>> =
                keys.iter().map(|key| place.machine.labels.get(*key).map(String::as_str)).collect();
            let same = match place.bought {
                None => place.machine.name.clone(),
                Some(one) if one.reservation().is_some() || !one.pool.headroom.is_empty() => {
                    format!("{} {} {:?}", one.pool.name, one.kind.name, one.reservation())
                }
                Some(_) => String::new(),
            };
            for pattern in patterns {
                let known = best.entry((pattern, domains.clone(), same.clone())).or_insert(number);
                if place.price() < model.places[*known].price() {
                    *known = number;
                }
            }
            if best.len() > MAX_COLUMNS {
                return Err(NotModelled("too many patterns"));
            }
        }
        for ((pattern, ..), place) in best {
            if let Some(firsts) = firsts(&affinities, &pattern, &model.places[place]) {
                model.columns.push(Column { pattern, place, firsts });
            }
        }
        Ok(model)
    }

    /// Topology keys of all rules, without the hostname.
    fn keys(&self) -> Vec<&'a str> {
        let mut keys: BTreeSet<&str> = BTreeSet::new();
        for class in self.classes {
            let terms = class.pod.affinity.iter().chain(&class.pod.anti_affinity);
            keys.extend(terms.map(|term| term.topology_key.as_str()));
            keys.extend(class.pod.spread.iter().map(|spread| spread.topology_key.as_str()));
        }
        keys.into_iter().filter(|key| !is_host(key)).collect()
    }

    fn affinities(&self) -> Result<Vec<Affinity<'a>>, NotModelled> {
        let lists: BTreeSet<&[PodTerm]> = self
            .classes
            .iter()
            .map(|class| class.pod.affinity.as_slice())
            .filter(|one| !one.is_empty())
            .collect();
        let mut affinities = Vec::new();
        for terms in lists {
            let key = terms[0].topology_key.as_str();
            if terms.iter().any(|term| term.topology_key != key) {
                return Err(NotModelled("affinity by several labels"));
            }
            let is_meant = |class: usize| {
                let class = &self.classes[class];
                terms.iter().all(|term| term.matches(class.namespace(), &class.pod.labels))
            };
            let has_it = |class: usize| self.classes[class].pod.affinity == terms;
            let which = |meant: bool, has: bool| -> Vec<usize> {
                (0..self.classes.len())
                    .filter(|one| is_meant(*one) == meant && has_it(*one) == has)
                    .collect()
            };
            let seeds = which(true, false);
            if seeds.iter().any(|seed| !self.classes[*seed].pod.affinity.is_empty()) {
                return Err(NotModelled("chains of affinity"));
            }
            let mut known = BTreeSet::new();
            for node in &self.snapshot.nodes {
                let mut meant = node.residents.iter().filter(|resident| {
                    terms.iter().all(|term| term.matches(&resident.namespace, &resident.labels))
                });
                let here = if is_host(key) { Some(&node.name) } else { node.labels.get(key) };
                known.extend(here.filter(|_| meant.next().is_some()).map(String::as_str));
            }
            affinities.push(Affinity {
                terms,
                key,
                followers: which(true, true),
                strangers: which(false, true),
                seeds,
                known,
            });
        }
        Ok(affinities)
    }

    /// Terms of a row: the pods of some classes in a domain, times a factor.
    fn pods(
        &self,
        program: &Program,
        classes: &[usize],
        key: &str,
        value: &str,
        times: f64,
    ) -> Vec<(Variable, f64)> {
        let there = self.columns.iter().zip(&program.columns).filter(|(column, _)| {
            self.places[column.place].machine.labels.get(key).is_some_and(|here| here == value)
        });
        let pods = there.map(|(column, variable)| {
            (*variable, times * real(classes.iter().map(|class| column.pattern[*class]).sum()))
        });
        pods.collect()
    }

    /// All values of a label among the candidates.
    fn values(&self, key: &str) -> BTreeSet<&str> {
        self.places
            .iter()
            .filter_map(|place| place.machine.labels.get(key))
            .map(String::as_str)
            .collect()
    }

    fn all(&self, classes: &[usize]) -> usize {
        classes.iter().map(|class| self.classes[*class].count()).sum()
    }

    /// Number of nodes of each column at the optimum; `None` if no plan places all pods.
    fn solve(&self) -> Result<Option<Vec<usize>>, NotModelled> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut columns = Vec::new();
        for column in &self.columns {
            let each = (0..self.classes.len()).filter(|class| column.pattern[*class] > 0);
            let most = each
                .map(|class| self.classes[class].count() / column.pattern[class])
                .min()
                .unwrap_or(0);
            let most = if self.places[column.place].bought.is_some() { most } else { most.min(1) };
            #[expect(
                clippy::cast_precision_loss,
                reason = "prices are far below 2^52 micro-dollars"
            )]
            let price = self.places[column.place].price() as f64 / 1e6;
            columns
                .push(problem.add_integer_var(price, (0, i32::try_from(most).unwrap_or(i32::MAX))));
        }
        let mut program = Program { problem, columns };
        for (number, class) in self.classes.iter().enumerate() {
            let holds = self.columns.iter().map(|column| real(column.pattern[number]));
            let row = program.columns.iter().copied().zip(holds).collect();
            program.row(row, ComparisonOp::Eq, real(class.count()));
        }
        self.scarce(&mut program);
        self.apart(&mut program);
        self.together(&mut program)?;
        self.spread(&mut program)?;
        let mut options = SolveOptions::default();
        options.node_limit = Some(MAX_BRANCHES);
        let outcome = match program.problem.solve_with(options) {
            Ok(outcome) => outcome,
            Err(microlp::Error::Infeasible) => return Ok(None),
            Err(_) => return Err(NotModelled("the solver gave up")),
        };
        let Ok(solution) = outcome.into_solution() else { return Err(NotModelled("too hard")) };
        if solution.status() != SolutionStatus::Optimal {
            return Err(NotModelled("too hard"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small whole numbers"
        )]
        let count = |variable: &Variable| solution.var_value(*variable).round().max(0.0) as usize;
        Ok(Some(program.columns.iter().map(count).collect()))
    }

    /// Rows for existing nodes (each at most once), capacity reservations and NodePool limits.
    fn scarce(&self, program: &mut Program) {
        let on =
            |place: usize| move |column: &Column| if column.place == place { 1.0 } else { 0.0 };
        let limit = |program: &mut Program, used: &dyn Fn(&Column) -> f64, right: f64| {
            let row = self.columns.iter().map(used);
            let row = program.columns.iter().copied().zip(row).collect();
            program.row(row, ComparisonOp::Le, right);
        };
        for number in (0..self.places.len()).filter(|number| self.places[*number].bought.is_none())
        {
            limit(program, &on(number), 1.0);
        }
        for (name, count) in &self.snapshot.reservations {
            let is_part = |column: &Column| {
                let bought = self.places[column.place].bought;
                if bought.is_some_and(|bought| bought.reservation() == Some(name)) {
                    1.0
                } else {
                    0.0
                }
            };
            limit(program, &is_part, f64::from(*count));
        }
        for pool in &self.snapshot.pools {
            for (name, headroom) in pool.headroom.iter() {
                // Scaled by the limit: bytes would make the program ill-conditioned.
                #[expect(clippy::cast_precision_loss, reason = "a ratio of amounts below 2^52")]
                let share = |column: &Column| match self.places[column.place].bought {
                    Some(bought) if bought.pool.name == pool.name => {
                        let used = if name == "nodes" { 1 } else { bought.kind.capacity.get(name) };
                        used as f64 / headroom.max(1) as f64
                    }
                    _ => 0.0,
                };
                limit(program, &share, if headroom > 0 { 1.0 } else { 0.0 });
            }
        }
    }

    /// Rows for anti-affinity over domains wider than a node.
    fn apart(&self, program: &mut Program) {
        let terms: BTreeSet<&PodTerm> =
            self.classes.iter().flat_map(|class| &class.pod.anti_affinity).collect();
        for term in terms.into_iter().filter(|term| !is_host(&term.topology_key)) {
            let has = |class: &usize| self.classes[*class].pod.anti_affinity.contains(term);
            let is_meant = |class: &usize| {
                let class = &self.classes[*class];
                term.matches(class.namespace(), &class.pod.labels)
            };
            let which = |owner: bool, meant: bool| -> Vec<usize> {
                (0..self.classes.len())
                    .filter(|one| has(one) == owner && is_meant(one) == meant)
                    .collect()
            };
            let (owners, meant, both) = (which(true, false), which(false, true), which(true, true));
            for value in self.values(&term.topology_key) {
                // One of the three parties has the domain; of the last, at most one pod.
                let mut parties = Vec::new();
                for (party, most) in
                    [(&owners, self.all(&owners)), (&meant, self.all(&meant)), (&both, 1)]
                {
                    if party.is_empty() {
                        continue;
                    }
                    let is_here = program.problem.add_binary_var(0.0);
                    let mut row = self.pods(program, party, &term.topology_key, value, 1.0);
                    row.push((is_here, -real(most)));
                    program.row(row, ComparisonOp::Le, 0.0);
                    parties.push((is_here, 1.0));
                }
                program.row(parties, ComparisonOp::Le, 1.0);
            }
        }
    }

    /// Rows for affinity, by hostname and over wider domains.
    fn together(&self, program: &mut Program) -> Result<(), NotModelled> {
        for (number, affinity) in self.affinities()?.iter().enumerate() {
            let may_begin = if affinity.known.is_empty() { 1.0 } else { 0.0 };
            if is_host(affinity.key) {
                let first = self
                    .columns
                    .iter()
                    .map(|column| if column.firsts.contains(&number) { 1.0 } else { 0.0 });
                let row = program.columns.iter().copied().zip(first).collect();
                program.row(row, ComparisonOp::Le, may_begin);
                continue;
            }
            let mut begins = Vec::new();
            for value in self.values(affinity.key) {
                if affinity.known.contains(value) {
                    continue;
                }
                let begin = program.problem.add_binary_var(0.0);
                begins.push((begin, 1.0));
                for (party, is_meant) in [(&affinity.followers, true), (&affinity.strangers, false)]
                {
                    let most = real(self.all(party));
                    let mut row = self.pods(program, party, affinity.key, value, 1.0);
                    row.extend(self.pods(program, &affinity.seeds, affinity.key, value, -most));
                    if is_meant {
                        row.push((begin, -most));
                    } else {
                        row.extend(self.pods(
                            program,
                            &affinity.followers,
                            affinity.key,
                            value,
                            -most,
                        ));
                    }
                    program.row(merged(row), ComparisonOp::Le, 0.0);
                }
            }
            program.row(begins, ComparisonOp::Le, may_begin);
            debug_assert!(!affinity.terms.is_empty());
        }
        Ok(())
    }

    /// Rows for spread over domains wider than a node. Only modelled where the owners of a rule are
    /// exactly the pods that it counts.
    fn spread(&self, program: &mut Program) -> Result<(), NotModelled> {
        let mut done: Vec<(usize, &Spread)> = Vec::new();
        for (number, class) in self.classes.iter().enumerate() {
            for spread in class.pod.spread.iter().filter(|spread| !is_host(&spread.topology_key)) {
                let has_it = |other: &usize| self.same_spread(number, *other, spread);
                let is_counted = |other: &usize| {
                    let other = &self.classes[*other];
                    other.namespace() == class.namespace()
                        && spread.selector.matches(&other.pod.labels)
                };
                let owners: Vec<usize> = (0..self.classes.len()).filter(has_it).collect();
                let counted: Vec<usize> = (0..self.classes.len()).filter(is_counted).collect();
                if owners != counted {
                    return Err(NotModelled("spread over pods without the rule"));
                }
                if done.iter().any(|(other, known)| *known == spread && has_it(other)) {
                    continue;
                }
                done.push((number, spread));
                self.spread_rows(program, class, spread, &owners);
            }
        }
        Ok(())
    }

    fn same_spread(&self, one: usize, other: usize, spread: &Spread) -> bool {
        let (one, other) = (&self.classes[one], &self.classes[other]);
        let keys = |class: &Class<'_>| -> BTreeSet<String> {
            class.pod.spread.iter().map(|spread| spread.topology_key.clone()).collect()
        };
        one.namespace() == other.namespace()
            && other.pod.spread.contains(spread)
            && keys(one) == keys(other)
            && (!spread.honor_affinity || one.pod.terms == other.pod.terms)
            && (!spread.honor_taints || one.pod.tolerations == other.pod.tolerations)
    }

    fn spread_rows(
        &self,
        program: &mut Program,
        class: &Class<'_>,
        spread: &Spread,
        owners: &[usize],
    ) {
        let pod = class.pod;
        let key = spread.topology_key.as_str();
        let mut running: BTreeMap<&str, usize> = BTreeMap::new();
        for Place { machine, .. } in &self.places {
            let is_seen =
                pod.spread.iter().all(|other| machine.labels.contains_key(&other.topology_key))
                    && (!spread.honor_affinity || selected(&pod.terms, &machine.labels))
                    && (!spread.honor_taints
                        || machine.taints.iter().all(|taint| tolerated(taint, &pod.tolerations)));
            if let Some(value) = machine.labels.get(key).filter(|_| is_seen) {
                let counted = machine.pods.iter().filter(|other| {
                    other.namespace == class.namespace() && spread.selector.matches(&other.labels)
                });
                *running.entry(value).or_default() += counted.count();
            }
        }
        let is_short = running.len() < spread.min_domains.unwrap_or(1) as usize;
        let pods = self.all(owners);
        let most = running.values().max().copied().unwrap_or(0) + pods;
        // Lower bound of the pod count of the emptiest domain.
        let least = program.problem.add_var(0.0, (0.0, if is_short { 0.0 } else { real(most) }));
        for (value, count) in running {
            let mut row = self.pods(program, owners, key, value, 1.0);
            row.push((least, -1.0));
            program.row(row, ComparisonOp::Ge, -real(count));
            let is_used = program.problem.add_binary_var(0.0);
            let mut row = self.pods(program, owners, key, value, 1.0);
            row.push((is_used, -real(pods)));
            program.row(row, ComparisonOp::Le, 0.0);
            // A domain that gets pods exceeds the emptiest by at most the skew.
            let mut row = self.pods(program, owners, key, value, 1.0);
            row.push((least, -1.0));
            row.push((is_used, real(most)));
            program.row(
                row,
                ComparisonOp::Le,
                f64::from(spread.max_skew) + real(most) - real(count),
            );
        }
    }

    /// The plan of a solution.
    fn plan(&self, chosen: &[usize]) -> Plan {
        let mut keys: Vec<_> = self.classes.iter().map(|class| class.keys.iter()).collect();
        let mut plan = Plan::default();
        for (column, count) in self.columns.iter().zip(chosen) {
            for _ in 0..*count {
                let pods = column
                    .pattern
                    .iter()
                    .zip(&mut keys)
                    .flat_map(|(count, keys)| keys.take(*count));
                let pods = pods.map(|key| (*key).clone());
                let place = &self.places[column.place];
                let Some(bought) = place.bought else {
                    let node = place.machine.name.clone();
                    plan.placements.extend(pods.map(|pod| Placement { pod, node: node.clone() }));
                    continue;
                };
                plan.launches.push(Launch {
                    pool: bought.pool.name.clone(),
                    instance_type: bought.kind.name.clone(),
                    zone: bought.offering.zone.clone(),
                    capacity_type: bought.offering.capacity_type,
                    price: bought.offering.price,
                    pods: pods.collect(),
                    requests: Resources::new(),
                    requirements: Arc::new(bought.pool.requirements.clone()),
                    alternatives: Alternatives::default(),
                });
            }
        }
        plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
        plan
    }
}

/// Hostname affinities whose first pod the pattern holds; `None` if the pattern violates one.
fn firsts(affinities: &[Affinity<'_>], pattern: &Pattern, place: &Place<'_>) -> Option<Vec<usize>> {
    let mut firsts = Vec::new();
    for (number, affinity) in affinities.iter().enumerate().filter(|(_, one)| is_host(one.key)) {
        let has = |classes: &[usize]| classes.iter().any(|class| pattern[*class] > 0);
        let is_known =
            place.bought.is_none() && affinity.known.contains(place.machine.name.as_str());
        if is_known || has(&affinity.seeds) {
            continue;
        }
        if has(&affinity.followers) {
            firsts.push(number);
        } else if has(&affinity.strangers) {
            return None;
        }
    }
    Some(firsts)
}

/// Sums the factors of repeated variables.
fn merged(row: Vec<(Variable, f64)>) -> Vec<(Variable, f64)> {
    let mut factors: BTreeMap<usize, (Variable, f64)> = BTreeMap::new();
    for (variable, factor) in row {
        factors.entry(variable.idx()).or_insert((variable, 0.0)).1 += factor;
    }
    factors.into_values().collect()
}
