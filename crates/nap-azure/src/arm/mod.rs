//! A thin ARM client: tokens, bounded retries, paging and asynchronous operations, over one boxed
//! service.

mod classify;
mod client;
mod http_service;
mod operation;
mod token;

pub use classify::{ArmErrorBody, classify};
pub(crate) use classify::{is_family_quota, is_spot_quota, nullable};
pub use client::{ArmClient, ArmResponse, MAX_ATTEMPTS, MAX_PAGES};
pub use http_service::{HttpService, http_service, https_client};
pub use operation::{Operation, POLL_BOUND};
pub(crate) use token::percent_encode;
pub use token::{
    AccessToken, ManagedIdentity, StaticToken, TokenCache, TokenProvider, WorkloadIdentity,
    tokens_from_env,
};
