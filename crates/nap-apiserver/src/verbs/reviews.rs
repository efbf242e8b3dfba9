//! Reviews: questions about permissions and identity. There is neither authentication nor
//! authorization here, so everybody is the administrator and may do everything.

use http::{Method, Response};
use serde_json::{Value, json};

use super::{check_kind, decode};
use crate::ResponseBody;
use crate::error::{ApiError, Result};
use crate::object;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::Resource;

const REASON: &str = "the embedded API server has no authorization";

/// Answers a review.
pub(crate) fn answer(request: &ApiRequest, resource: &Resource) -> Result<Response<ResponseBody>> {
    if request.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let mut review = decode(request)?;
    check_kind(resource, &mut review)?;
    object::child(&mut review, "metadata");
    review["status"] = match resource.plural.as_str() {
        "selfsubjectrulesreviews" => json!({
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "incomplete": false,
        }),
        "selfsubjectreviews" => json!({ "userInfo": user() }),
        "tokenreviews" => json!({
            "authenticated": false, "error": "the embedded API server has no authentication",
            "user": {},
        }),
        _ => json!({ "allowed": true, "reason": REASON }),
    };
    Ok(render::json(201, &review))
}

/// The one user.
pub(crate) fn user() -> Value {
    json!({
        "username": "kubernetes-admin",
        "groups": ["system:masters", "system:authenticated"],
    })
}
