//! The DNS cache that an AKSNodeClass can put on its nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words;
use crate::duration::NillableDuration;

/// A DNS cache on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalDns {
    /// Whether nodes have the cache.
    pub mode: LocalDnsMode,
    /// Resolution, by zone, for the node itself and for pods with `dnsPolicy: Default`.
    #[serde(rename = "vnetDNSOverrides")]
    #[schemars(length(max = 100))]
    pub vnet_dns_overrides: Vec<LocalDnsZone>,
    /// Resolution, by zone, for pods with `dnsPolicy: ClusterFirst`.
    #[serde(rename = "kubeDNSOverrides")]
    #[schemars(length(max = 100))]
    pub kube_dns_overrides: Vec<LocalDnsZone>,
}

words! {
    /// Whether nodes have the cache.
    LocalDnsMode {
        /// If the cluster is able to.
        Preferred = "Preferred",
        /// Always.
        Required = "Required",
        /// Never.
        Disabled = "Disabled",
    }
}

/// Resolution of the names of one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalDnsZone {
    /// The zone, such as `cluster.local`; `.` stands for all others.
    #[schemars(
        length(min = 1, max = 254),
        regex(
            pattern = r"^(\.|[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*\.?)$"
        )
    )]
    pub zone: String,
    /// Queries that are logged.
    pub query_logging: QueryLogging,
    /// Protocol towards the upstream server.
    pub protocol: LocalDnsProtocol,
    /// Upstream server that queries are forwarded to.
    pub forward_destination: ForwardDestination,
    /// Policy that picks one of several upstream servers.
    pub forward_policy: ForwardPolicy,
    /// Maximum number of concurrent queries.
    #[schemars(range(min = 0))]
    pub max_concurrent: i32,
    /// Time for which an answer is cached.
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub cache_duration: NillableDuration,
    /// Time for which a stale answer may be served.
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub serve_stale_duration: NillableDuration,
    /// Policy for serving stale answers.
    pub serve_stale: ServeStale,
}

words! {
    /// Queries that are logged.
    QueryLogging {
        /// Those that failed.
        Error = "Error",
        /// All.
        Log = "Log",
    }
}

words! {
    /// Protocol towards the upstream server.
    LocalDnsProtocol {
        /// By UDP where that is possible.
        PreferUdp = "PreferUDP",
        /// By TCP.
        ForceTcp = "ForceTCP",
    }
}

words! {
    /// Upstream server that queries are forwarded to.
    ForwardDestination {
        /// The cluster's CoreDNS.
        ClusterCoreDns = "ClusterCoreDNS",
        /// The virtual network's.
        VnetDns = "VnetDNS",
    }
}

words! {
    /// Policy that picks one of several upstream servers.
    ForwardPolicy {
        /// The first that answers.
        Sequential = "Sequential",
        /// Each in turn.
        RoundRobin = "RoundRobin",
        /// Any.
        Random = "Random",
    }
}

words! {
    /// Policy for serving stale answers.
    ServeStale {
        /// After the upstream server failed to answer.
        Verify = "Verify",
        /// At once, and the server is asked afterwards.
        Immediate = "Immediate",
        /// Never.
        Disable = "Disable",
    }
}
