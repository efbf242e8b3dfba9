//! VM sizes, prices and quota of a plan: those of the subscription if there is one, else those of
//! the built-in catalogue or of a folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use nap_api::{AKSNodeClass, OfferingRef};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::unavailable_offerings::UnavailableOfferings;
use nap_azure::{AzureProvider, PriceSource, REFERENCE_REGION, Shortage};
use nap_cloud::{CloudError, CloudProvider, ErrorClass};
use nap_controllers::capacity_memory;
use nap_engine::{Catalogue, Plan};

use super::cluster::Cluster;
use super::live::region_of;
use crate::azure::live;
use crate::catalogue::{self, DEFAULT_REGION, Origin, instance_types, settings};
use crate::cli::SourceArgs;
use crate::lint::findings::Level;
use crate::lint::sizes::not_offered;
use crate::user_error::UserError;

/// The instance types of a plan.
pub struct Offered {
    /// Region.
    pub region: String,
    /// Where they come from.
    pub origin: Origin,
    /// Instance types by node class.
    pub of_classes: BTreeMap<String, Arc<Catalogue>>,
    /// The provider that fetched them; `None` if Azure was not asked.
    pub provider: Option<AzureProvider>,
    /// Offerings that are left out, because Azure lately refused them.
    pub left_out: Vec<Shortage>,
}

/// The instance types that the options and the environment select. Manifests are planned with live
/// data only if an option asks for it: equal manifests are to give equal plans.
pub async fn choose(
    source: &SourceArgs,
    cluster: &mut Cluster,
    now: Timestamp,
) -> anyhow::Result<Offered> {
    let left_out = shortages(cluster, now);
    let folder = source.catalogue.catalogue.as_ref();
    if let (Some(folder), Some(_)) = (folder, &source.live.subscription) {
        let message = format!(
            "--subscription: `{}` is to be used too, by --catalogue or NAP_CATALOGUE",
            folder.display()
        );
        return Err(UserError::new(message, "leave one of them out").into());
    }
    let is_asked = source.files.is_empty() || source.live.subscription.is_some();
    if source.offline || folder.is_some() || !is_asked {
        return built_in(source, cluster, left_out);
    }
    let Some(subscription) = live::subscription(&source.live) else {
        let offered = built_in(source, cluster, left_out)?;
        cluster.notes.push(format!(
            "no subscription is named: VM sizes and prices are the built-in ones of {}, and quota \
             is unknown; --subscription or AZURE_SUBSCRIPTION_ID asks Azure",
            offered.origin.date
        ));
        return Ok(offered);
    };
    let location = || std::env::var("LOCATION").ok().filter(|name| !name.trim().is_empty());
    let region = source.region.clone().or_else(|| region_of(cluster)).or_else(location);
    let region = region.unwrap_or_else(|| {
        let note = format!("no node has a region: {DEFAULT_REGION} is assumed; --region names it");
        cluster.notes.push(note);
        DEFAULT_REGION.to_owned()
    });
    let provider = live::provider(&source.live, &subscription, &region)?;
    if let Some(text) = &cluster.capacity_memory {
        provider.restore_capacity_memory(text);
    }
    from_azure(provider, cluster, left_out).await
}

/// Offerings that the controllers of the cluster do not try for now.
fn shortages(cluster: &mut Cluster, now: Timestamp) -> Vec<Shortage> {
    let Some(text) = &cluster.capacity_memory else { return Vec::new() };
    let mut memory = UnavailableOfferings::default();
    if let Err(error) = memory.restore(text) {
        let name = capacity_memory::NAME;
        let note =
            format!("ConfigMap `{name}`: `{}` cannot be understood: {error}", capacity_memory::KEY);
        cluster.notes.push(note);
        cluster.capacity_memory = None;
    }
    memory.shortages(now)
}

/// Those of the built-in catalogue, or of a folder.
fn built_in(
    source: &SourceArgs,
    cluster: &mut Cluster,
    left_out: Vec<Shortage>,
) -> anyhow::Result<Offered> {
    let region = source.region.clone().or_else(|| region_of(cluster));
    let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
    let sizes = catalogue::load(&source.catalogue)?;
    let region = catalogue::region(&sizes, &region)?;
    let origin = Origin::of(region, &source.catalogue);
    let region = region.name.clone();
    let mut of_classes: BTreeMap<String, Arc<Catalogue>> = BTreeMap::new();
    let mut known: Vec<(_, Arc<Catalogue>)> = Vec::new();
    let mut notes = Vec::new();
    for (name, class) in cluster.state.classes() {
        let settings = settings(&region, Some(class));
        let same =
            known.iter().find(|(other, _)| *other == settings).map(|(_, types)| Arc::clone(types));
        let types = match same {
            Some(types) => types,
            None => Arc::new(instance_types(&sizes, &settings, &left_out)?),
        };
        if settings.encryption_at_host && is_estimated(&types, &sizes) {
            notes.push(format!(
                "AKSNodeClass `{name}`: which sizes have encryption at host is an estimate: those \
                 that take premium disks; --subscription asks Azure"
            ));
        }
        for (pool, object) in cluster.state.pools() {
            if object.spec.template.spec.node_class_ref.name != *name {
                continue;
            }
            let gone = not_offered(object, (&sizes, &region), &settings, types.types())?;
            let none_left = gone.iter().any(|(level, _)| *level == Level::Error);
            let texts = gone.iter().filter(|_| none_left);
            notes.extend(texts.map(|(_, text)| format!("NodePool `{pool}`: {text}")));
        }
        known.push((settings, Arc::clone(&types)));
        of_classes.insert(name.clone(), types);
    }
    cluster.notes.extend(notes);
    Ok(Offered { region, origin, of_classes, provider: None, left_out })
}

/// Whether encryption at host is an estimate for one of the instance types.
fn is_estimated(types: &Catalogue, sizes: &EmbeddedCatalogue) -> bool {
    let mut rows = types.types().iter().filter_map(|one| sizes.sku(&one.name));
    rows.any(|row| row.encryption_at_host.is_none())
}

/// Those of Azure, by the provider of `nap run`.
async fn from_azure(
    provider: AzureProvider,
    cluster: &mut Cluster,
    left_out: Vec<Shortage>,
) -> anyhow::Result<Offered> {
    let region = provider.config().location.clone();
    let failed = |error: CloudError| {
        let hint = if error.class == ErrorClass::Auth {
            "log in (`az login` on a laptop; `docs/running.md` lists the variables), or pass \
             --offline to plan with the built-in catalogue"
        } else {
            "check --region, --subscription and the endpoints in `docs/running.md`, or pass \
             --offline to plan with the built-in catalogue"
        };
        UserError::new(format!("sizes of `{region}` cannot be read from Azure: {error}"), hint)
    };
    // Also without any node class: the login is tried, and the source known.
    provider.instance_types(&AKSNodeClass::default()).await.map_err(failed)?;
    let mut of_classes = BTreeMap::new();
    for (name, class) in cluster.state.classes() {
        let types = provider.instance_types(class).await.map_err(failed)?;
        of_classes.insert(name.clone(), types);
    }
    let origin = provider.catalogue_source().map(|source| {
        match source.prices {
            PriceSource::Live => {}
            PriceSource::BuiltIn => cluster.notes.push(format!(
                "the price API has no answer for `{region}`: built-in list prices are used"
            )),
            PriceSource::Reference => cluster.notes.push(format!(
                "there are no prices of `{region}`: those of {REFERENCE_REGION} are used as estimates"
            )),
        }
        Origin::live(source, &region)
    });
    let (origin, provider) = (origin.unwrap_or_default(), Some(provider));
    Ok(Offered { region, origin, of_classes, provider, left_out })
}

/// The first quota that the launches of a plan exceed together, and by how many vCPUs. Each fits by
/// itself, and no alternative of the later ones is within what is left.
pub fn exceeded_quota(provider: &AzureProvider, plan: &Plan) -> Option<(String, i64)> {
    let mut left = provider.quota().left;
    for launch in &plan.launches {
        let offering = OfferingRef {
            instance_type: launch.instance_type.clone(),
            zone: launch.zone.clone(),
            capacity_type: launch.capacity_type.as_str().to_owned(),
            price: launch.price,
        };
        let Some(charge) = provider.quota_charge(&offering) else { continue };
        for quota in &charge.quotas {
            if let Some(left) = left.get_mut(quota) {
                *left -= charge.vcpus;
            }
        }
    }
    left.into_iter().find(|(_, left)| *left < 0).map(|(name, left)| (name, -left))
}
