//! The catalogue of a region: sizes, prices and quota, refreshed when they are old, less the
//! offerings that failed.
//!
//! Only the first callers wait for the data, and for prices and quota only some seconds: the
//! embedded list prices stand in, and quota limits nothing. Later refreshes run on a task of their
//! own, beside plans on the old data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use nap_cloud::{CloudError, ErrorClass, QuotaCharge, QuotaCount};
use nap_engine::{CapacityType, Catalogue};
use tokio::task::JoinSet;

use crate::AzureConfig;
use crate::arm::{ArmClient, Failure};
use crate::catalogue_source::{CatalogueSource, MAX_FIRST_WAIT, PriceSource, built_in_prices};
use crate::instance_types::{Settings, instance_type, suits};
use crate::prices::{self, Prices};
use crate::quota::{self, Quota, REGIONAL_CORES};
use crate::shortage::Shortage;
use crate::skus::{self, Sku};
use crate::unavailable_offerings::{Doubts, UnavailableOfferings};

/// Lifetime of the list of sizes.
const SKU_LIFETIME: SignedDuration = SignedDuration::from_hours(12);
/// Lifetime of prices.
const PRICE_LIFETIME: SignedDuration = SignedDuration::from_hours(12);
/// Lifetime of the quota count.
const QUOTA_LIFETIME: SignedDuration = SignedDuration::from_mins(10);
/// Age at which a quota count that cannot be refreshed is dropped; launches are then not limited.
const MAX_QUOTA_AGE: SignedDuration = SignedDuration::from_mins(15);
/// Wait after a failed refresh.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// Time for which callers without any list of sizes share the failure to get one.
const FAILURE_LIFETIME: SignedDuration = SignedDuration::from_secs(5);
/// Most catalogues that are kept. Node classes differ in few settings.
const MAX_CATALOGUES: usize = 16;

/// The offerings of a region, as this cluster sees them.
pub(crate) struct RegionCatalogue {
    region: Arc<Region>,
    /// Whether failed launches are remembered.
    pub(crate) learns: bool,
    /// The refresh that is under way; dropping it ends it.
    refresh: Mutex<JoinSet<()>>,
}

struct Region {
    config: AzureConfig,
    arm: ArmClient,
    price_client: ArmClient,
    state: Mutex<State>,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    skus: Fetched<BTreeMap<String, Sku>>,
    /// Failure to get the first list of sizes, and the time until which it is not tried again.
    failed: Option<(CloudError, Timestamp)>,
    prices: Fetched<Prices>,
    /// Source of the prices; `None` before there are any.
    price_source: Option<PriceSource>,
    /// Whether the last refresh of prices failed, which is reported once.
    prices_failing: bool,
    quota: Quota,
    /// When the quota was counted, and is to be counted again.
    quota_count: Fetched<()>,
    unavailable: UnavailableOfferings,
    generation: u64,
    catalogues: Vec<Computed>,
}

struct Fetched<T> {
    data: Option<T>,
    at: Option<Timestamp>,
    next: Timestamp,
}

impl<T> Default for Fetched<T> {
    fn default() -> Self {
        Self { data: None, at: None, next: Timestamp::MIN }
    }
}

impl<T> Fetched<T> {
    fn store(&mut self, data: T, now: Timestamp, lifetime: SignedDuration) {
        *self = Self { data: Some(data), at: Some(now), next: later(now, lifetime) };
    }
}

struct Computed {
    settings: Settings,
    generation: u64,
    until: Option<Timestamp>,
    catalogue: Arc<Catalogue>,
}

fn later(now: Timestamp, duration: SignedDuration) -> Timestamp {
    now.checked_add(duration).unwrap_or(Timestamp::MAX)
}

impl RegionCatalogue {
    pub(crate) fn new(config: AzureConfig, arm: ArmClient, price_client: ArmClient) -> Self {
        let region = Region {
            config,
            arm,
            price_client,
            state: Mutex::default(),
            refreshing: tokio::sync::Mutex::new(()),
        };
        Self { region: Arc::new(region), learns: true, refresh: Mutex::default() }
    }

    /// The instance types for some settings.
    pub(crate) async fn catalogue(
        &self,
        settings: &Settings,
    ) -> Result<Arc<Catalogue>, CloudError> {
        self.ensure_fresh().await?;
        let now = self.region.arm.clock().now();
        let mut state = self.region.state();
        let generation = state.generation + state.unavailable.generation();
        let hit = state.catalogues.iter().find(|computed| {
            computed.generation == generation
                && computed.settings == *settings
                && computed.until.is_none_or(|until| now < until)
        });
        if let Some(computed) = hit {
            return Ok(computed.catalogue.clone());
        }
        let until = state.unavailable.next_change(now);
        let catalogue = Arc::new(state.compute(settings, now));
        catalogue.prepare();
        state.catalogues.retain(|computed| computed.settings != *settings);
        if state.catalogues.len() >= MAX_CATALOGUES {
            state.catalogues.remove(0);
        }
        let settings = settings.clone();
        state.catalogues.push(Computed {
            settings,
            generation,
            until,
            catalogue: catalogue.clone(),
        });
        Ok(catalogue)
    }

    /// The instance types that were asked for last, for some settings; `None` before that.
    pub(crate) fn last_catalogue(&self) -> Option<Arc<Catalogue>> {
        self.region.state().catalogues.last().map(|computed| computed.catalogue.clone())
    }

    /// A size by its name.
    pub(crate) async fn sku(&self, name: &str) -> Result<Option<Sku>, CloudError> {
        self.ensure_fresh().await?;
        Ok(self.region.state().skus.data.as_ref().and_then(|skus| skus.get(name).cloned()))
    }

    /// A size of the last list; `None` before there is one, or if it lacks the size.
    pub(crate) fn known_sku(&self, name: &str) -> Option<Sku> {
        self.region.state().skus.data.as_ref()?.get(name).cloned()
    }

    /// Holds quota for a launch that is about to be tried; `None` if it does not fit. Dropping the
    /// hold releases the quota; [`QuotaHold::keep`] keeps it until Azure has counted the VM.
    pub(crate) fn hold_quota(
        &self,
        claim: &str,
        sku: &Sku,
        capacity_type: CapacityType,
    ) -> Option<QuotaHold<'_>> {
        let charge = quota::charge(&sku.family, sku.vcpus, capacity_type);
        let now = self.region.arm.clock().now();
        let mut fits = false;
        self.region.change_quota(|quota| {
            quota.release(claim);
            fits = quota.fits(&charge);
            if fits {
                quota.hold(claim, charge, now);
            }
        });
        fits.then(|| QuotaHold { region: &self.region, claim: Some(claim.to_owned()) })
    }

    /// Releases the quota of a NodeClaim whose machine does not exist.
    pub(crate) fn release_quota(&self, claim: &str) {
        self.region.change_quota(|quota| quota.release(claim));
    }

    /// The quota as counted and held.
    pub(crate) fn quota(&self) -> QuotaCount {
        self.region.state().quota.count()
    }

    /// Where the data comes from; `None` before there is any.
    pub(crate) fn source(&self) -> Option<CatalogueSource> {
        let state = self.region.state();
        let (listed, prices) = (state.skus.at?, state.price_source?);
        Some(CatalogueSource { listed, prices, has_quota: state.quota_count.at.is_some() })
    }

    /// The quotas that a VM of a size counts against; `None` for an unknown size.
    pub(crate) fn quota_charge(
        &self,
        size: &str,
        capacity_type: CapacityType,
    ) -> Option<QuotaCharge> {
        let state = self.region.state();
        let sku = state.skus.data.as_ref()?.get(size)?;
        Some(quota::charge(&sku.family, sku.vcpus, capacity_type))
    }

    /// Remembers a failed launch. Returns whether any offering is unavailable because of it.
    pub(crate) fn learn(
        &self,
        error: &CloudError,
        sku: &Sku,
        zone: &str,
        capacity_type: CapacityType,
    ) -> bool {
        if !self.learns {
            return false;
        }
        let now = self.region.arm.clock().now();
        let failure = Failure::of_launch(error, &sku.name, zone);
        let location = &self.region.config.location;
        if failure == Failure::RegionalQuota {
            self.region.change_quota(|quota| quota.exhausted(REGIONAL_CORES));
            return true;
        }
        self.region.state().unavailable.learn(failure, sku, location, zone, capacity_type, now)
    }

    /// Remembers that a machine exists which was requested at a time.
    pub(crate) fn learn_success(
        &self,
        size: &str,
        zone: &str,
        capacity_type: CapacityType,
        requested: Timestamp,
    ) {
        self.region.with_size(size, |unavailable, sku, now| {
            unavailable.learn_success(sku, zone, capacity_type, requested, now);
        });
    }

    /// Offerings that failed lately and may be tried again.
    pub(crate) fn doubts(&self) -> Doubts {
        let now = self.region.arm.clock().now();
        self.region.state().unavailable.doubts(now)
    }

    /// Remembers that a spot VM was evicted.
    pub(crate) fn learn_eviction(&self, size: &str, zone: &str) {
        self.region.with_size(size, |unavailable, sku, now| {
            unavailable.learn_eviction(sku, zone, now);
        });
    }

    /// What was learnt, as text.
    pub(crate) fn memory_text(&self) -> String {
        let now = self.region.arm.clock().now();
        self.region.state().unavailable.to_text(now)
    }

    /// Time at which the first of the offerings that failed is tried again; `None` if there are
    /// none.
    pub(crate) fn next_retry(&self) -> Option<Timestamp> {
        let now = self.region.arm.clock().now();
        self.region.state().unavailable.next_change(now)
    }

    /// What is not tried for a while.
    pub(crate) fn shortages(&self) -> Vec<Shortage> {
        let now = self.region.arm.clock().now();
        self.region.state().unavailable.shortages(now)
    }

    /// Takes up what was learnt before.
    pub(crate) fn restore_memory(&self, text: &str) {
        if let Err(error) = self.region.state().unavailable.restore(text) {
            tracing::warn!(%error, "stored capacity memory cannot be read, starting without");
        }
    }

    /// Waits for the first data. Older data is refreshed on a task of its own.
    async fn ensure_fresh(&self) -> Result<(), CloudError> {
        match self.region.freshness() {
            Freshness::Fresh => Ok(()),
            Freshness::Missing => {
                let _guard = self.region.refreshing.lock().await;
                // The caller that had the lock before may have failed.
                match self.region.recent_failure() {
                    Some(error) => Err(error),
                    None => self.region.refresh().await,
                }
            }
            Freshness::Old => {
                let mut refresh = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
                while refresh.try_join_next().is_some() {}
                if refresh.is_empty() {
                    let region = Arc::clone(&self.region);
                    refresh.spawn(async move {
                        if let Err(error) = region.refresh().await {
                            tracing::warn!(%error, "catalogue of the region not refreshed");
                        }
                    });
                }
                Ok(())
            }
        }
    }
}

/// State of the data of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// There is none to plan with.
    Missing,
    /// It is due to be refreshed.
    Old,
    Fresh,
}

impl Region {
    fn change_quota(&self, change: impl FnOnce(&mut Quota)) {
        let mut state = self.state();
        let before = state.fits_quota();
        change(&mut state.quota);
        // Most launches leave room for every size, and then computed catalogues stay valid.
        if state.fits_quota() != before {
            state.generation += 1;
        }
    }

    /// Changes the memory of offerings for a size; nothing for an unknown one.
    fn with_size(
        &self,
        size: &str,
        change: impl FnOnce(&mut UnavailableOfferings, &Sku, Timestamp),
    ) {
        let now = self.arm.clock().now();
        let mut state = self.state();
        let State { skus, unavailable, .. } = &mut *state;
        if let Some(sku) = skus.data.as_ref().and_then(|skus| skus.get(size)) {
            change(unavailable, sku, now);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn freshness(&self) -> Freshness {
        let now = self.arm.clock().now();
        let state = self.state();
        if state.skus.data.is_none() || state.prices.data.is_none() {
            Freshness::Missing
        } else if now < state.skus.next && now < state.prices.next && now < state.quota_count.next {
            Freshness::Fresh
        } else {
            Freshness::Old
        }
    }

    /// Failure of the first list of sizes some seconds ago; `None` without one.
    fn recent_failure(&self) -> Option<CloudError> {
        let now = self.arm.clock().now();
        let state = self.state();
        state.failed.as_ref().filter(|(_, until)| now < *until).map(|(error, _)| error.clone())
    }

    /// Refreshes what is due, side by side: none waits for an endpoint of another.
    async fn refresh(&self) -> Result<(), CloudError> {
        let now = self.arm.clock().now();
        let waits = self.freshness() == Freshness::Missing;
        let (skus_due, prices_due, quota_due) = {
            let state = self.state();
            (now >= state.skus.next, now >= state.prices.next, now >= state.quota_count.next)
        };
        let skus = async { if skus_due { self.refresh_skus(now).await } else { Ok(()) } };
        let prices = async {
            if prices_due {
                self.refresh_prices(now, waits).await;
            }
        };
        let quota = async {
            if quota_due {
                self.refresh_quota(now, waits).await;
            }
        };
        let (refreshed, (), ()) = futures::join!(skus, prices, quota);
        refreshed
    }

    /// Refreshes the list of sizes. A failure is an error only while there is no older list.
    async fn refresh_skus(&self, now: Timestamp) -> Result<(), CloudError> {
        let (subscription, region) = (&self.config.subscription_id, &self.config.location);
        let fetched = skus::list(&self.arm, subscription, region).await.and_then(|rows| {
            let skus: BTreeMap<String, Sku> = rows
                .iter()
                .filter_map(|row| match Sku::read(row, region) {
                    Ok(sku) => Some(sku),
                    Err(why) => {
                        tracing::debug!(instance_type = row.name, %why, "VM size left out");
                        None
                    }
                })
                .map(|sku| (sku.name.clone(), sku))
                .collect();
            if skus.is_empty() {
                let message = format!("region `{region}` offers no VM size that a node can use");
                let (class, code) = (ErrorClass::Invalid, "NoSizes");
                return Err(CloudError::new(class, "list VM sizes", code, message));
            }
            Ok(skus)
        });
        let mut state = self.state();
        match fetched {
            Ok(skus) => {
                if let Some(old) = &state.skus.data {
                    log_changes(old, &skus);
                }
                state.skus.store(skus, now, SKU_LIFETIME);
                state.failed = None;
                state.generation += 1;
            }
            Err(error) if state.skus.data.is_none() => {
                let until = later(self.arm.clock().now(), FAILURE_LIFETIME);
                state.failed = Some((error.clone(), until));
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(%error, "VM sizes not refreshed, using old ones");
                state.skus.next = later(self.arm.clock().now(), RETRY_INTERVAL);
            }
        }
        Ok(())
    }

    /// Refreshes prices, which fall back to older ones and then to the embedded list prices, those
    /// of the reference region if need be. `waits` if a caller does: some seconds at most.
    async fn refresh_prices(&self, now: Timestamp, waits: bool) {
        let region = &self.config.location;
        let is_first = self.state().prices.data.is_none();
        let fetch = prices::fetch(&self.price_client, region);
        let fetched = within(waits, fetch).await;
        let mut state = self.state();
        let (error, wait) = match fetched {
            Some(Ok(prices)) if !prices.on_demand.is_empty() => {
                state.prices.store(prices, now, PRICE_LIFETIME);
                (state.price_source, state.prices_failing) = (Some(PriceSource::Live), false);
                state.generation += 1;
                return;
            }
            Some(Ok(_)) => ("no prices for the region".to_owned(), PRICE_LIFETIME),
            Some(Err(error)) => (error.to_string(), RETRY_INTERVAL),
            None => (no_answer(), RETRY_INTERVAL),
        };
        let now = self.arm.clock().now();
        if is_first {
            let (prices, source) = built_in_prices(region);
            state.prices.store(prices, now, wait);
            state.price_source = Some(source);
            state.generation += 1;
        }
        state.prices.next = later(now, wait);
        if state.skus.data.is_some() && !std::mem::replace(&mut state.prices_failing, true) {
            let instead = state.price_source.map(PriceSource::as_str);
            tracing::warn!(error, region, instead, "prices not refreshed");
        }
    }

    /// Refreshes the quota count. `waits` if a caller does: some seconds at most.
    async fn refresh_quota(&self, now: Timestamp, waits: bool) {
        let (subscription, region) = (&self.config.subscription_id, &self.config.location);
        let fetched = within(waits, quota::fetch(&self.arm, subscription, region)).await;
        let fetched = fetched.unwrap_or_else(|| {
            let (class, operation) = (ErrorClass::Transient, "get quota usage");
            Err(CloudError::new(class, operation, "Timeout", no_answer()))
        });
        let mut state = self.state();
        let before = state.fits_quota();
        match fetched {
            Ok(left) => {
                state.quota.recount(left, now);
                state.quota_count.store((), now, QUOTA_LIFETIME);
            }
            Err(error) => {
                // Without sizes the caller is told of their failure alone.
                if state.skus.data.is_some() {
                    tracing::warn!(%error, "quota usage not refreshed");
                }
                if state.quota_count.at.is_none_or(|at| now >= later(at, MAX_QUOTA_AGE)) {
                    state.quota.forget_count();
                }
                state.quota_count.next = later(self.arm.clock().now(), RETRY_INTERVAL);
            }
        }
        if state.fits_quota() != before {
            state.generation += 1;
        }
    }
}

/// Logs the sizes that Azure lists and did not list before, and the other way round.
fn log_changes(old: &BTreeMap<String, Sku>, new: &BTreeMap<String, Sku>) {
    let lacking = |some: &BTreeMap<String, Sku>, others: &BTreeMap<String, Sku>| {
        let names: Vec<&str> =
            some.keys().filter(|name| !others.contains_key(*name)).map(String::as_str).collect();
        names.join(",")
    };
    let (added, removed) = (lacking(new, old), lacking(old, new));
    if !added.is_empty() || !removed.is_empty() {
        tracing::info!(added, removed, "list of VM sizes changed");
    }
}

/// The result of a fetch; `None` if a caller waits and has waited for long enough.
async fn within<T>(waits: bool, fetch: impl Future<Output = T>) -> Option<T> {
    if waits { tokio::time::timeout(MAX_FIRST_WAIT, fetch).await.ok() } else { Some(fetch.await) }
}

fn no_answer() -> String {
    format!("no answer within {} s", MAX_FIRST_WAIT.as_secs())
}

/// Quota held for a launch until it is accepted or fails.
pub(crate) struct QuotaHold<'a> {
    region: &'a Region,
    /// `None` once the hold is kept.
    claim: Option<String>,
}

impl QuotaHold<'_> {
    /// Keeps the quota held, until Azure has counted the VM.
    pub(crate) fn keep(mut self) {
        self.claim = None;
    }
}

impl Drop for QuotaHold<'_> {
    fn drop(&mut self) {
        if let Some(claim) = &self.claim {
            self.region.change_quota(|quota| quota.release(claim));
        }
    }
}

impl State {
    /// Whether each size, in name order, is within its quota on demand and on spot.
    fn fits_quota(&self) -> Vec<(bool, bool)> {
        let skus = self.skus.data.iter().flat_map(|skus| skus.values());
        let fits = |sku, capacity_type| self.fits(sku, capacity_type);
        skus.map(|sku| (fits(sku, CapacityType::OnDemand), fits(sku, CapacityType::Spot))).collect()
    }

    fn fits(&self, sku: &Sku, capacity_type: CapacityType) -> bool {
        self.quota.fits(&quota::charge(&sku.family, sku.vcpus, capacity_type))
    }

    fn compute(&self, settings: &Settings, now: Timestamp) -> Catalogue {
        let (Some(skus), Some(prices)) = (&self.skus.data, &self.prices.data) else {
            return Catalogue::default();
        };
        skus.values()
            .filter(|sku| suits(sku, settings))
            .map(|sku| {
                let on_demand = self.fits(sku, CapacityType::OnDemand);
                let spot = self.fits(sku, CapacityType::Spot);
                instance_type(sku, settings, prices, |zone, capacity_type| {
                    (if capacity_type == CapacityType::Spot { spot } else { on_demand })
                        && !self.unavailable.contains(sku, zone, capacity_type, now)
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
