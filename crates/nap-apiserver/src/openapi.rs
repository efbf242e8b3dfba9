//! `/openapi/v3`: enough for kubectl to validate, apply and explain. Custom resources publish the
//! schema of their definition, built-in kinds that of their types.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::resources::Resource;
use crate::server::Registry;
use crate::{ResponseBody, full, object, render};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The index (empty path) or the document of one group version.
pub(crate) fn document(registry: &Registry, path: &str) -> Option<Value> {
    if path.is_empty() {
        let mut paths = Map::new();
        for resource in registry.iter() {
            let path = group_path(resource);
            let url = format!("/openapi/v3/{path}");
            paths.entry(path).or_insert_with(|| json!({ "serverRelativeURL": url }));
        }
        return Some(json!({ "paths": paths }));
    }
    let resources: Vec<_> = registry.iter().filter(|r| group_path(r) == path).collect();
    if resources.is_empty() {
        return None;
    }
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    schemas.insert(
        OBJECT_META.to_owned(),
        json!({
            "type": "object",
            "description": "ObjectMeta is metadata that all persisted resources must have, which \
                includes all objects users must create.",
            "x-kubernetes-preserve-unknown-fields": true,
        }),
    );
    let mut generator = SchemaSettings::openapi3().into_generator();
    for resource in &resources {
        if let Some(add) = resource.json_schema {
            add(&mut generator);
        }
    }
    schemas.extend(generator.take_definitions(true));
    for resource in resources {
        let name = schema_name(resource);
        let known = schemas.remove(&name);
        schemas.insert(name, schema(resource, known));
        add_paths(resource, &mut paths);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes", "version": "unversioned" },
        "paths": paths,
        "components": { "schemas": schemas },
    }))
}

/// `/openapi/v2` without a definition, as JSON or as the message of gnostic. kubectl asks for it
/// about kinds that version 3 does not know, and then says that they are not installed.
pub(crate) fn old_document(accept: &str) -> Response<ResponseBody> {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    if accept.contains("protobuf") {
        // Field 1, `swagger`: a text of three bytes.
        let message = Bytes::from_static(b"\x0a\x032.0");
        let mut response = Response::new(full(message));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
        return response;
    }
    let info = json!({ "title": "Kubernetes", "version": "unversioned" });
    render::json(200, &json!({ "swagger": "2.0", "info": info, "paths": {}, "definitions": {} }))
}

fn group_path(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}

/// Definitions are named by the reversed group: `sh.karpenter.v1.NodePool`.
fn schema_name(resource: &Resource) -> String {
    let group = match resource.group.as_str() {
        "" => "io.k8s.api.core".to_owned(),
        "apiextensions.k8s.io" => {
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions".to_owned()
        }
        group if resource.is_custom() => group.rsplit('.').collect::<Vec<_>>().join("."),
        group => format!("io.k8s.api.{}", group.split('.').next().unwrap_or_default()),
    };
    format!("{group}.{}.{}", resource.version, resource.kind)
}

fn kind_of(resource: &Resource) -> Value {
    json!({ "group": resource.group, "version": resource.version, "kind": resource.kind })
}

fn schema(resource: &Resource, known: Option<Value>) -> Value {
    let mut schema = match (&resource.schema, known) {
        (Some(custom), _) => custom.raw.clone(),
        (None, Some(known)) => known,
        (None, None) => json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
    };
    let properties = object::child(&mut schema, "properties");
    let text = |description: &str| json!({ "type": "string", "description": description });
    object::default(properties, "apiVersion", || text("The version of the schema of this object."));
    object::default(properties, "kind", || text("The kind of this object."));
    properties["metadata"] = json!({ "allOf": [{ "$ref": format!("#/components/schemas/{OBJECT_META}") }], "default": {} });
    schema["x-kubernetes-group-version-kind"] = json!([kind_of(resource)]);
    schema
}

fn add_paths(resource: &Resource, paths: &mut Map<String, Value>) {
    let base = format!("/{}", group_path(resource));
    let collection = if resource.namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        format!("{base}/{}", resource.plural)
    };
    let reference = json!({ "$ref": format!("#/components/schemas/{}", schema_name(resource)) });
    let content = json!({ "application/json": { "schema": reference } });
    let operation = |action: &str, write: bool| {
        let mut parameters = Vec::new();
        if write {
            for name in ["dryRun", "fieldManager", "fieldValidation"] {
                parameters.push(json!({
                    "name": name, "in": "query", "schema": { "type": "string", "uniqueItems": true },
                }));
            }
        }
        json!({
            "operationId": format!("{action}{}", resource.kind),
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind_of(resource),
            "parameters": parameters,
            "responses": { "200": { "description": "OK", "content": content } },
        })
    };
    // No strategic merge patch here: kubectl then uses its own types for the built-in kinds.
    let mut patch = operation("patch", true);
    patch["requestBody"] = json!({ "content": {
        "application/json-patch+json": { "schema": { "type": "object" } },
        "application/merge-patch+json": { "schema": { "type": "object" } },
        "application/apply-patch+yaml": { "schema": { "type": "object" } },
    }});
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", false),
            "put": operation("put", true),
            "patch": patch,
            "delete": operation("delete", false),
        }),
    );
    paths.insert(
        collection,
        json!({ "get": operation("list", false), "post": operation("post", true) }),
    );
    if resource.namespaced {
        paths.insert(
            format!("{base}/{}", resource.plural),
            json!({ "get": operation("list", false) }),
        );
    }
}
