//! A thin ARM client over one boxed service: tokens, retries, paging and asynchronous operations.

mod azure_cli;
mod chained_tokens;
mod classify;
mod client;
mod http_service;
mod limiter;
mod operation;
mod retry;
mod token;
mod words;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub use azure_cli::AzureCli;
pub use chained_tokens::ChainedTokens;
pub(crate) use classify::nullable;
pub use classify::{ArmErrorBody, Failure};
pub use client::{ArmClient, ArmFailure, ArmResponse, MAX_PAGES};
pub use http_service::{HttpService, http_service, https_client};
pub use operation::{operation_failure, operation_url};
pub use retry::MAX_ATTEMPTS;
pub use token::{
    AccessToken, ManagedIdentity, StaticToken, TokenCache, TokenProvider, WorkloadIdentity,
    tokens_from_env,
};

/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A value for the query of a URL.
pub(crate) fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}
