//! The members of bodies, by the published definition of [`MACHINES_VERSION`]: names, types,
//! allowed values, and which ones only the service writes.
//!
//! Unknown, mistyped and read-only members are refused by name. `nodeImageVersion` is read-only in
//! the definition; AKS takes it from node auto-provisioning all the same, and so does the emulator.
//! What a GET returned may be sent back: an update ignores read-only members.

use serde_json::Value;

use super::request::Refusal;

/// The version of the machines API whose members are known here.
pub(crate) const MACHINES_VERSION: &str = "2026-05-02-preview";

/// Type of a member.
enum Kind {
    Text,
    Bool,
    /// 32 bits.
    Int,
    Number,
    Texts,
    /// Each of 32 bits.
    Numbers,
    TextMap,
    OneOf(&'static [&'static str]),
    Object(&'static [Member]),
    List(&'static [Member]),
    Map(&'static [Member]),
    /// Written by the service only.
    ReadOnly,
}

use Kind::{Bool, Int, List, Map, Number, Numbers, Object, OneOf, Text, TextMap, Texts};

struct Member {
    name: &'static str,
    kind: Kind,
}

const fn member(name: &'static str, kind: Kind) -> Member {
    Member { name, kind }
}

const fn read_only(name: &'static str) -> Member {
    Member { name, kind: Kind::ReadOnly }
}

/// Refuses a body with a member that the definition does not have, or not like that.
pub(crate) fn check_machine(body: &Value, exists: bool) -> Result<(), Refusal> {
    check(body, &Object(MACHINE), exists, "")
}

/// Refuses a list of machines to delete with a member that the definition does not have.
pub(crate) fn check_deletion(body: &Value) -> Result<(), Refusal> {
    check(body, &Object(DELETION), false, "")
}

/// Refuses a machines-mode agent pool with a member that such a pool does not have.
pub(crate) fn check_agent_pool(body: &Value) -> Result<(), Refusal> {
    check(body, &Object(MACHINE_POOL), false, "")
}

/// Refuses a maintenance configuration with a member that the definition does not have.
pub(crate) fn check_maintenance(body: &Value) -> Result<(), Refusal> {
    check(body, &Object(MAINTENANCE), true, "")
}

fn check(value: &Value, kind: &Kind, exists: bool, path: &str) -> Result<(), Refusal> {
    if value.is_null() && !path.is_empty() {
        return Ok(());
    }
    let each = |value: &Value, members: &'static [Member], path: &str| {
        check(value, &Object(members), exists, path)
    };
    let wanted = match (kind, value) {
        (Object(members), Value::Object(values)) => {
            for (name, value) in values {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let Some(member) = members.iter().find(|member| member.name == name) else {
                    let known: Vec<&str> = members.iter().map(|member| member.name).collect();
                    return refuse(&path, &format!("is not known; known are {}", known.join(", ")));
                };
                if !matches!(member.kind, Kind::ReadOnly) {
                    check(value, &member.kind, exists, &path)?;
                } else if !exists && !value.is_null() {
                    return refuse(&path, "is read-only");
                }
            }
            return Ok(());
        }
        (List(members), Value::Array(values)) => {
            return values
                .iter()
                .enumerate()
                .try_for_each(|(index, value)| each(value, members, &format!("{path}[{index}]")));
        }
        (Map(members), Value::Object(values)) => {
            return values
                .iter()
                .try_for_each(|(key, value)| each(value, members, &format!("{path}['{key}']")));
        }
        (OneOf(allowed), Value::String(text)) if allowed.contains(&text.as_str()) => return Ok(()),
        (OneOf(allowed), _) => return refuse(path, &format!("must be {}", allowed.join(" or "))),
        (Text, Value::String(_)) | (Bool, Value::Bool(_)) | (Number, Value::Number(_)) => {
            return Ok(());
        }
        (Int, Value::Number(number)) if is_int(number) => return Ok(()),
        (Texts, Value::Array(values)) if values.iter().all(Value::is_string) => return Ok(()),
        (Numbers, Value::Array(values)) if values.iter().all(is_int_value) => return Ok(()),
        (TextMap, Value::Object(values)) if values.values().all(Value::is_string) => return Ok(()),
        (Text, _) => "a string",
        (Bool, _) => "a boolean",
        (Int, _) => "an integer of 32 bits",
        (Number, _) => "a number",
        (Texts, _) => "a list of strings",
        (Numbers, _) => "a list of integers of 32 bits",
        (TextMap, _) => "an object of strings",
        (List(_), _) => "a list of objects",
        (Object(_) | Map(_) | Kind::ReadOnly, _) => "an object",
    };
    refuse(path, &format!("must be {wanted}"))
}

fn is_int(number: &serde_json::Number) -> bool {
    number.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

fn is_int_value(value: &Value) -> bool {
    value.as_number().is_some_and(is_int)
}

fn refuse(path: &str, problem: &str) -> Result<(), Refusal> {
    let member = if path.is_empty() { "the body".to_owned() } else { format!("'{path}'") };
    let message = format!(
        "The request content was invalid: {member} {problem} in api-version {MACHINES_VERSION}."
    );
    Err(Refusal::new(400, "InvalidRequestContent", message))
}

/// From the published definition.
const MACHINE: &[Member] = &[
    read_only("id"),
    read_only("name"),
    read_only("type"),
    read_only("systemData"),
    member("properties", Object(PROPERTIES)),
    member("zones", Texts),
];
const PROPERTIES: &[Member] = &[
    member("network", Object(NETWORK)),
    read_only("resourceId"),
    member("hardware", Object(HARDWARE)),
    member("operatingSystem", Object(OPERATING_SYSTEM)),
    member("kubernetes", Object(KUBERNETES)),
    member("mode", OneOf(&["System", "User", "Gateway", "ManagedSystem", "Machines"])),
    member("security", Object(SECURITY)),
    member("priority", OneOf(&["Spot", "Regular"])),
    member("evictionPolicy", OneOf(&["Delete", "Deallocate"])),
    member("billing", Object(BILLING)),
    // Read-only in the definition; see above.
    member("nodeImageVersion", Text),
    read_only("provisioningState"),
    member("tags", TextMap),
    read_only("eTag"),
    read_only("status"),
    member("localDNSProfile", Object(LOCAL_DNS)),
];
const NETWORK: &[Member] = &[
    read_only("ipAddresses"),
    member("vnetSubnetID", Text),
    member("podSubnetID", Text),
    member("enableNodePublicIP", Bool),
    member("nodePublicIPPrefixID", Text),
    member("nodePublicIPTags", List(IP_TAG)),
];
const IP_TAG: &[Member] = &[member("ipTagType", Text), member("tag", Text)];
const HARDWARE: &[Member] = &[
    member("vmSize", Text),
    member("gpuInstanceProfile", OneOf(&["MIG1g", "MIG2g", "MIG3g", "MIG4g", "MIG7g"])),
    member("gpuProfile", Object(GPU)),
    member("ultraSsdEnabled", Bool),
];
const GPU: &[Member] = &[
    member("driver", OneOf(&["Install", "None"])),
    member("driverType", OneOf(&["GRID", "CUDA"])),
    member("nvidia", Object(NVIDIA)),
];
const NVIDIA: &[Member] = &[
    member("managementMode", OneOf(&["Unmanaged", "Managed"])),
    member("migStrategy", OneOf(&["None", "Single", "Mixed"])),
];
const OPERATING_SYSTEM: &[Member] = &[
    member("osType", OneOf(&["Linux", "Windows"])),
    member(
        "osSKU",
        OneOf(&[
            "Ubuntu",
            "AzureLinux",
            "AzureLinux3",
            "Mariner",
            "Flatcar",
            "CBLMariner",
            "Windows2019",
            "Windows2022",
            "Ubuntu2204",
            "Windows2025",
            "WindowsAnnual",
            "Ubuntu2404",
            "AzureContainerLinux",
        ]),
    ),
    member("osDiskSizeGB", Int),
    member("osDiskType", OneOf(&["Managed", "Ephemeral"])),
    member("enableFIPS", Bool),
    member("linuxProfile", Object(LINUX)),
    member("windowsProfile", Object(WINDOWS)),
];
const LINUX: &[Member] =
    &[member("linuxOSConfig", Object(LINUX_OS)), member("messageOfTheDay", Text)];
const WINDOWS: &[Member] = &[member("disableOutboundNat", Bool)];
const LINUX_OS: &[Member] = &[
    member("sysctls", Object(SYSCTLS)),
    member("transparentHugePageEnabled", Text),
    member("transparentHugePageDefrag", Text),
    member("swapFileSizeMB", Int),
];
const SYSCTLS: &[Member] = &[
    member("netCoreSomaxconn", Int),
    member("netCoreNetdevMaxBacklog", Int),
    member("netCoreRmemDefault", Int),
    member("netCoreRmemMax", Int),
    member("netCoreWmemDefault", Int),
    member("netCoreWmemMax", Int),
    member("netCoreOptmemMax", Int),
    member("netIpv4TcpMaxSynBacklog", Int),
    member("netIpv4TcpMaxTwBuckets", Int),
    member("netIpv4TcpFinTimeout", Int),
    member("netIpv4TcpKeepaliveTime", Int),
    member("netIpv4TcpKeepaliveProbes", Int),
    member("netIpv4TcpkeepaliveIntvl", Int),
    member("netIpv4TcpTwReuse", Bool),
    member("netIpv4IpLocalPortRange", Text),
    member("netIpv4NeighDefaultGcThresh1", Int),
    member("netIpv4NeighDefaultGcThresh2", Int),
    member("netIpv4NeighDefaultGcThresh3", Int),
    member("netNetfilterNfConntrackMax", Int),
    member("netNetfilterNfConntrackBuckets", Int),
    member("fsInotifyMaxUserWatches", Int),
    member("fsFileMax", Int),
    member("fsAioMaxNr", Int),
    member("fsNrOpen", Int),
    member("kernelThreadsMax", Int),
    member("vmMaxMapCount", Int),
    member("vmSwappiness", Int),
    member("vmVfsCachePressure", Int),
];
const KUBERNETES: &[Member] = &[
    member("nodeLabels", TextMap),
    member("orchestratorVersion", Text),
    read_only("currentOrchestratorVersion"),
    member("kubeletDiskType", OneOf(&["OS", "Temporary"])),
    member("kubeletConfig", Object(KUBELET)),
    member("nodeInitializationTaints", Texts),
    member("nodeTaints", Texts),
    member("maxPods", Int),
    read_only("nodeName"),
    member(
        "workloadRuntime",
        OneOf(&["OCIContainer", "WasmWasi", "KataMshvVmIsolation", "KataVmIsolation"]),
    ),
    member("artifactStreamingProfile", Object(ARTIFACT_STREAMING)),
];
const KUBELET: &[Member] = &[
    member("cpuManagerPolicy", Text),
    member("cpuCfsQuota", Bool),
    member("cpuCfsQuotaPeriod", Text),
    member("imageGcHighThreshold", Int),
    member("imageGcLowThreshold", Int),
    member("topologyManagerPolicy", Text),
    member("allowedUnsafeSysctls", Texts),
    member("failSwapOn", Bool),
    member("containerLogMaxSizeMB", Int),
    member("containerLogMaxFiles", Int),
    member("podMaxPids", Int),
    member("seccompDefault", OneOf(&["Unconfined", "RuntimeDefault"])),
    member("kubeReserved", Object(KUBE_RESERVED)),
    member("hardEvictionThreshold", Object(HARD_EVICTION)),
];
const KUBE_RESERVED: &[Member] = &[member("cpuMillicores", Int), member("memoryMB", Int)];
const HARD_EVICTION: &[Member] = &[
    member("memoryAvailable", Text),
    member("nodeFsAvailable", Text),
    member("nodeFsInodesFree", Text),
];
const ARTIFACT_STREAMING: &[Member] = &[member("enabled", Bool)];
const SECURITY: &[Member] = &[
    member("enableVTPM", Bool),
    member("enableSecureBoot", Bool),
    member("sshAccess", OneOf(&["LocalUser", "Disabled", "EntraId"])),
    member("enableEncryptionAtHost", Bool),
];
const BILLING: &[Member] = &[member("spotMaxPrice", Number)];
const LOCAL_DNS: &[Member] = &[
    member("mode", OneOf(&["Preferred", "Required", "Disabled"])),
    read_only("state"),
    member("vnetDNSOverrides", Map(DNS_OVERRIDE)),
    member("kubeDNSOverrides", Map(DNS_OVERRIDE)),
];
const DNS_OVERRIDE: &[Member] = &[
    member("queryLogging", OneOf(&["Error", "Log"])),
    member("protocol", OneOf(&["PreferUDP", "ForceTCP"])),
    member("forwardDestination", OneOf(&["ClusterCoreDNS", "VnetDNS"])),
    member("forwardPolicy", OneOf(&["Sequential", "RoundRobin", "Random"])),
    member("maxConcurrent", Int),
    member("cacheDurationInSeconds", Int),
    member("serveStaleDurationInSeconds", Int),
    member("serveStale", OneOf(&["Verify", "Immediate", "Disable"])),
];

const DELETION: &[Member] = &[member("machineNames", Texts)];
const MACHINE_POOL: &[Member] = &[
    read_only("id"),
    read_only("name"),
    read_only("type"),
    member("properties", Object(&[member("mode", OneOf(&["Machines"]))])),
];
const MAINTENANCE: &[Member] = &[
    read_only("id"),
    read_only("name"),
    read_only("type"),
    read_only("systemData"),
    member("properties", Object(MAINTENANCE_PROPERTIES)),
];
const MAINTENANCE_PROPERTIES: &[Member] = &[
    member("timeInWeek", List(TIME_IN_WEEK)),
    member("notAllowedTime", List(TIME_SPAN)),
    member("maintenanceWindow", Object(WINDOW)),
];
const WEEK_DAY: Kind =
    OneOf(&["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]);
const TIME_IN_WEEK: &[Member] = &[member("day", WEEK_DAY), member("hourSlots", Numbers)];
const TIME_SPAN: &[Member] = &[member("start", Text), member("end", Text)];
const WINDOW: &[Member] = &[
    member("schedule", Object(SCHEDULE)),
    member("durationHours", Int),
    member("utcOffset", Text),
    member("startDate", Text),
    member("startTime", Text),
    member("notAllowedDates", List(TIME_SPAN)),
];
const SCHEDULE: &[Member] = &[
    member("daily", Object(&[member("intervalDays", Int)])),
    member("weekly", Object(&[member("intervalWeeks", Int), member("dayOfWeek", WEEK_DAY)])),
    member("absoluteMonthly", Object(&[member("intervalMonths", Int), member("dayOfMonth", Int)])),
    member(
        "relativeMonthly",
        Object(&[
            member("intervalMonths", Int),
            member("weekIndex", OneOf(&["First", "Second", "Third", "Fourth", "Last"])),
            member("dayOfWeek", WEEK_DAY),
        ]),
    ),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(body: &Value) -> Option<String> {
        check_machine(body, false).err().map(|refusal| refusal.message)
    }

    #[test]
    fn unknown_mistyped_and_read_only_members_are_named() {
        for (properties, part) in [
            (json!({ "hardware": { "vmsize": "x" } }), "'properties.hardware.vmsize' is not known"),
            (json!({ "hardware": { "vmSize": 4 } }), "'properties.hardware.vmSize' must be a str"),
            (json!({ "mode": "Default" }), "'properties.mode' must be System or User"),
            (json!({ "resourceId": "x" }), "'properties.resourceId' is read-only"),
            (json!({ "kubernetes": { "maxPods": 1.5 } }), "'properties.kubernetes.maxPods' must"),
            (json!({ "kubernetes": { "maxPods": 3_000_000_000_i64 } }), "an integer of 32 bits"),
            (json!({ "kubernetes": { "nodeTaints": "x" } }), "must be a list of strings"),
            (json!({ "tags": { "a": 1 } }), "'properties.tags' must be an object of strings"),
            (json!({ "security": [] }), "'properties.security' must be an object"),
            (json!({ "capacityReservation": {} }), "'properties.capacityReservation' is not known"),
            (
                json!({ "localDNSProfile": { "vnetDNSOverrides": { ".": { "protocol": "UDP" } } } }),
                "'properties.localDNSProfile.vnetDNSOverrides['.'].protocol' must be PreferUDP",
            ),
        ] {
            let found = problem(&json!({ "properties": properties })).unwrap();
            assert!(found.contains(part), "{found}");
        }
        assert!(problem(&json!([])).unwrap().contains("the body must be an object"));
        assert!(problem(&json!({ "location": "eastus" })).unwrap().contains("'location'"));
    }

    #[test]
    fn null_is_absent_and_an_update_ignores_read_only_members() {
        let body = json!({
            "name": "m-1", "zones": null,
            "properties": { "eTag": "x", "priority": null, "nodeImageVersion": "i" },
        });
        assert!(check_machine(&body, true).is_ok());
        assert!(problem(&body).unwrap().contains("'name' is read-only"));
    }
}
