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
    /// How names are resolved for the node itself and for pods with `dnsPolicy: Default`.
    #[serde(rename = "vnetDNSOverrides")]
    #[schemars(length(max = 100))]
    pub vnet_dns_overrides: Vec<LocalDnsZone>,
    /// How names are resolved for pods with `dnsPolicy: ClusterFirst`.
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

/// How the names of one zone are resolved.
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
    /// Which queries are logged.
    pub query_logging: QueryLogging,
    /// How the server behind the cache is asked.
    pub protocol: LocalDnsProtocol,
    /// Which server stands behind the cache.
    pub forward_destination: ForwardDestination,
    /// Which of several servers is asked.
    pub forward_policy: ForwardPolicy,
    /// How many queries may wait for an answer at once.
    #[schemars(range(min = 0))]
    pub max_concurrent: i32,
    /// How long an answer is kept.
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub cache_duration: NillableDuration,
    /// How long an outdated answer may still be given.
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub serve_stale_duration: NillableDuration,
    /// When an outdated answer is given.
    pub serve_stale: ServeStale,
}

words! {
    /// Which queries are logged.
    QueryLogging {
        /// Those that failed.
        Error = "Error",
        /// All.
        Log = "Log",
    }
}

words! {
    /// How the server behind the cache is asked.
    LocalDnsProtocol {
        /// By UDP where that is possible.
        PreferUdp = "PreferUDP",
        /// By TCP.
        ForceTcp = "ForceTCP",
    }
}

words! {
    /// Which server stands behind the cache.
    ForwardDestination {
        /// The cluster's CoreDNS.
        ClusterCoreDns = "ClusterCoreDNS",
        /// The virtual network's.
        VnetDns = "VnetDNS",
    }
}

words! {
    /// Which of several servers is asked.
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
    /// When an outdated answer is given.
    ServeStale {
        /// After asking in vain.
        Verify = "Verify",
        /// At once, and the server is asked afterwards.
        Immediate = "Immediate",
        /// Never.
        Disable = "Disable",
    }
}
