//! Writes to the API server. A conflict is normal, because the watch brings the new version; any
//! other failure is logged and retried.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use nap_clock::Clock;
use serde_json::{Value, json};

use super::earliest;
use super::index::{Key, Mirror, Object, key};
use super::similar_events::SimilarEvents;

/// Delay after which a write that failed is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(1);
/// Delay after which a pod that admission refused is created again.
const RETRY_REFUSED: SignedDuration = SignedDuration::from_secs(15);
/// Names of the components as field managers.
pub(super) const CONTROLLERS: &str = "kube-controller-manager";
pub(super) const SCHEDULER: &str = "kube-scheduler";
/// Events whose repetition is counted in the first one; more are forgotten.
const MAX_KNOWN_EVENTS: usize = 4096;

/// The writer of all simulated components.
pub(super) struct Writer {
    client: Client,
    pub(super) clock: Clock,
    retry: Option<Timestamp>,
    events: u64,
    /// Events of workloads; `None` in simulations without users: they double the writes.
    workload_events: Option<SimilarEvents>,
    /// Field manager of the writes.
    manager: &'static str,
    /// Name and count of published events, by uid of the object, reason and message.
    published: BTreeMap<(String, String, String), (String, u32)>,
}

impl Writer {
    pub(super) fn new(client: Client, clock: Clock, workload_events: bool) -> Self {
        Self {
            client,
            clock,
            retry: None,
            events: 0,
            workload_events: workload_events.then(SimilarEvents::default),
            manager: CONTROLLERS,
            published: BTreeMap::new(),
        }
    }

    /// Lets the next writes be those of a component.
    pub(super) fn act_as(&mut self, manager: &'static str) {
        self.manager = manager;
    }

    fn posting(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() }
    }

    fn patching(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The current time in whole seconds, as objects store it.
    pub(super) fn stamp(&self) -> String {
        self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// When a failed write is to be tried again; forgets it.
    pub(super) fn take_retry(&mut self) -> Option<Timestamp> {
        self.retry.take()
    }

    fn retry_in(&mut self, delay: SignedDuration) {
        self.retry = earliest(self.retry, self.now().checked_add(delay).ok());
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
                self.retry_in(RETRY);
                None
            }
        }
    }

    fn api<T: Object>(&self, namespace: &str) -> Api<T> {
        T::api(self.client.clone(), namespace)
    }

    /// The client, for requests that are no writes.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Creates an object; false if that failed.
    pub(super) async fn create<T: Object>(
        &mut self,
        mirror: &mut Mirror<T>,
        namespace: &str,
        object: &Value,
    ) -> bool {
        let Some(object) = typed::<T>(object) else { return false };
        let result = self.api::<T>(namespace).create(&self.posting(), &object).await;
        match self.check("create", &object.name_any(), result) {
            Some(created) => {
                mirror.put(created);
                true
            }
            None => false,
        }
    }

    /// Creates an object of a controller, and says so about the owner if it is a pod or a claim.
    /// What admission refuses is an event about the owner, and the error; it is `None` for others.
    pub(super) async fn create_for<O: Object, T: Object>(
        &mut self,
        owner: &O,
        component: &str,
        mirror: &mut Mirror<T>,
        object: &Value,
    ) -> Result<(), Option<String>> {
        let namespace = owner.namespace().unwrap_or_default();
        let Some(object) = typed::<T>(object) else { return Err(None) };
        match self.api::<T>(&namespace).create(&self.posting(), &object).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                let message = match of_set(owner, "create", &object) {
                    Some(what) => format!("{what} failed error: {}", status.message),
                    None => format!("Error creating: {}", status.message),
                };
                self.event(owner, component, "Warning", "FailedCreate", &message).await;
                self.retry_in(RETRY_REFUSED);
                Err(Some(status.message))
            }
            result => match self.check("create", &object.name_any(), result) {
                Some(created) => {
                    let message = match of_set(owner, "create", &created) {
                        Some(what) => format!("{what} successful"),
                        None => format!("Created pod: {}", created.name_any()),
                    };
                    if is_told(&created) {
                        self.tell(owner, component, "SuccessfulCreate", &message).await;
                    }
                    mirror.put(created);
                    Ok(())
                }
                None => Err(None),
            },
        }
    }

    /// Deletes a pod of a controller, and says so about the owner.
    pub(super) async fn delete_for<O: Object>(
        &mut self,
        owner: &O,
        component: &str,
        mirror: &mut Mirror<Pod>,
        pod: &Pod,
    ) {
        self.delete(mirror, pod, None).await;
        let message = match of_set(owner, "delete", pod) {
            Some(what) => format!("{what} successful"),
            None => format!("Deleted pod: {}", pod.name_any()),
        };
        self.tell(owner, component, "SuccessfulDelete", &message).await;
    }

    /// Publishes what a controller has done for a workload, where users read events.
    pub(super) async fn tell<T: Object>(
        &mut self,
        about: &T,
        component: &str,
        reason: &str,
        message: &str,
    ) {
        let (now, uid) = (self.now(), about.uid().unwrap_or_default());
        let Some(similar) = self.workload_events.as_mut() else { return };
        let Some(identity) = similar.identity(now, component, &uid, reason, message) else {
            return;
        };
        let words = if identity == message {
            message.to_owned()
        } else {
            format!("(combined from similar events): {message}")
        };
        self.publish(about, component, ("Normal", reason, &words), &identity).await;
    }

    pub(super) async fn patch<T: Object>(
        &mut self,
        mirror: &mut Mirror<T>,
        of: &Key,
        patch: &Value,
    ) -> bool {
        let api = self.api::<T>(&of.0);
        let result = api.patch(&of.1, &self.patching(), &Patch::Merge(patch)).await;
        match self.check("patch", &of.1, result) {
            Some(patched) => {
                mirror.put(patched);
                true
            }
            None => false,
        }
    }

    /// Patches a status by strategic merge, so that conditions merge by type.
    pub(super) async fn patch_status<T: Object>(
        &mut self,
        mirror: &mut Mirror<T>,
        of: &Key,
        status: &Value,
    ) {
        let api = self.api::<T>(&of.0);
        let patch = json!({ "status": status });
        let result = api.patch_status(&of.1, &self.patching(), &Patch::Strategic(&patch)).await;
        if let Some(patched) = self.check("patch status", &of.1, result) {
            mirror.put(patched);
        }
    }

    /// Replaces a whole status; false if that failed.
    pub(super) async fn replace_status<T: Object>(
        &mut self,
        mirror: &mut Mirror<T>,
        object: &T,
    ) -> bool {
        let name = object.name_any();
        let api = self.api::<T>(&object.namespace().unwrap_or_default());
        let result = api.replace_status(&name, &self.posting(), object).await;
        match self.check("replace status", &name, result) {
            Some(replaced) => {
                mirror.put(replaced);
                true
            }
            None => false,
        }
    }

    /// Deletes an object with its uid as precondition, so that a new object of the same name stays.
    pub(super) async fn delete<T: Object>(
        &mut self,
        mirror: &mut Mirror<T>,
        object: &T,
        grace: Option<u32>,
    ) {
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
        let result = api.patch(name, &self.patching(), &Patch::Strategic(patch)).await;
        if let Some(node) = self.check("patch node", name, result) {
            mirror.put(node);
        }
    }

    /// Patches the status of a Node, conditions by type.
    pub(super) async fn patch_node_status(
        &mut self,
        mirror: &mut Mirror<Node>,
        name: &str,
        status: &Value,
    ) {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = json!({ "status": status });
        let result = api.patch_status(name, &self.patching(), &Patch::Strategic(&patch)).await;
        if let Some(node) = self.check("patch node status", name, result) {
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
            api.create_subresource("binding", &of.1, &self.posting(), &binding).await;
        if self.check("bind", &of.1, result).is_none() {
            return false;
        }
        let bound = api.get(&of.1).await;
        if let Some(bound) = self.check("get", &of.1, bound) {
            mirror.put(bound);
        }
        true
    }

    /// Publishes an event about an object unless it was published before.
    pub(super) async fn event_once<T: Object>(
        &mut self,
        about: &T,
        component: &str,
        kind: &str,
        reason: &str,
        message: &str,
    ) {
        let identity = (about.uid().unwrap_or_default(), reason.to_owned(), message.to_owned());
        if !self.published.contains_key(&identity) {
            self.event(about, component, kind, reason, message).await;
        }
    }

    /// Publishes an event about an object. A repetition raises the count of the first one.
    pub(super) async fn event<T: Object>(
        &mut self,
        about: &T,
        component: &str,
        kind: &str,
        reason: &str,
        message: &str,
    ) {
        self.publish(about, component, (kind, reason, message), message).await;
    }

    /// Events of one object and reason with the same identity are one.
    async fn publish<T: Object>(
        &mut self,
        about: &T,
        component: &str,
        (kind, reason, message): (&str, &str, &str),
        identity: &str,
    ) {
        let (namespace, name) = key(about);
        let place = if namespace.is_empty() { "default".to_owned() } else { namespace.clone() };
        let stamp = self.stamp();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &place);
        let identity = (about.uid().unwrap_or_default(), reason.to_owned(), identity.to_owned());
        let patching = self.patching();
        if let Some((event, count)) = self.published.get_mut(&identity) {
            *count += 1;
            let patch = json!({ "count": *count, "lastTimestamp": stamp, "message": message });
            let event = event.clone();
            if api.patch(&event, &patching, &Patch::Merge(patch)).await.is_ok() {
                return;
            }
        }
        self.events += 1;
        let event_name = format!("{name}.{:016x}", self.events);
        let event = json!({
            "metadata": { "name": event_name, "namespace": place },
            "involvedObject": {
                "apiVersion": T::api_version(&()), "kind": T::kind(&()), "name": name,
                "namespace": namespace, "uid": about.uid(),
            },
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": stamp, "lastTimestamp": stamp,
            "source": { "component": component }, "reportingComponent": component,
        });
        let event: Event = match serde_json::from_value(event) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(%error, "invalid Event");
                return;
            }
        };
        if self.published.len() >= MAX_KNOWN_EVENTS {
            self.published.clear();
        }
        self.published.insert(identity, (event_name, 1));
        match api.create(&self.posting(), &event).await {
            // The namespace ends: nobody is left to read it.
            Err(kube::Error::Api(status)) if status.code == 403 => {}
            result => drop(self.check("create event", &name, result)),
        }
    }
}

/// Whether the creation of an object is an event of its controller.
fn is_told<T: Object>(_: &T) -> bool {
    matches!(&*T::kind(&()), "Pod" | "PersistentVolumeClaim")
}

/// What is done to a pod or a claim of a StatefulSet, in its words; `None` for other owners.
fn of_set<O: Object, T: Object>(owner: &O, verb: &str, object: &T) -> Option<String> {
    if O::kind(&()) != "StatefulSet" {
        return None;
    }
    let (set, name) = (owner.name_any(), object.name_any());
    if T::kind(&()) == "Pod" {
        return Some(format!("{verb} Pod {name} in StatefulSet {set}"));
    }
    let ordinal = name.rsplit('-').next().unwrap_or_default();
    Some(format!("{verb} Claim {name} Pod {set}-{ordinal} in StatefulSet {set}"))
}

fn typed<T: Object>(object: &Value) -> Option<T> {
    match serde_json::from_value(object.clone()) {
        Ok(object) => Some(object),
        Err(error) => {
            tracing::error!(%error, "invalid object");
            None
        }
    }
}
