//! Rows about the subscription and the tools: registrations, quota, versions of the Azure CLI.

use super::facts::{Facts, Unknown, Usage, known};
use super::versions::Version;
use super::{Check, Document, Finding, NODE_AUTOPROVISIONING, OVERVIEW, join};

/// Oldest Azure CLI with node auto-provisioning.
const MIN_CLI: &str = "2.76.0";
/// Oldest `aks-preview` extension with node auto-provisioning.
const MIN_EXTENSION: &str = "13.0.0b3";
/// Resource providers of a cluster and its VMs.
pub(super) const PROVIDERS: [&str; 3] =
    ["Microsoft.ContainerService", "Microsoft.Compute", "Microsoft.Network"];
/// Preview feature of the time before node auto-provisioning was generally available.
pub(super) const FEATURE: &str = "NodeAutoProvisioningPreview";
/// vCPUs of the smallest node.
const SMALLEST_NODE: i64 = 2;
const QUOTAS: &str = "Check vCPU quotas";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "subscription",
        title: "An enabled Azure subscription",
        document: Document(OVERVIEW, "Prerequisites"),
        run: subscription,
    },
    Check {
        id: "provider-registration",
        title: "Registered resource providers",
        document: Document("Azure resource providers and types", "Register resource provider"),
        run: providers,
    },
    Check {
        id: "feature-registration",
        title: "Preview feature NodeAutoProvisioningPreview",
        document: Document(
            "Set up preview features in Azure subscription",
            "Register preview feature",
        ),
        run: feature,
    },
    Check {
        id: "quota-family",
        title: "vCPU quota of the families that NodePools can use (D if none is known)",
        document: Document(NODE_AUTOPROVISIONING, "Node pool limits"),
        run: family_quota,
    },
    Check {
        id: "quota-regional",
        title: "vCPU quota of the region",
        document: Document(QUOTAS, "Check usage"),
        run: regional_quota,
    },
    Check {
        id: "quota-spot",
        title: "vCPU quota for spot (if NodePools allow it)",
        document: Document(QUOTAS, "Check usage"),
        run: spot_quota,
    },
    Check {
        id: "cli-version",
        title: "Azure CLI 2.76.0 or later",
        document: Document(OVERVIEW, "Prerequisites"),
        run: cli,
    },
    Check {
        id: "cli-extension",
        title: "Extension aks-preview 13.0.0b3 or later, if it is used",
        document: Document(NODE_AUTOPROVISIONING, "Prerequisites"),
        run: cli_extension,
    },
];

fn subscription(facts: &Facts) -> Result<Finding, Unknown> {
    let state = known(&facts.subscription)?;
    if state.eq_ignore_ascii_case("Enabled") {
        return Ok(Finding::pass("Enabled"));
    }
    if ["Warned", "PastDue"].iter().any(|mild| state.eq_ignore_ascii_case(mild)) {
        return Ok(Finding::warn(state.clone(), "pay for it before it is disabled"));
    }
    Ok(Finding::fail(
        state.clone(),
        "enable the subscription in the Azure portal: it creates no VMs",
    ))
}

fn providers(facts: &Facts) -> Result<Finding, Unknown> {
    let mut missing = Vec::new();
    for name in PROVIDERS {
        let fact = facts.providers.get(name);
        let fact = fact.ok_or_else(|| Unknown(format!("`{name}` was not read")))?;
        if !known(fact)?.eq_ignore_ascii_case("Registered") {
            missing.push(name);
        }
    }
    let Some(first) = missing.first() else { return Ok(Finding::pass(join(&PROVIDERS))) };
    Ok(Finding::fail(
        format!("not registered: {}", join(&missing)),
        format!("for each: `az provider register --namespace {first}`"),
    ))
}

fn feature(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(state) = known(&facts.feature)? else {
        return Ok(Finding::not_applicable("Azure does not list it any more"));
    };
    if state.eq_ignore_ascii_case("Registered") {
        return Ok(Finding::pass("Registered"));
    }
    Ok(Finding::warn(
        format!("{state}; node auto-provisioning is generally available and does not need it"),
        format!(
            "only if AKS refuses machines as a preview: az feature register --namespace \
             Microsoft.ContainerService --name {FEATURE}"
        ),
    ))
}

fn left(usage: &Usage) -> Option<i64> {
    Some(usage.limit? - usage.current_value?)
}

/// The usage with a name.
fn usage<'a>(facts: &'a Facts, name: &str) -> Result<Option<&'a Usage>, Unknown> {
    let is_named = |usage: &&Usage| {
        usage.name.value.as_deref().is_some_and(|found| found.eq_ignore_ascii_case(name))
    };
    Ok(known(&facts.usages)?.iter().find(is_named))
}

/// Whether each NodePool that buys on demand has a family with room for its smallest size.
fn pools_quota(facts: &Facts) -> Result<Finding, Unknown> {
    let (mut full, mut shown) = (Vec::new(), Vec::new());
    for pool in facts.node_pools.iter().filter(|pool| !pool.families.is_empty()) {
        let mut best: Option<(i64, &str)> = None;
        for (family, vcpus) in &pool.families {
            // A family that Azure does not report has no limit.
            let left = usage(facts, family)?.map_or(Some(i64::MAX), left);
            if let Some(left) = left.filter(|left| left >= vcpus) {
                best = best.max(Some((left, family)));
            }
        }
        match best {
            Some((i64::MAX, family)) => shown.push(format!("{}: {family}: no limit", pool.name)),
            Some((left, family)) => shown.push(format!("{}: {family}: {left} left", pool.name)),
            None => full.push(pool),
        }
    }
    if let Some(first) = full.first() {
        let names: Vec<&str> = full.iter().map(|pool| pool.name.as_str()).collect();
        let family = first.families.keys().next().map_or("", String::as_str);
        return Ok(Finding::fail(
            format!("no family that NodePool {} allows has room for a VM", join(&names)),
            format!(
                "request quota for a family, for example {family}, in {}: `az quota update`, or \
                 Quotas in the Azure portal",
                facts.config.location
            ),
        ));
    }
    if shown.is_empty() {
        return Ok(Finding::not_applicable("no NodePool buys on demand"));
    }
    Ok(Finding::pass(join(&shown)))
}

fn family_quota(facts: &Facts) -> Result<Finding, Unknown> {
    if !facts.node_pools.is_empty() {
        return pools_quota(facts);
    }
    let mut with_room = Vec::new();
    let mut full = Vec::new();
    for usage in known(&facts.usages)? {
        let (Some(name), Some(left)) = (usage.name.value.as_deref(), left(usage)) else { continue };
        let lower = name.to_lowercase();
        // DC sizes are confidential, which the default NodePool does not buy.
        let is_d = lower.starts_with("standardd") && !lower.starts_with("standarddc");
        if !is_d || !lower.ends_with("family") {
            continue;
        }
        if left >= SMALLEST_NODE {
            with_room.push((left, name));
        } else {
            full.push(name);
        }
    }
    with_room.sort_by_key(|(left, name)| (-left, *name));
    let fix = format!(
        "request quota for a family, for example standardDSv5Family, in {}: `az quota update`, or \
         Quotas in the Azure portal",
        facts.config.location
    );
    if with_room.is_empty() {
        return Ok(Finding::fail(
            format!("no D family has {SMALLEST_NODE} vCPUs left ({} families)", full.len()),
            fix,
        ));
    }
    let shown: Vec<String> =
        with_room.iter().map(|(left, name)| format!("{name}: {left} left")).collect();
    if with_room.iter().all(|(left, _)| *left < 4 * SMALLEST_NODE) {
        return Ok(Finding::warn(join(&shown), fix));
    }
    Ok(Finding::pass(join(&shown)))
}

fn regional_quota(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(left) = usage(facts, "cores")?.and_then(left) else {
        return Err(Unknown("Azure does not state the usage `cores`".to_owned()));
    };
    let found = format!("{left} vCPUs left");
    if left < SMALLEST_NODE {
        let fix = format!(
            "request more Total Regional vCPUs in {}, or delete VMs",
            facts.config.location
        );
        return Ok(Finding::fail(found, fix));
    }
    Ok(Finding::pass(found))
}

fn spot_quota(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(left) = usage(facts, "lowPriorityCores")?.and_then(left) else {
        return Err(Unknown("Azure does not state the usage `lowPriorityCores`".to_owned()));
    };
    let pools = &facts.node_pools;
    let needs: Vec<i64> = pools.iter().filter_map(|pool| pool.spot).collect();
    if !pools.is_empty() && needs.is_empty() {
        return Ok(Finding::not_applicable("no NodePool allows spot"));
    }
    let found = format!("{left} vCPUs left");
    if left < needs.into_iter().max().unwrap_or(SMALLEST_NODE) {
        let fix = format!("request more spot vCPUs in {}", facts.config.location);
        let only = pools.iter().any(|pool| pool.spot.is_some() && pool.families.is_empty());
        return Ok(if only { Finding::fail(found, fix) } else { Finding::warn(found, fix) });
    }
    Ok(Finding::pass(found))
}

/// Whether a version is at least another; unknown if it cannot be parsed.
fn at_least(found: &str, oldest: &str) -> Result<bool, Unknown> {
    let parse = |text: &str| {
        Version::parse(text).ok_or_else(|| Unknown(format!("`az` states the version `{text}`")))
    };
    Ok(parse(found)? >= parse(oldest)?)
}

fn cli(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(versions) = known(&facts.cli)? else {
        return Ok(Finding::not_applicable("`az` is not installed; nap does not need it"));
    };
    if at_least(&versions.cli, MIN_CLI)? {
        return Ok(Finding::pass(versions.cli.clone()));
    }
    Ok(Finding::fail(versions.cli.clone(), "az upgrade"))
}

fn cli_extension(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(versions) = known(&facts.cli)? else {
        return Ok(Finding::not_applicable("`az` is not installed; nap does not need it"));
    };
    match versions.extensions.get("aks-preview") {
        Some(found) if at_least(found, MIN_EXTENSION)? => Ok(Finding::pass(found.clone())),
        Some(found) => Ok(Finding::fail(found.clone(), "az extension update --name aks-preview")),
        None if at_least(&versions.cli, MIN_CLI)? => {
            Ok(Finding::not_applicable("not installed; this Azure CLI does not need it"))
        }
        None => Ok(Finding::fail(
            format!("not installed, and Azure CLI {} needs it", versions.cli),
            "az upgrade, or: az extension add --name aks-preview",
        )),
    }
}
