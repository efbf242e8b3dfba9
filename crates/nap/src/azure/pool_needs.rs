//! What NodePools of manifests or of a cluster can buy, for the quota rows of `nap azure check`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kube::api::ListParams;
use kube::{Api, ResourceExt};
use nap_api::{AKSNodeClass, NodePool, Requirements};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::prerequisites::PoolNeeds;
use nap_engine::{CapacityType, InstanceType};
use nap_units::CPU;

use super::skus::unmet;
use crate::catalogue::{instance_types, settings};
use crate::cli::ClusterArgs;
use crate::connect::{connect_to, unreachable};
use crate::manifests::read;
use crate::user_error::UserError;

/// The needs of the NodePools of some files, with the sizes that the built-in catalogue has in a
/// region.
pub fn of_files(files: &[PathBuf], region: &str) -> anyhow::Result<Vec<PoolNeeds>> {
    let mut pools: Vec<NodePool> = Vec::new();
    let mut classes: BTreeMap<String, AKSNodeClass> = BTreeMap::new();
    for mut document in read::read(files)? {
        nap_api::normalise::manifest(&mut document.value);
        match document.text("/kind") {
            "NodePool" => pools.push(document.read()?),
            "AKSNodeClass" => {
                let name = document.text("/metadata/name").to_owned();
                classes.insert(name, document.read()?);
            }
            _ => {}
        }
    }
    if pools.is_empty() {
        let hint = "name files with the NodePools whose quota is to be checked";
        return Err(UserError::new("-f: there is no NodePool", hint).into());
    }
    let needs = |pool| {
        let found = needs(pool, &classes, region)?;
        found.map_err(|name| {
            let message = format!("-f: NodePool `{name}` allows no size of {region}");
            UserError::new(message, NO_SIZE_HINT).into()
        })
    };
    pools.iter().map(needs).collect()
}

const NO_SIZE_HINT: &str = "`nap azure skus -f` says why each size is excluded";

/// The needs of the NodePools of a cluster. Without a cluster a note says so and there are none,
/// unless the options name one.
pub async fn of_cluster(args: &ClusterArgs, region: &str) -> anyhow::Result<Vec<PoolNeeds>> {
    let is_named = args.kubeconfig.is_some() || args.context.is_some();
    let (pools, classes) = match read_cluster(args).await {
        Ok(found) => found,
        Err(error) if is_named => return Err(error),
        Err(error) => {
            let error = error.to_string();
            let why = error.lines().next().unwrap_or_default();
            eprintln!("note: the quota rows are about the default NodePool: {why}");
            return Ok(Vec::new());
        }
    };
    if pools.is_empty() {
        eprintln!("note: the quota rows are about the default NodePool: the cluster has none");
    }
    let mut all = Vec::new();
    for pool in &pools {
        match needs(pool, &classes, region)? {
            Ok(needs) => all.push(needs),
            Err(name) => eprintln!(
                "note: NodePool `{name}` allows no size of {region}, so its quota is not checked"
            ),
        }
    }
    Ok(all)
}

type Pools = (Vec<NodePool>, BTreeMap<String, AKSNodeClass>);

async fn read_cluster(args: &ClusterArgs) -> anyhow::Result<Pools> {
    let (client, url) = connect_to(args).await?;
    let all = ListParams::default();
    let pools = Api::<NodePool>::all(client.clone()).list(&all).await;
    let pools = pools.map_err(|error| unreachable(&url, "list", "nodepools", &error))?;
    let classes = Api::<AKSNodeClass>::all(client).list(&all).await;
    let classes = classes.map_err(|error| unreachable(&url, "list", "aksnodeclasses", &error))?;
    let classes = classes.items.into_iter().map(|class| (class.name_any(), class)).collect();
    Ok((pools.items, classes))
}

/// What a NodePool can buy; its name if it can buy nothing.
fn needs(
    pool: &NodePool,
    classes: &BTreeMap<String, AKSNodeClass>,
    region: &str,
) -> anyhow::Result<Result<PoolNeeds, String>> {
    let sizes = EmbeddedCatalogue::embedded();
    let template = &pool.spec.template.spec;
    let settings = settings(region, classes.get(&template.node_class_ref.name));
    let wanted = Requirements::from_specs(&template.requirements);
    let mut needs =
        PoolNeeds { name: pool.metadata.name.clone().unwrap_or_default(), ..PoolNeeds::default() };
    for one in instance_types(sizes, &settings, &[])?.types() {
        let vcpus = one.capacity.get(CPU) / 1000;
        if allows(one, &wanted, CapacityType::OnDemand) {
            let family = sizes.sku(&one.name).map(|sku| sku.family.to_lowercase());
            let family = family.filter(|family| !family.is_empty());
            let least = family.map(|family| needs.families.entry(family).or_insert(vcpus));
            if let Some(least) = least {
                *least = vcpus.min(*least);
            }
        }
        if allows(one, &wanted, CapacityType::Spot) {
            needs.spot = Some(needs.spot.map_or(vcpus, |least| least.min(vcpus)));
        }
    }
    if needs.families.is_empty() && needs.spot.is_none() {
        return Ok(Err(needs.name));
    }
    Ok(Ok(needs))
}

/// Whether requirements allow a size with a capacity type.
fn allows(one: &InstanceType, wanted: &Requirements, capacity_type: CapacityType) -> bool {
    let mut sold = one.clone();
    sold.offerings.retain(|offering| offering.capacity_type == capacity_type);
    unmet(&sold, wanted).is_none()
}
