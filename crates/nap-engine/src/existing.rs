//! What exists is free: it is filled before anything is bought.

use std::collections::BTreeMap;

use nap_api::Requirements;
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;

use crate::classes::{Class, Classes, Dimensions};
use crate::model::{Node, Placement, Snapshot};

/// The pods that go onto machines which exist or are on their way.
pub(crate) struct Filled {
    pub(crate) placements: Vec<Placement>,
    /// How many pods of each class are placed: its first ones.
    pub(crate) placed: Vec<usize>,
}

/// First fit in the order of the classes: running machines before those on their way, then by name.
pub(crate) fn fill(snapshot: &Snapshot, dimensions: &Dimensions<'_>, classes: &Classes<'_>) -> Filled {
    let mut nodes: Vec<&Node> = snapshot.nodes.iter().collect();
    nodes.sort_by(|a, b| {
        let rest = |node: &'_ Node| (node.free.clone(), node.labels.clone(), node.taints.clone());
        (!a.initialized, &a.name).cmp(&(!b.initialized, &b.name)).then_with(|| rest(a).cmp(&rest(b)))
    });
    let mut free: Vec<Vec<i64>> = nodes.iter().map(|node| dimensions.row(&node.free)).collect();
    let labels: Vec<Requirements> =
        nodes.iter().map(|node| Requirements::from_labels(&node.labels)).collect();
    let mut welcome: BTreeMap<(usize, usize), bool> = BTreeMap::new();

    let mut filled = Filled { placements: Vec::new(), placed: vec![0; classes.list.len()] };
    for (number, class) in classes.list.iter().enumerate() {
        let placed = &mut filled.placed[number];
        for (index, node) in nodes.iter().enumerate() {
            let left = class.pods.len() - *placed;
            if left == 0 {
                break;
            }
            let fitting = fitting(&free[index], class, left);
            if fitting == 0 {
                continue;
            }
            let welcome = *welcome
                .entry((class.wish, index))
                .or_insert_with(|| suits(node, &labels[index], class, classes));
            if !welcome {
                continue;
            }
            for pod in class.pods.iter().skip(*placed).take(fitting) {
                filled.placements.push(Placement { pod: (*pod).clone(), node: node.name.clone() });
            }
            let times = i64::try_from(fitting).unwrap_or(i64::MAX);
            for (free, request) in free[index].iter_mut().zip(&class.row) {
                *free = free.saturating_sub(request.saturating_mul(times));
            }
            *placed += fitting;
        }
    }
    filled.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    filled
}

/// How many fit. Only what a pod asks for counts: a resource that is overdrawn keeps nobody away who wants none of it.
fn fitting(free: &[i64], class: &Class<'_>, most: usize) -> usize {
    let asked = free.iter().zip(&class.row).filter(|(_, request)| **request > 0);
    asked.map(|(free, request)| usize::try_from(free / request).unwrap_or(0)).fold(most, usize::min)
}

fn suits(node: &Node, labels: &Requirements, class: &Class<'_>, classes: &Classes<'_>) -> bool {
    first_untolerated(&node.taints, class.tolerations).is_none()
        && class.terms.iter().any(|term| labels.compatible(classes.terms[*term], Undefined::Deny).is_ok())
}
