//! Classification of ARM errors, by code, phrase and HTTP status.

use http::StatusCode;
use nap_cloud::{CloudError, ErrorClass};
use serde::{Deserialize, Deserializer};

use super::words::Words;
use crate::unavailable_offerings::REGIONAL;

/// The error object of ARM: `{"error": {"code", "message", "details"}}`, or the same without its
/// envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ArmErrorBody {
    /// Code, such as `SkuNotAvailable`.
    #[serde(default, deserialize_with = "nullable")]
    pub code: String,
    /// Text.
    #[serde(default, deserialize_with = "nullable")]
    pub message: String,
    /// What the error is about, such as one machine of a batch.
    #[serde(default)]
    pub target: Option<String>,
    /// Nested errors; the first is usually the cause.
    #[serde(default, deserialize_with = "nullable")]
    pub details: Vec<ArmErrorBody>,
}

impl ArmErrorBody {
    /// Parses a response body. The text of a body that is no ARM error becomes the message.
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
        Self { message: text, ..Self::default() }
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

/// Deserialises `null`, which Azure writes for some empty fields, as the default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// The code inside a text of the form `Code="X" Message="…"`; `None` if the text has none.
fn wrapped_code(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("Code=\"")?;
    rest.split_once('"').map(|(code, _)| code)
}

/// A failure of Azure, as far as the provider acts on it. The only place that knows Azure's codes
/// and phrases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// `SkuNotAvailable`: the size is not sold in the tried placement (zonal or regional).
    SkuNotAvailable,
    /// `ZonalAllocationFailed`: the zone is full, for both priorities.
    ZonalCapacity,
    /// `AllocationFailed`: every zone, or the region, is full, for both priorities.
    RegionalCapacity,
    /// `OverconstrainedZonalAllocationRequest`: the zone is full for this priority.
    OverconstrainedZonal,
    /// `OverconstrainedAllocationRequest`: every zone, or the region, is full for this priority.
    Overconstrained,
    /// The subscription cannot have the size at all.
    SkuNotSupported,
    /// `RequestDisallowedByPolicy`: an Azure Policy refuses the request, most often for its size.
    Policy,
    /// `RequestDisallowedByPolicy` for tags or places: another size would be refused too.
    PolicyOnRequest,
    /// Any other refusal whose text names the size.
    SizeRefused,
    /// `AvailabilityZoneNotSupported`, and any other refusal of a zonal VM that speaks of zones.
    ZoneRefused,
    /// The quota of cores of the size's family is used up; `limit_zero` if there never was any.
    FamilyQuota {
        /// Whether the quota is zero.
        limit_zero: bool,
    },
    /// The quota of spot cores is used up.
    SpotQuota,
    /// The quota of all cores of the region, or another one, is used up.
    RegionalQuota,
    /// Too many requests.
    Throttled,
    /// The resource does not exist.
    NotFound,
    /// The subscription, resource group or cluster that the resource is asked for in does not
    /// exist: the settings are wrong, and nothing is known of the resource.
    ScopeNotFound,
    /// The credentials are missing, expired or insufficient.
    Auth,
    /// The subnet has no address left: another size would be refused too.
    SubnetFull,
    /// The disk encryption set of the cluster, or its key, cannot be used.
    DiskEncryption,
    /// The request is refused for its own content: another size would be refused too.
    Invalid,
    /// Another operation holds the resource, such as a NIC that is reserved for 180 s.
    Conflict,
    /// Any other failure.
    Transient,
}

impl Failure {
    /// Recognises a failure by its code and text, and by the HTTP status where there is one.
    pub fn of(status: Option<StatusCode>, code: &str, message: &str) -> Self {
        Self::of_operation("", status, code, message)
    }

    /// As [`Failure::of`], of an operation such as `create machine a`: the name of the machine says
    /// nothing.
    fn of_operation(
        operation: &str,
        status: Option<StatusCode>,
        code: &str,
        message: &str,
    ) -> Self {
        Self::of_code(operation, code, message).unwrap_or_else(|| Self::of_status(status))
    }

    fn of_code(operation: &str, code: &str, message: &str) -> Option<Self> {
        let words = Words::of(message, operation);
        // AKS wraps errors of other services: `Code="…" Message="…"`.
        Self::of_own_code(code, message, &words)
            .or_else(|| Self::of_own_code(wrapped_code(message)?, message, &words))
    }

    fn of_own_code(code: &str, message: &str, words: &Words) -> Option<Self> {
        let has = |wanted: &[&str]| words.has_any(wanted);
        // Quotas have a name in errors, and another in the portal: `LowPriorityCores` is `Total
        // Regional Spot vCPUs` there.
        let quota = || {
            if has(&["lowprioritycore", "spot"]) || (has(&["low"]) && has(&["priority"])) {
                Self::SpotQuota
            } else if has(&["family"]) {
                let limit_zero = message.to_lowercase().contains("current limit: 0");
                Self::FamilyQuota { limit_zero }
            } else {
                Self::RegionalQuota
            }
        };
        Some(match code {
            "SkuNotAvailable" => Self::SkuNotAvailable,
            "AvailabilityZoneNotSupported" => Self::ZoneRefused,
            "ZonalAllocationFailed" => Self::ZonalCapacity,
            "AllocationFailed" => Self::RegionalCapacity,
            "OverconstrainedZonalAllocationRequest" => Self::OverconstrainedZonal,
            "OverconstrainedAllocationRequest" => Self::Overconstrained,
            "VMSizeNotSupported" => Self::SkuNotSupported,
            "BadRequest" if message.contains("is not supported for subscription") => {
                Self::SkuNotSupported
            }
            // Policies name themselves in the text. One about sizes is told from one about tags or
            // places, which no other size would satisfy.
            "RequestDisallowedByPolicy"
                if !has(&["size", "sku"]) && has(&["tag", "location", "region"]) =>
            {
                Self::PolicyOnRequest
            }
            "RequestDisallowedByPolicy" => Self::Policy,
            // AKS's own check: "… remaining 0 for family …". Without any of the words, the family.
            "ErrCode_InsufficientVCPUQuota" | "InsufficientVCPUQuota" => match quota() {
                Self::RegionalQuota if !has(&["regional"]) => {
                    Self::FamilyQuota { limit_zero: false }
                }
                told => told,
            },
            "QuotaExceeded" => quota(),
            "OperationNotAllowed" if has(&["quota", "lowprioritycore"]) => quota(),
            "TooManyRequests" | "OperationThrottled" | "SubscriptionRequestsThrottled" => {
                Self::Throttled
            }
            // The machines API reports a missing machine this way on delete.
            "InvalidParameter" if message.contains("Cannot find any valid machines") => {
                Self::NotFound
            }
            "InsufficientSubnetSize" | "SubnetIsFull" => Self::SubnetFull,
            "InvalidParameter" => Self::Invalid,
            code if code.starts_with("KeyVault") || code.starts_with("DiskEncryption") => {
                Self::DiskEncryption
            }
            "AuthorizationFailed"
            | "AuthenticationFailed"
            | "InvalidAuthenticationToken"
            | "ExpiredAuthenticationToken"
            | "LinkedAuthorizationFailed" => Self::Auth,
            "ResourceNotFound" | "NotFound" => Self::NotFound,
            "ResourceGroupNotFound"
            | "ParentResourceNotFound"
            | "SubscriptionNotFound"
            | "InvalidSubscriptionId" => Self::ScopeNotFound,
            "NicReservedForAnotherVm"
            | "ConflictingConcurrentWriteNotAllowed"
            | "AnotherOperationInProgress"
            | "Conflict" => Self::Conflict,
            _ => return None,
        })
    }

    fn of_status(status: Option<StatusCode>) -> Self {
        match status.map(|status| status.as_u16()) {
            Some(401 | 403) => Self::Auth,
            Some(404) => Self::NotFound,
            Some(429) => Self::Throttled,
            Some(400 | 405 | 413 | 415 | 422) => Self::Invalid,
            _ => Self::Transient,
        }
    }

    /// Recognises the failure behind an error that came from ARM.
    pub fn of_error(error: &CloudError) -> Self {
        let known = Self::of_code(&error.operation, &error.code, &error.message);
        known.unwrap_or(match error.class {
            ErrorClass::Auth => Self::Auth,
            ErrorClass::Invalid => Self::Invalid,
            ErrorClass::NotFound => Self::NotFound,
            ErrorClass::Throttled => Self::Throttled,
            _ => Self::Transient,
        })
    }

    /// As [`Failure::of_error`], for the launch of a size in a zone, by its label. A refusal that
    /// names the size, or the zone of a zonal VM, is about this offering, whatever its code.
    pub fn of_launch(error: &CloudError, size: &str, zone: &str) -> Self {
        let failure = Self::of_error(error);
        if !matches!(failure, Self::Invalid | Self::Transient) {
            return failure;
        }
        if zone != REGIONAL && Words::of(&error.message, &error.operation).has_any(&["zone"]) {
            Self::ZoneRefused
        } else if error.message.to_lowercase().contains(&size.to_lowercase()) {
            Self::SizeRefused
        } else {
            failure
        }
    }

    /// Whether another offering may succeed.
    pub fn is_about_offering(self) -> bool {
        matches!(self.class(), ErrorClass::Capacity | ErrorClass::Quota)
    }

    /// Whether the same request may succeed later although nobody acts.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Throttled | Self::Conflict | Self::Transient)
    }

    /// What a user can do about it; `None` if nothing is known to help.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::FamilyQuota { .. } => {
                "request more quota for the family, or allow other families in the NodePool"
            }
            Self::SpotQuota => "request more quota for spot vCPUs, or allow on-demand",
            Self::RegionalQuota => "request more quota for the vCPUs of the region",
            Self::PolicyOnRequest => {
                "set in the AKSNodeClass what the Azure Policy asks for, such as `spec.tags`, or exempt \
                 the cluster's resource groups from it"
            }
            Self::Policy => "allow the size in the Azure Policy, or leave it out of the NodePool",
            Self::Auth => "give nap's identity its roles: `nap azure check` names those missing",
            Self::ScopeNotFound => {
                "check ARM_SUBSCRIPTION_ID, ARM_RESOURCE_GROUP and CLUSTER_NAME, and the tenant of \
                 nap's identity"
            }
            Self::DiskEncryption => {
                "give the cluster's disk encryption set access to its key, or restore them"
            }
            _ => return None,
        })
    }

    /// The class that the controllers act on.
    pub fn class(self) -> ErrorClass {
        match self {
            Self::SkuNotAvailable
            | Self::ZonalCapacity
            | Self::RegionalCapacity
            | Self::OverconstrainedZonal
            | Self::Overconstrained
            | Self::SkuNotSupported
            | Self::SizeRefused
            | Self::ZoneRefused
            | Self::Policy => ErrorClass::Capacity,
            Self::FamilyQuota { .. } | Self::SpotQuota | Self::RegionalQuota => ErrorClass::Quota,
            Self::Throttled => ErrorClass::Throttled,
            Self::NotFound => ErrorClass::NotFound,
            Self::Auth => ErrorClass::Auth,
            Self::SubnetFull => ErrorClass::NodeClassNotReady,
            Self::Invalid | Self::DiskEncryption | Self::ScopeNotFound | Self::PolicyOnRequest => {
                ErrorClass::Invalid
            }
            Self::Conflict | Self::Transient => ErrorClass::Transient,
        }
    }
}

impl ArmErrorBody {
    /// The error of an operation, with the class of its cause. `status` is that of the response;
    /// `fallback` is the code of an error that has none.
    pub fn to_error(
        &self,
        status: Option<StatusCode>,
        operation: &str,
        fallback: &str,
    ) -> CloudError {
        let cause = self.cause();
        let failure = Failure::of_operation(operation, status, &cause.code, &cause.message);
        let class = failure.class();
        let code = if cause.code.is_empty() { fallback } else { &cause.code };
        let message = match status {
            Some(status) if cause.message.is_empty() => format!("HTTP status {status}"),
            _ => cause.message.clone(),
        };
        CloudError::new(class, operation, code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_phrases_and_statuses_are_classified() {
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
            (Some(403), "RequestDisallowedByPolicy", "", ErrorClass::Capacity),
            (
                Some(403),
                "RequestDisallowedByPolicy",
                "disallowed by policy 'Allowed virtual machine size SKUs'",
                ErrorClass::Capacity,
            ),
            (
                Some(403),
                "RequestDisallowedByPolicy",
                "disallowed by policy 'Require a tag on resources'",
                ErrorClass::Invalid,
            ),
            (Some(404), "SubscriptionNotFound", "", ErrorClass::Invalid),
            (Some(404), "ResourceGroupNotFound", "", ErrorClass::Invalid),
            (Some(404), "ParentResourceNotFound", "", ErrorClass::Invalid),
            (Some(400), "AvailabilityZoneNotSupported", "", ErrorClass::Capacity),
            (
                Some(400),
                "ErrCode_InsufficientVCPUQuota",
                "Insufficient vcpu quota requested 2, remaining 0 for family X for region eastus",
                ErrorClass::Quota,
            ),
            (Some(400), "InsufficientSubnetSize", "", ErrorClass::NodeClassNotReady),
            (
                Some(400),
                "InvalidParameter",
                "Cannot find any valid machines to delete",
                ErrorClass::NotFound,
            ),
            (Some(400), "InvalidParameter", "the size is wrong", ErrorClass::Invalid),
            (Some(409), "NicReservedForAnotherVm", "", ErrorClass::Transient),
            (Some(403), "AuthorizationFailed", "", ErrorClass::Auth),
            (Some(401), "", "", ErrorClass::Auth),
            (Some(404), "", "", ErrorClass::NotFound),
            (Some(429), "", "", ErrorClass::Throttled),
            (Some(503), "", "", ErrorClass::Transient),
            (Some(400), "Whatever", "", ErrorClass::Invalid),
        ] {
            let status = status.map(|status| StatusCode::from_u16(status).unwrap());
            assert_eq!(
                Failure::of(status, code, message).class(),
                class,
                "{status:?} {code} {message}"
            );
        }
    }

    #[test]
    fn errors_are_parsed_with_and_without_an_envelope() {
        let nested = ArmErrorBody::parse(
            br#"{"error":{"code":"A","message":"a","details":[{"code":"B","message":"b"}]}}"#,
        );
        assert_eq!(nested.cause().code, "B");
        assert_eq!(ArmErrorBody::parse(br#"{"code":"C","message":"c","details":null}"#).code, "C");
        assert_eq!(ArmErrorBody::parse(b"<html>bad gateway").message, "<html>bad gateway");
    }

    #[test]
    fn quotas_are_told_apart_by_their_text() {
        let quota = |message: &str| Failure::of(None, "OperationNotAllowed", message);
        let family = "exceeding approved standardDSv5Family Family Cores quota. Current Limit: ";
        assert_eq!(quota(&format!("{family}10")), Failure::FamilyQuota { limit_zero: false });
        assert_eq!(quota(&format!("{family}0")), Failure::FamilyQuota { limit_zero: true });
        assert_eq!(quota("exceeding approved LowPriorityCores quota"), Failure::SpotQuota);
        assert_eq!(quota("exceeding approved Total Regional Cores quota"), Failure::RegionalQuota);
        assert_eq!(Failure::of(None, "QuotaExceeded", ""), Failure::RegionalQuota);
        let aks = |text: &str| Failure::of(None, "ErrCode_InsufficientVCPUQuota", text);
        let family = Failure::FamilyQuota { limit_zero: false };
        assert_eq!(aks("remaining 0 for family standardDSv5Family for region eastus"), family);
        assert_eq!(aks("Insufficient vcpu quota"), family);
        assert_eq!(aks("remaining 0 for total regional spot vCPUs"), Failure::SpotQuota);
        assert_eq!(aks("remaining 0 for lowPriorityCores"), Failure::SpotQuota);
        assert_eq!(aks("remaining 0 for total regional vCPUs"), Failure::RegionalQuota);
        let other = |text: &str| quota(&format!("The limit of {text} is reached. Request quota."));
        assert_eq!(other("Standard DSv5 Family vCPUs"), Failure::FamilyQuota { limit_zero: false });
        assert_eq!(other("Total Regional Spot vCPUs"), Failure::SpotQuota);
        assert_eq!(other("Total Regional vCPUs"), Failure::RegionalQuota);
    }

    #[test]
    fn a_code_that_aks_wraps_is_found() {
        let wrapped = |code: &str| {
            let message = format!("Code=\"{code}\" Message=\"x\"");
            Failure::of(None, "CreateVMSSAgentPoolFailed", &message)
        };
        assert_eq!(wrapped("ZonalAllocationFailed"), Failure::ZonalCapacity);
        assert_eq!(wrapped("KeyVaultAccessForbidden"), Failure::DiskEncryption);
        assert_eq!(wrapped("Whatever"), Failure::Transient);
    }

    #[test]
    fn a_refusal_that_names_the_size_or_zones_is_about_the_offering() {
        let launch = |class, code: &str, message: &str, zone: &str| {
            let error = CloudError::new(class, "create machine a", code, message);
            Failure::of_launch(&error, "Standard_D4s_v5", zone)
        };
        let (invalid, passing) = (ErrorClass::Invalid, ErrorClass::Transient);
        let size = "The VM size standard_d4s_v5 cannot be used here";
        assert_eq!(launch(invalid, "X", size, "eastus-1"), Failure::SizeRefused);
        assert_eq!(launch(passing, "X", size, REGIONAL), Failure::SizeRefused);
        let zone = "no such availability zone";
        assert_eq!(launch(invalid, "X", zone, "eastus-1"), Failure::ZoneRefused);
        assert_eq!(launch(invalid, "X", zone, REGIONAL), Failure::Invalid);
        assert_eq!(launch(invalid, "X", "a label is reserved", "eastus-1"), Failure::Invalid);
        let denied = launch(ErrorClass::Auth, "AuthorizationFailed", size, "eastus-1");
        assert_eq!(denied, Failure::Auth, "the code says more than the text");
    }

    #[test]
    fn an_error_without_a_code_or_text_falls_back_to_its_status() {
        let error = ArmErrorBody::default().to_error(
            Some(StatusCode::SERVICE_UNAVAILABLE),
            "get x",
            "HTTP503",
        );
        assert_eq!((error.class, error.code.as_str()), (ErrorClass::Transient, "HTTP503"));
        assert_eq!(error.message, "HTTP status 503 Service Unavailable");
    }
}
