//! The CustomResourceDefinitions, made from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{AKSNodeClass, NodeClaim, NodePool};

/// Every definition that nap needs, in name order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![aks_node_class(), NodeClaim::crd(), NodePool::crd()]
}

/// AKSNodeClass has one schema under two version names; the old one is deprecated.
fn aks_node_class() -> CustomResourceDefinition {
    let mut crd = AKSNodeClass::crd();
    if let Some(mut old) = crd.spec.versions.first().cloned() {
        "v1alpha2".clone_into(&mut old.name);
        old.storage = false;
        old.deprecated = Some(true);
        old.deprecation_warning = Some(
            "karpenter.azure.com/v1alpha2 AKSNodeClass is deprecated; use karpenter.azure.com/v1beta1"
                .to_owned(),
        );
        crd.spec.versions.push(old);
    }
    crd
}
