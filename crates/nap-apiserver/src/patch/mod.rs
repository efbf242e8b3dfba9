//! The patch formats the server understands, applied to plain JSON.

mod strategic;

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::request::ApiRequest;
use crate::resources::Resource;

/// A parsed patch.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    pub(crate) fn parse(request: &ApiRequest, resource: &Resource) -> Result<Self> {
        let media = request.content_type.split(';').next().unwrap_or_default().trim();
        let decoding = |error: &dyn std::fmt::Display| {
            ApiError::bad_request(format!("error decoding patch: {error}"))
        };
        match media {
            "application/json-patch+json" => serde_json::from_slice(&request.body)
                .map(Self::Json)
                .map_err(|error| decoding(&error)),
            "application/merge-patch+json" => serde_json::from_slice(&request.body)
                .map(Self::Merge)
                .map_err(|error| decoding(&error)),
            "application/strategic-merge-patch+json" if resource.is_custom() => {
                Err(ApiError::unsupported_media_type(
                    "the body of the request was in an unknown format - accepted media types \
                     include: application/json-patch+json, application/merge-patch+json, \
                     application/apply-patch+yaml",
                ))
            }
            "application/strategic-merge-patch+json" => serde_json::from_slice(&request.body)
                .map(Self::Strategic)
                .map_err(|error| decoding(&error)),
            "application/apply-patch+yaml" => {
                crate::verbs::decode_yaml(&request.body).map(Self::Apply)
            }
            other => Err(ApiError::unsupported_media_type(format!(
                "the body of the request was in an unknown format ({other}) - accepted media types \
                 include: application/json-patch+json, application/merge-patch+json, \
                 application/strategic-merge-patch+json, application/apply-patch+yaml"
            ))),
        }
    }

    /// The object after the patch.
    pub(crate) fn apply(&self, resource: &Resource, mut object: Value) -> Result<Value> {
        match self {
            Self::Json(patch) => {
                json_patch::patch(&mut object, patch)
                    .map_err(|_| ApiError::patch_does_not_apply())?;
            }
            Self::Strategic(patch) => strategic::merge(&mut object, patch),
            Self::Apply(patch) if !resource.is_custom() => strategic::merge(&mut object, patch),
            Self::Merge(patch) | Self::Apply(patch) => json_patch::merge(&mut object, patch),
        }
        if object.is_object() {
            Ok(object)
        } else {
            Err(ApiError::bad_request("the patch does not leave an object"))
        }
    }
}
