//! Permissions of nap in the cluster, collected from what each controller declares beside its code.
//!
//! `nap rbac` prints them as roles, and the chart's template is made from them. A test runs
//! `nap run` on a real API server with exactly these.

mod roles;

use std::collections::{BTreeMap, BTreeSet};

pub use roles::{chart_template, roles};

/// What a controller does with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resource in the plural, with its subresource.
    pub resource: &'static str,
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// Where.
    pub scope: Scope,
    /// When.
    pub when: When,
}

/// Where a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In the whole cluster.
    Cluster,
    /// In the cluster, on objects of these names.
    Named(&'static [&'static str]),
    /// In nap's own namespace.
    Own,
    /// In nap's own namespace, on objects of these names.
    OwnNamed(&'static [&'static str]),
    /// In nap's own namespace, on the leader election Lease.
    OwnLease,
}

/// When a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// Always.
    Always,
    /// With default spread constraints of the scheduler.
    DefaultSpread,
}

impl Permission {
    /// A permission in the whole cluster.
    pub const fn new(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self { group, resource, verbs, scope: Scope::Cluster, when: When::Always }
    }

    /// The same permission elsewhere.
    #[must_use]
    pub const fn within(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// The same permission, needed only with default spread constraints.
    #[must_use]
    pub const fn for_default_spread(self) -> Self {
        Self { when: When::DefaultSpread, ..self }
    }
}

/// The group of NodePools and NodeClaims.
pub const KARPENTER: &str = nap_api::labels::GROUP;
/// The group of AKSNodeClasses.
pub const AZURE: &str = nap_api::labels::AZURE_GROUP;

/// Declarations of every controller, by its name.
pub fn declared() -> Vec<(&'static str, &'static [Permission])> {
    vec![
        ("watches", crate::runtime::WATCHED),
        ("leader election", crate::runtime::ELECTION),
        ("catch-up", crate::runtime::CATCH_UP),
        ("start", START),
        ("events", crate::events::PERMISSIONS),
        ("reads", crate::live::PERMISSIONS),
        ("provisioning", crate::provisioning::nodeclaims::PERMISSIONS),
        ("nodeclaim", crate::nodeclaim::PERMISSIONS),
        ("node", crate::node::PERMISSIONS),
        ("disruption", crate::disruption::PERMISSIONS),
        ("nodepool", crate::nodepool::PERMISSIONS),
        ("nodeclass", crate::nodeclass::PERMISSIONS),
        ("nodeoverlay", crate::nodeoverlay::PERMISSIONS),
        ("capacity memory", crate::capacity_memory::PERMISSIONS),
        ("decisions", crate::decisions::store::PERMISSIONS),
    ]
}

/// `nap run` looks for its definitions when it starts.
const START: &[Permission] =
    &[Permission::new("apiextensions.k8s.io", "customresourcedefinitions", &["get"]).within(
        Scope::Named(&[
            "aksnodeclasses.karpenter.azure.com",
            "capacitybuffers.autoscaling.x-k8s.io",
            "nodeclaims.karpenter.sh",
            "nodeoverlays.karpenter.sh",
            "nodepools.karpenter.sh",
        ]),
    )];

/// Verbs by group and resource.
pub type Verbs = BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>;

/// One rule for each resource and scope, with the verbs of every controller.
pub fn rules() -> BTreeMap<(Scope, When), Verbs> {
    let mut rules: BTreeMap<_, Verbs> = BTreeMap::new();
    for permission in declared().into_iter().flat_map(|(_, all)| all) {
        let of_scope = rules.entry((permission.scope, permission.when)).or_default();
        let verbs = of_scope.entry((permission.group, permission.resource)).or_default();
        verbs.extend(permission.verbs);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_that_are_looked_for_are_all_there_are() {
        let mut names: Vec<String> = nap_api::crds::all()
            .iter()
            .map(|crd| crd.metadata.name.clone().unwrap_or_default())
            .collect();
        names.sort();
        let Scope::Named(declared) = START[0].scope else { panic!("they are named") };
        assert_eq!(names, declared);
    }

    #[test]
    fn no_verb_is_a_wildcard_and_secrets_are_out_of_reach() {
        for (controller, permissions) in declared() {
            for Permission { resource, verbs, group, .. } in permissions {
                assert!(!verbs.is_empty() && !verbs.contains(&"*"), "{controller}");
                assert!(*resource != "*" && *group != "*" && *resource != "secrets");
            }
        }
    }
}
