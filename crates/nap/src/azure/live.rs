//! Clients of the live Azure APIs.

use nap_azure::arm::{ArmClient, https_client, tokens_from_env};
use nap_azure::{AzureCloud, AzureConfig, AzureError, AzureProvider};
use nap_clock::Clock;

use crate::cli::LiveArgs;
use crate::user_error::UserError;

/// A logged-in client of ARM, and one of the public price API.
pub struct Live {
    /// Id of the subscription.
    pub subscription: String,
    /// ARM.
    pub arm: ArmClient,
    /// Retail prices; needs no login.
    pub prices: ArmClient,
}

/// The subscription of the options or, where they are silent, of the environment of `nap run`.
pub fn subscription(args: &LiveArgs) -> Option<String> {
    let is_set = |id: &String| !id.trim().is_empty();
    let variable = |name: &str| std::env::var(name).ok().filter(is_set);
    let option = args.subscription.clone().filter(is_set);
    option
        .or_else(|| variable("AZURE_SUBSCRIPTION_ID"))
        .or_else(|| variable("ARM_SUBSCRIPTION_ID"))
        .map(|id| id.trim().to_owned())
}

/// Clients by the options; `None` without a subscription.
pub fn connect(args: &LiveArgs) -> anyhow::Result<Option<Live>> {
    let Some(subscription) = subscription(args) else { return Ok(None) };
    let cloud = AzureCloud::from_variables(|name| variable(args, name)).map_err(unusable)?;
    let (clock, service) = (Clock::wall(), https_client()?);
    let (of, at) = (Some(subscription.as_str()), clock.clone());
    let tokens = tokens_from_env(service.clone(), at, &cloud.entra, of).map_err(unusable)?;
    let arm = ArmClient::new(service.clone(), tokens, clock.clone(), &cloud.arm_endpoint);
    let prices = ArmClient::anonymous(service, clock, &args.prices_endpoint);
    Ok(Some(Live { subscription, arm, prices }))
}

/// The provider of `nap run` for what a region sells to a subscription. Its cluster may be unknown:
/// sizes, prices and quota do not depend on it.
pub fn provider(
    args: &LiveArgs,
    subscription: &str,
    region: &str,
) -> anyhow::Result<AzureProvider> {
    let of_cluster = ["ARM_RESOURCE_GROUP", "CLUSTER_NAME", "AZURE_NODE_RESOURCE_GROUP"];
    let is_unset = |name: &str| variable(args, name).is_none_or(|value| value.trim().is_empty());
    let mut config = AzureConfig::from_variables(|name| match name {
        "AZURE_SUBSCRIPTION_ID" => Some(subscription.to_owned()),
        "LOCATION" => Some(region.to_owned()),
        _ if of_cluster.contains(&name) && is_unset(name) => Some("unknown".to_owned()),
        _ => variable(args, name),
    })
    .map_err(unusable)?;
    if is_unset("AZURE_NODE_RESOURCE_GROUP") {
        config.node_resource_group.clear();
    }
    AzureProvider::connect(config, Clock::wall()).map_err(unusable)
}

/// A variable, which an option may override.
fn variable(args: &LiveArgs, name: &str) -> Option<String> {
    match name {
        "NAP_ARM_ENDPOINT" if args.arm_endpoint.is_some() => args.arm_endpoint.clone(),
        "NAP_PRICES_ENDPOINT" => Some(args.prices_endpoint.clone()),
        _ => std::env::var(name).ok(),
    }
}

/// An endpoint as an option.
pub fn endpoint(text: &str) -> Result<String, String> {
    let known = text.starts_with("https://") || text.starts_with("http://");
    if known {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(format!("`{text}` is not a URL with `https://` or `http://`"))
    }
}

/// Settings that cannot be used as a user error.
#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn unusable(error: AzureError) -> anyhow::Error {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    UserError::new(line, "`docs/running.md` lists every variable").into()
}

/// A failed call to Azure as a user error.
pub fn failed(what: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    let hint = "log in as `nap run` does: `docs/running.md` lists the variables; --arm-endpoint and \
                --prices-endpoint name other endpoints";
    UserError::new(format!("{what}: {error}"), hint).into()
}
