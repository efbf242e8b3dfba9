//! Which [`ErrorClass`] an ARM error belongs to. The class drives everything that follows, so this
//! is the one place where Azure's codes and phrases are known.

use http::StatusCode;
use nap_cloud::ErrorClass;
use serde::{Deserialize, Deserializer};

/// The error object of ARM: `{"error": {"code", "message", "details"}}`, or the same without its
/// envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ArmErrorBody {
    /// The code, such as `SkuNotAvailable`.
    #[serde(default, deserialize_with = "nullable")]
    pub code: String,
    /// The text.
    #[serde(default, deserialize_with = "nullable")]
    pub message: String,
    /// Nested errors; the first is usually the cause.
    #[serde(default, deserialize_with = "nullable")]
    pub details: Vec<ArmErrorBody>,
}

impl ArmErrorBody {
    /// Reads a response body. What is no ARM error becomes the message.
    pub fn parse(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Envelope {
            error: ArmErrorBody,
        }
        if let Ok(envelope) = serde_json::from_slice::<Envelope>(body) {
            return envelope.error;
        }
        if let Ok(flat) = serde_json::from_slice::<Self>(body)
            && !flat.code.is_empty()
        {
            return flat;
        }
        let text: String = String::from_utf8_lossy(body).chars().take(300).collect();
        Self { code: String::new(), message: text, details: Vec::new() }
    }

    /// The cause: the first nested error, or this one. Nesting deeper than a few levels is cut off.
    pub fn cause(&self) -> &Self {
        let mut cause = self;
        for _ in 0..4 {
            match cause.details.first() {
                Some(inner) if !inner.code.is_empty() => cause = inner,
                _ => break,
            }
        }
        cause
    }
}

/// Azure writes `null` for what is empty now and then; it must not hide the rest.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// The class of an error by its code and text, and by the HTTP status where there is one.
pub fn classify(status: Option<StatusCode>, code: &str, message: &str) -> ErrorClass {
    match code {
        "SkuNotAvailable"
        | "ZonalAllocationFailed"
        | "AllocationFailed"
        | "OverconstrainedZonalAllocationRequest"
        | "OverconstrainedAllocationRequest"
        | "VMSizeNotSupported" => return ErrorClass::Capacity,
        "BadRequest" if message.contains("is not supported for subscription") => {
            return ErrorClass::Capacity;
        }
        "OperationNotAllowed"
            if message.to_lowercase().contains("quota") || is_spot_quota(message) =>
        {
            return ErrorClass::Quota;
        }
        "QuotaExceeded" => return ErrorClass::Quota,
        "TooManyRequests" | "OperationThrottled" | "SubscriptionRequestsThrottled" => {
            return ErrorClass::Throttled;
        }
        "RequestDisallowedByPolicy"
        | "InsufficientSubnetSize"
        | "SubnetIsFull"
        | "InvalidParameter" => {
            // Another size would meet the same wall: the user has to change the policy, the subnet
            // or the class.
            return ErrorClass::Invalid;
        }
        "AuthorizationFailed"
        | "AuthenticationFailed"
        | "InvalidAuthenticationToken"
        | "ExpiredAuthenticationToken"
        | "LinkedAuthorizationFailed" => return ErrorClass::Auth,
        "ResourceNotFound" | "ResourceGroupNotFound" | "NotFound" | "ParentResourceNotFound" => {
            return ErrorClass::NotFound;
        }
        // Something else holds the thing for now: a NIC for 180 s, the cluster during an operation.
        "NicReservedForAnotherVm"
        | "ConflictingConcurrentWriteNotAllowed"
        | "AnotherOperationInProgress"
        | "Conflict" => return ErrorClass::Transient,
        _ => {}
    }
    match status.map(|status| status.as_u16()) {
        Some(401 | 403) => ErrorClass::Auth,
        Some(404) => ErrorClass::NotFound,
        Some(429) => ErrorClass::Throttled,
        Some(400 | 405 | 413 | 415 | 422) => ErrorClass::Invalid,
        _ => ErrorClass::Transient,
    }
}

/// Whether a quota text is about spot cores.
pub(crate) fn is_spot_quota(message: &str) -> bool {
    message.contains("LowPriorityCores")
}

/// Whether a quota text is about one family's cores.
pub(crate) fn is_family_quota(message: &str) -> bool {
    message.contains("Family Cores quota")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_phrases_and_statuses_have_their_classes() {
        for (status, code, message, class) in [
            (Some(409), "SkuNotAvailable", "", ErrorClass::Capacity),
            (None, "ZonalAllocationFailed", "", ErrorClass::Capacity),
            (
                Some(400),
                "BadRequest",
                "The VM size X is not supported for subscription S",
                ErrorClass::Capacity,
            ),
            (
                Some(409),
                "OperationNotAllowed",
                "exceeding approved standardDSv3 Family Cores quota",
                ErrorClass::Quota,
            ),
            (
                Some(409),
                "OperationNotAllowed",
                "exceeding approved LowPriorityCores",
                ErrorClass::Quota,
            ),
            (Some(409), "OperationNotAllowed", "the cluster is stopped", ErrorClass::Transient),
            (Some(403), "RequestDisallowedByPolicy", "", ErrorClass::Invalid),
            (Some(400), "InsufficientSubnetSize", "", ErrorClass::Invalid),
            (Some(403), "AuthorizationFailed", "", ErrorClass::Auth),
            (Some(401), "", "", ErrorClass::Auth),
            (Some(404), "", "", ErrorClass::NotFound),
            (Some(429), "", "", ErrorClass::Throttled),
            (Some(503), "", "", ErrorClass::Transient),
            (Some(400), "Whatever", "", ErrorClass::Invalid),
        ] {
            let status = status.map(|status| StatusCode::from_u16(status).unwrap());
            assert_eq!(classify(status, code, message), class, "{status:?} {code} {message}");
        }
    }

    #[test]
    fn errors_are_read_with_and_without_an_envelope() {
        let nested = ArmErrorBody::parse(
            br#"{"error":{"code":"A","message":"a","details":[{"code":"B","message":"b"}]}}"#,
        );
        assert_eq!(nested.cause().code, "B");
        assert_eq!(ArmErrorBody::parse(br#"{"code":"C","message":"c","details":null}"#).code, "C");
        assert_eq!(ArmErrorBody::parse(b"<html>bad gateway").message, "<html>bad gateway");
    }
}
