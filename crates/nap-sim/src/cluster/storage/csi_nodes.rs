//! CSINodes: the drivers of a node and how many disks it can hold.

use kube::ResourceExt;
use nap_api::labels;
use nap_azure::embedded::EmbeddedCatalogue;
use serde_json::json;

use super::{DISK, DISK_ZONE, FILE};
use crate::cluster::index::Index;
use crate::cluster::node_lifecycle::is_ready;
use crate::cluster::write::Writer;

/// Disks of a size that states no number, as the driver assumes.
const DEFAULT_DISKS: i64 = 16;

/// Registers the drivers on nodes that have become ready. The CSINode goes with its Node.
pub(super) async fn pass(index: &mut Index, writer: &mut Writer) {
    let missing: Vec<_> = index
        .nodes
        .values()
        .filter(|node| {
            is_ready(node)
                && index.csi_nodes.get(&(String::new(), node.name_any())).is_none()
                && node.labels().contains_key(labels::INSTANCE_TYPE)
        })
        .cloned()
        .collect();
    for node in missing {
        let name = node.name_any();
        let size = node.labels().get(labels::INSTANCE_TYPE).map_or("", String::as_str);
        let sku = EmbeddedCatalogue::embedded().sku(size);
        let disks = sku.and_then(|sku| sku.max_data_disks).unwrap_or(DEFAULT_DISKS);
        let object = json!({
            "metadata": {
                "name": name,
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid() },
                ],
            },
            "spec": { "drivers": [
                {
                    "name": DISK, "nodeID": name, "topologyKeys": [DISK_ZONE],
                    "allocatable": { "count": disks },
                },
                { "name": FILE, "nodeID": name, "topologyKeys": null },
            ] },
        });
        writer.create(&mut index.csi_nodes, "", &object).await;
    }
}
