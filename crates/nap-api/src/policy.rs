//! An admission policy that makes kubectl print a warning for old spellings.
//!
//! A deprecated version warns by itself; an old spelling inside a current version cannot, and an
//! admission policy can, without a webhook. It only warns: everything that it names is taken, see
//! [`crate::normalise`].

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use serde_json::json;

const NAME: &str = "nap-old-spellings";

/// The policy and what puts it into force.
pub fn old_spellings() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let reference = "object.spec.template.spec.nodeClassRef";
    let policy = json!({
        "metadata": { "name": NAME },
        "spec": {
            // A warning is never worth a refused request.
            "failurePolicy": "Ignore",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["karpenter.sh"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["nodepools"],
            }] },
            "validations": [
                {
                    "expression": "!has(object.spec.disruption) || !has(object.spec.disruption.consolidationPolicy) || \
                                   object.spec.disruption.consolidationPolicy in ['WhenEmpty', 'WhenEmptyOrUnderutilized', 'Balanced']",
                    "message": "spec.disruption.consolidationPolicy has an old spelling, taken as `WhenEmptyOrUnderutilized`",
                },
                {
                    "expression": "!has(object.spec.disruption) || !has(object.spec.disruption.expireAfter)",
                    "message": "spec.disruption.expireAfter is an old spelling of spec.template.spec.expireAfter, and taken as such",
                },
                {
                    "expression": format!("has({reference}.group) && has({reference}.kind) && !has({reference}.apiVersion)"),
                    "message": "spec.template.spec.nodeClassRef has an old spelling: write `group: karpenter.azure.com` and `kind: AKSNodeClass`, which it is taken as",
                },
            ],
        },
    });
    let binding = json!({
        "metadata": { "name": NAME },
        "spec": { "policyName": NAME, "validationActions": ["Warn"] },
    });
    (
        serde_json::from_value(policy).expect("the policy is written above"),
        serde_json::from_value(binding).expect("the binding is written above"),
    )
}
