//! What is allowed and hardly meant: budgets that do nothing or stop everything, requirements that
//! no VM size meets, limits below one node, pools that no pod comes to.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nap_api::budget::{self, Oddity};
use nap_api::requirement::Undefined;
use nap_api::{AKSNodeClass, Effect, NodePool, Requirements, Taint, Toleration};
use nap_engine::InstanceType;
use nap_units::{CPU, MEMORY, Resources, Rounding};
use serde_json::Value;

use crate::catalogue;

/// Looks through pools, with the node classes and workloads that came with them. Each finding has
/// its place.
pub fn find(
    pools: &[(String, NodePool)],
    classes: &[AKSNodeClass],
    objects: &[&Value],
    region: &str,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let workloads: Vec<Vec<Toleration>> =
        objects.iter().filter_map(|object| tolerations(object)).collect();
    let mut markets = Vec::new();
    for (place, pool) in pools {
        let name = &pool.spec.template.spec.node_class_ref.name;
        let class = classes.iter().find(|class| class.metadata.name.as_ref() == Some(name));
        let market = Market::of(
            pool,
            catalogue::instance_types(&catalogue::settings(region, class))?.types(),
        );
        let mut say = |text: String| found.push((place.clone(), text));
        budgets(pool, &mut say);
        market.unmet.iter().cloned().for_each(&mut say);
        limits(pool, &market, &mut say);
        tolerated(pool, &workloads, &mut say);
        markets.push(market);
    }
    for (index, (place, pool)) in pools.iter().enumerate() {
        let others = pools.iter().zip(&markets).enumerate().filter(|(other, _)| *other != index);
        for (_, ((_, other), market)) in others {
            if shadows(other, market, pool, &markets[index]) {
                let text = format!(
                    "no pod comes to this pool: `{}` has a higher weight, no limits and no taints of its own, and allows every machine that \
                     this one does",
                    other.metadata.name.as_deref().unwrap_or_default()
                );
                found.push((place.clone(), text));
                break;
            }
        }
    }
    Ok(found)
}

fn budgets(pool: &NodePool, say: &mut impl FnMut(String)) {
    for (index, budget) in pool.spec.disruption.budgets.iter().enumerate() {
        let field = format!("spec.disruption.budgets[{index}]");
        // Any moment will do: schedules repeat.
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

/// The machines that a pool allows.
struct Market {
    /// Size, zone and capacity type.
    offerings: BTreeSet<(String, String, &'static str)>,
    /// What the smallest of them has, by resource.
    smallest: Option<Resources>,
    /// Requirements that none of them meets.
    unmet: Vec<String>,
}

impl Market {
    fn of(pool: &NodePool, types: &[InstanceType]) -> Self {
        let template = &pool.spec.template;
        let mut wanted = Requirements::from_specs(&template.spec.requirements);
        wanted.extend(&Requirements::from_labels(&template.metadata.labels));
        let mut market = Self { offerings: BTreeSet::new(), smallest: None, unmet: Vec::new() };
        for kind in types {
            let mut met = false;
            for offering in kind.offerings.iter().filter(|offering| offering.available) {
                let mut machine = kind.requirements.clone();
                machine.extend(&offering.requirements);
                if meets(&machine, &wanted) {
                    met = true;
                    let key =
                        (kind.name.clone(), offering.zone.clone(), offering.capacity_type.as_str());
                    market.offerings.insert(key);
                }
            }
            if met {
                let smallest = market.smallest.get_or_insert_with(|| kind.capacity.clone());
                for resource in [CPU, MEMORY] {
                    smallest.set(resource, smallest.get(resource).min(kind.capacity.get(resource)));
                }
            }
        }
        market.unmet = unmet(pool, types, market.offerings.is_empty());
        market
    }
}

fn meets(machine: &Requirements, wanted: &Requirements) -> bool {
    // A label that machines do not have by nature is put on them by the pool.
    let known = wanted
        .iter()
        .filter(|(key, _)| machine.get(key).is_some() || nap_api::labels::is_well_known(key));
    let mut asked = Requirements::new();
    for (key, requirement) in known {
        asked.set(key, requirement.clone());
    }
    machine.compatible(&asked, Undefined::Deny).is_ok()
}

/// Requirements that no size meets, each on its own; or, if each can be met, that they cannot be
/// met together.
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

fn limits(pool: &NodePool, market: &Market, say: &mut impl FnMut(String)) {
    let (Some(limits), Some(smallest)) = (&pool.spec.limits, &market.smallest) else { return };
    let limits = Resources::from_quantities(
        limits.iter().map(|(name, quantity)| (name.clone(), quantity)),
        Rounding::Up,
    );
    for (resource, limit) in limits.iter() {
        let least = if resource == "nodes" { 1 } else { smallest.get(resource) };
        let applies = ["nodes", CPU, MEMORY].contains(&resource);
        if applies && limit == 0 {
            say(format!(
                "spec.limits.{resource}: is 0, so the pool makes no nodes; fine if it is to be turned off"
            ));
        } else if applies && limit < least {
            say(format!(
                "spec.limits.{resource}: is below the smallest machine that the pool allows, so it makes no nodes"
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
            "spec.template.spec.taints: no workload of these files tolerates `{}:{}`, so no pod of theirs comes to this pool",
            taint.key,
            taint.effect.as_str()
        ));
    }
}

/// Whether pods that suit a pool always go to another one: it comes first, has no bound and repels
/// nobody.
fn shadows(other: &NodePool, other_market: &Market, pool: &NodePool, market: &Market) -> bool {
    let repels = other.spec.template.spec.taints.iter().any(Taint::repels);
    let template = |pool: &NodePool| pool.spec.template.metadata.labels.clone();
    other.spec.weight.unwrap_or(0) > pool.spec.weight.unwrap_or(0)
        && other.spec.limits.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
        && !repels
        && !market.offerings.is_empty()
        && template(other) == template(pool)
        && market.offerings.is_subset(&other_market.offerings)
}

/// The tolerations of the pods that an object makes; none for an object that makes no pods.
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
