//! PodDisruptionBudgets, found by the labels of a pod.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;

use super::kinds::{Table, store};
use super::{Pod, pods};

/// PodDisruptionBudgets by namespace.
#[derive(Debug, Default)]
pub(super) struct DisruptionBudgets(BTreeMap<String, OfNamespace>);

#[derive(Debug, Default)]
struct OfNamespace {
    budgets: Table<PodDisruptionBudget>,
    /// Keys of budgets by one label that they require, or by `None` if they require no exact one.
    by_label: BTreeMap<Option<(String, String)>, BTreeSet<String>>,
}

impl DisruptionBudgets {
    /// Stores a budget unless it is old news. Returns whether it was stored.
    pub(super) fn insert(&mut self, key: String, budget: PodDisruptionBudget) -> bool {
        let of_namespace = self.0.entry(budget.namespace().unwrap_or_default()).or_default();
        let old = of_namespace.budgets.get(&key).map(|old| required_label(old));
        let label = required_label(&budget);
        if !store(&mut of_namespace.budgets, key.clone(), budget) {
            return false;
        }
        if let Some(old) = old {
            of_namespace.unlist(old, &key);
        }
        of_namespace.by_label.entry(label).or_default().insert(key);
        true
    }

    /// Drops a budget by its `namespace/name`. Returns whether there was one.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        let namespace = namespace_of(key);
        let Some(of_namespace) = self.0.get_mut(namespace) else { return false };
        let Some(old) = of_namespace.budgets.remove(key) else { return false };
        of_namespace.unlist(required_label(&old), key);
        if of_namespace.budgets.is_empty() {
            self.0.remove(namespace);
        }
        true
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.0.values().flat_map(|one| one.budgets.keys().cloned()).collect()
    }

    pub(super) fn get(&self, key: &str) -> Option<&Arc<PodDisruptionBudget>> {
        self.0.get(namespace_of(key))?.budgets.get(key)
    }

    /// The budgets that cover a pod, by name.
    pub(super) fn covering(&self, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
        let Some(of_namespace) = self.0.get(pod.namespace()) else { return Vec::new() };
        let labels = pod.labels().iter().map(|(key, value)| Some((key.clone(), value.clone())));
        let listed = labels.chain([None]).filter_map(|label| of_namespace.by_label.get(&label));
        let budgets = listed.flatten().filter_map(|key| of_namespace.budgets.get(key));
        let mut found: Vec<_> =
            budgets.filter(|budget| pods::budget_covers(budget, pod)).cloned().collect();
        found.sort_by_key(|budget| budget.name_any());
        found
    }
}

impl OfNamespace {
    fn unlist(&mut self, label: Option<(String, String)>, key: &str) {
        if let Entry::Occupied(mut keys) = self.by_label.entry(label) {
            keys.get_mut().remove(key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
    }
}

fn namespace_of(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// A label that every pod under a budget has; `None` if its selector names none exactly.
fn required_label(budget: &PodDisruptionBudget) -> Option<(String, String)> {
    let selector = budget.spec.as_ref()?.selector.as_ref()?;
    let (key, value) = selector.match_labels.as_ref()?.first_key_value()?;
    Some((key.clone(), value.clone()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use serde_json::json;

    use super::*;
    use crate::cluster::Index;
    use crate::testing::{at, budget, pod};

    #[test]
    fn budgets_are_found_in_the_namespace_of_the_pod() {
        let mut index = Index::default();
        index.apply(budget("shop", "a", "web", 0), at(0));
        index.apply(budget("shop", "b", "db", 0), at(0));
        index.apply(budget("other", "c", "web", 0), at(0));
        let web = pod("shop", "web", json!({ "metadata": { "labels": { "app": "web" } } })).into();
        let names: Vec<String> = index.budgets_of(&web).iter().map(|one| one.name_any()).collect();
        assert_eq!(names, ["a"]);
        index.begin_list::<PodDisruptionBudget>();
        index.end_list::<PodDisruptionBudget>();
        assert!(index.budgets_of(&web).is_empty());
    }

    #[test]
    fn budgets_are_found_by_any_of_their_selectors() {
        let mut index = Index::default();
        let web = pod("shop", "web", json!({ "metadata": { "labels": { "app": "web" } } })).into();
        let names = |index: &Index| -> Vec<String> {
            index.budgets_of(&web).iter().map(|one| one.name_any()).collect()
        };
        let mut all = budget("shop", "all", "web", 0);
        all.spec.as_mut().unwrap().selector = Some(LabelSelector::default());
        index.apply(all.clone(), at(0));
        index.apply(budget("shop", "web", "web", 0), at(0));
        assert_eq!(names(&index), ["all", "web"], "an empty selector covers every pod");
        index.apply(budget("shop", "all", "db", 0), at(1));
        assert_eq!(names(&index), ["web"], "its selector has changed");
        index.apply(all, at(2));
        index.delete::<PodDisruptionBudget>("shop/web");
        assert_eq!(names(&index), ["all"]);
    }
}
