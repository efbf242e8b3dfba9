//! The plan as JSON or YAML. `docs/plan.md` describes it and `docs/plan.schema.json` is its schema;
//! a change here needs the same change there, and an incompatible one a new [`VERSION`].

use jiff::Timestamp;
use nap_azure::Shortage;
use nap_azure::embedded::Lifecycle;
use nap_engine::{
    Change, Launch, PoolReason, PoolRejection, PriceEstimates, Refusal, Remedy, RemedyPlacement,
    Rule, Unsupported,
};
use nap_units::UsdPerHour;
use serde::Serialize;

use super::bound::LeftOut;
use super::fleet::FleetDocument;
use super::format::{change_text, quantity};
use super::{Decision, Problem, bound};
use crate::catalogue::Source;

/// Version of the document.
pub const VERSION: u32 = 1;

/// The document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanDocument {
    version: u32,
    region: String,
    catalogue: CatalogueDocument,
    prices: PricesDocument,
    launches: Vec<LaunchDocument>,
    placements: Vec<PlacementDocument>,
    unschedulable: Vec<UnschedulableDocument>,
    left_out: Vec<Shortage>,
    cost_usd_per_hour: f64,
    cost_is_estimate: bool,
    lower_bound_usd_per_hour: Option<f64>,
    gap_percent: Option<f64>,
    bound_leaves_out: Vec<LeftOut>,
    tier: nap_engine::Tier,
    /// The nodes of the cluster; `None` for manifests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetDocument>,
    /// What manifests change in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<super::change::ChangeDocument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CatalogueDocument {
    source: Source,
    time: Option<Timestamp>,
    has_quota: bool,
}

/// The origin of the prices of a document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PricesDocument {
    date: String,
    region: String,
    estimates: Vec<&'static str>,
}

impl PricesDocument {
    pub(super) fn new(problem: &Problem) -> Self {
        let origin = &problem.origin;
        Self {
            date: origin.date.clone(),
            region: origin.reference.as_ref().unwrap_or(&problem.region).clone(),
            estimates: origin.estimates(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LaunchDocument {
    node_pool: String,
    instance_type: String,
    zone: String,
    capacity_type: &'static str,
    price_usd_per_hour: f64,
    price_is_estimate: bool,
    closed_since: Option<String>,
    retires_on: Option<String>,
    pods: Vec<String>,
    alternatives: Vec<AlternativeDocument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AlternativeDocument {
    instance_type: String,
    zone: String,
    capacity_type: &'static str,
    price_usd_per_hour: f64,
    price_is_estimate: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlacementDocument {
    pod: String,
    node: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UnschedulableDocument {
    pod: String,
    reasons: Vec<ReasonDocument>,
    smallest_change: Option<ChangeDocument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReasonDocument {
    node_pool: Option<String>,
    reason: &'static str,
    message: String,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeDocument {
    kind: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    taint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<String>,
    /// The new VM that the pod would then need; absent if it would fit on an existing or planned
    /// node.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<AlternativeDocument>,
    price_usd_per_hour: f64,
}

impl PlanDocument {
    /// Renders a decision.
    pub fn new(problem: &Problem, decision: &Decision) -> Self {
        let (plan, origin) = (&decision.plan, &problem.origin);
        let bound_leaves_out = bound::leaves_out(problem, decision);
        let says_how_good = |gap: &f64| bound_leaves_out.is_empty() || *gap < bound::REACHED;
        let gap = plan.gap_percent().filter(says_how_good);
        let placements = plan.placements.iter();
        let unschedulable = plan.unplaced.iter().map(|unplaced| UnschedulableDocument {
            pod: unplaced.pod.to_string(),
            reasons: reasons(&unplaced.refusal, origin.price_estimates()),
            smallest_change: decision
                .remedies
                .get(&unplaced.pod)
                .map(|remedy| change(problem, remedy)),
        });
        Self {
            version: VERSION,
            region: problem.region.clone(),
            catalogue: CatalogueDocument {
                source: origin.source,
                time: origin.time,
                has_quota: origin.has_quota,
            },
            prices: PricesDocument::new(problem),
            launches: plan.launches.iter().map(|one| launch(problem, one)).collect(),
            placements: placements
                .map(|one| PlacementDocument { pod: one.pod.to_string(), node: one.node.clone() })
                .collect(),
            unschedulable: unschedulable.collect(),
            left_out: problem.left_out.clone(),
            cost_usd_per_hour: dollars(plan.cost),
            cost_is_estimate: !problem.mark_launches(&plan.launches).is_empty(),
            lower_bound_usd_per_hour: plan.lower_bound.map(dollars),
            gap_percent: gap.map(|gap| (gap * 10_000.0).round() / 10_000.0),
            bound_leaves_out,
            tier: plan.tier,
            fleet: None,
            change: None,
        }
    }
}

pub(super) fn launch(problem: &Problem, launch: &Launch) -> LaunchDocument {
    let (table, size) = (Lifecycle::built_in(), &launch.instance_type);
    let alternatives = launch.alternatives.iter().map(|other| AlternativeDocument {
        instance_type: other.instance_type.to_string(),
        zone: other.zone.to_string(),
        capacity_type: other.capacity_type.as_str(),
        price_usd_per_hour: dollars(other.price),
        price_is_estimate: problem.origin.is_estimate(other.capacity_type),
    });
    LaunchDocument {
        node_pool: launch.pool.clone(),
        instance_type: launch.instance_type.clone(),
        zone: launch.zone.clone(),
        capacity_type: launch.capacity_type.as_str(),
        price_usd_per_hour: dollars(launch.price),
        price_is_estimate: problem.origin.is_estimate(launch.capacity_type),
        closed_since: table.closed_since(size).map(str::to_owned),
        retires_on: table.retires_on(size, &problem.region).map(|day| day.to_string()),
        pods: launch.pods.iter().map(ToString::to_string).collect(),
        alternatives: alternatives.collect(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 micro-dollars")]
pub fn dollars(price: UsdPerHour) -> f64 {
    price.micros() as f64 / 1e6
}

pub(super) fn reasons(refusal: &Refusal, estimates: PriceEstimates) -> Vec<ReasonDocument> {
    let whole =
        |reason| vec![ReasonDocument { node_pool: None, reason, message: refusal.to_string() }];
    match refusal {
        Refusal::Unsupported { constraint: Unsupported::Volume(_) } => whole("volume"),
        Refusal::Unsupported { constraint: Unsupported::Field(_) } => whole("unsupported"),
        Refusal::Unsupported { constraint: Unsupported::Selectors { .. } } => whole("requirements"),
        Refusal::NoPools => whole("noNodePool"),
        Refusal::Pools(pools) => pools.iter().map(|one| pool_reason(one, estimates)).collect(),
    }
}

fn pool_reason(of_pool: &PoolReason, estimates: PriceEstimates) -> ReasonDocument {
    let reason = match &of_pool.why {
        PoolRejection::Taint(_) => "taint",
        PoolRejection::Requirements(_) | PoolRejection::Offerings { compatible: 0, .. } => {
            "requirements"
        }
        PoolRejection::Offerings { large_enough: 0, .. } => "resources",
        PoolRejection::Offerings { available: 0, .. } => "availability",
        PoolRejection::MinValues { .. } => "minValues",
        PoolRejection::Limit(_) => "limit",
        PoolRejection::PriceCeiling { .. } => "priceCeiling",
        PoolRejection::Rule(Rule::Spread(_)) => "spread",
        PoolRejection::Rule(Rule::Affinity(_)) => "affinity",
        PoolRejection::Rule(Rule::AntiAffinity(_)) => "antiAffinity",
        _ => "other",
    };
    ReasonDocument {
        node_pool: Some(of_pool.pool.clone()),
        reason,
        message: of_pool.why.marked(estimates).to_string(),
    }
}

pub(super) fn change(problem: &Problem, remedy: &Remedy) -> ChangeDocument {
    let machine = match &remedy.place {
        RemedyPlacement::Existing => None,
        RemedyPlacement::New { instance_type, zone, capacity_type, price, .. } => {
            Some(AlternativeDocument {
                instance_type: instance_type.clone(),
                zone: zone.clone(),
                capacity_type: capacity_type.as_str(),
                price_usd_per_hour: dollars(*price),
                price_is_estimate: problem.origin.is_estimate(*capacity_type),
            })
        }
    };
    let blank = ChangeDocument {
        message: change_text(&problem.limits, &remedy.change),
        machine,
        price_usd_per_hour: dollars(remedy.place.price()),
        ..ChangeDocument::default()
    };
    let about = |kind, key: &String| ChangeDocument {
        kind,
        key: Some(key.clone()),
        ..ChangeDocument::default()
    };
    let said = match &remedy.change {
        Change::Tolerate { taint } => ChangeDocument {
            kind: "tolerate",
            taint: Some(taint.to_string()),
            ..ChangeDocument::default()
        },
        Change::DropRequirement { key } => about("dropRequirement", key),
        Change::DropSpread { key } => about("dropSpread", key),
        Change::DropAffinity { key } => about("dropAffinity", key),
        Change::DropAntiAffinity { key } => about("dropAntiAffinity", key),
        Change::AskForAtMost { resource, amount } => ChangeDocument {
            kind: "askForAtMost",
            resource: Some(resource.clone()),
            amount: Some(quantity(resource, *amount)),
            ..ChangeDocument::default()
        },
        Change::RaiseLimit { pool, resource, by } => ChangeDocument {
            kind: "raiseLimit",
            node_pool: Some(pool.clone()),
            resource: Some(resource.clone()),
            amount: Some(quantity(resource, limit_after(problem, pool, resource, *by))),
            ..ChangeDocument::default()
        },
        Change::Allow { pool, key, value } => ChangeDocument {
            node_pool: Some(pool.clone()),
            value: Some(value.clone()),
            ..about("allow", key)
        },
    };
    ChangeDocument {
        message: blank.message,
        machine: blank.machine,
        price_usd_per_hour: blank.price_usd_per_hour,
        ..said
    }
}

fn limit_after(problem: &Problem, pool: &str, resource: &str, by: i64) -> i64 {
    problem.limits.get(pool).map_or(0, |limits| limits.get(resource)).saturating_add(by)
}
