//! Enumeration of node patterns: every combination of pods that satisfies all rules about a single
//! node.

use std::collections::BTreeSet;

use nap_api::labels;
use nap_engine::{ATTACHABLE_VOLUMES, Pod};

use crate::cluster::{NodeState, Running, clash, obstacle};
use crate::places::{Class, Place};

/// Number of pods of each class on a node.
pub(crate) type Pattern = Vec<usize>;

/// Rules between classes that do not depend on the node.
pub(crate) struct Company<'a> {
    classes: &'a [Class<'a>],
    resources: Vec<&'a str>,
    /// Pairs of classes that may not share a node; a class may be paired with itself.
    apart: Vec<Vec<bool>>,
    spreads_over_hosts: bool,
    /// Maximum number of pods on a launched node.
    most: usize,
}

/// Whether the domains of a label are single nodes.
pub(crate) fn is_host(key: &str) -> bool {
    key == labels::HOSTNAME
}

impl<'a> Company<'a> {
    pub(crate) fn new(classes: &'a [Class<'a>], most: usize) -> Self {
        let resources: BTreeSet<&str> = classes
            .iter()
            .flat_map(|class| class.pod.requests.iter())
            .map(|(name, _)| name)
            .collect();
        let shuns = |one: &Class<'_>, other: &Class<'_>| {
            let mut terms = one.pod.anti_affinity.iter().filter(|term| is_host(&term.topology_key));
            let ports = &other.pod.host_ports;
            terms.any(|term| term.matches(other.namespace(), &other.pod.labels))
                || one
                    .pod
                    .host_ports
                    .iter()
                    .any(|port| ports.iter().any(|other| clash(port, other)))
        };
        let apart = classes.iter().map(|one| {
            classes
                .iter()
                .map(|other| shuns(one, other) || shuns(other, one))
                .collect::<Vec<bool>>()
        });
        Self {
            classes,
            resources: resources.into_iter().collect(),
            apart: apart.collect(),
            spreads_over_hosts: classes
                .iter()
                .any(|class| class.pod.spread.iter().any(|spread| is_host(&spread.topology_key))),
            most,
        }
    }

    /// Per class, whether a pod alone may run on the candidate, given the existing nodes. Spread
    /// and affinity are left out: they need other pods.
    pub(crate) fn admitted(&self, place: &Place<'_>, standing: &[NodeState]) -> Vec<bool> {
        let mut cluster = standing.to_vec();
        let here = cluster.iter().position(|machine| machine.name == place.machine.name);
        let target = here.filter(|_| place.bought.is_none()).unwrap_or(cluster.len());
        if target == cluster.len() {
            cluster.push(place.machine.clone());
        }
        let keys = |pod: &Pod| -> Vec<String> {
            let spread = pod.spread.iter().map(|spread| &spread.topology_key);
            spread.chain(pod.affinity.iter().map(|term| &term.topology_key)).cloned().collect()
        };
        self.classes
            .iter()
            .map(|class| {
                let alone = Pod { spread: Vec::new(), affinity: Vec::new(), ..class.pod.clone() };
                keys(class.pod).iter().all(|key| place.machine.labels.contains_key(key))
                    && obstacle(&alone, target, &cluster).is_none()
            })
            .collect()
    }

    /// All non-empty patterns of a candidate; `None` if there are more than `most`.
    pub(crate) fn patterns(
        &self,
        place: &Place<'_>,
        admitted: &[bool],
        most: usize,
    ) -> Option<Vec<Pattern>> {
        let unlimited =
            |name: &str| name.starts_with(ATTACHABLE_VOLUMES) && !place.machine.free.contains(name);
        let has =
            |name: &&str| if unlimited(name) { i64::MAX } else { place.machine.free.get(name) };
        let mut search = Search {
            company: self,
            residents: &place.machine.pods,
            admitted,
            pods_left: if place.bought.is_some() { self.most } else { usize::MAX },
            found: Vec::new(),
            most,
        };
        let free = self.resources.iter().map(has).collect();
        search.from(0, &mut vec![0; self.classes.len()], free, 0).then_some(search.found)
    }

    fn matches_spread(&self, class: usize, spread: &nap_engine::Spread, other: usize) -> bool {
        self.classes[class].namespace() == self.classes[other].namespace()
            && spread.selector.matches(&self.classes[other].pod.labels)
    }

    /// Whether the pods of a pattern can be bound in some order under hostname spread. A bound pod
    /// only tightens the rule for later ones, so any pod that can be last may be taken as last.
    fn has_an_order(&self, pattern: &Pattern, residents: &[Running]) -> bool {
        let mut left = pattern.clone();
        let keeps = |class: usize, left: &Pattern| {
            let mut by_host = self.classes[class]
                .pod
                .spread
                .iter()
                .filter(|spread| is_host(&spread.topology_key));
            by_host.all(|spread| {
                let running = residents.iter().filter(|pod| {
                    pod.namespace == self.classes[class].namespace()
                        && spread.selector.matches(&pod.labels)
                });
                let others =
                    (0..left.len()).filter(|other| self.matches_spread(class, spread, *other));
                running.count() + others.map(|other| left[other]).sum::<usize>()
                    <= spread.max_skew as usize
            })
        };
        while let Some(last) =
            (0..left.len()).find(|class| left[*class] > 0 && keeps(*class, &left))
        {
            left[last] -= 1;
        }
        left.iter().all(|count| *count == 0)
    }
}

struct Search<'a> {
    company: &'a Company<'a>,
    residents: &'a [Running],
    admitted: &'a [bool],
    pods_left: usize,
    found: Vec<Pattern>,
    most: usize,
}

impl Search<'_> {
    /// Enumerates the pods of this class and later ones; false if there are too many patterns.
    fn from(&mut self, class: usize, pattern: &mut Pattern, free: Vec<i64>, pods: usize) -> bool {
        if class == pattern.len() {
            if pods > 0 {
                self.found.push(pattern.clone());
            }
            return self.found.len() <= self.most;
        }
        let mut free = free;
        let asks: Vec<i64> = {
            let requests = &self.company.classes[class].pod.requests;
            self.company.resources.iter().map(|name| requests.get(name).max(0)).collect()
        };
        let apart = &self.company.apart[class];
        let is_shunned = (0..class).any(|other| pattern[other] > 0 && apart[other]);
        let mut most = self.company.classes[class].count().min(self.pods_left.saturating_sub(pods));
        if apart[class] {
            most = most.min(1);
        }
        if !self.admitted[class] || is_shunned {
            most = 0;
        }
        let mut count = 0;
        let mut goes_on = true;
        loop {
            goes_on = goes_on && self.from(class + 1, pattern, free.clone(), pods + count);
            let fits = free.iter().zip(&asks).all(|(free, asks)| *asks == 0 || asks <= free);
            if !goes_on || count == most || !fits {
                break;
            }
            count += 1;
            pattern[class] = count;
            for (free, asks) in free.iter_mut().zip(&asks) {
                *free = if *free == i64::MAX { *free } else { *free - asks };
            }
            if self.company.spreads_over_hosts
                && !self.company.has_an_order(pattern, self.residents)
            {
                break;
            }
        }
        pattern[class] = 0;
        goes_on
    }
}
