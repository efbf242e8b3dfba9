//! The Node of a VM, its conditions and its Lease.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::time::Duration;

use fnv::FnvHasher;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt as _;
use nap_api::Taint;
use nap_units::Resources;
use serde_json::{Value, json};

/// Validity of a Lease in periods of its renewal, as of a real kubelet.
const LEASE_PERIODS: u64 = 4;

/// What a kubelet knows about its VM from the start.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) provider_id: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) capacity: Resources,
    pub(crate) allocatable: Resources,
    pub(crate) address: String,
    pub(crate) version: String,
}

impl Machine {
    /// Whether its Node was made by hand: there is no VM, and the kubelet does not register.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.provider_id.is_empty()
    }

    /// The Node as the kubelet registers it: labels and taints are on it from the first moment.
    pub(crate) fn node(&self, boots: u32, now: Timestamp) -> serde_json::Result<Node> {
        serde_json::from_value(json!({
            "metadata": { "name": self.name, "labels": self.labels },
            "spec": { "providerID": self.provider_id, "taints": self.taints },
            "status": self.status(boots, false, None, now),
        }))
    }

    /// The whole status, as a kubelet reports it.
    pub(crate) fn status(
        &self,
        boots: u32,
        ready: bool,
        held: Option<&Node>,
        now: Timestamp,
    ) -> Value {
        json!({
            "capacity": amounts(&self.capacity),
            "allocatable": amounts(&self.allocatable),
            "addresses": [
                { "type": "InternalIP", "address": self.address },
                { "type": "Hostname", "address": self.name },
            ],
            "nodeInfo": self.info(boots),
            "conditions": conditions(ready, held, now),
        })
    }

    fn info(&self, boots: u32) -> Value {
        let label = |key: &str, fallback: &str| {
            self.labels.get(key).cloned().unwrap_or_else(|| fallback.to_owned())
        };
        let id = if self.is_by_hand() { &self.name } else { &self.provider_id };
        let machine = uuid(id);
        let (system, kernel) = system(&label("kubernetes.azure.com/node-image-version", ""));
        json!({
            "architecture": label("kubernetes.io/arch", "amd64"),
            "operatingSystem": label("kubernetes.io/os", "linux"),
            "kubeletVersion": self.version, "kubeProxyVersion": "",
            "osImage": system, "kernelVersion": kernel,
            "containerRuntimeVersion": "containerd://1.7.0",
            "bootID": uuid(&format!("{id}/{boots}")),
            "machineID": machine.replace('-', ""), "systemUUID": machine,
        })
    }
}

/// Operating system and kernel that come with a node image, such as
/// `AKSUbuntu-2404gen2containerd-202601.5.0`.
fn system(image: &str) -> (&'static str, &'static str) {
    let names = |part: &str| image.contains(part);
    match () {
        () if names("AzureLinux-V2") => ("CBL-Mariner/Linux", "5.15.186.1-1.cm2"),
        () if names("AzureLinux") => ("Microsoft Azure Linux 3.0", "6.6.96.2-2.azl3"),
        () if names("Ubuntu-2404") => ("Ubuntu 24.04.3 LTS", "6.8.0-1030-azure"),
        () if names("Ubuntu-2004") => ("Ubuntu 20.04.6 LTS", "5.4.0-1146-azure-fips"),
        () => ("Ubuntu 22.04.5 LTS", "5.15.0-1092-azure"),
    }
}

/// The conditions of a kubelet. A condition whose status is unchanged keeps its transition time.
pub(crate) fn conditions(ready: bool, held: Option<&Node>, now: Timestamp) -> Value {
    let reported = Reported { status: ready, ..Reported::default() };
    let reported = BTreeMap::from([("Ready".to_owned(), reported)]);
    reported_conditions(&reported, held, now)
}

/// A condition that was reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    pub(crate) status: bool,
    /// Empty for the kubelet's usual reason and message.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The conditions of a kubelet, with those that were reported.
pub(crate) fn reported_conditions(
    reported: &BTreeMap<String, Reported>,
    held: Option<&Node>,
    now: Timestamp,
) -> Value {
    let stamp = stamp(now);
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let since = held
            .and_then(|node| find(node, kind))
            .filter(|held| held.status == status)
            .and_then(|held| held.last_transition_time.as_ref())
            .map_or_else(|| stamp.clone(), |time| self::stamp(time.0));
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": stamp, "lastTransitionTime": since,
        })
    };
    let mut all = vec![
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        condition(
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        condition(
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
    ];
    for (kind, reported) in reported {
        let status = if reported.status { "True" } else { "False" };
        let (reason, message) = match (kind.as_str(), reported.status) {
            ("Ready", true) => ("KubeletReady", "kubelet is posting ready status"),
            ("Ready", false) if reported.reason.is_empty() => {
                ("KubeletNotReady", "container runtime network not ready")
            }
            _ => (reported.reason.as_str(), reported.message.as_str()),
        };
        all.push(condition(kind, status, reason, message));
    }
    json!(all)
}

pub(crate) fn is_ready(node: &Node) -> bool {
    find(node, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Whether a kubelet, or a controller in its place, has said if the Node is ready.
pub(crate) fn has_reported(node: &Node) -> bool {
    find(node, "Ready").is_some()
}

fn find<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

/// The Lease of a Node, renewed now. Its owner is the Node, so it goes with it.
pub(crate) fn lease(node: &Node, period: Duration, now: Timestamp) -> serde_json::Result<Lease> {
    let name = node.name_any();
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "kube-node-lease",
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid() },
            ],
        },
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": period.as_secs() * LEASE_PERIODS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    }))
}

/// A time in whole seconds, as objects store it.
pub(crate) fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn amounts(resources: &Resources) -> BTreeMap<String, String> {
    let quantities = resources.to_quantities().into_iter();
    quantities.map(|(name, quantity)| (name, quantity.to_string())).collect()
}

/// An id that depends on the text only.
fn uuid(text: &str) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    let high = hasher.finish();
    hasher.write(b"/");
    let low = hasher.finish();
    let digits = format!("{high:016x}{low:016x}");
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_the_system_of_its_image() {
        for (image, expected) in [
            ("AKSUbuntu-2204gen2containerd-202601.5.0", "Ubuntu 22.04.5 LTS"),
            ("AKSUbuntu-2404gen2arm64containerd-202601.5.0", "Ubuntu 24.04.3 LTS"),
            ("AKSUbuntu-2004gen2fipscontainerd-202601.5.0", "Ubuntu 20.04.6 LTS"),
            ("AKSAzureLinux-V2gen2-202601.5.0", "CBL-Mariner/Linux"),
            ("AKSAzureLinux-V3gen2arm64-202601.5.0", "Microsoft Azure Linux 3.0"),
            ("", "Ubuntu 22.04.5 LTS"),
        ] {
            assert_eq!(system(image).0, expected, "{image}");
        }
    }
}
