//! Suspicious settings: sizes that are gone, nodes of an extreme price, budgets that never or
//! always block, requirements that no VM size meets, limits below one node, NodePools that no pod
//! can reach.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nap_api::budget::{self, Oddity};
use nap_api::disruption::{self, Settings};
use nap_api::requirement::Undefined;
use nap_api::{
    AKSNodeClass, Effect, NodePool, Requirements, Taint, Toleration, labels, validation,
};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_engine::{CapacityType, InstanceType};
use nap_units::{CPU, MEMORY, Resources, Rounding, UsdPerHour};
use serde_json::Value;

use super::{Finding, Level, sizes};
use crate::catalogue;

/// Price of a node above which a NodePool is warned of it; the default NodePool stays below.
const EXTREME_PRICE: UsdPerHour = UsdPerHour::from_micros(50_000_000);

/// Checks NodePools against the node classes and workloads of the same files.
pub fn find(
    pools: &[(String, NodePool)],
    classes: &[AKSNodeClass],
    objects: &[&Value],
    (sizes, region): (&EmbeddedCatalogue, &str),
) -> anyhow::Result<Vec<Finding>> {
    let mut found = Vec::new();
    let warning = |place: &String, text| Finding::new(Level::Warning, place, text);
    let workloads: Vec<Vec<Toleration>> =
        objects.iter().filter_map(|object| tolerations(object)).collect();
    let mut all_allowed = Vec::new();
    for (place, pool) in pools {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let class = classes.iter().find(|class| class.metadata.name.as_ref() == Some(name));
        let settings = catalogue::settings(region, class);
        let types = catalogue::instance_types(sizes, &settings, &[])?;
        let allowed = AllowedOfferings::new(pool, types.types());
        let gone = sizes::not_offered(pool, (sizes, region), &settings, types.types())?;
        let is_error = gone.iter().any(|finding| finding.level == Level::Error);
        found.extend(gone.into_iter().map(|finding| Finding { place: place.clone(), ..finding }));
        let mut say = |text: String| found.push(warning(place, text));
        budgets(pool, &mut say);
        expiry(pool, &mut say);
        // Without a size that is offered nothing else can be met.
        allowed.unmet.iter().filter(|_| !is_error).cloned().for_each(&mut say);
        limits(pool, &allowed, &mut say);
        dearest(pool, types.types(), &allowed, &mut say);
        tolerated(pool, &workloads, &mut say);
        all_allowed.push(allowed);
    }
    for (index, (place, pool)) in pools.iter().enumerate() {
        let others =
            pools.iter().zip(&all_allowed).enumerate().filter(|(other, _)| *other != index);
        for (_, ((_, other), allowed)) in others {
            if shadows(other, allowed, pool, &all_allowed[index]) {
                let text = format!(
                    "no pod can reach this pool: `{}` has a higher weight, no limits and no taints, and allows every offering \
                     of this one",
                    other.metadata.name.as_deref().unwrap_or_default()
                );
                found.push(warning(place, text));
                break;
            }
        }
    }
    Ok(found)
}

fn budgets(pool: &NodePool, say: &mut impl FnMut(String)) {
    for (index, budget) in pool.spec.disruption.budgets.iter().enumerate() {
        let field = format!("spec.disruption.budgets[{index}]");
        // The time does not matter: schedules repeat.
        match budget::oddity(budget, Timestamp::UNIX_EPOCH) {
            Some(Oddity::Unreadable) => say(format!(
                "{field}: `{}` cannot be read as a schedule, which stops all disruption of the pool; write five fields of cron",
                budget.schedule.as_deref().unwrap_or_default()
            )),
            Some(Oddity::AlwaysBlocks) => say(format!(
                "{field}: allows no node at any time, so nothing it applies to ever happens; allow some, or give it a schedule with gaps"
            )),
            Some(Oddity::NeverBlocks) => {
                say(format!(
                    "{field}: allows every node, so it limits nothing; remove it, or lower `nodes`"
                ));
            }
            None => {}
        }
    }
}

/// Warns if expiry takes no heed of the windows of a NodePool.
fn expiry(pool: &NodePool, say: &mut impl FnMut(String)) {
    let has_windows = Settings::of(pool).is_ok_and(|settings| !settings.windows.is_empty());
    let expires = pool.spec.template.spec.expire_after.get().is_some();
    if has_windows && expires && !disruption::expires_gracefully(pool) {
        say(format!(
            "spec.template.spec.expireAfter: expired nodes are deleted outside of the disruption windows too; write \
             `Never`, or the annotation `{}: graceful`",
            labels::EXPIRY
        ));
    }
}

/// Warns if a NodePool without a ceiling can reach a node of an extreme price. A size that the
/// requirements name is meant, and one beyond the limits is never launched.
fn dearest(
    pool: &NodePool,
    types: &[InstanceType],
    allowed: &AllowedOfferings,
    say: &mut impl FnMut(String),
) {
    let names_sizes = pool.spec.template.spec.requirements.iter().any(sizes::names_sizes);
    if names_sizes || !matches!(validation::max_price(pool), Ok(None)) {
        return;
    }
    let limits = pool.spec.limits.iter().flatten().map(|(name, limit)| (name.clone(), limit));
    let limits = Resources::from_quantities(limits, Rounding::Up);
    let within =
        |kind: &InstanceType| limits.iter().all(|(name, limit)| kind.capacity.get(name) <= limit);
    let mut found: Option<(UsdPerHour, &str)> = None;
    for kind in types.iter().filter(|kind| within(kind)) {
        for offering in &kind.offerings {
            let zone = offering.zone.clone();
            let key = (kind.name.clone(), zone, offering.capacity_type.as_str());
            let on_demand = offering.capacity_type == CapacityType::OnDemand;
            if on_demand && allowed.offerings.contains(&key) {
                found = found.max(Some((offering.price, &kind.name)));
            }
        }
    }
    if let Some((price, name)) = found.filter(|(price, _)| *price > EXTREME_PRICE) {
        say(format!(
            "spec.template.spec.requirements: allow nodes of up to {price}/h (`{name}`); limit the sizes, or set the annotation \
             `{}`",
            labels::MAX_PRICE_PER_NODE_HOUR
        ));
    }
}

/// The offerings that a NodePool allows.
struct AllowedOfferings {
    /// Size, zone and capacity type.
    offerings: BTreeSet<(String, String, &'static str)>,
    /// Minimum capacity among their sizes, by resource; `None` without offerings.
    smallest: Option<Resources>,
    /// One line for each requirement that no VM size meets.
    unmet: Vec<String>,
}

impl AllowedOfferings {
    fn new(pool: &NodePool, types: &[InstanceType]) -> Self {
        let template = &pool.spec.template;
        let mut wanted = Requirements::from_specs(&template.spec.requirements);
        wanted.extend(&Requirements::from_labels(&template.metadata.labels));
        let mut allowed = Self { offerings: BTreeSet::new(), smallest: None, unmet: Vec::new() };
        for kind in types {
            let mut met = false;
            for offering in kind.offerings.iter().filter(|offering| offering.available) {
                let mut machine = kind.requirements.clone();
                machine.extend(&offering.requirements);
                if meets(&machine, &wanted) {
                    met = true;
                    let key =
                        (kind.name.clone(), offering.zone.clone(), offering.capacity_type.as_str());
                    allowed.offerings.insert(key);
                }
            }
            if met {
                let smallest = allowed.smallest.get_or_insert_with(|| kind.capacity.clone());
                for resource in [CPU, MEMORY] {
                    smallest.set(resource, smallest.get(resource).min(kind.capacity.get(resource)));
                }
            }
        }
        allowed.unmet = unmet(pool, types, allowed.offerings.is_empty());
        allowed
    }
}

fn meets(machine: &Requirements, wanted: &Requirements) -> bool {
    // Labels that no instance type has are set by the NodePool.
    let known = wanted
        .iter()
        .filter(|(key, _)| machine.get(key).is_some() || nap_api::labels::is_well_known(key));
    let mut asked = Requirements::new();
    for (key, requirement) in known {
        asked.set(key, requirement.clone());
    }
    machine.compatible(&asked, Undefined::Deny).is_ok()
}

/// Requirements that no VM size meets by themselves; if there is none, whether they fail together.
fn unmet(pool: &NodePool, types: &[InstanceType], nothing_left: bool) -> Vec<String> {
    let mut said = Vec::new();
    let any = |wanted: &Requirements| {
        types.iter().any(|kind| {
            kind.offerings.iter().filter(|offering| offering.available).any(|offering| {
                let mut machine = kind.requirements.clone();
                machine.extend(&offering.requirements);
                meets(&machine, wanted)
            })
        })
    };
    for (index, requirement) in pool.spec.template.spec.requirements.iter().enumerate() {
        if sizes::names_sizes(requirement) {
            continue;
        }
        let field = format!("spec.template.spec.requirements[{index}]");
        let wanted = Requirements::from_specs([requirement]);
        if !any(&wanted) {
            said.push(format!("{field}: no VM size of the region meets it: `{}`", requirement.key));
            continue;
        }
        if requirement.operator == nap_api::Operator::In && requirement.values.len() > 1 {
            for value in &requirement.values {
                let mut one = requirement.clone();
                one.values = vec![value.clone()];
                one.min_values = None;
                if !any(&Requirements::from_specs([&one])) {
                    said.push(format!(
                        "{field}: no VM size of the region has `{value}` for `{}`",
                        requirement.key
                    ));
                }
            }
        }
    }
    if said.is_empty() && nothing_left {
        said.push(
            "spec.template.spec.requirements: no VM size of the region meets them all together"
                .to_owned(),
        );
    }
    said
}

fn limits(pool: &NodePool, allowed: &AllowedOfferings, say: &mut impl FnMut(String)) {
    let (Some(limits), Some(smallest)) = (&pool.spec.limits, &allowed.smallest) else { return };
    let limits = Resources::from_quantities(
        limits.iter().map(|(name, quantity)| (name.clone(), quantity)),
        Rounding::Up,
    );
    for (resource, limit) in limits.iter() {
        let least = if resource == "nodes" { 1 } else { smallest.get(resource) };
        let applies = ["nodes", CPU, MEMORY].contains(&resource);
        if applies && limit == 0 {
            say(format!(
                "spec.limits.{resource}: is 0, so the pool launches no nodes; fine if it is to be turned off"
            ));
        } else if applies && limit < least {
            say(format!(
                "spec.limits.{resource}: is below the smallest node that the pool allows, so it launches none"
            ));
        }
    }
}

fn tolerated(pool: &NodePool, workloads: &[Vec<Toleration>], say: &mut impl FnMut(String)) {
    let taints: Vec<&Taint> =
        pool.spec.template.spec.taints.iter().filter(|taint| taint.repels()).collect();
    let reached = |tolerations: &Vec<Toleration>| {
        taints.iter().all(|taint| tolerations.iter().any(|toleration| toleration.tolerates(taint)))
    };
    if !workloads.is_empty()
        && !workloads.iter().any(reached)
        && let Some(taint) = taints.first()
    {
        say(format!(
            "spec.template.spec.taints: no workload of these files tolerates `{}:{}`, so none of their pods can reach this pool",
            taint.key,
            taint.effect.as_str()
        ));
    }
}

/// Whether `other` takes every pod that `pool` could get: it has a higher weight, no limits, no
/// taints and all offerings of `pool`.
fn shadows(
    other: &NodePool,
    other_allowed: &AllowedOfferings,
    pool: &NodePool,
    allowed: &AllowedOfferings,
) -> bool {
    let repels = other.spec.template.spec.taints.iter().any(Taint::repels);
    let template = |pool: &NodePool| pool.spec.template.metadata.labels.clone();
    other.spec.weight.unwrap_or(0) > pool.spec.weight.unwrap_or(0)
        && other.spec.limits.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
        && !repels
        && !allowed.offerings.is_empty()
        && template(other) == template(pool)
        && allowed.offerings.is_subset(&other_allowed.offerings)
}

/// Tolerations of the pods that an object creates; `None` if it creates no pods.
fn tolerations(object: &Value) -> Option<Vec<Toleration>> {
    let kind = object.get("kind").and_then(Value::as_str)?;
    let spec = match kind {
        "Pod" => object.get("spec")?,
        "CronJob" => object.pointer("/spec/jobTemplate/spec/template/spec")?,
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" => {
            object.pointer("/spec/template/spec")?
        }
        _ => return None,
    };
    let list = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let read = |item: &Value| {
        let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
        let effect = [Effect::NoSchedule, Effect::PreferNoSchedule, Effect::NoExecute];
        Toleration {
            key: text("key").to_owned(),
            value: text("value").to_owned(),
            exists: text("operator") == "Exists",
            effect: effect.into_iter().find(|effect| effect.as_str() == text("effect")),
        }
    };
    Some(list.iter().map(read).collect())
}
