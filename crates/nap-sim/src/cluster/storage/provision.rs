//! New volumes, and the StorageClasses of every AKS cluster.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use nap_api::labels;
use serde_json::{Value, json};

use super::{DISK, DISK_ZONE, FILE};
use crate::azure::SUBSCRIPTION;

/// Name, driver, SKU and whether it is the default, of the StorageClasses that AKS installs.
const CLASSES: [(&str, &str, &str, bool); 9] = [
    ("azurefile", FILE, "Standard_LRS", false),
    ("azurefile-csi", FILE, "Standard_LRS", false),
    ("azurefile-csi-premium", FILE, "Premium_LRS", false),
    ("azurefile-premium", FILE, "Premium_LRS", false),
    ("default", DISK, "StandardSSD_LRS", true),
    ("managed", DISK, "StandardSSD_LRS", false),
    ("managed-csi", DISK, "StandardSSD_LRS", false),
    ("managed-csi-premium", DISK, "Premium_LRS", false),
    ("managed-premium", DISK, "Premium_LRS", false),
];

/// The StorageClasses of every AKS cluster.
pub fn storage_classes() -> Vec<Value> {
    let class = |(name, driver, sku, is_default): (&str, &str, &str, bool)| {
        let mode = if driver == DISK { "WaitForFirstConsumer" } else { "Immediate" };
        let mut class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {
                "name": name,
                "labels": {
                    "addonmanager.kubernetes.io/mode": "EnsureExists",
                    "kubernetes.io/cluster-service": "true",
                },
            },
            "provisioner": driver,
            "parameters": { "skuName": sku },
            "reclaimPolicy": "Delete",
            "allowVolumeExpansion": true,
            "volumeBindingMode": mode,
        });
        if is_default {
            class["metadata"]["annotations"] =
                json!({ "storageclass.kubernetes.io/is-default-class": "true" });
        }
        class
    };
    CLASSES.map(class).to_vec()
}

/// A volume for a claim, in the zone of a node where the disk has one.
pub(super) fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<&Node>,
) -> Value {
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    let spec = serde_json::to_value(&claim.spec).unwrap_or_default();
    let handle = if class.provisioner == DISK {
        format!(
            "/subscriptions/{SUBSCRIPTION}/resourceGroups/MC_nap/providers/Microsoft.Compute/disks/{name}"
        )
    } else {
        format!("MC_nap#nap#{name}###{}", claim.namespace().unwrap_or_default())
    };
    let mut volume = json!({
        "metadata": {
            "name": name,
            "annotations": { "pv.kubernetes.io/provisioned-by": class.provisioner },
        },
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": { "storage": spec["resources"]["requests"]["storage"] },
            "volumeMode": spec["volumeMode"],
            "claimRef": reference(claim),
            "csi": {
                "driver": class.provisioner, "volumeHandle": handle,
                "volumeAttributes": class.parameters,
            },
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name_any(),
            "mountOptions": class.mount_options,
        },
    });
    let zone = node.and_then(|node| node.labels().get(labels::ZONE));
    if let (true, Some(zone)) = (is_zonal(class), zone) {
        volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{
            "matchExpressions": [{ "key": DISK_ZONE, "operator": "In", "values": [zone] }],
        }] } });
    }
    volume
}

/// Whether a disk of the class is in one zone; zone-redundant disks are in all.
fn is_zonal(class: &StorageClass) -> bool {
    let parameters = class.parameters.iter().flatten();
    let redundant = |(key, value): (&String, &String)| {
        key.eq_ignore_ascii_case("skuName") && value.ends_with("_ZRS")
    };
    class.provisioner == DISK && !parameters.into_iter().any(redundant)
}

/// `spec.claimRef` of a volume.
pub(super) fn reference(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace(), "name": claim.name_any(), "uid": claim.uid(),
    })
}
