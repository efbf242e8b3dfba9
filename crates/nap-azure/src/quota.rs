//! How many cores the subscription may still have, by family, with what was launched since Azure
//! last counted.

use std::collections::BTreeMap;
use std::sync::Mutex;

use nap_cloud::CloudError;
use serde::Deserialize;

use crate::arm::ArmClient;

/// Remaining cores. What is not known does not hold anything back.
#[derive(Debug, Default)]
pub struct Quota {
    /// Cores that are left, by lower-cased family.
    left: BTreeMap<String, i64>,
    /// Cores that were launched since the count, by lower-cased family.
    launched: Mutex<BTreeMap<String, i64>>,
}

impl Quota {
    /// Whether a size of a family can be had on demand.
    pub fn fits(&self, family: &str, vcpus: i64) -> bool {
        let family = family.to_lowercase();
        let Some(left) = self.left.get(&family) else { return true };
        let launched = self.launched.lock().map_or(0, |map| map.get(&family).copied().unwrap_or(0));
        vcpus <= left - launched
    }

    /// Counts a launch, so that a burst between two counts does not overrun the quota. A negative
    /// number gives it back.
    pub fn launched(&self, family: &str, vcpus: i64) {
        if let Ok(mut map) = self.launched.lock() {
            let count = map.entry(family.to_lowercase()).or_default();
            // Azure may have counted in between, and then what is given back is not there any more.
            *count = (*count + vcpus).max(0);
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

/// Asks Azure for the present count.
pub async fn fetch(arm: &ArmClient, subscription: &str, region: &str) -> Result<Quota, CloudError> {
    let path = format!(
        "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{region}/usages?api-version=2025-04-01"
    );
    let usages: Vec<Usage> = arm.list(&format!("list quota usage in {region}"), &path).await?;
    let left = usages
        .into_iter()
        .filter_map(|usage| {
            Some((usage.name.value?.to_lowercase(), usage.limit? - usage.current_value?))
        })
        .collect();
    Ok(Quota { left, launched: Mutex::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_count_until_azure_counts_again() {
        let quota =
            Quota { left: BTreeMap::from([("f".to_owned(), 10)]), launched: Mutex::default() };
        assert!(quota.fits("F", 8));
        quota.launched("F", 8);
        assert!(!quota.fits("f", 4));
        assert!(quota.fits("f", 2));
        assert!(quota.fits("unknown", 1000));
    }
}
