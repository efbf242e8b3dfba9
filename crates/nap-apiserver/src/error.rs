//! Errors as the API server speaks them: `metav1.Status` objects with the reasons, messages and
//! causes that clients match on.

use serde_json::{Value, json};

use crate::resources::Resource;

/// A refused request: everything that is needed to render a `metav1.Status` of status `Failure`.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Box<Value>>,
}

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        let mut details = json!({ "name": name, "kind": resource.plural });
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        self.details = Some(Box::new(details));
        self
    }

    pub(crate) fn unknown_path() -> Self {
        let mut error =
            Self::plain(404, "NotFound", "the server could not find the requested resource");
        error.details = Some(Box::new(json!({})));
        error
    }

    /// A path below a group and version that nothing serves. The real server answers it with
    /// text, because no API is asked.
    pub(crate) fn unserved_group() -> Self {
        Self::plain(404, "", "404 page not found")
    }

    /// Whether the answer is the message itself, not a `metav1.Status`.
    pub(crate) fn is_text(&self) -> bool {
        self.code == 404 && self.reason.is_empty()
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::plain(404, "NotFound", message).about(resource, name)
    }

    pub(crate) fn namespace_not_found(name: &str) -> Self {
        let mut error = Self::plain(404, "NotFound", format!("namespaces \"{name}\" not found"));
        error.details = Some(Box::new(json!({ "name": name, "kind": "namespaces" })));
        error
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::plain(409, "AlreadyExists", message).about(resource, name)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
        Self::plain(409, "Conflict", message).about(resource, name)
    }

    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and \
             try again",
        )
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", resource.qualified());
        Self::plain(403, "Forbidden", message).about(resource, name)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::plain(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub(crate) fn not_acceptable(message: impl Into<String>) -> Self {
        Self::plain(406, "NotAcceptable", message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::plain(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::plain(500, "InternalError", message)
    }

    pub(crate) fn not_implemented(message: impl Into<String>) -> Self {
        Self::plain(501, "NotImplemented", message)
    }

    /// The answer of `pods/eviction` while a disruption budget does not allow it.
    pub(crate) fn disruption_budget(message: &str, cause: &str, retry_after: Option<u32>) -> Self {
        let mut details = json!({
            "causes": [{ "reason": "DisruptionBudget", "message": cause }],
        });
        if let Some(seconds) = retry_after {
            details["retryAfterSeconds"] = json!(seconds);
        }
        let mut error = Self::plain(429, "TooManyRequests", message);
        error.details = Some(Box::new(details));
        error
    }

    /// A server-side apply must say who applies.
    pub(crate) fn apply_without_manager() -> Self {
        let detail = "is required for apply patch";
        let message = format!(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: {detail}"
        );
        let mut error = Self::plain(422, "Invalid", message);
        error.details = Some(Box::new(json!({
            "group": "meta.k8s.io", "kind": "PatchOptions",
            "causes": [{
                "reason": "FieldValueRequired", "field": "fieldManager",
                "message": format!("Required value: {detail}"),
            }],
        })));
        error
    }

    /// Fields of a server-side apply that other managers own.
    pub(crate) fn apply_conflict(message: &str, causes: &[Value]) -> Self {
        let mut error = Self::plain(409, "Conflict", message);
        error.details = Some(Box::new(json!({ "causes": causes })));
        error
    }

    /// `422 Invalid` for the parameters of a request, unless there are no errors.
    pub(crate) fn check_options(kind: &str, errors: &[FieldError]) -> Result<()> {
        if errors.is_empty() {
            return Ok(());
        }
        let summary = summary(errors);
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {summary}");
        let mut error = Self::plain(422, "Invalid", message);
        let causes = causes(errors);
        error.details =
            Some(Box::new(json!({ "group": "meta.k8s.io", "kind": kind, "causes": causes })));
        Err(error)
    }

    /// A JSON patch that does not fit the object. The real server does not say why either.
    pub(crate) fn patch_does_not_apply() -> Self {
        let message = "the server rejected our request due to an error in our request";
        let mut error = Self::plain(422, "Invalid", message);
        error.details = Some(Box::new(json!({})));
        error
    }

    /// `422 Invalid` with one cause per field.
    pub(crate) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        let summary = summary(errors);
        let kind = if resource.group.is_empty() {
            resource.kind.clone()
        } else {
            format!("{}.{}", resource.kind, resource.group)
        };
        let mut error =
            Self::plain(422, "Invalid", format!("{kind} \"{name}\" is invalid: {summary}"));
        let mut details = json!({ "name": name, "kind": resource.kind, "causes": causes(errors) });
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        error.details = Some(Box::new(details));
        error
    }

    /// The `metav1.Status` a client receives.
    pub(crate) fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = (**details).clone();
        }
        status
    }
}

/// The distinct errors in one line.
fn summary(errors: &[FieldError]) -> String {
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.dedup();
    if let [only] = texts.as_slice() { only.clone() } else { format!("[{}]", texts.join(", ")) }
}

fn causes(errors: &[FieldError]) -> Vec<Value> {
    let cause = |error: &FieldError| json!({ "reason": error.problem.reason(), "message": error.body(), "field": error.field });
    errors.iter().map(cause).collect()
}

/// Cause of an `Invalid` status: one field and its violation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Problem {
    Invalid(Value, String),
    /// A rule does not hold for an object or a list, which is too long to be shown.
    Rule(String),
    TypeInvalid(Value, String),
    Required(String),
    NotSupported(Value, Vec<Value>),
    Duplicate(Value),
    NotFound(Value),
    Forbidden(String),
    /// A reason and a whole text, with a structure as the real server writes it.
    Written(&'static str, String),
    TooLong(u64),
    TooMany(u64, u64),
}

impl Problem {
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(..) | Self::Rule(_) => "FieldValueInvalid",
            Self::TypeInvalid(..) => "FieldValueTypeInvalid",
            Self::Required(_) => "FieldValueRequired",
            Self::NotSupported(..) => "FieldValueNotSupported",
            Self::Duplicate(_) => "FieldValueDuplicate",
            Self::NotFound(_) => "FieldValueNotFound",
            Self::Forbidden(_) => "FieldValueForbidden",
            Self::Written(reason, _) => reason,
            Self::TooLong(_) => "FieldValueTooLong",
            Self::TooMany(..) => "FieldValueTooMany",
        }
    }
}

/// One field and what is wrong with it, printed as the real server prints it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) problem: Problem,
}

impl FieldError {
    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: Problem::Invalid(value.into(), detail.into()) }
    }

    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), problem: Problem::Required(detail.into()) }
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), problem: Problem::Forbidden(detail.into()) }
    }

    pub(crate) fn not_supported(
        field: impl Into<String>,
        value: impl Into<Value>,
        supported: Vec<Value>,
    ) -> Self {
        Self { field: field.into(), problem: Problem::NotSupported(value.into(), supported) }
    }

    pub(crate) fn body(&self) -> String {
        match &self.problem {
            Problem::Invalid(value, detail) | Problem::TypeInvalid(value, detail) => {
                format!("Invalid value: {value}: {detail}")
            }
            Problem::Rule(message) => format!("Invalid value: {message}"),
            Problem::Required(detail) if detail.is_empty() => "Required value".to_owned(),
            Problem::Required(detail) => format!("Required value: {detail}"),
            Problem::NotSupported(value, supported) => {
                let supported: Vec<String> = supported.iter().map(ToString::to_string).collect();
                format!("Unsupported value: {value}: supported values: {}", supported.join(", "))
            }
            Problem::Duplicate(value) => format!("Duplicate value: {value}"),
            Problem::NotFound(value) => format!("Not found: {value}"),
            Problem::Forbidden(detail) => format!("Forbidden: {detail}"),
            Problem::Written(_, text) => text.clone(),
            Problem::TooLong(limit) => format!("Too long: may not be more than {limit} bytes"),
            Problem::TooMany(found, limit) => {
                format!("Too many: {found}: must have at most {limit} items")
            }
        }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}
