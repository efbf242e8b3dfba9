//! NodeClaims of planned launches.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource, ResourceExt};
use nap_api::nodeclaim::ResourceRequirements;
use nap_api::plan_record::MAX_OFFERINGS;
use nap_api::{
    NodeClaim, NodeClaimSpec, NodePool, OfferingRef, PlanRecord, ReleaseSlot, Requirement,
    Requirements, labels,
};
use nap_engine::{ATTACHABLE_VOLUMES, Alternative, CapacityType, Catalogue, InstanceType, Launch};
use nap_units::{Quantity, UsdPerHour};

use crate::context::{Context, Doing, Error, may_be_done};
use crate::hash_migration::HashStamp;
use crate::metrics::catalogue::NODECLAIMS_CREATED;
use crate::permissions::{KARPENTER, Permission};

/// NodeClaims are created.
pub const PERMISSIONS: &[Permission] = &[Permission::new(KARPENTER, "nodeclaims", &["create"])];

/// Most instance types in the requirements of a NodeClaim: enough to fall through a stock-out,
/// small enough to read.
const MAX_TYPES: usize = 60;

/// NodeClaims that are replaced, and the condition on their replacements.
#[derive(Clone, Debug)]
pub struct Replaces {
    /// Names of the NodeClaims.
    pub claims: BTreeSet<String>,
    /// Exclusive upper bound on the price of a replacement, which then also keeps the planned
    /// capacity type; `None` without a bound.
    pub below: Option<UsdPerHour>,
    /// Number of NodeClaims that replace them together.
    pub siblings: usize,
}

/// Creates a NodeClaim and indexes it at once, so that the next plan counts on it.
pub async fn create(
    context: &Context,
    claim: &NodeClaim,
    pool: &str,
    reason: &str,
) -> Result<NodeClaim, Error> {
    let api: Api<NodeClaim> = Api::all(context.client.clone());
    let created = api.create(&PostParams::default(), claim).await;
    if created.as_ref().is_err_and(may_be_done) {
        context.memory().creation_unanswered = true;
    }
    let created = created.doing("creating a NodeClaim of NodePool", pool)?;
    context.index().observe_created(created.clone(), context.clock.now());
    // Which `minValues` a best effort did not meet is not on the NodeClaim.
    context.metrics.increment(&NODECLAIMS_CREATED, &[reason, pool, "false"]);
    Ok(created)
}

/// The NodeClaim of a launch, with its plan record, for offerings in the order to try them.
pub fn node_claim(
    pool: &NodePool,
    launch: &Launch,
    offerings: &[OfferingRef],
    release: Option<ReleaseSlot>,
    replaces: Option<&Replaces>,
) -> NodeClaim {
    let record = PlanRecord {
        pods: launch.pods.iter().map(ToString::to_string).collect(),
        offerings: offerings.iter().take(MAX_OFFERINGS).cloned().collect(),
        release,
        replaces: replaces.map(|replaces| replaces.claims.clone()).unwrap_or_default(),
        siblings: replaces.map_or(0, |one| u32::try_from(one.siblings).unwrap_or(u32::MAX)),
    };
    let template = &pool.spec.template;
    let class = &template.spec.node_class_ref;
    let requirements = requirements(launch, offerings, replaces);
    let mut own_labels = template.metadata.labels.clone();
    own_labels.extend(custom_labels(&requirements));
    own_labels.insert(labels::NODEPOOL.to_owned(), pool.name_any());
    own_labels.insert(labels::AKS_NODE_CLASS.to_owned(), class.name.clone());
    let mut annotations: BTreeMap<String, String> = template.metadata.annotations.clone();
    annotations.extend(HashStamp::of_pool(pool).annotations());
    annotations.insert(labels::PLAN.to_owned(), record.to_annotation());
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

/// Requirements of a NodeClaim: those of the launch, with the instance types and capacity types
/// that may stand in for it, and one value for every label that nap itself decides.
fn requirements(
    launch: &Launch,
    offerings: &[OfferingRef],
    replaces: Option<&Replaces>,
) -> Requirements {
    let mut requirements = (*launch.requirements).clone();
    let capacity_types = capacity_types(launch, replaces);
    let capacity_types = capacity_types.iter().map(|one| one.as_str());
    for (key, values) in [
        (labels::INSTANCE_TYPE, Requirement::is_in(instance_types(offerings))),
        (labels::CAPACITY_TYPE, Requirement::is_in(capacity_types)),
    ] {
        let min_values = launch.requirements.get(key).and_then(Requirement::min_values);
        requirements.set(key, values.with_min_values(min_values));
    }
    for (key, requirement) in launch.requirements.iter().filter(|(key, _)| labels::is_custom(key)) {
        if let Some(value) = requirement.pick() {
            requirements.set(key, Requirement::is_in([value]));
        }
    }
    requirements
}

/// The labels that nap decides, as a NodeClaim's requirements have them. They reach the Node when
/// it registers, whatever the cloud does with them.
fn custom_labels(requirements: &Requirements) -> impl Iterator<Item = (String, String)> {
    requirements.labels().into_iter().filter(|(key, _)| labels::is_custom(key))
}

/// Resource requests of a NodeClaim. Attached volumes are left out: no Node reports them as a
/// resource, and the instance types were chosen with their limits in mind.
fn requests(launch: &Launch) -> BTreeMap<String, Quantity> {
    let mut requests = launch.requests.to_quantities();
    requests.retain(|name, _| !name.starts_with(ATTACHABLE_VOLUMES));
    requests
}

/// Offerings that may stand in for a launch: the planned one, then the alternatives, cheapest
/// first, that stay within the limits of the NodePool and below the price of what is replaced. They
/// name at most [`MAX_TYPES`] instance types, or as many as `minValues` ask for.
pub fn offerings(
    pool: &NodePool,
    launch: &Launch,
    catalogue: &Catalogue,
    replaces: Option<&Replaces>,
) -> Vec<OfferingRef> {
    let find = |name: &str| catalogue.types().iter().find(|one| one.name == name);
    let planned = find(&launch.instance_type);
    // The limits were charged with the planned type; a larger one in its place could exceed them.
    let within_limits = |name: &str| {
        pool.spec.limits.iter().flatten().all(|(resource, _)| match (planned, find(name)) {
            (Some(planned), Some(other)) => {
                other.capacity.get(resource) <= planned.capacity.get(resource)
            }
            _ => false,
        })
    };
    let below = replaces.and_then(|replaces| replaces.below);
    let cheap_enough = |other: &Alternative| {
        below.is_none_or(|below| other.price < below && other.capacity_type == launch.capacity_type)
    };
    let mut wanted = MissingValues::of(&launch.requirements);
    planned.inspect(|planned| wanted.add(planned));
    let mut types = BTreeSet::from([launch.instance_type.as_str()]);
    let mut offerings = vec![OfferingRef {
        instance_type: launch.instance_type.clone(),
        zone: launch.zone.clone(),
        capacity_type: launch.capacity_type.to_string(),
        price: launch.price,
    }];
    for other in launch.alternatives.iter().filter(|other| cheap_enough(other)) {
        let name: &str = &other.instance_type;
        if !types.contains(name) {
            let found = find(name);
            let room = types.len() < MAX_TYPES || found.is_some_and(|one| wanted.would_add(one));
            if !room || !within_limits(name) {
                continue;
            }
            found.inspect(|one| wanted.add(one));
            types.insert(name);
        }
        offerings.push(OfferingRef {
            instance_type: name.to_owned(),
            zone: other.zone.to_string(),
            capacity_type: other.capacity_type.to_string(),
            price: other.price,
        });
    }
    offerings
}

/// Values that the instance types chosen so far lack under `minValues`.
struct MissingValues<'r> {
    requirements: &'r Requirements,
    /// Values found by key, for keys with `minValues`.
    found: BTreeMap<&'r str, BTreeSet<String>>,
}

impl<'r> MissingValues<'r> {
    fn of(requirements: &'r Requirements) -> Self {
        let limited = requirements.iter().filter(|(_, one)| one.min_values().is_some());
        Self { requirements, found: limited.map(|(key, _)| (key, BTreeSet::new())).collect() }
    }

    /// Whether an instance type brings a value that is still missing.
    fn would_add(&self, instance_type: &InstanceType) -> bool {
        self.found.iter().any(|(key, found)| {
            let wanted = self.requirements.get(key).and_then(Requirement::min_values).unwrap_or(0);
            let mut values =
                instance_type.requirements.get(key).into_iter().flat_map(Requirement::values);
            i64::try_from(found.len()).unwrap_or(i64::MAX) < wanted
                && values.any(|value| !found.contains(value))
        })
    }

    fn add(&mut self, instance_type: &InstanceType) {
        for (key, found) in &mut self.found {
            let values = instance_type.requirements.get(key).map(Requirement::values);
            found.extend(values.into_iter().flatten().map(str::to_owned));
        }
    }
}

fn instance_types(offerings: &[OfferingRef]) -> BTreeSet<&str> {
    offerings.iter().map(|offering| offering.instance_type.as_str()).collect()
}

/// Capacity types that a NodeClaim allows. A replacement under a price bound keeps the planned one:
/// the saving was computed for it.
fn capacity_types(launch: &Launch, replaces: Option<&Replaces>) -> BTreeSet<CapacityType> {
    let mut types = BTreeSet::from([launch.capacity_type]);
    if replaces.is_none_or(|replaces| replaces.below.is_none()) {
        types.extend(launch.alternatives.iter().map(|other| other.capacity_type));
    }
    types
}

#[cfg(test)]
mod tests {
    use nap_engine::PodKey;
    use nap_units::Resources;
    use serde_json::json;

    use super::*;
    use crate::testing::{launch, pool};

    fn claim_of(
        pool: &NodePool,
        launch: &Launch,
        catalogue: &Catalogue,
        release: Option<ReleaseSlot>,
        replaces: Option<&Replaces>,
    ) -> NodeClaim {
        let offerings = offerings(pool, launch, catalogue, replaces);
        node_claim(pool, launch, &offerings, release, replaces)
    }
    use nap_api::requirement::NodeSelectorRequirement;

    fn dollars(micros: i64) -> UsdPerHour {
        UsdPerHour::from_micros(micros)
    }

    fn catalogue(sizes: &[(&str, i64)]) -> Catalogue {
        let size = |(name, cpu): &(&str, i64)| InstanceType {
            name: (*name).to_owned(),
            requirements: nap_api::Requirements::new(),
            capacity: Resources::new().with("cpu", *cpu),
            allocatable: Resources::new(),
            offerings: Vec::new(),
            closed: false,
        };
        sizes.iter().map(size).collect()
    }

    fn other(name: &str, price: i64, capacity_type: CapacityType) -> Alternative {
        Alternative {
            instance_type: name.into(),
            zone: "z-2".into(),
            capacity_type,
            price: dollars(price),
        }
    }

    /// A launch of `D4` at 100 with alternatives.
    fn launch_with(alternatives: Vec<Alternative>) -> Launch {
        let mut launch = launch("D4", 100);
        launch.alternatives = alternatives.into();
        launch.pods = vec![PodKey::new("shop", "web")];
        launch
    }

    fn record(claim: &NodeClaim) -> PlanRecord {
        PlanRecord::of(&claim.metadata).unwrap().unwrap()
    }

    fn types(claim: &NodeClaim) -> BTreeSet<String> {
        let requirements = nap_api::Requirements::from_specs(&claim.spec.requirements);
        requirements
            .get(labels::INSTANCE_TYPE)
            .unwrap()
            .values()
            .iter()
            .map(str::to_owned)
            .collect()
    }

    fn names(offerings: &[OfferingRef]) -> Vec<&str> {
        offerings.iter().map(|one| one.instance_type.as_str()).collect()
    }

    #[test]
    fn a_nodeclaim_carries_its_plan() {
        let launch = launch_with(vec![other("D8", 120, CapacityType::OnDemand)]);
        let slot = ReleaseSlot { plan: "1".to_owned(), number: 3 };
        let sizes = catalogue(&[("D4", 4000), ("D8", 8000)]);
        let claim = claim_of(&pool("p", json!({})), &launch, &sizes, Some(slot.clone()), None);
        let record = record(&claim);
        assert_eq!(record.pods, ["shop/web".to_owned()].into());
        assert_eq!(names(&record.offerings), ["D4", "D8"], "the planned one first");
        assert_eq!((record.release, record.replaces.len()), (Some(slot), 0));
        assert_eq!(claim.labels()[labels::NODEPOOL], "p");
        assert_eq!(claim.finalizers(), [labels::TERMINATION_FINALIZER]);
        assert!(claim.annotations().contains_key(labels::NODEPOOL_HASH));
    }

    #[test]
    fn larger_types_are_left_out_under_a_limit() {
        let alternatives = vec![
            other("D2", 110, CapacityType::OnDemand),
            other("D8", 120, CapacityType::OnDemand),
        ];
        let (launch, sizes) =
            (launch_with(alternatives), catalogue(&[("D2", 2000), ("D4", 4000), ("D8", 8000)]));
        let limited = pool("p", json!({ "spec": { "limits": { "cpu": "100" } } }));
        let claim = claim_of(&limited, &launch, &sizes, None, None);
        assert_eq!(types(&claim), ["D2", "D4"].map(str::to_owned).into());
        assert_eq!(names(&record(&claim).offerings), ["D4", "D2"]);
        let free = claim_of(&pool("p", json!({})), &launch, &sizes, None, None);
        assert_eq!(types(&free).len(), 3);
    }

    #[test]
    fn a_type_that_the_catalogue_lacks_is_left_out_under_a_limit() {
        let launch = launch_with(vec![other("unknown", 90, CapacityType::OnDemand)]);
        let limited = pool("p", json!({ "spec": { "limits": { "cpu": "100" } } }));
        let claim = claim_of(&limited, &launch, &catalogue(&[("D4", 4000)]), None, None);
        assert_eq!(types(&claim), ["D4".to_owned()].into());
    }

    #[test]
    fn a_cheaper_replacement_stays_below_the_old_price_at_its_capacity_type() {
        let alternatives = vec![
            other("D2", 60, CapacityType::Spot),
            other("D8", 140, CapacityType::OnDemand),
            other("D16", 150, CapacityType::OnDemand),
        ];
        let launch = launch_with(alternatives);
        let replaces =
            Replaces { claims: ["old".to_owned()].into(), below: Some(dollars(150)), siblings: 1 };
        let claim =
            claim_of(&pool("p", json!({})), &launch, &catalogue(&[]), None, Some(&replaces));
        assert_eq!(types(&claim), ["D4", "D8"].map(str::to_owned).into());
        assert_eq!(capacity_types(&launch, Some(&replaces)), [CapacityType::OnDemand].into());
        assert_eq!(record(&claim).replaces, ["old".to_owned()].into());
    }

    #[test]
    fn a_replacement_of_a_drifted_node_may_have_any_price_and_capacity_type() {
        let launch = launch_with(vec![other("D2", 900, CapacityType::Spot)]);
        let replaces = Replaces { claims: ["old".to_owned()].into(), below: None, siblings: 1 };
        let both: BTreeSet<_> = [CapacityType::OnDemand, CapacityType::Spot].into();
        assert_eq!(capacity_types(&launch, Some(&replaces)), both);
        let all = offerings(&pool("p", json!({})), &launch, &catalogue(&[]), Some(&replaces));
        assert_eq!(names(&all), ["D4", "D2"]);
    }

    #[test]
    fn types_and_recorded_offerings_are_bounded() {
        let many = (0..100).map(|n| other(&format!("S{n}"), 100 + n, CapacityType::OnDemand));
        let launch = launch_with(many.collect());
        let claim = claim_of(&pool("p", json!({})), &launch, &catalogue(&[]), None, None);
        assert_eq!(types(&claim).len(), MAX_TYPES);
        assert_eq!(record(&claim).offerings.len(), MAX_OFFERINGS);
        assert!(claim.annotations()[labels::PLAN].len() < 4096);
    }

    fn claim_with(specs: serde_json::Value, launch: &Launch, catalogue: &Catalogue) -> NodeClaim {
        let specs: Vec<NodeSelectorRequirement> = serde_json::from_value(specs).unwrap();
        let requirements = std::sync::Arc::new(Requirements::from_specs(&specs));
        let launch = Launch { requirements, ..launch.clone() };
        claim_of(&pool("p", json!({})), &launch, catalogue, None, None)
    }

    #[test]
    fn a_custom_label_gets_one_allowed_value_that_the_requirement_keeps() {
        let specs = json!([
            { "key": "team", "operator": "In", "values": ["b", "a"] },
            { "key": "node-restriction.kubernetes.io/kind", "operator": "In", "values": ["x"] },
            { "key": "rank", "operator": "Gt", "values": ["4"] },
            { "key": "present", "operator": "Exists" },
            { "key": "absent", "operator": "DoesNotExist" },
            { "key": labels::SKU_HYPERV_GENERATION, "operator": "In", "values": ["1", "2"] },
        ]);
        let claim = claim_with(specs, &launch_with(Vec::new()), &catalogue(&[]));
        let label = |key: &str| claim.labels().get(key).map(String::as_str);
        assert_eq!(
            (label("team"), label("rank"), label("present")),
            (Some("a"), Some("5"), Some("0"))
        );
        assert_eq!(label("node-restriction.kubernetes.io/kind"), Some("x"));
        assert_eq!((label("absent"), label(labels::SKU_HYPERV_GENERATION)), (None, None));
        let requirements = Requirements::from_specs(&claim.spec.requirements);
        assert_eq!(requirements.get("team").unwrap().single(), Some("a"));
    }

    #[test]
    fn min_values_stay_on_the_nodeclaim_and_reach_beyond_the_cheapest_types() {
        let size = |number: usize, family: &str| {
            let mut requirements = Requirements::new();
            requirements.set(labels::SKU_FAMILY, Requirement::is_in([family]));
            InstanceType {
                name: format!("S{number}"),
                requirements,
                capacity: Resources::new(),
                allocatable: Resources::new(),
                offerings: Vec::new(),
                closed: false,
            }
        };
        let sizes: Catalogue =
            (0..100).map(|number| size(number, if number < 80 { "D" } else { "E" })).collect();
        let many = (0i64..100).map(|n| other(&format!("S{n}"), 100 + n, CapacityType::OnDemand));
        let launch = Launch { instance_type: "S0".to_owned(), ..launch_with(many.collect()) };
        let specs = json!([
            { "key": labels::SKU_FAMILY, "operator": "Exists", "minValues": 2 },
            { "key": labels::INSTANCE_TYPE, "operator": "Exists", "minValues": 50 },
        ]);
        let claim = claim_with(specs, &launch, &sizes);
        let chosen = types(&claim);
        assert_eq!(chosen.len(), MAX_TYPES + 1);
        assert!(chosen.contains("S80"), "the cheapest type of the second family");
        let requirements = Requirements::from_specs(&claim.spec.requirements);
        assert_eq!(requirements.get(labels::INSTANCE_TYPE).unwrap().min_values(), Some(50));
    }

    #[test]
    fn attached_volumes_are_no_resource_request() {
        let mut launch = launch("D4", 100);
        launch.requests =
            Resources::new().with("cpu", 1000).with("attachable-volumes-csi-disk.csi.azure.com", 2);
        assert_eq!(requests(&launch).keys().collect::<Vec<_>>(), ["cpu"]);
    }
}
