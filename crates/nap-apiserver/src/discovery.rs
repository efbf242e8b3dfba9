//! Discovery: which groups, versions and resources there are, in the plain and aggregated forms.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::Config;
use crate::resources::{Resource, api_version};
use crate::server::Registry;

const PLAIN: &str = "application/json";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// `/version`.
pub(crate) fn version(config: &Config) -> Value {
    let mut numbers = config.git_version.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next().unwrap_or_default(),
        "minor": numbers.next().unwrap_or_default(),
        "gitVersion": config.git_version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    })
}

/// The discovery document at `path` with its content type, if there is one.
pub(crate) fn document(
    registry: &Registry,
    path: &str,
    accept: &str,
) -> Option<(&'static str, Value)> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    // Most requests are for objects.
    if !matches!(segments.as_slice(), ["api" | "apis"] | ["api" | "apis", _] | ["apis", _, _]) {
        return None;
    }
    let groups = groups(registry);
    let aggregated = accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2;")
        || accept.contains("as=APIGroupDiscoveryList") && accept.ends_with("v=v2");
    match segments.as_slice() {
        ["api"] if aggregated => Some((AGGREGATED, aggregate(&groups, true))),
        ["apis"] if aggregated => Some((AGGREGATED, aggregate(&groups, false))),
        ["api"] => Some((
            PLAIN,
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        )),
        ["apis"] => {
            let items: Vec<Value> = groups
                .iter()
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, group)| group_value(name, group))
                .collect();
            Some((PLAIN, json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": items })))
        }
        ["apis", name] => {
            let mut value = group_value(name, groups.get(*name)?);
            (value["kind"], value["apiVersion"]) = (json!("APIGroup"), json!("v1"));
            Some((PLAIN, value))
        }
        ["api", version] => Some((PLAIN, resource_list("", version, groups.get("")?)?)),
        ["apis", name, version] => Some((PLAIN, resource_list(name, version, groups.get(*name)?)?)),
        _ => None,
    }
}

type Versions = Vec<(String, Vec<Arc<Resource>>)>;

/// Groups by name, each with its versions in the order clients prefer them.
fn groups(registry: &Registry) -> BTreeMap<String, Versions> {
    let mut groups: BTreeMap<String, Versions> = BTreeMap::new();
    for resource in registry.iter() {
        let versions = groups.entry(resource.group.clone()).or_default();
        match versions.iter_mut().find(|(version, _)| *version == resource.version) {
            Some((_, resources)) => resources.push(Arc::clone(resource)),
            None => versions.push((resource.version.clone(), vec![Arc::clone(resource)])),
        }
    }
    for versions in groups.values_mut() {
        versions.sort_by_key(|(version, _)| std::cmp::Reverse(version_rank(version)));
    }
    groups
}

/// Stable before beta before alpha, then the higher numbers; anything else comes last.
fn version_rank(version: &str) -> (u8, u32, u32) {
    let numbers = |text: &str| text.parse::<u32>().ok();
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    for (word, rank) in [("alpha", 1), ("beta", 2)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return match (numbers(major), numbers(minor)) {
                (Some(major), Some(minor)) => (rank, major, minor),
                _ => (0, 0, 0),
            };
        }
    }
    numbers(rest).map_or((0, 0, 0), |major| (3, major, 0))
}

fn group_value(name: &str, versions: &Versions) -> Value {
    let entry =
        |version: &str| json!({ "groupVersion": api_version(name, version), "version": version });
    let entries: Vec<Value> = versions.iter().map(|(version, _)| entry(version)).collect();
    let preferred = entries.first().cloned().unwrap_or_default();
    json!({ "name": name, "versions": entries, "preferredVersion": preferred })
}

/// Verbs of a resource; namespaces go one by one.
fn verbs(resource: &Resource) -> Vec<&'static str> {
    let all = resource.source.verbs().iter().copied();
    all.filter(|verb| *verb != "deletecollection" || !resource.is("", "namespaces")).collect()
}

/// Name, kind and verbs of a resource's subresources.
fn subresources(
    resource: &Resource,
) -> Vec<(&'static str, &'static str, &str, &'static [&'static str])> {
    let mut out: Vec<(&str, &str, &str, &[&str])> = Vec::new();
    if resource.is("", "pods") {
        out.push(("binding", "v1", "Binding", &["create"]));
        out.push(("eviction", "policy/v1", "Eviction", &["create"]));
    }
    if resource.is("certificates.k8s.io", "certificatesigningrequests") {
        out.push(("approval", "", &resource.kind, &["get", "patch", "update"]));
    }
    if resource.scale.is_some() {
        out.push(("scale", "autoscaling/v1", "Scale", &["get", "patch", "update"]));
    }
    if resource.has_status {
        out.push(("status", "", &resource.kind, &["get", "patch", "update"]));
    }
    out
}

fn resource_list(group: &str, version: &str, versions: &Versions) -> Option<Value> {
    let (_, resources) = versions.iter().find(|(name, _)| name == version)?;
    let mut items = Vec::new();
    for resource in resources {
        let mut item = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
        });
        if !resource.short_names.is_empty() {
            item["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            item["categories"] = json!(resource.categories);
        }
        items.push(item);
        for (name, api_version, kind, verbs) in subresources(resource) {
            let mut item = json!({
                "name": format!("{}/{name}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "verbs": verbs,
            });
            if let Some((group, version)) = api_version.split_once('/') {
                (item["group"], item["version"]) = (json!(group), json!(version));
            }
            items.push(item);
        }
    }
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": api_version(group, version), "resources": items,
    }))
}

fn aggregate(groups: &BTreeMap<String, Versions>, core: bool) -> Value {
    let chosen = groups.iter().filter(|(name, _)| name.is_empty() == core);
    let items: Vec<Value> = chosen
        .map(|(name, versions)| {
            let metadata = if core { json!({}) } else { json!({ "name": name }) };
            let versions: Vec<Value> = versions
                .iter()
                .map(|(version, resources)| {
                    let resources: Vec<Value> =
                        resources.iter().map(|r| aggregate_resource(r)).collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items,
    })
}

fn aggregate_resource(resource: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({ "group": group, "version": version, "kind": kind });
    // Built-in kinds leave out the group and version in which they are listed.
    let own = if resource.is_custom() {
        kind(&resource.group, &resource.version, &resource.kind)
    } else {
        kind("", "", &resource.kind)
    };
    let subs: Vec<Value> = subresources(resource)
        .into_iter()
        .map(|(name, api_version, kind_name, verbs)| {
            let response = match api_version.split_once('/') {
                Some((group, version)) => kind(group, version, kind_name),
                None if api_version.is_empty() => own.clone(),
                None => kind("", "", kind_name),
            };
            json!({ "subresource": name, "responseKind": response, "verbs": verbs })
        })
        .collect();
    let mut item = json!({
        "resource": resource.plural,
        "responseKind": own,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": verbs(resource),
    });
    for (key, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)]
    {
        if !list.is_empty() {
            item[key] = json!(list);
        }
    }
    if !subs.is_empty() {
        item["subresources"] = json!(subs);
    }
    item
}

#[cfg(test)]
mod tests {
    use super::version_rank;

    #[test]
    fn stable_versions_come_first() {
        let mut versions = ["v1alpha2", "v1", "v2beta1", "foo", "v10", "v1beta2"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        assert_eq!(versions, ["v10", "v1", "v2beta1", "v1beta2", "v1alpha2", "foo"]);
    }
}
