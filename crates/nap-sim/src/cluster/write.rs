//! Writes to the API server. A conflict is normal, because the watch brings the new version; any
//! other failure is logged and retried.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use nap_clock::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::index::{Key, Mirror, key};

/// The writer of all simulated components.
pub(super) struct Writer {
    client: Client,
    pub(super) clock: Clock,
    trouble: bool,
    events: u64,
}

impl Writer {
    pub(super) fn new(client: Client, clock: Clock) -> Self {
        Self { client, clock, trouble: false, events: 0 }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The current time in whole seconds, as objects store it.
    pub(super) fn stamp(&self) -> String {
        self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Whether a write failed and must be retried; resets the flag.
    pub(super) fn take_trouble(&mut self) -> bool {
        std::mem::take(&mut self.trouble)
    }

    fn check<T>(&mut self, what: &'static str, name: &str, result: kube::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                tracing::debug!(what, name, message = status.message, "write conflict");
                None
            }
            Err(error) => {
                tracing::warn!(what, name, %error, "write failed");
                self.trouble = true;
                None
            }
        }
    }

    fn api<T>(&self, namespace: &str) -> Api<T>
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(super) async fn create<T>(
        &mut self,
        mirror: &mut Mirror<T>,
        namespace: &str,
        object: &Value,
    ) where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let object: T = match serde_json::from_value(object.clone()) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(%error, "invalid object");
                return;
            }
        };
        let result = self.api::<T>(namespace).create(&PostParams::default(), &object).await;
        if let Some(created) = self.check("create", &object.name_any(), result) {
            mirror.put(created);
        }
    }

    pub(super) async fn patch<T>(&mut self, mirror: &mut Mirror<T>, of: &Key, patch: &Value)
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = self.api::<T>(&of.0);
        let result = api.patch(&of.1, &PatchParams::default(), &Patch::Merge(patch)).await;
        if let Some(patched) = self.check("patch", &of.1, result) {
            mirror.put(patched);
        }
    }

    /// Patches a status by strategic merge, so that conditions merge by type.
    pub(super) async fn patch_status<T>(&mut self, mirror: &mut Mirror<T>, of: &Key, status: &Value)
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = self.api::<T>(&of.0);
        let patch = json!({ "status": status });
        let result =
            api.patch_status(&of.1, &PatchParams::default(), &Patch::Strategic(&patch)).await;
        if let Some(patched) = self.check("patch status", &of.1, result) {
            mirror.put(patched);
        }
    }

    /// Replaces a whole status.
    pub(super) async fn replace_status<T>(&mut self, mirror: &mut Mirror<T>, object: &T)
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let name = object.name_any();
        let api = self.api::<T>(&object.namespace().unwrap_or_default());
        let result = api.replace_status(&name, &PostParams::default(), object).await;
        if let Some(replaced) = self.check("replace status", &name, result) {
            mirror.put(replaced);
        }
    }

    /// Deletes an object with its uid as precondition, so that a new object of the same name stays.
    pub(super) async fn delete<T>(&mut self, mirror: &mut Mirror<T>, object: &T, grace: Option<u32>)
    where
        T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let of = key(object);
        let parameters = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::background()
        };
        let result = self.api::<T>(&of.0).delete(&of.1, &parameters).await;
        if let Some(answer) = self.check("delete", &of.1, result) {
            match answer.left() {
                Some(terminating) => mirror.put(terminating),
                None => mirror.remove(&of),
            }
        }
    }

    pub(super) async fn patch_node(
        &mut self,
        mirror: &mut Mirror<Node>,
        name: &str,
        patch: &Value,
    ) {
        let api: Api<Node> = Api::all(self.client.clone());
        let result = api.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        if let Some(node) = self.check("patch node", name, result) {
            mirror.put(node);
        }
    }

    /// Binds a pod and reads it back, so that the next scheduling decision counts it.
    pub(super) async fn bind(&mut self, mirror: &mut Mirror<Pod>, pod: &Pod, node: &str) -> bool {
        let of = key(pod);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": of.1, "namespace": of.0, "uid": pod.uid() },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let api = self.api::<Pod>(&of.0);
        let result: kube::Result<Value> =
            api.create_subresource("binding", &of.1, &PostParams::default(), &binding).await;
        if self.check("bind", &of.1, result).is_none() {
            return false;
        }
        let bound = api.get(&of.1).await;
        if let Some(bound) = self.check("get", &of.1, bound) {
            mirror.put(bound);
        }
        true
    }

    /// Publishes an event about a pod.
    pub(super) async fn event(&mut self, pod: &Pod, kind: &str, reason: &str, message: &str) {
        let (namespace, name) = key(pod);
        self.events += 1;
        let stamp = self.stamp();
        let event: Event = match serde_json::from_value(json!({
            "metadata": { "name": format!("{name}.{:016x}", self.events), "namespace": namespace },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": pod.uid(),
            },
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": stamp, "lastTimestamp": stamp,
            "source": { "component": "default-scheduler" }, "reportingComponent": "default-scheduler",
        })) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(%error, "invalid Event");
                return;
            }
        };
        let result = self.api::<Event>(&namespace).create(&PostParams::default(), &event).await;
        self.check("create event", &name, result);
    }
}
