//! From a planned launch to a NodeClaim.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource, ResourceExt};
use nap_api::nodeclaim::ResourceRequirements;
use nap_api::{NodeClaim, NodeClaimSpec, NodePool, Requirement, hash, labels};
use nap_engine::{ATTACHABLE_VOLUMES, CapacityType, Catalogue, Launch};
use nap_units::{Quantity, UsdPerHour};

use crate::context::{Context, Doing, Error};
use crate::turn::Turn;

/// The most instance types that a claim lists: enough to fall through a stock-out, small enough to
/// read.
const MAX_TYPES: usize = 60;

/// The most offerings that a claim lists in the order of the plan.
const MAX_OFFERINGS: usize = 20;

/// What a replacement must stay below, and what it replaces.
#[derive(Clone, Debug)]
pub struct Replaces {
    /// The claim that it stands in for.
    pub claim: String,
    /// It must cost less than this; `None` if any price will do.
    pub below: Option<UsdPerHour>,
}

/// Creates the NodeClaim for a launch and remembers it at once, so that the next plan counts on it.
pub async fn create(
    context: &Context,
    pool: &NodePool,
    launch: &Launch,
    catalogue: &Catalogue,
    turn: Option<&Turn>,
    replaces: Option<&Replaces>,
) -> Result<NodeClaim, Error> {
    let mut claim = node_claim(pool, launch, catalogue, replaces);
    if let Some(turn) = turn {
        claim.annotations_mut().insert(labels::PLANNED_TURN.to_owned(), turn.to_string());
    }
    let api: Api<NodeClaim> = Api::all(context.client.clone());
    let created = api
        .create(&PostParams::default(), &claim)
        .await
        .doing("creating a NodeClaim of NodePool", &launch.pool)?;
    context.state().apply_claim(created.clone());
    Ok(created)
}

fn node_claim(
    pool: &NodePool,
    launch: &Launch,
    catalogue: &Catalogue,
    replaces: Option<&Replaces>,
) -> NodeClaim {
    let template = &pool.spec.template;
    let mut requirements = (*launch.requirements).clone();
    requirements.set(
        labels::INSTANCE_TYPE,
        Requirement::is_in(instance_types(pool, launch, catalogue, replaces)),
    );
    requirements.set(labels::CAPACITY_TYPE, Requirement::is_in(capacity_types(launch, replaces)));
    let class = &template.spec.node_class_ref;
    let mut own_labels = template.metadata.labels.clone();
    own_labels.insert(labels::NODEPOOL.to_owned(), pool.name_any());
    own_labels.insert(labels::AKS_NODE_CLASS.to_owned(), class.name.clone());
    let mut annotations: BTreeMap<String, String> = template.metadata.annotations.clone();
    annotations.insert(labels::NODEPOOL_HASH.to_owned(), hash::nodepool_hash(&pool.spec));
    annotations
        .insert(labels::NODEPOOL_HASH_VERSION.to_owned(), hash::NODEPOOL_HASH_VERSION.to_owned());
    annotations.insert(
        labels::PLANNED_PODS.to_owned(),
        serde_json::to_string(&launch.pods).unwrap_or_default(),
    );
    annotations.insert(labels::PLANNED_OFFERINGS.to_owned(), planned_offerings(launch));
    if let Some(replaces) = replaces {
        annotations.insert(labels::REPLACES.to_owned(), replaces.claim.clone());
    }
    let owner = OwnerReference {
        api_version: NodePool::api_version(&()).into_owned(),
        kind: NodePool::kind(&()).into_owned(),
        name: pool.name_any(),
        uid: pool.uid().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    NodeClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", pool.name_any())),
            labels: Some(own_labels),
            annotations: Some(annotations),
            finalizers: Some(vec![labels::TERMINATION_FINALIZER.to_owned()]),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: NodeClaimSpec {
            taints: template.spec.taints.clone(),
            startup_taints: template.spec.startup_taints.clone(),
            requirements: requirements.to_specs(),
            resources: ResourceRequirements { requests: requests(launch) },
            node_class_ref: class.clone(),
            termination_grace_period: template.spec.termination_grace_period.clone(),
            expire_after: template.spec.expire_after.clone(),
        },
        status: None,
    }
}

/// `type/zone/capacity-type`, the best first. The provider's own prices may say otherwise: it does
/// not know of overlays.
fn planned_offerings(launch: &Launch) -> String {
    let chosen = format!("{}/{}/{}", launch.instance_type, launch.zone, launch.capacity_type);
    let others = launch.alternatives.iter().take(MAX_OFFERINGS - 1);
    let others =
        others.map(|one| format!("{}/{}/{}", one.instance_type, one.zone, one.capacity_type));
    [chosen].into_iter().chain(others).collect::<Vec<_>>().join(",")
}

/// What the machine must have. Volumes are no resource that a node would report: that they can be
/// attached was seen to when its types were chosen.
fn requests(launch: &Launch) -> BTreeMap<String, Quantity> {
    let mut requests = launch.requests.to_quantities();
    requests.retain(|name, _| !name.starts_with(ATTACHABLE_VOLUMES));
    requests
}

/// The chosen type first, then the alternatives in price order that stay within the pool's limits
/// and, for a replacement, below the old price.
fn instance_types(
    pool: &NodePool,
    launch: &Launch,
    catalogue: &Catalogue,
    replaces: Option<&Replaces>,
) -> Vec<String> {
    let capacity =
        |name: &str| catalogue.types().iter().find(|one| one.name == name).map(|one| &one.capacity);
    let chosen = capacity(&launch.instance_type);
    // The limit ledger counted the chosen type; a larger one in its place could break the limit.
    let within_limits = |name: &str| {
        pool.spec.limits.iter().flatten().all(|(resource, _)| match (chosen, capacity(name)) {
            (Some(chosen), Some(other)) => other.get(resource) <= chosen.get(resource),
            _ => false,
        })
    };
    let below = replaces.and_then(|replaces| replaces.below);
    let mut seen = BTreeSet::from([launch.instance_type.clone()]);
    let mut types = vec![launch.instance_type.clone()];
    for other in launch.alternatives.iter() {
        let cheaper = below
            .is_none_or(|below| other.price < below && other.capacity_type == launch.capacity_type);
        if types.len() < MAX_TYPES
            && cheaper
            && !seen.contains(&*other.instance_type)
            && within_limits(&other.instance_type)
        {
            seen.insert(other.instance_type.to_string());
            types.push(other.instance_type.to_string());
        }
    }
    types
}

fn capacity_types(launch: &Launch, replaces: Option<&Replaces>) -> BTreeSet<&'static str> {
    let mut kinds = BTreeSet::from([launch.capacity_type.as_str()]);
    // A replacement was worth it at its own capacity type only.
    if replaces.is_none_or(|replaces| replaces.below.is_none()) {
        kinds.extend(
            launch.alternatives.iter().map(|other| other.capacity_type).map(CapacityType::as_str),
        );
    }
    kinds
}
