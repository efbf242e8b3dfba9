//! The operating system settings of an AKSNodeClass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words;

/// Settings of the operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinuxOsConfiguration {
    /// Size of the swap file; absent means none. The kubelet must then be told `failSwapOn: false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^\d+(E|P|T|G|M|K|Ei|Pi|Ti|Gi|Mi|Ki)$"))]
    pub swap_file_size: Option<String>,
    /// Kernel settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctls: Option<SysctlConfiguration>,
    /// Defragmentation mode of transparent huge pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent_huge_page_defrag: Option<TransparentHugePageDefrag>,
    /// Mode of transparent huge pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent_huge_page_enabled: Option<TransparentHugePages>,
}

words! {
    /// Defragmentation mode of transparent huge pages.
    TransparentHugePageDefrag {
        /// At once, and the program waits.
        Always = "always",
        /// In the background.
        Defer = "defer",
        /// In the background; directly for regions that asked by `madvise`.
        DeferMadvise = "defer+madvise",
        /// Directly for regions that asked by `madvise`.
        Madvise = "madvise",
        /// Not at all.
        Never = "never",
    }
}

words! {
    /// Mode of transparent huge pages.
    TransparentHugePages {
        /// For every process.
        Always = "always",
        /// For regions that asked by `madvise`.
        Madvise = "madvise",
        /// Never.
        Never = "never",
    }
}

/// Declares the settings once: our name, the name on the wire, the incumbent's name (for the drift
/// hash), type and bounds or pattern.
macro_rules! sysctls {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $wire:literal, $go:literal $(in $low:literal..=$high:literal)? $(like $pattern:literal)?;)+) => {
        /// Kernel settings; what is absent keeps the image's own value.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct SysctlConfiguration {
            $(
                $(#[$doc])*
                #[serde(rename = $wire, default, skip_serializing_if = "Option::is_none")]
                $(#[schemars(range(min = $low, max = $high))])?
                $(#[schemars(regex(pattern = $pattern))])?
                pub $name: Option<$kind>,
            )+
        }

        impl SysctlConfiguration {
            /// The incumbent's field names and our values, in the incumbent's order of declaration.
            pub(crate) fn fields(&self) -> Vec<(&'static str, Option<crate::hash::Value>)> {
                vec![$(($go, self.$name.clone().map(crate::hash::Value::from)),)+]
            }
        }
    };
}

sysctls! {
    /// `fs.aio-max-nr`: asynchronous disk requests at once.
    fs_aio_max_nr: i32 = "fsAioMaxNr", "FsAioMaxNr" in 65536..=6_553_500;
    /// `fs.file-max`: open files on the VM.
    fs_file_max: i32 = "fsFileMax", "FsFileMax" in 8192..=12_000_500;
    /// `fs.inotify.max_user_watches`: watched files per user.
    fs_inotify_max_user_watches: i32 = "fsInotifyMaxUserWatches", "FsInotifyMaxUserWatches" in 781_250..=2_097_152;
    /// `fs.nr_open`: open files per process.
    fs_nr_open: i32 = "fsNrOpen", "FsNrOpen" in 8192..=20_000_500;
    /// `kernel.threads-max`: threads on the VM.
    kernel_threads_max: i32 = "kernelThreadsMax", "KernelThreadsMax" in 20..=513_785;
    /// `net.core.netdev_max_backlog`: packets that wait for the kernel.
    net_core_netdev_max_backlog: i32 = "netCoreNetdevMaxBacklog", "NetCoreNetdevMaxBacklog" in 1000..=3_240_000;
    /// `net.core.optmem_max`: bytes of options per socket.
    net_core_optmem_max: i32 = "netCoreOptmemMax", "NetCoreOptmemMax" in 20480..=4_194_304;
    /// `net.core.rmem_default`: bytes of a socket's receive buffer.
    net_core_rmem_default: i32 = "netCoreRmemDefault", "NetCoreRmemDefault" in 212_992..=134_217_728;
    /// `net.core.rmem_max`: most bytes of a socket's receive buffer.
    net_core_rmem_max: i32 = "netCoreRmemMax", "NetCoreRmemMax" in 212_992..=134_217_728;
    /// `net.core.somaxconn`: connections that wait to be accepted.
    net_core_somaxconn: i32 = "netCoreSomaxconn", "NetCoreSomaxconn" in 4096..=3_240_000;
    /// `net.core.wmem_default`: bytes of a socket's send buffer.
    net_core_wmem_default: i32 = "netCoreWmemDefault", "NetCoreWmemDefault" in 212_992..=134_217_728;
    /// `net.core.wmem_max`: most bytes of a socket's send buffer.
    net_core_wmem_max: i32 = "netCoreWmemMax", "NetCoreWmemMax" in 212_992..=134_217_728;
    /// `net.ipv4.ip_local_port_range`: first and last port of outgoing connections, as `"32768
    /// 60999"`.
    net_ipv4_ip_local_port_range: String = "netIPv4IPLocalPortRange", "NetIPv4IPLocalPortRange" like r"^\d+ \d+$";
    /// `net.ipv4.neigh.default.gc_thresh1`: neighbours that are always kept.
    net_ipv4_neigh_default_gc_thresh1: i32 = "netIPv4NeighDefaultGcThresh1", "NetIPv4NeighDefaultGcThresh1" in 128..=80_000;
    /// `net.ipv4.neigh.default.gc_thresh2`: neighbours that are kept for a while.
    net_ipv4_neigh_default_gc_thresh2: i32 = "netIPv4NeighDefaultGcThresh2", "NetIPv4NeighDefaultGcThresh2" in 512..=90_000;
    /// `net.ipv4.neigh.default.gc_thresh3`: most neighbours.
    net_ipv4_neigh_default_gc_thresh3: i32 = "netIPv4NeighDefaultGcThresh3", "NetIPv4NeighDefaultGcThresh3" in 1024..=100_000;
    /// `net.ipv4.tcp_fin_timeout`: seconds that a half-closed connection is kept.
    net_ipv4_tcp_fin_timeout: i32 = "netIPv4TCPFinTimeout", "NetIPv4TCPFinTimeout" in 5..=120;
    /// `net.ipv4.tcp_keepalive_probes`: unanswered probes that end a connection.
    net_ipv4_tcp_keepalive_probes: i32 = "netIPv4TCPKeepaliveProbes", "NetIPv4TCPKeepaliveProbes" in 1..=15;
    /// `net.ipv4.tcp_keepalive_time`: seconds of silence before the first probe.
    net_ipv4_tcp_keepalive_time: i32 = "netIPv4TCPKeepaliveTime", "NetIPv4TCPKeepaliveTime" in 30..=432_000;
    /// `net.ipv4.tcp_max_syn_backlog`: connections that wait for their handshake.
    net_ipv4_tcp_max_syn_backlog: i32 = "netIPv4TCPMaxSynBacklog", "NetIPv4TCPMaxSynBacklog" in 128..=3_240_000;
    /// `net.ipv4.tcp_max_tw_buckets`: closed connections that are remembered.
    net_ipv4_tcp_max_tw_buckets: i32 = "netIPv4TCPMaxTwBuckets", "NetIPv4TCPMaxTwBuckets" in 8000..=1_440_000;
    /// `net.ipv4.tcp_tw_reuse`: whether closed connections may be used again.
    net_ipv4_tcp_tw_reuse: bool = "netIPv4TCPTwReuse", "NetIPv4TCPTwReuse";
    /// `net.ipv4.tcp_keepalive_intvl`: seconds between probes.
    net_ipv4_tcp_keepalive_intvl: i32 = "netIPv4TCPKeepaliveIntvl", "NetIPv4TCPKeepaliveIntvl" in 10..=90;
    /// `net.netfilter.nf_conntrack_buckets`: size of the table of connections.
    net_netfilter_nf_conntrack_buckets: i32 = "netNetfilterNfConntrackBuckets", "NetNetfilterNfConntrackBuckets" in 65536..=524_288;
    /// `net.netfilter.nf_conntrack_max`: tracked connections.
    net_netfilter_nf_conntrack_max: i32 = "netNetfilterNfConntrackMax", "NetNetfilterNfConntrackMax" in 131_072..=2_097_152;
    /// `vm.max_map_count`: mapped areas per process.
    vm_max_map_count: i32 = "vmMaxMapCount", "VMMaxMapCount" in 65530..=262_144;
    /// `vm.swappiness`: how willingly memory is swapped.
    vm_swappiness: i32 = "vmSwappiness", "VMSwappiness" in 0..=100;
    /// `vm.vfs_cache_pressure`: how willingly cached directories are dropped.
    vm_vfs_cache_pressure: i32 = "vmVfsCachePressure", "VMVfsCachePressure" in 0..=100;
}
