//! Objects without what no decision reads, made as they enter the index. Pods have a type of their
//! own ([`super::Pod`]).
//!
//! Writes send only differences, so what is missing here stays on the server.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(super) fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
}

pub(super) fn node(node: &mut Node) {
    metadata(&mut node.metadata);
    if let Some(status) = &mut node.status {
        status.addresses = None;
        status.config = None;
        status.daemon_endpoints = None;
        status.images = None;
        status.node_info = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.features = None;
        status.runtime_handlers = None;
    }
}
