//! What the NodePools of manifests can buy, for the quota rows of `nap azure check`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nap_api::{AKSNodeClass, NodePool, Requirements};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::prerequisites::PoolNeeds;
use nap_engine::{CapacityType, InstanceType};
use nap_units::CPU;

use super::skus::unmet;
use crate::catalogue::{instance_types, settings};
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
    pools.iter().map(|pool| needs(pool, &classes, region)).collect()
}

fn needs(
    pool: &NodePool,
    classes: &BTreeMap<String, AKSNodeClass>,
    region: &str,
) -> anyhow::Result<PoolNeeds> {
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
        let message = format!("-f: NodePool `{}` allows no size of {region}", needs.name);
        let hint = "`nap azure skus -f` says why each size is excluded";
        return Err(UserError::new(message, hint).into());
    }
    Ok(needs)
}

/// Whether requirements allow a size with a capacity type.
fn allows(one: &InstanceType, wanted: &Requirements, capacity_type: CapacityType) -> bool {
    let mut sold = one.clone();
    sold.offerings.retain(|offering| offering.capacity_type == capacity_type);
    unmet(&sold, wanted).is_none()
}
