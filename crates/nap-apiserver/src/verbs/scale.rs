//! The `scale` subresource: one shape for everything that has replicas.

use std::sync::Arc;

use http::{Method, Response};
use serde_json::{Value, json};

use super::{WriteOptions, decode};
use crate::ResponseBody;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::patch::Patch;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::{Resource, Scale};
use crate::server::State;
use crate::store::Key;

impl State {
    pub(crate) fn scale_get(
        &self,
        resource: &Resource,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        let (object, scale) = self.scaled(resource, key)?;
        Ok(render::json(200, &view(&object, &scale)))
    }

    pub(crate) fn scale_write(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        let mut options = WriteOptions::parse(&request.query)?;
        options.manager = Some(request.manager("scale"));
        let (mut object, scale) = self.scaled(resource, key)?;
        let current = view(&object, &scale);
        let wanted = if request.method == Method::PATCH {
            Patch::parse(request, resource)?.apply(resource, current.clone())?
        } else {
            decode(request)?
        };
        let version = object::resource_version(&wanted);
        if !version.is_empty() && version != object::resource_version(&object) {
            return Err(ApiError::modified(resource, &key.1));
        }
        let replicas = object::integer(&wanted, &["spec", "replicas"]).unwrap_or(0);
        if !(0..=i64::from(i32::MAX)).contains(&replicas) {
            let error = FieldError::invalid(
                "spec.replicas",
                replicas,
                "must be greater than or equal to 0",
            );
            return Err(ApiError::invalid(resource, &key.1, &[error]));
        }
        set(&mut object, &scale.spec, json!(replicas));
        let outcome = self.replace(resource, key, object, false, &mut options)?;
        Ok(render::json(200, &view(outcome.object(), &scale)))
    }

    fn scaled(&self, resource: &Resource, key: &Key) -> Result<(Value, Scale)> {
        let object = self
            .store
            .get(&resource.group_resource(), key)
            .ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        let scale = resource.scale.clone().ok_or_else(ApiError::unknown_path)?;
        Ok((render::present(resource, &object).into_owned(), scale))
    }
}

/// The complaint about a custom resource whose replicas are fewer than none: the real server makes
/// it besides the schema's own.
pub(super) fn negative_replicas(resource: &Resource, object: &Value) -> Option<FieldError> {
    let scale = resource.scale.as_ref().filter(|_| resource.schema.is_some())?;
    let path: Vec<&str> = scale.spec.iter().map(String::as_str).collect();
    let replicas = object::at(object, &path)?.as_i64().filter(|replicas| *replicas < 0)?;
    Some(FieldError::invalid(
        format!(".{}", path.join(".")),
        replicas,
        "should be a non-negative integer",
    ))
}

fn view(object: &Value, scale: &Scale) -> Value {
    let look = |path: &[String]| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        object::at(object, &path).cloned()
    };
    let selector = match scale.selector.as_deref().and_then(look) {
        Some(Value::String(text)) => text,
        Some(selector) => selector_text(&selector),
        None => String::new(),
    };
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": { "replicas": look(&scale.spec).unwrap_or_else(|| json!(0)) },
        "status": {
            "replicas": look(&scale.status).unwrap_or_else(|| json!(0)),
            "selector": selector,
        },
    })
}

/// `a=b,c in (d,e)`: a label selector as text. A replication controller holds plain labels.
fn selector_text(selector: &Value) -> String {
    let structured =
        selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let labels = if structured { selector.get("matchLabels") } else { Some(selector) };
    let mut parts: Vec<String> = labels
        .and_then(Value::as_object)
        .map(|labels| {
            let pairs = labels.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
            pairs.map(|(key, value)| format!("{key}={value}")).collect()
        })
        .unwrap_or_default();
    for expression in object::list(selector, &["matchExpressions"]) {
        let key = object::text(expression, &["key"]);
        let values: Vec<&str> =
            object::list(expression, &["values"]).iter().filter_map(Value::as_str).collect();
        parts.push(match object::text(expression, &["operator"]) {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.join(",")
}

fn set(object: &mut Value, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            object::fields_mut(object).insert(last.clone(), value);
        }
        [first, rest @ ..] => set(object::child(object, first), rest, value),
    }
}
