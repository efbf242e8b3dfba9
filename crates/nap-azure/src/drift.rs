//! Drift of machines: their Kubernetes version, image, subnet, and what AKS itself asks for.

use nap_api::aksnodeclass::condition::{IMAGES_READY, KUBERNETES_VERSION_READY};
use nap_api::{AKSNodeClass, conditions};
use nap_cloud::{InstanceDrift, InstanceDriftKind};

use crate::images::node_image_version;
use crate::machines::Machine;

/// Drift of a machine from its node class, or from what AKS wants; `None` if there is none. What
/// the status of the class does not know for sure is not compared.
pub(crate) fn drift(machine: &Machine, class: &AKSNodeClass) -> Option<InstanceDrift> {
    let drift = |kind, message| Some(InstanceDrift { kind, message });
    if let Some((has, wants)) = versions(machine, class) {
        let message = format!("Kubernetes version is {has}, and new nodes get {wants}");
        return drift(InstanceDriftKind::KubernetesVersion, message);
    }
    if let Some((has, wants)) = subnets(machine, class) {
        let message = format!("subnet is {has}, and the node class names {wants}");
        return drift(InstanceDriftKind::Subnet, message);
    }
    if let Some((has, wants)) = images(machine, class) {
        let message = format!("image is {has}, and new nodes get {wants}");
        return drift(InstanceDriftKind::Image, message);
    }
    let status = &machine.properties.status;
    let action = status.drift_action.as_deref().filter(|it| !it.is_empty() && *it != "Synced")?;
    let reason = status.drift_reason.as_deref().filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    drift(InstanceDriftKind::ClusterConfig, format!("AKS asks for the action {action}{reason}"))
}

/// Kubernetes version of a machine and of new ones, if they differ.
fn versions(machine: &Machine, class: &AKSNodeClass) -> Option<(String, String)> {
    let wants = is_known(class, KUBERNETES_VERSION_READY)
        .then(|| class.status.as_ref()?.kubernetes_version.as_deref())??;
    let kubernetes = &machine.properties.kubernetes;
    let has = kubernetes.current_orchestrator_version.as_deref();
    let has = has.or(kubernetes.orchestrator_version.as_deref())?.trim_start_matches('v');
    (has != wants).then(|| (has.to_owned(), wants.to_owned()))
}

/// Subnet of a machine and of its class, if both state one and they differ. A class without a
/// subnet leaves it to AKS.
fn subnets<'a>(machine: &'a Machine, class: &'a AKSNodeClass) -> Option<(&'a str, &'a str)> {
    let wants = class.spec.vnet_subnet_id.as_deref()?;
    let has = machine.properties.network.vnet_subnet_id.as_deref()?;
    (!has.eq_ignore_ascii_case(wants)).then_some((has, wants))
}

/// Image of a machine and the one of the class that takes its place, if the class lacks it.
fn images(machine: &Machine, class: &AKSNodeClass) -> Option<(String, String)> {
    let status = class.status.as_ref().filter(|_| is_known(class, IMAGES_READY))?;
    let has = machine.properties.node_image_version.as_deref()?;
    let images: Vec<String> =
        status.images.iter().filter_map(|image| node_image_version(&image.id)).collect();
    if images.is_empty() || images.iter().any(|image| image.eq_ignore_ascii_case(has)) {
        return None;
    }
    let definition = |image: &str| image.rsplit_once('-').map(|(name, _)| name.to_lowercase());
    let same = images.iter().find(|image| definition(image) == definition(has));
    Some((has.to_owned(), same.unwrap_or(&images[0]).clone()))
}

/// Whether a condition holds for the current generation of a class.
fn is_known(class: &AKSNodeClass, type_: &str) -> bool {
    let conditions = class.status.as_ref().map(|status| status.conditions.as_slice());
    conditions::get(conditions.unwrap_or_default(), type_).is_some_and(|condition| {
        condition.status == "True" && condition.observed_generation == class.metadata.generation
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const SUBNET: &str =
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/a";

    fn image(version: &str) -> Value {
        let gallery = "/subscriptions/s/resourceGroups/AKS-Ubuntu/providers/Microsoft.Compute/galleries/AKSUbuntu";
        json!({ "id": format!("{gallery}/images/2204gen2containerd/versions/{version}") })
    }

    fn class(spec: &Value, known: &str) -> AKSNodeClass {
        let condition = |type_: &str| {
            json!({
                "type": type_, "status": known, "reason": type_, "message": "",
                "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        serde_json::from_value(json!({
            "apiVersion": "karpenter.azure.com/v1beta1", "kind": "AKSNodeClass",
            "metadata": { "name": "d", "generation": 3 }, "spec": spec,
            "status": {
                "kubernetesVersion": "1.34.1", "images": [image("202601.5.0")],
                "conditions": [condition(IMAGES_READY), condition(KUBERNETES_VERSION_READY)],
            },
        }))
        .unwrap()
    }

    fn found(properties: &Value, class: &AKSNodeClass) -> Option<(&'static str, String)> {
        let mut machine = json!({ "properties": {
            "nodeImageVersion": "AKSUbuntu-2204gen2containerd-202601.5.0",
            "kubernetes": { "orchestratorVersion": "1.34.1" },
            "status": { "driftAction": "Synced" },
        } });
        for (key, value) in properties.as_object().unwrap() {
            machine["properties"][key] = value.clone();
        }
        let machine: Machine = serde_json::from_value(machine).unwrap();
        drift(&machine, class).map(|drift| (drift.kind.as_str(), drift.message))
    }

    #[test]
    fn each_difference_has_its_reason_and_says_what_differs() {
        let plain = class(&json!({}), "True");
        let with_subnet = class(&json!({ "vnetSubnetID": SUBNET }), "True");
        assert_eq!(found(&json!({}), &plain), None);
        let other = SUBNET.replace("subnets/a", "subnets/b");
        for (properties, class, reason, message) in [
            (
                json!({ "kubernetes": { "orchestratorVersion": "1.33.4" } }),
                &plain,
                "K8sVersionDrift",
                "Kubernetes version is 1.33.4, and new nodes get 1.34.1".to_owned(),
            ),
            (
                json!({ "nodeImageVersion": "AKSUbuntu-2204gen2containerd-202512.9.0" }),
                &plain,
                "ImageDrift",
                "image is AKSUbuntu-2204gen2containerd-202512.9.0, and new nodes get \
                 AKSUbuntu-2204gen2containerd-202601.5.0"
                    .to_owned(),
            ),
            (
                json!({ "network": { "vnetSubnetID": other } }),
                &with_subnet,
                "SubnetDrift",
                format!("subnet is {other}, and the node class names {SUBNET}"),
            ),
            (
                json!({ "status": { "driftAction": "Recreate", "driftReason": "identity" } }),
                &plain,
                "ClusterConfigDrift",
                "AKS asks for the action Recreate: identity".to_owned(),
            ),
        ] {
            assert_eq!(found(&properties, class), Some((reason, message)));
        }
    }

    #[test]
    fn equal_in_other_spelling_is_no_drift() {
        let class = class(&json!({ "vnetSubnetID": SUBNET }), "True");
        let same = json!({ "network": { "vnetSubnetID": SUBNET.to_uppercase() } });
        assert_eq!(found(&same, &class), None);
        // The machine's own version counts, not the one that was asked for.
        let kubernetes = json!({
            "orchestratorVersion": "1.34", "currentOrchestratorVersion": "1.34.1",
        });
        assert_eq!(found(&json!({ "kubernetes": kubernetes }), &class), None);
    }

    #[test]
    fn a_status_that_is_not_known_for_sure_is_not_compared() {
        let old = json!({
            "nodeImageVersion": "AKSUbuntu-2204gen2containerd-202512.9.0",
            "kubernetes": { "orchestratorVersion": "1.33.4" },
        });
        assert_eq!(found(&old, &class(&json!({}), "Unknown")), None);
        let mut changed = class(&json!({}), "True");
        changed.metadata.generation = Some(4);
        assert_eq!(found(&old, &changed), None);
    }
}
