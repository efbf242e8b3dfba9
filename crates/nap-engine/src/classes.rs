//! Pods that are alike are decided together.
//!
//! Real clusters have thousands of pods and a few dozen kinds of them. A [`Class`] is one kind: the same requests, wishes,
//! tolerations and priority. Everything after this module is work per class, never per pod, until the plan is written out.

use std::collections::BTreeMap;

use nap_api::{Requirements, Toleration};
use nap_units::{CPU, MEMORY, Resources};

use crate::model::{Pod, PodKey, Snapshot};

/// The resources that anybody asks for, numbered: a resource vector becomes a short row of integers.
pub(crate) struct Dimensions<'a>(Vec<&'a str>);

impl<'a> Dimensions<'a> {
    /// The resources that the pods and daemons of a snapshot ask for.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let requests = snapshot.pods.iter().map(|pod| &pod.requests);
        let requests = requests.chain(snapshot.daemons.iter().map(|daemon| &daemon.requests));
        let mut names: Vec<&str> = requests
            .flat_map(Resources::iter)
            .filter(|(_, amount)| *amount > 0)
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        names.dedup();
        Self(names)
    }

    /// The amounts in the order of the dimensions.
    pub(crate) fn row(&self, resources: &Resources) -> Vec<i64> {
        self.0.iter().map(|name| resources.get(name)).collect()
    }

    /// The amounts of a request: a negative one counts as nothing.
    pub(crate) fn request(&self, resources: &Resources) -> Vec<i64> {
        self.0.iter().map(|name| resources.get(name).max(0)).collect()
    }

    /// The name of a dimension.
    pub(crate) fn name(&self, index: usize) -> &'a str {
        self.0.get(index).copied().unwrap_or_default()
    }
}

/// Pods that are alike.
pub(crate) struct Class<'a> {
    /// The pods, in key order.
    pub(crate) pods: Vec<&'a PodKey>,
    /// What each asks for.
    pub(crate) requests: &'a Resources,
    /// The same, by dimension.
    pub(crate) row: Vec<i64>,
    /// Where each may go: the numbers of its terms, in order.
    pub(crate) terms: Vec<usize>,
    /// Which taints each tolerates.
    pub(crate) tolerations: &'a [Toleration],
    /// Classes with the same terms and tolerations have the same number.
    pub(crate) wish: usize,
    /// Higher goes first.
    pub(crate) priority: i32,
}

/// The classes of a snapshot, in the order in which they are placed.
pub(crate) struct Classes<'a> {
    pub(crate) list: Vec<Class<'a>>,
    /// The distinct terms that [`Class::terms`] refers to.
    pub(crate) terms: Vec<&'a Requirements>,
    /// Pods that no class holds, for a constraint that the engine does not know: the pod and the field.
    pub(crate) unsupported: Vec<(&'a PodKey, &'a str)>,
}

impl<'a> Classes<'a> {
    /// Groups the pods of a snapshot. The order of the pods in it does not matter; a key that comes twice counts once.
    pub(crate) fn of(snapshot: &'a Snapshot, dimensions: &Dimensions<'a>, any: &'a Requirements) -> Self {
        let mut pods: Vec<&Pod> = snapshot.pods.iter().collect();
        pods.sort_unstable_by(|a, b| {
            let rest =
                |pod: &'a Pod| (&pod.requests, &pod.terms, &pod.tolerations, pod.priority, &pod.unsupported);
            a.key.cmp(&b.key).then_with(|| rest(a).cmp(&rest(b)))
        });
        pods.dedup_by(|a, b| a.key == b.key);

        let mut unsupported = Vec::new();
        let mut groups: BTreeMap<_, Vec<&PodKey>> = BTreeMap::new();
        for pod in pods {
            if let Some(field) = &pod.unsupported {
                unsupported.push((&pod.key, field.as_str()));
                continue;
            }
            let kind = (pod.priority, &pod.requests, &pod.terms, &pod.tolerations);
            groups.entry(kind).or_default().push(&pod.key);
        }

        let mut terms = Vec::new();
        let mut term_numbers = BTreeMap::new();
        let mut wish_numbers = BTreeMap::new();
        let mut list: Vec<Class<'a>> = Vec::with_capacity(groups.len());
        for ((priority, requests, class_terms, tolerations), pods) in groups {
            let wishes = wish_numbers.len();
            let wish = *wish_numbers.entry((class_terms, tolerations)).or_insert(wishes);
            let mut number = |term: &'a Requirements| {
                *term_numbers.entry(term).or_insert_with(|| {
                    terms.push(term);
                    terms.len() - 1
                })
            };
            let mut numbers: Vec<usize> = class_terms.iter().map(&mut number).collect();
            if numbers.is_empty() {
                numbers.push(number(any));
            }
            let row = dimensions.request(requests);
            list.push(Class { pods, requests, row, terms: numbers, tolerations, wish, priority });
        }
        list.sort_by(|a, b| {
            let size =
                |class: &Class<'_>| (class.priority, class.requests.get(CPU), class.requests.get(MEMORY));
            size(b).cmp(&size(a)).then_with(|| a.pods.first().cmp(&b.pods.first()))
        });
        Self { list, terms, unsupported }
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
