//! Quota of vCPUs by family, with a hold for every launch since Azure last counted.

use std::collections::BTreeMap;

use nap_cloud::CloudError;
use serde::Deserialize;

use crate::arm::ArmClient;

/// Remaining vCPUs by family. A family that Azure does not report has no limit.
#[derive(Debug, Default)]
pub struct Quota {
    /// vCPUs left at the last count, by lower-cased family.
    left: BTreeMap<String, i64>,
    /// vCPUs held by launches since then, by lower-cased family.
    held: BTreeMap<String, i64>,
}

impl Quota {
    /// A quota with vCPUs left in one family.
    #[cfg(test)]
    pub(crate) fn with_left(family: &str, vcpus: i64) -> Self {
        Self { left: BTreeMap::from([(family.to_lowercase(), vcpus)]), held: BTreeMap::new() }
    }

    /// Whether a size of a family fits on demand.
    pub fn fits(&self, family: &str, vcpus: i64) -> bool {
        let family = family.to_lowercase();
        let held = self.held.get(&family).copied().unwrap_or(0);
        self.left.get(&family).is_none_or(|left| vcpus <= left - held)
    }

    /// Holds vCPUs for a launch, so that a burst between two counts does not exceed the quota.
    pub fn hold(&mut self, family: &str, vcpus: i64) {
        *self.held.entry(family.to_lowercase()).or_default() += vcpus;
    }

    /// Releases held vCPUs. A count in between has dropped the hold, so nothing may be left of it.
    pub fn release(&mut self, family: &str, vcpus: i64) {
        if let Some(held) = self.held.get_mut(&family.to_lowercase()) {
            *held = (*held - vcpus).max(0);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    current_value: Option<i64>,
    limit: Option<i64>,
    name: UsageName,
}

#[derive(Deserialize)]
struct UsageName {
    value: Option<String>,
}

/// Fetches the current count of a region.
pub async fn fetch(arm: &ArmClient, subscription: &str, region: &str) -> Result<Quota, CloudError> {
    let path = format!(
        "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{region}/usages?api-version=2025-04-01"
    );
    let usages: Vec<Usage> = arm.list(&format!("list quota usage in {region}"), &path).await?;
    let left = |usage: Usage| {
        Some((usage.name.value?.to_lowercase(), usage.limit? - usage.current_value?))
    };
    Ok(Quota { left: usages.into_iter().filter_map(left).collect(), held: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> Quota {
        Quota::with_left("f", 10)
    }

    #[test]
    fn held_cores_count_against_the_quota() {
        let mut quota = quota();
        assert!(quota.fits("F", 8));
        quota.hold("F", 8);
        assert!(!quota.fits("f", 4));
        assert!(quota.fits("f", 2));
        quota.release("f", 8);
        assert!(quota.fits("f", 10));
    }

    #[test]
    fn a_release_after_a_new_count_adds_nothing() {
        let mut quota = quota();
        quota.release("f", 8);
        assert!(!quota.fits("f", 11));
    }

    #[test]
    fn a_family_without_a_count_has_no_limit() {
        assert!(quota().fits("unknown", 1000));
    }
}
