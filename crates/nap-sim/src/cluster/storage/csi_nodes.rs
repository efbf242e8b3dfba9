//! CSINodes: the drivers of a node and how many disks it can hold.

use std::collections::BTreeSet;

use kube::ResourceExt;
use nap_api::labels;
use nap_azure::embedded::EmbeddedCatalogue;
use serde_json::json;

use super::{DISK, DISK_ZONE, FILE};
use crate::cluster::index::{Index, Key};
use crate::cluster::node_lifecycle::is_ready;
use crate::cluster::write::Writer;

/// Disks of a size that states no number, as the driver assumes.
const DEFAULT_DISKS: i64 = 16;

/// Registers the drivers on those of the nodes that have become ready. The CSINode goes with its
/// Node.
pub(super) async fn pass(nodes: BTreeSet<Key>, index: &mut Index, writer: &mut Writer) {
    for key in nodes {
        let Some(node) = index.nodes.get(&key).cloned() else { continue };
        if !is_ready(&node)
            || index.csi_nodes.get(&key).is_some()
            || !node.labels().contains_key(labels::INSTANCE_TYPE)
        {
            continue;
        }
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
