//! Pod counts per domain, and the pods that a domain may still take.
//!
//! Domains of a label are those that exist and those that could be launched. By hostname every node
//! is a domain and one more can always be launched, so a spread over hosts compares with zero. Both
//! change once pods are left without a place: see `packing/leftovers.rs`.
//!
//! Where it is uncertain that a spread constraint covers a node that is not launched yet, the pods
//! on that node count in full against their own domain but not towards the emptiest one. So the
//! skew is never understated.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::ids::{BinId, DomainId, GroupId, IndexVec, NodeIdx};
use crate::model::Rule;
use crate::topology::domains::{Domain, Domains};
use crate::topology::groups::{At, Constraint, TopologyProfile, TopologyRules};
use crate::topology::running::CoveredNodes;

/// A node that pods are placed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// A node that exists or is in flight.
    Existing(NodeIdx),
    /// A hypothetical node of the packing.
    Bin(BinId),
}

/// The node that an allowance is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostQuery {
    /// Any node of the domains: rules by hostname are left out.
    Any,
    /// A new node, which has no pods.
    New,
    /// A certain node.
    On(Host),
}

/// Upper limit on further pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Allowance {
    /// At most this many.
    AtMost(usize),
    /// No limit.
    Unlimited,
}

impl Allowance {
    const NONE: Self = Self::AtMost(0);

    /// Whether no pod is allowed.
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The allowance that remains after some pods.
    pub(crate) fn less(self, pods: usize) -> Self {
        match self {
            Self::AtMost(max) => Self::AtMost(max.saturating_sub(pods)),
            Self::Unlimited => Self::Unlimited,
        }
    }

    /// Number of pods that are allowed out of `count`.
    pub(crate) fn of(self, count: usize) -> usize {
        match self {
            Self::AtMost(max) => max.min(count),
            Self::Unlimited => count,
        }
    }
}

/// Certainty with which a topology group covers a node or a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Not covered.
    #[default]
    Never,
    /// Depends on the offering that is launched.
    Maybe,
    /// Covered in any case.
    Always,
}

/// Pods in a domain.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Upper bound: all pods that may be covered.
    max: i64,
    /// Lower bound: the pods that are certainly covered.
    min: i64,
    coverage: Coverage,
}

/// Minimum over the hosts that a group covers, once no node is added any more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostMinimum {
    /// Pods that each of the nodes has at least.
    pub(crate) pods: i64,
    /// Nodes that are certainly covered.
    pub(crate) nodes: usize,
}

/// Pod counts of every topology group.
#[derive(Clone, Default)]
pub(crate) struct Topology {
    counts: IndexVec<GroupId, IndexVec<DomainId, Count>>,
    /// Counts by hostname: the groups with pods on each node, and how many.
    on_existing: IndexVec<NodeIdx, Vec<(GroupId, i64)>>,
    on_bins: IndexVec<BinId, Vec<(GroupId, i64)>>,
    totals: IndexVec<GroupId, i64>,
    /// Whether a group covers each existing node.
    covers: Rc<IndexVec<GroupId, CoveredNodes>>,
    /// Whether a group is restricted to the domains that have nodes.
    restricted: IndexVec<GroupId, bool>,
    /// Minimum over the hosts of each group; `None` while nodes may still be added.
    host_minimums: Option<IndexVec<GroupId, HostMinimum>>,
}

impl Topology {
    /// Counts of no pods. `covers` are the nodes that each group covers.
    pub(crate) fn empty(covers: IndexVec<GroupId, CoveredNodes>) -> Self {
        let width = covers.len();
        Self {
            counts: IndexVec::filled(IndexVec::new(), width),
            on_existing: IndexVec::new(),
            on_bins: IndexVec::new(),
            totals: IndexVec::filled(0, width),
            covers: Rc::new(covers),
            restricted: IndexVec::filled(false, width),
            host_minimums: None,
        }
    }

    /// Declares the coverage of some domains by a group.
    pub(crate) fn cover(&mut self, group: GroupId, domains: &[DomainId], coverage: Coverage) {
        for domain in domains {
            self.count_mut(group, *domain).coverage = coverage;
        }
    }

    fn count_mut(&mut self, group: GroupId, domain: DomainId) -> &mut Count {
        self.counts[group].grow_to(domain, Count::default())
    }

    /// Adds pods to the count of a domain, or of a node if `domain` is `None`.
    pub(crate) fn add(
        &mut self,
        group: GroupId,
        domain: Option<Domain>,
        host: Host,
        pods: i64,
        certain: bool,
    ) {
        let (covered, certain) = match host {
            Host::Existing(node) => (self.covers[group][node], true),
            Host::Bin(_) => (true, certain),
        };
        if !covered {
            return;
        }
        match domain {
            None if pods != 0 => {
                let here = match host {
                    Host::Existing(node) => self.on_existing.grow_to(node, Vec::new()),
                    Host::Bin(bin) => self.on_bins.grow_to(bin, Vec::new()),
                };
                match here.iter_mut().find(|(known, _)| *known == group) {
                    Some((_, count)) => *count += pods,
                    None => here.push((group, pods)),
                }
            }
            None => {}
            Some(Domain::Absent) => return,
            Some(Domain::Is(domain)) => {
                let is_restricted = self.restricted[group];
                let count = self.count_mut(group, domain);
                if !is_restricted {
                    count.coverage = Coverage::Always;
                }
                count.max += pods;
                count.min += if certain { pods } else { 0 };
            }
        }
        self.totals[group] += pods;
    }

    /// Restricts a spread constraint to the domains that have nodes, with their coverage.
    pub(crate) fn restrict(&mut self, group: GroupId, domains: &BTreeMap<DomainId, Coverage>) {
        self.restricted[group] = true;
        for count in &mut self.counts[group] {
            count.coverage = Coverage::Never;
        }
        for (domain, coverage) in domains {
            self.count_mut(group, *domain).coverage = *coverage;
        }
    }

    /// Whether some spread constraint is restricted to the domains that have nodes.
    pub(crate) fn is_restricted(&self) -> bool {
        self.restricted.iter().any(|restricted| *restricted)
    }

    /// Corrects the count of a domain once it is known that the group covers a node with pods of
    /// uncertain coverage, or that it does not.
    pub(crate) fn settle_coverage(
        &mut self,
        group: GroupId,
        domain: DomainId,
        pods: usize,
        covered: bool,
    ) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        let count = self.count_mut(group, domain);
        if covered {
            count.min += pods;
        } else {
            count.max -= pods;
        }
    }

    /// Whether a group covers an existing node.
    pub(crate) fn covers(&self, group: GroupId, node: NodeIdx) -> bool {
        self.covers[group][node]
    }

    /// Declares that no node is added any more.
    pub(crate) fn stop_new_hosts(&mut self) {
        let width = self.counts.len();
        self.host_minimums.get_or_insert_with(|| IndexVec::filled(HostMinimum::default(), width));
    }

    /// Records the minimum over the hosts of a group.
    pub(crate) fn set_host_minimum(&mut self, group: GroupId, minimum: HostMinimum) {
        self.stop_new_hosts();
        if let Some(minimums) = &mut self.host_minimums {
            minimums[group] = minimum;
        }
    }

    /// Whether some pods are allowed only because no other node or domain is added.
    pub(crate) fn depends_on_its_nodes(&self) -> bool {
        self.is_restricted() || self.allows_no_new_hosts()
    }

    /// Whether no node may be added any more.
    pub(crate) fn allows_no_new_hosts(&self) -> bool {
        self.host_minimums.is_some()
    }

    /// Minimum over the hosts of a group, for a constraint with this `minDomains`.
    fn host_minimum(&self, group: GroupId, min_domains: usize) -> i64 {
        let known = self.host_minimums.as_ref().map(|minimums| minimums[group]);
        known.filter(|known| known.nodes >= min_domains).map_or(0, |known| known.pods)
    }

    /// Whether a group covers a domain, if only perhaps.
    pub(crate) fn covers_domain(&self, group: GroupId, domain: DomainId) -> bool {
        self.at(group, domain).is_some()
    }

    fn at(&self, group: GroupId, domain: DomainId) -> Option<Count> {
        let count = self.counts[group].get(domain).copied();
        count.filter(|count| count.coverage != Coverage::Never)
    }

    /// The covered domains of a group, apart from one.
    fn others(&self, group: GroupId, domain: DomainId) -> impl Iterator<Item = Count> {
        let each = self.counts[group].enumerate();
        each.filter(move |(other, count)| *other != domain && count.coverage != Coverage::Never)
            .map(|(_, count)| *count)
    }

    /// Counts pods on a node. `certain` says of each group in [`TopologyProfile::counted`] whether
    /// it covers the node in any case.
    pub(crate) fn record(
        &mut self,
        profile: &TopologyProfile,
        certain: &[bool],
        domains: &Domains,
        host: Host,
        pods: usize,
    ) {
        self.change(profile, certain, domains, host, signed(pods));
    }

    /// Forgets which hypothetical nodes pods are on; their domains keep their counts.
    pub(crate) fn forget_bins(&mut self) {
        self.on_bins = IndexVec::new();
    }

    /// Takes back what [`Topology::record`] counted.
    pub(crate) fn unrecord(
        &mut self,
        profile: &TopologyProfile,
        certain: &[bool],
        domains: &Domains,
        host: Host,
        pods: usize,
    ) {
        self.change(profile, certain, domains, host, -signed(pods));
    }

    fn change(
        &mut self,
        profile: &TopologyProfile,
        certain: &[bool],
        domains: &Domains,
        host: Host,
        pods: i64,
    ) {
        for ((group, at), certain) in profile.counted.iter().zip(certain) {
            let domain = match at {
                At::Host => None,
                At::Domain(position) => Some(domains[*position]),
            };
            self.add(*group, domain, host, pods, *certain);
        }
    }

    /// Counts pods on a node whose domains are only partly known. `domain` gives the domain at a
    /// position of [`TopologyProfile::keys`], or `None` where it is unknown; `by_host` says whether
    /// groups by hostname count the pods.
    pub(crate) fn record_known(
        &mut self,
        profile: &TopologyProfile,
        certain: &[bool],
        domain: impl Fn(usize) -> Option<Domain>,
        by_host: bool,
        host: Host,
        pods: usize,
    ) {
        let pods = signed(pods);
        for ((group, at), certain) in profile.counted.iter().zip(certain) {
            match at {
                At::Host if by_host => self.add(*group, None, host, pods, *certain),
                At::Host => {}
                At::Domain(position) => {
                    if let Some(domain) = domain(*position) {
                        self.add(*group, Some(domain), host, pods, *certain);
                    }
                }
            }
        }
    }

    /// Number of pods that the constraints of a profile allow on a node in these domains.
    pub(crate) fn allowance(
        &self,
        profile: &TopologyProfile,
        domains: &Domains,
        host: HostQuery,
    ) -> Allowance {
        let each =
            profile.constraints.iter().map(|constraint| self.allowed(constraint, domains, host));
        each.min().unwrap_or(Allowance::Unlimited)
    }

    /// Number of pods of a profile that a node in these domains may take without violating the
    /// spread of other pods in any binding order. `min_skews` come from
    /// [`TopologyRules::min_skews`].
    pub(crate) fn order_independent_allowance(
        &self,
        profile: &TopologyProfile,
        domains: &Domains,
        host: HostQuery,
        min_skews: &IndexVec<GroupId, Option<i64>>,
    ) -> Allowance {
        let each = profile.counted.iter().filter_map(|(group, at)| {
            let skew = min_skews[*group]?;
            match at {
                At::Host => Some(within(skew - self.on(*group, host), true)),
                At::Domain(position) => match domains[*position] {
                    Domain::Absent => None,
                    Domain::Is(domain) => Some(self.within_skew(*group, domain, skew, 1, true)),
                },
            }
        });
        each.min().unwrap_or(Allowance::Unlimited)
    }

    /// Number of pods of a profile that a new node may have by hostname rules alone.
    pub(crate) fn max_on_new_host(&self, profile: &TopologyProfile) -> Allowance {
        let by_host = profile.constraints.iter().filter(|constraint| match constraint {
            Constraint::Spread { at, .. } | Constraint::AntiAffinity { at, .. } => *at == At::Host,
            Constraint::Affinity { .. } => false,
        });
        let each = by_host.map(|one| self.allowed(one, &Vec::new(), HostQuery::New));
        each.min().unwrap_or(Allowance::Unlimited)
    }

    fn allowed(&self, constraint: &Constraint, domains: &Domains, host: HostQuery) -> Allowance {
        match constraint {
            Constraint::Spread { group, at: At::Host, max_skew, min_domains, counts_self } => {
                match host {
                    HostQuery::Any => Allowance::Unlimited,
                    HostQuery::New | HostQuery::On(_) => {
                        let max = max_skew + self.host_minimum(*group, *min_domains);
                        within(max - self.on(*group, host), *counts_self)
                    }
                }
            }
            Constraint::Spread {
                group,
                at: At::Domain(position),
                max_skew,
                min_domains,
                counts_self,
            } => match domains[*position] {
                Domain::Absent => Allowance::NONE,
                Domain::Is(domain) => {
                    self.within_skew(*group, domain, *max_skew, *min_domains, *counts_self)
                }
            },
            Constraint::Affinity { groups, counts_self } => {
                let may_begin =
                    *counts_self && groups.iter().all(|(group, _)| self.totals[*group] == 0);
                let has = |(group, at): &(GroupId, At)| match at {
                    At::Host => host == HostQuery::Any || may_begin || self.on(*group, host) > 0,
                    At::Domain(position) => match domains[*position] {
                        Domain::Absent => false,
                        Domain::Is(domain) => {
                            may_begin || self.at(*group, domain).is_some_and(|count| count.min > 0)
                        }
                    },
                };
                if groups.iter().all(has) { Allowance::Unlimited } else { Allowance::NONE }
            }
            Constraint::AntiAffinity { group, at, counts_self } => {
                let there = match at {
                    At::Host if host == HostQuery::Any => return Allowance::Unlimited,
                    At::Host => self.on(*group, host),
                    At::Domain(position) => match domains[*position] {
                        Domain::Absent => return Allowance::Unlimited,
                        Domain::Is(domain) => self.at(*group, domain).map_or(0, |count| count.max),
                    },
                };
                match (there, counts_self) {
                    (0, true) => Allowance::AtMost(1),
                    (0, false) => Allowance::Unlimited,
                    _ => Allowance::NONE,
                }
            }
        }
    }

    /// Number of counted pods on a node.
    pub(crate) fn on(&self, group: GroupId, host: HostQuery) -> i64 {
        let here = match host {
            HostQuery::On(Host::Existing(node)) => self.on_existing.get(node),
            HostQuery::On(Host::Bin(bin)) => self.on_bins.get(bin),
            HostQuery::Any | HostQuery::New => None,
        };
        let here = here.into_iter().flatten();
        here.filter(|(known, _)| *known == group).map(|(_, count)| *count).sum()
    }

    fn within_skew(
        &self,
        group: GroupId,
        domain: DomainId,
        max_skew: i64,
        min_domains: usize,
        counts_self: bool,
    ) -> Allowance {
        let Some(mine) = self.at(group, domain) else { return Allowance::NONE };
        let certain =
            || self.counts[group].iter().filter(|count| count.coverage == Coverage::Always).count();
        if min_domains > 1 && certain() < min_domains {
            return within(max_skew - mine.max, counts_self);
        }
        let others = self.others(group, domain).map(|count| count.min).min();
        // Pods that are counted exactly raise the minimum of their own domain too, so the domain is
        // compared with the others only.
        let least = if mine.max == mine.min && counts_self {
            others.unwrap_or(i64::MAX)
        } else {
            others.map_or(mine.min, |others| others.min(mine.min))
        };
        within(least.saturating_add(max_skew).saturating_sub(mine.max), counts_self)
    }

    /// Number of pods that bring a domain up to the emptiest of the others. More may be allowed,
    /// but could keep the spread more even elsewhere.
    pub(crate) fn stride(&self, profile: &TopologyProfile, domains: &Domains) -> Allowance {
        let each = profile.constraints.iter().filter_map(|constraint| match constraint {
            Constraint::Spread { group, at: At::Domain(position), counts_self: true, .. } => {
                let Domain::Is(domain) = domains[*position] else { return None };
                let mine = self.at(*group, domain)?;
                let behind = self.others(*group, domain).map(|count| count.min).min()? - mine.max;
                Some(Allowance::AtMost(usize::try_from(behind).unwrap_or(0).max(1)))
            }
            _ => None,
        });
        each.min().unwrap_or(Allowance::Unlimited)
    }

    /// Number of pods in these domains that the spread constraints of a profile count. Emptier
    /// domains are filled first.
    pub(crate) fn load(&self, profile: &TopologyProfile, domains: &Domains) -> i64 {
        let each = profile.constraints.iter().map(|constraint| match constraint {
            Constraint::Spread { group, at: At::Domain(position), .. } => {
                match domains[*position] {
                    Domain::Is(domain) => self.at(*group, domain).map_or(0, |count| count.max),
                    Domain::Absent => 0,
                }
            }
            _ => 0,
        });
        each.sum()
    }

    /// The rule that keeps a pod out of all of these places, or else out of the first one.
    pub(crate) fn blocking_rule(
        &self,
        rules: &TopologyRules<'_>,
        profile: &TopologyProfile,
        places: &[Domains],
    ) -> Option<Rule> {
        let blocks = |constraint: &&Constraint, places: &[Domains]| {
            places.iter().all(|domains| self.allowed(constraint, domains, HostQuery::New).is_none())
        };
        let constraints = profile.constraints.iter();
        let found = constraints.clone().find(|one| blocks(one, places));
        let found = found.or_else(|| constraints.clone().find(|one| blocks(one, &places[..1])))?;
        let key = |group: GroupId| rules.groups[group].key.to_owned();
        Some(match found {
            Constraint::Spread { group, .. } => Rule::Spread(key(*group)),
            Constraint::Affinity { groups, .. } => Rule::Affinity(key(groups.first()?.0)),
            Constraint::AntiAffinity { group, .. } => Rule::AntiAffinity(key(*group)),
        })
    }
}

fn signed(pods: usize) -> i64 {
    i64::try_from(pods).unwrap_or(i64::MAX)
}

/// Allowance of `more` pods if each of them is counted; otherwise any number while the rule holds.
fn within(more: i64, counts_self: bool) -> Allowance {
    match (more >= 0, counts_self) {
        (false, _) => Allowance::NONE,
        (true, true) => Allowance::AtMost(usize::try_from(more).unwrap_or(usize::MAX)),
        (true, false) => Allowance::Unlimited,
    }
}
