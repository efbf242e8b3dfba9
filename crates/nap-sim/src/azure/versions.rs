//! API versions by resource type. A version that a type does not have is refused with those that
//! it has; for types that are not listed here every version passes.
//!
//! A type whose resources are written has only versions whose members `members` knows, so that no
//! body is judged by the definition of another version.

use std::collections::BTreeMap;

use super::members::MACHINES_VERSION;
use super::request::Refusal;

/// Namespace, resource type and versions, all in lower case. Only versions whose answers the
/// emulator gives are listed, not all that Azure has.
const VERSIONS: &[(&str, &str, &[&str])] = &[
    ("microsoft.compute", "skus", &["2021-07-01"]),
    (
        "microsoft.compute",
        "locations/usages",
        &["2024-03-01", "2024-07-01", "2024-11-01", "2025-04-01", "2025-11-01", "2026-04-01"],
    ),
    ("microsoft.containerservice", "locations/nodeimageversions", &[MACHINES_VERSION]),
    ("microsoft.containerservice", "locations/operations", &[MACHINES_VERSION]),
    ("microsoft.containerservice", "locations/operationresults", &[MACHINES_VERSION]),
    ("microsoft.containerservice", "managedclusters", &[MACHINES_VERSION]),
    ("microsoft.containerservice", "managedclusters/agentpools", &[MACHINES_VERSION]),
    ("microsoft.containerservice", "managedclusters/agentpools/machines", &[MACHINES_VERSION]),
    ("microsoft.network", "virtualnetworks/subnets", NETWORK_VERSIONS),
    ("microsoft.network", "networksecuritygroups", NETWORK_VERSIONS),
    ("microsoft.network", "routetables", NETWORK_VERSIONS),
    ("microsoft.authorization", "roleassignments", &["2015-07-01", "2022-04-01"]),
    ("microsoft.authorization", "roledefinitions", &["2015-07-01", "2022-04-01"]),
    ("microsoft.authorization", "permissions", &["2015-07-01", "2018-07-01", "2022-04-01"]),
    ("microsoft.features", "providers/features", &["2015-12-01", "2021-07-01"]),
    ("microsoft.resources", "subscriptions/providers", &["2020-06-01", "2021-04-01"]),
    ("microsoft.resources", "subscriptions", &["2016-06-01", "2020-01-01", "2022-12-01"]),
];

const NETWORK_VERSIONS: &[&str] =
    &["2022-01-01", "2023-09-01", "2024-05-01", "2025-01-01", "2026-03-01"];

/// Version of the retail price API. A request without one gets the newest.
const PRICES_VERSION: &str = "2023-01-01-preview";

/// Members of a price that a filter may name.
const PRICE_MEMBERS: [&str; 14] = [
    "armRegionName",
    "armSkuName",
    "currencyCode",
    "location",
    "meterId",
    "meterName",
    "priceType",
    "productId",
    "productName",
    "serviceFamily",
    "serviceId",
    "serviceName",
    "skuId",
    "skuName",
];

/// Refuses a version that the price API does not have, and a filter that is not made of `MEMBER eq
/// 'TEXT'` joined by `and`.
pub(crate) fn check_prices_query(query: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let bad = |message: String| Err(Refusal::new(400, "BadRequest", message));
    let version = query.get("api-version").filter(|version| *version != PRICES_VERSION);
    if let Some(version) = version {
        return bad(format!("The api-version '{version}' is not one of {PRICES_VERSION}."));
    }
    let Some(filter) = query.get("$filter") else { return Ok(()) };
    for term in filter.split(" and ") {
        let known = term.split_once(" eq '").filter(|(member, _)| PRICE_MEMBERS.contains(member));
        if known.is_none_or(|(_, text)| text.find('\'').is_none_or(|end| end + 1 != text.len())) {
            return bad(format!("Invalid OData parameters supplied: '{term}'."));
        }
    }
    Ok(())
}

/// Namespace and rest of a path in lower case, without the scope that it is about: what is asked of
/// a scope has versions of its own.
pub(crate) fn namespace_of<'p>(parts: &'p [&'p str]) -> Option<(&'p str, &'p [&'p str])> {
    let is_start = |index: &usize| parts[*index] == "providers";
    let last = (0..parts.len()).rev().find(is_start);
    let features = parts.windows(2).position(|pair| pair == ["providers", "microsoft.features"]);
    match (features.or(last), parts) {
        (None, ["subscriptions", _]) | (Some(_), ["subscriptions", _, "providers", _]) => {
            Some(("microsoft.resources", parts))
        }
        (Some(index), _) => {
            let (namespace, rest) = parts.get(index + 1..)?.split_first()?;
            Some((namespace, rest))
        }
        (None, _) => None,
    }
}

/// Refuses a version that the resource type of a path does not have. `rest` is the path after the
/// provider's namespace, in lower case.
pub(crate) fn check_version(
    namespace: &str,
    rest: &[&str],
    version: &str,
    region: &str,
) -> Result<(), Refusal> {
    let supported = versions_of(namespace, rest);
    let Some((kind, supported)) = supported else { return Ok(()) };
    if supported.contains(&version) {
        return Ok(());
    }
    let supported = supported.join(", ");
    if kind.starts_with("locations/") || kind == "skus" {
        let message = format!(
            "The resource type '{kind}' could not be found in the namespace '{namespace}' for api \
             version '{version}'. The supported api-versions are '{supported}'."
        );
        return Err(Refusal::new(400, "InvalidResourceType", message));
    }
    let message = format!(
        "No registered resource provider found for location '{region}' and API version \
         '{version}' for type '{kind}'. The supported api-versions are '{supported}'. The \
         supported locations are '{region}'."
    );
    Err(Refusal::new(400, "NoRegisteredProviderFound", message))
}

/// The type of a path is every second segment of it: `managedclusters/NAME/agentpools/NAME`. Below
/// `locations` the place is left out. An action counts as its resource.
fn versions_of(namespace: &str, rest: &[&str]) -> Option<(&'static str, &'static [&'static str])> {
    let types: Vec<&str> = match rest {
        ["locations", _, kind, ..] => vec!["locations", kind],
        _ => rest.iter().step_by(2).copied().collect(),
    };
    // The longest known type: an action follows its resource without a name.
    (1..=types.len()).rev().find_map(|length| {
        let kind = types.get(..length)?.join("/");
        let row = VERSIONS.iter().find(|(space, known, _)| *space == namespace && *known == kind);
        row.map(|(_, kind, versions)| (*kind, *versions))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_looked_up_by_type() {
        let check = |namespace: &str, path: &str, version: &str| {
            let rest: Vec<&str> = path.split('/').collect();
            let checked = check_version(namespace, &rest, version, "eastus");
            checked.err().map(|refusal| (refusal.code.into_owned(), refusal.message))
        };
        let aks = "microsoft.containerservice";
        let pool = "managedclusters/nap/agentpools/aksmanagedap";
        let maintenance = "managedclusters/nap/maintenanceconfigurations/default";
        let (machine, deletion) =
            (format!("{pool}/machines/m-1"), format!("{pool}/deletemachines"));
        for path in [pool, maintenance, &machine, &deletion] {
            assert_eq!(check(aks, path, MACHINES_VERSION), None, "{path}");
            assert!(check(aks, path, "2025-07-01").is_some(), "its members are not known: {path}");
        }
        let (code, message) = check(aks, &format!("{pool}/machines"), "2025-07-01").unwrap();
        assert_eq!(code, "NoRegisteredProviderFound");
        assert!(message.contains("'2026-05-02-preview'") && message.contains("machines'"));
        let usages = "locations/eastus/usages";
        let (code, message) = check("microsoft.compute", usages, "1").unwrap();
        assert_eq!(code, "InvalidResourceType");
        assert!(message.contains("'locations/usages'"), "{message}");
        assert!(check("microsoft.authorization", "roleassignments", "1").is_some());
    }

    #[test]
    fn what_is_asked_of_a_scope_has_its_own_versions() {
        let of = |path: &str| {
            let parts: Vec<&str> = path.split('/').collect();
            let (namespace, rest) = namespace_of(&parts)?;
            versions_of(namespace, rest).map(|(kind, _)| kind)
        };
        let subnet = "subscriptions/s/resourcegroups/g/providers/microsoft.network/virtualnetworks/v/subnets/n";
        assert_eq!(of(subnet), Some("virtualnetworks/subnets"));
        let roles = format!("{subnet}/providers/microsoft.authorization/roleassignments");
        assert_eq!(of(&roles), Some("roleassignments"));
        assert_eq!(of("subscriptions/s"), Some("subscriptions"));
        assert_eq!(
            of("subscriptions/s/providers/microsoft.compute"),
            Some("subscriptions/providers")
        );
        let feature =
            "subscriptions/s/providers/microsoft.features/providers/microsoft.x/features/f";
        assert_eq!(of(feature), Some("providers/features"));
        assert_eq!(of("subscriptions/s/resourcegroups/g"), None);
    }
}
