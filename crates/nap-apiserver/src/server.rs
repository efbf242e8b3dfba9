//! Routing: which verb on which resource a request is, and the shared state it works on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use http::{Method, Response};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::request::{self, ApiRequest, Target};
use crate::resources::{self, GroupResource, Resource, Source};
use crate::store::{Key, Store};
use crate::verbs::{WriteOptions, reviews};
use crate::{Config, ResponseBody, discovery, lock, object, openapi, render};

/// Lifetime of an event.
const EVENT_LIFE: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);
/// Interval between sweeps of expired events.
const EVENT_SWEEP: jiff::SignedDuration = jiff::SignedDuration::from_mins(1);

/// Everything the server knows.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    /// Objects being deleted whose end the server itself waits for: namespaces, definitions and
    /// owners with foreground deletion.
    pub(crate) terminating: BTreeSet<(GroupResource, Key)>,
    /// Time of the last sweep of expired events.
    swept: jiff::Timestamp,
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        let mut state = Self {
            store: Store::new(config.seed),
            registry: Registry::default(),
            terminating: BTreeSet::new(),
            swept: config.clock.now(),
            config,
        };
        for resource in resources::builtin() {
            if resource.source == Source::Stored {
                state.store.collections.entry(resource.group_resource()).or_default();
            }
            state.registry.insert(resource);
        }
        let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let class = |name: &str, value: i64| {
            json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": name }, "value": value,
            })
        };
        for object in [
            namespace("default"),
            namespace("kube-node-lease"),
            namespace("kube-public"),
            namespace("kube-system"),
            class("system-cluster-critical", 2_000_000_000),
            class("system-node-critical", 2_000_001_000),
        ] {
            let made = state.start_with(object);
            debug_assert!(made.is_ok(), "what every cluster starts with is valid: {made:?}");
        }
        let made = state.provide(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "kubernetes", "namespace": "default",
                "labels": { "component": "apiserver", "provider": "kubernetes" },
            },
            "spec": {
                "clusterIP": "10.96.0.1",
                "ports": [{ "name": "https", "port": 443, "targetPort": 443 }],
            },
        }));
        debug_assert!(made.is_ok(), "what every cluster starts with is valid: {made:?}");
        state
    }

    /// Creates an object that the cluster starts with; names and uids of later objects do not
    /// depend on it.
    pub(crate) fn provide(&mut self, object: Value) -> std::result::Result<(), String> {
        let (kind, namespace) = (object::text(&object, &["kind"]), object::namespace(&object));
        self.store.begin_aside(&format!("{kind}/{namespace}/{}", object::name(&object)));
        let made = self.start_with(object);
        self.store.end_aside();
        made
    }

    fn start_with(&mut self, object: Value) -> std::result::Result<(), String> {
        let (api_version, kind) =
            (object::text(&object, &["apiVersion"]), object::text(&object, &["kind"]));
        let resource = self.registry.by_kind(api_version, kind).cloned();
        let resource = resource.ok_or_else(|| format!("{kind} of {api_version} is not served"))?;
        let namespace = object::namespace(&object).to_owned();
        let created = self.create(&resource, &namespace, object, &mut WriteOptions::default());
        created.map(|_| ()).map_err(|error| error.message)
    }

    /// Creates the ServiceAccount that every namespace has.
    pub(crate) fn provide_account(&mut self, namespace: &Value) {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "default", "namespace": object::name(namespace) },
        });
        let provided = self.provide(account);
        debug_assert!(provided.is_ok(), "the account of a new namespace is valid: {provided:?}");
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        self.config.clock.now()
    }

    /// Events live for an hour, as in the real server, so that a long story does not fill the
    /// memory.
    pub(crate) fn expire_events(&mut self) {
        let now = self.now();
        if now.duration_since(self.swept) < EVENT_SWEEP {
            return;
        }
        self.swept = now;
        let events = GroupResource::new("", "events");
        let Some(collection) = self.store.collections.get(&events) else { return };
        let expired: Vec<Key> = collection
            .objects
            .iter()
            .filter(|(_, event)| {
                let created = object::text(event, &["metadata", "creationTimestamp"])
                    .parse::<jiff::Timestamp>();
                created.is_ok_and(|created| now.duration_since(created) > EVENT_LIFE)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in expired {
            self.store.remove(&events, &key);
        }
    }

    pub(crate) fn timestamp(&self) -> String {
        object::time(self.now())
    }
}

/// The served resources by group, version and plural name.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
    /// Number of changes so far.
    changes: u64,
}

impl Registry {
    pub(crate) fn insert(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
        self.changes += 1;
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// Number of changes so far: what was served at the same number is served still.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Any served version of a collection, the storage version first.
    pub(crate) fn any(&self, resource: &GroupResource) -> Option<Arc<Resource>> {
        let mut versions = self.iter().filter(|r| r.is(&resource.group, &resource.plural));
        let first = versions.next()?;
        let stored =
            std::iter::once(first).chain(versions).find(|r| r.version == r.storage_version);
        Some(Arc::clone(stored.unwrap_or(first)))
    }

    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.iter().find(|r| r.kind == kind && r.api_version() == api_version)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    fn serves(&self, group: &str, version: &str) -> bool {
        self.iter().any(|r| r.group == group && (version.is_empty() || r.version == version))
    }

    pub(crate) fn forget(&mut self, resource: &GroupResource) {
        self.resources.retain(|_, r| !r.is(&resource.group, &resource.plural));
        self.changes += 1;
    }
}

/// Answers one request. Runs to its end under the lock; only watches outlive it.
pub(crate) fn handle(
    shared: &Arc<Mutex<State>>,
    request: &ApiRequest,
) -> Result<Response<ResponseBody>> {
    let mut state = lock(shared);
    if request.method == Method::GET
        && let Some(answer) = fixed_paths(&state, request)
    {
        return answer;
    }
    let unknown = |state: &State| match request::group_version(&request.path) {
        Some((group, version)) if !state.registry.serves(group, version) => {
            ApiError::unserved_group()
        }
        _ => ApiError::unknown_path(),
    };
    let target = Target::parse(&request.path).ok_or_else(|| unknown(&state))?;
    let resource = state
        .registry
        .find(&target.group, &target.version, &target.plural)
        .ok_or_else(|| unknown(&state))?;
    if !resource.namespaced && !target.namespace.is_empty() {
        return Err(ApiError::unknown_path());
    }
    if resource.namespaced && target.namespace.is_empty() && !target.name.is_empty() {
        return Err(ApiError::unknown_path());
    }
    let answer = match resource.source {
        Source::Stored => dispatch(&mut state, shared, request, &target, &resource)?,
        Source::Review => reviews::answer(request, &resource)?,
        Source::Metrics => state.metrics(request, &resource, &(target.namespace, target.name))?,
    };
    Ok(match &resource.deprecation_warning {
        Some(warning) => render::with_warnings(answer, std::slice::from_ref(warning)),
        None => answer,
    })
}

fn fixed_paths(state: &State, request: &ApiRequest) -> Option<Result<Response<ResponseBody>>> {
    let path = request.path.trim_end_matches('/');
    match path {
        "/healthz" | "/readyz" | "/livez" => return Some(Ok(render::text("ok"))),
        "/version" => return Some(Ok(render::json(200, &discovery::version(&state.config)))),
        _ => {}
    }
    if let Some(rest) = path.strip_prefix("/openapi/v3") {
        return Some(match openapi::document(&state.registry, rest.trim_matches('/')) {
            Some(document) => Ok(render::json(200, &document)),
            None => Err(ApiError::unknown_path()),
        });
    }
    if path == "/openapi/v2" {
        return Some(Ok(openapi::old_document(&request.accept)));
    }
    discovery::document(&state.registry, path, &request.accept)
        .map(|(kind, document)| Ok(render::json_as(200, kind, &document)))
}

fn dispatch(
    state: &mut State,
    shared: &Arc<Mutex<State>>,
    request: &ApiRequest,
    target: &Target,
    resource: &Arc<Resource>,
) -> Result<Response<ResponseBody>> {
    let key: Key = (target.namespace.clone(), target.name.clone());
    if !target.subresource.is_empty() {
        return match (target.subresource.as_str(), &request.method) {
            ("status", _) if !resource.has_status => Err(ApiError::unknown_path()),
            ("status", &Method::GET) => state.get_verb(request, resource, &key),
            ("status", &Method::PUT) => state.update_verb(request, resource, &key, true),
            ("status", &Method::PATCH) => state.patch_verb(request, resource, &key, true),
            ("scale", _) if resource.scale.is_none() => Err(ApiError::unknown_path()),
            ("scale", &Method::GET) => state.scale_get(resource, &key),
            ("scale", &Method::PUT | &Method::PATCH) => state.scale_write(request, resource, &key),
            ("binding", &Method::POST) if resource.is("", "pods") => {
                state.bind_verb(request, resource, &key)
            }
            ("eviction", &Method::POST) if resource.is("", "pods") => {
                state.evict_verb(request, resource, &key)
            }
            ("approval", &Method::GET | &Method::PUT | &Method::PATCH)
                if resource.is("certificates.k8s.io", "certificatesigningrequests") =>
            {
                match request.method {
                    Method::PUT => state.update_verb(request, resource, &key, true),
                    Method::PATCH => state.patch_verb(request, resource, &key, true),
                    _ => state.get_verb(request, resource, &key),
                }
            }
            ("token", &Method::POST) if resource.is("", "serviceaccounts") => {
                Err(ApiError::not_implemented(
                    "no tokens are issued: the embedded API server has no authentication",
                ))
            }
            ("finalize", &Method::PUT) if resource.is("", "namespaces") => {
                Err(ApiError::not_implemented("namespaces are finalized by the server itself"))
            }
            ("log" | "exec" | "attach" | "portforward" | "proxy", _)
                if resource.is("", "pods") || resource.is("", "nodes") =>
            {
                Err(ApiError::not_implemented(format!(
                    "{}/{} is not implemented: no containers run here",
                    resource.plural, target.subresource
                )))
            }
            ("status" | "scale" | "binding" | "eviction" | "finalize", _) => {
                Err(ApiError::method_not_allowed())
            }
            _ => Err(ApiError::unknown_path()),
        };
    }
    // A watch of one name has a field selector, or a path of the old form.
    let watching = target.watch || target.name.is_empty() && request.query.flag("watch");
    match (&request.method, target.name.is_empty()) {
        (&Method::GET, _) if watching => {
            state.watch_verb(shared, request, resource, &target.namespace, &target.name)
        }
        (&Method::GET, true) => state.list_verb(request, resource, &target.namespace),
        (&Method::GET, false) => state.get_verb(request, resource, &key),
        (&Method::POST, true) => {
            if resource.namespaced && target.namespace.is_empty() {
                return Err(ApiError::bad_request(
                    "an empty namespace may not be set during creation",
                ));
            }
            state.create_verb(request, resource, &target.namespace)
        }
        (&Method::PUT, false) => state.update_verb(request, resource, &key, false),
        (&Method::PATCH, false) => state.patch_verb(request, resource, &key, false),
        (&Method::DELETE, false) => state.delete_verb(request, resource, &key),
        (&Method::DELETE, true) if !resource.is("", "namespaces") => {
            state.delete_collection_verb(request, resource, &target.namespace)
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The `Status` of an operation that leaves nothing to show.
pub(crate) fn success(details: &Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details,
    })
}
