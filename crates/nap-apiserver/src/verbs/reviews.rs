//! Reviews: questions about permissions and identity. There is neither authentication nor
//! authorization here, so everybody is the administrator and may do everything.

use http::{Method, Response};
use serde_json::{Value, json};

use super::{check_kind, decode};
use crate::ResponseBody;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::Resource;

/// Answers a review.
pub(crate) fn answer(request: &ApiRequest, resource: &Resource) -> Result<Response<ResponseBody>> {
    if request.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let mut review = decode(request)?;
    check_kind(resource, &mut review)?;
    object::child(&mut review, "metadata");
    check(resource, &mut review)?;
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
        _ => json!({ "allowed": true }),
    };
    Ok(render::json(201, &review))
}

/// Refuses a question that asks for nothing.
fn check(resource: &Resource, review: &mut Value) -> Result<()> {
    if resource.plural == "selfsubjectrulesreviews" {
        if object::text(review, &["spec", "namespace"]).is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        // The real server does not repeat the question.
        review["spec"] = json!({});
    } else if resource.plural.ends_with("accessreviews") {
        let asks = |of: &str| review["spec"].get(of).is_some_and(Value::is_object);
        if asks("resourceAttributes") == asks("nonResourceAttributes") {
            let field = if asks("nonResourceAttributes") {
                "spec.nonResourceAttributes"
            } else {
                "spec.resourceAttributes"
            };
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let error = FieldError::invalid(field, Value::Null, detail);
            return Err(ApiError::invalid(resource, "", &[error]));
        }
    }
    Ok(())
}

/// The one user.
pub(crate) fn user() -> Value {
    json!({
        "username": "kubernetes-admin",
        "groups": ["system:masters", "system:authenticated"],
    })
}
