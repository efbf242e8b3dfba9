//! Clients of the live Azure APIs.

use std::sync::Arc;

use nap_azure::arm::{ArmClient, https_client, tokens_from_env};
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

/// Clients by the options; `None` without a subscription.
pub fn connect(args: &LiveArgs) -> anyhow::Result<Option<Live>> {
    let Some(subscription) = args.subscription.clone().filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let (clock, service) = (Clock::wall(), https_client()?);
    let tokens = tokens_from_env(service.clone(), clock.clone(), &args.arm_endpoint)?;
    let arm =
        ArmClient::new(service.clone(), Arc::clone(&tokens), clock.clone(), &args.arm_endpoint);
    let prices = ArmClient::anonymous(service, clock, &args.prices_endpoint);
    Ok(Some(Live { subscription, arm, prices }))
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

/// A failed call to Azure as a user error.
pub fn failed(what: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    let hint = "log in as `nap run` does: `docs/running.md` lists the variables; --arm-endpoint and \
                --prices-endpoint name other endpoints";
    UserError::new(format!("{what}: {error}"), hint).into()
}
