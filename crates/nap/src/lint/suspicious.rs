//! Suspicious settings: sizes that are gone, nodes of an extreme price, budgets that never or
//! always block, requirements that no VM size meets, limits below one node, NodePools that no pod
//! can reach.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fixedbitset::FixedBitSet;
use jiff::Timestamp;
use nap_api::budget::{self, Oddity};
use nap_api::disruption::{self, Settings};
use nap_api::{
    AKSNodeClass, Effect, NodePool, Requirements, Taint, Toleration, labels, validation,
};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_controllers::EXTREME_PRICE;
use nap_engine::{Catalogue, InstanceType};
use nap_units::{CPU, MEMORY, Resources, Rounding};
use serde_json::Value;

use super::findings::{Finding, Level};
use super::offerings::{Ids, Offerings};
use super::sizes;
use crate::catalogue;
use crate::manifests::read::Document;

/// The sizes and offerings of one node class.
struct OfClass {
    settings: nap_azure::instance_types::Settings,
    types: Catalogue,
    offerings: Offerings,
}

/// Checks NodePools against the node classes and workloads of the same files.
pub fn find(
    pools: &[(&Document, NodePool)],
    classes: &[AKSNodeClass],
    objects: &[Document],
    (sizes, region): (&EmbeddedCatalogue, &str),
) -> anyhow::Result<Vec<Finding>> {
    let mut found = Vec::new();
    let workloads: Vec<Vec<Toleration>> =
        objects.iter().filter_map(|object| tolerations(&object.value)).collect();
    let mut ids = Ids::default();
    let mut of_classes: BTreeMap<Option<&str>, OfClass> = BTreeMap::new();
    let mut all_allowed = Vec::new();
    for (document, pool) in pools {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let class = classes.iter().find(|class| class.metadata.name.as_ref() == Some(name));
        let of_class = match of_classes.entry(class.map(|_| name.as_str())) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let settings = catalogue::settings(region, class);
                let types = catalogue::instance_types(sizes, &settings, &[])?;
                let offerings = Offerings::new(types.types(), &mut ids);
                free.insert(OfClass { settings, types, offerings })
            }
        };
        let types = of_class.types.types();
        let allowed = AllowedOfferings::new(pool, types, &of_class.offerings);
        let gone = sizes::not_offered(pool, (sizes, region), &of_class.settings, types)?;
        let is_error = gone.iter().any(|(level, _)| *level == Level::Error);
        let gone = gone.iter().map(|(level, text)| Finding::of_message(*level, document, text));
        found.extend(gone);
        let mut say =
            |text: String| found.push(Finding::of_message(Level::Warning, document, &text));
        budgets(pool, &mut say);
        expiry(pool, &mut say);
        // Without a size that is offered nothing else can be met.
        allowed.unmet.iter().filter(|_| !is_error).cloned().for_each(&mut say);
        limits(pool, &allowed, &mut say);
        dearest(pool, types, &of_class.offerings, &allowed, &mut say);
        tolerated(pool, &workloads, &mut say);
        all_allowed.push(allowed);
    }
    for (index, (document, pool)) in pools.iter().enumerate() {
        let others =
            pools.iter().zip(&all_allowed).enumerate().filter(|(other, _)| *other != index);
        for (_, ((_, other), allowed)) in others {
            if shadows(other, allowed, pool, &all_allowed[index]) {
                let text = format!(
                    "no pod can reach this pool: `{}` has a higher weight, no limits and no taints, and allows every offering \
                     of this one",
                    other.metadata.name.as_deref().unwrap_or_default()
                );
                found.push(Finding::new(Level::Warning, document, "", text));
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
            // Refused, with what to write instead.
            Some(Oddity::Unreadable) | None => {}
            Some(Oddity::AlwaysBlocks) => say(format!(
                "{field}: allows no node at any time, so nothing it applies to ever happens; allow some, or give it a schedule with gaps"
            )),
            Some(Oddity::NeverBlocks) => {
                say(format!(
                    "{field}: allows every node, so it limits nothing; remove it, or lower `nodes`"
                ));
            }
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
    offerings: &Offerings,
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
    let reachable = allowed.offerings.ones().map(|number| &offerings.all[number]);
    let found = reachable
        .filter(|offering| within(&types[offering.size]))
        .map(|offering| (offering.price, types[offering.size].name.as_str()))
        .max();
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
    /// Among those of its node class.
    offerings: FixedBitSet,
    /// Among those of all node classes.
    ids: FixedBitSet,
    /// Minimum capacity among their sizes, by resource; `None` without offerings.
    smallest: Option<Resources>,
    /// One line for each requirement that no VM size meets.
    unmet: Vec<String>,
}

impl AllowedOfferings {
    fn new(pool: &NodePool, types: &[InstanceType], offerings: &Offerings) -> Self {
        let template = &pool.spec.template;
        let mut wanted = Requirements::from_specs(&template.spec.requirements);
        wanted.extend(&Requirements::from_labels(&template.metadata.labels));
        let allowed = offerings.meeting(&wanted);
        let mut sizes: Vec<usize> =
            allowed.ones().map(|number| offerings.all[number].size).collect();
        sizes.dedup();
        let mut smallest: Option<Resources> = None;
        for kind in sizes.into_iter().map(|size| &types[size]) {
            let smallest = smallest.get_or_insert_with(|| kind.capacity.clone());
            for resource in [CPU, MEMORY] {
                smallest.set(resource, smallest.get(resource).min(kind.capacity.get(resource)));
            }
        }
        let unmet = unmet(pool, offerings, allowed.is_clear());
        Self { ids: offerings.ids(&allowed), offerings: allowed, smallest, unmet }
    }
}

/// Requirements that no VM size meets by themselves; if there is none, whether they fail together.
fn unmet(pool: &NodePool, offerings: &Offerings, nothing_left: bool) -> Vec<String> {
    let mut said = Vec::new();
    let any = |wanted: &Requirements| !offerings.meeting(wanted).is_clear();
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
        && !allowed.ids.is_clear()
        && template(other) == template(pool)
        && allowed.ids.is_subset(&other_allowed.ids)
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
