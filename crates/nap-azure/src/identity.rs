//! Which machine a NodeClaim or a provider id means, and whether it may be deleted.
//!
//! What is unknown is never gone: an id that this cluster's settings cannot place is an error, and
//! only a machine that is known not to exist is not found.

use nap_api::{NodeClaim, labels};
use nap_cloud::{CloudError, ErrorClass};

use crate::machines::{Machine, is_vm_in, machine_name_in, machine_name_of};
use crate::provider::AzureProvider;

const OPERATION: &str = "find a machine";
/// Code of the error about an id that is not a machine's.
const NOT_A_MACHINE: &str = "NotAMachine";

impl AzureProvider {
    /// The machine name behind a provider id. An id of another cloud is not found. Any other VM is
    /// an error unless a machine of the pool has it: it may exist, and cannot be managed here.
    pub(crate) async fn name_of(&self, provider_id: &str) -> Result<String, CloudError> {
        let (pool, group) = (&self.config.agent_pool, &self.config.node_resource_group);
        let machine = provider_id.strip_prefix("azure://");
        let machine = machine.and_then(|id| machine_name_in(id, &self.config.agent_pool_path()));
        if let Some(name) = machine {
            return Ok(name);
        }
        if !provider_id.to_ascii_lowercase().starts_with("azure://") {
            let message = format!("`{provider_id}` is not a VM of Azure");
            return Err(error(ErrorClass::NotFound, NOT_A_MACHINE, message));
        }
        if !is_vm_in(provider_id, group) {
            let message = format!(
                "`{provider_id}` is not a VM in resource group `{group}`; check AZURE_NODE_RESOURCE_GROUP"
            );
            return Err(error(ErrorClass::Invalid, NOT_A_MACHINE, message));
        }
        if let Some(name) = machine_name_of(provider_id, pool) {
            return Ok(name);
        }
        let listed = self.fleet.list().await?;
        if let Some(machine) = listed.machines().find(|one| one.has_provider_id(provider_id)) {
            return Ok(machine.name.clone());
        }
        let message = format!(
            "`{provider_id}` is not a machine of agent pool `{pool}`: nap manages machines of that \
             pool only; drain and delete the node with the controller that made it, before nap \
             takes over"
        );
        Err(error(ErrorClass::Invalid, NOT_A_MACHINE, message))
    }

    /// Why the instance of a NodeClaim cannot be managed: it is a VM, and no machine of the pool.
    /// `None` if it can be, or if that is not known.
    pub(crate) async fn why_unmanaged(&self, claim: &NodeClaim) -> Option<String> {
        let error = self.name_of_claim(claim).await.err()?;
        let is_other = error.class == ErrorClass::Invalid && error.code == NOT_A_MACHINE;
        is_other.then_some(error.message)
    }

    /// The machine of a launched NodeClaim, by the machine id that it was annotated with, or else
    /// by its provider id. `None` before it is launched.
    pub(crate) async fn name_of_claim(
        &self,
        claim: &NodeClaim,
    ) -> Result<Option<String>, CloudError> {
        let Some(provider_id) = provider_id_of(claim) else { return Ok(None) };
        let annotations = claim.metadata.annotations.as_ref();
        let recorded = annotations.and_then(|all| all.get(labels::AKS_MACHINE_RESOURCE_ID));
        let pool = self.config.agent_pool_path();
        if let Some(name) = recorded.and_then(|id| machine_name_in(id, &pool)) {
            return Ok(Some(name));
        }
        self.name_of(provider_id).await.map(Some)
    }

    /// Requests the deletion of a machine if it is owned by the one who asks. Returns whether there
    /// is such a machine.
    pub(crate) async fn delete_owned(
        &self,
        name: &str,
        is_owned: impl Fn(&Machine) -> Result<bool, CloudError>,
    ) -> Result<bool, CloudError> {
        let Some(machine) = self.fleet.find(name).await? else { return Ok(false) };
        if !is_owned(&machine)? {
            return Ok(false);
        }
        if machine.is_deleting() {
            return Ok(true);
        }
        match self.fleet.delete(name).await {
            // It was there a moment ago: the next look tells, not this refusal.
            Err(error) if error.is_not_found() => Ok(true),
            other => other.map(|()| true),
        }
    }
}

/// Whether a machine is that of a NodeClaim: its tag names it or, without a tag, its VM is the one
/// that the NodeClaim has recorded.
pub(crate) fn is_of_claim(machine: &Machine, claim: &NodeClaim) -> Result<bool, CloudError> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let recorded = provider_id_of(claim);
    match (machine.owner(), recorded) {
        (Some(owner), _) => Ok(owner == name),
        (None, Some(_)) if machine.provider_id().is_none() => {
            let message = format!("machine `{}` has neither an owner's tag nor a VM", machine.name);
            Err(error(ErrorClass::Transient, "OwnerUnknown", message))
        }
        (None, recorded) => Ok(recorded.is_some_and(|id| machine.has_provider_id(id))),
    }
}

pub(crate) fn provider_id_of(claim: &NodeClaim) -> Option<&str> {
    let id = claim.status.as_ref()?.provider_id.as_deref()?;
    (!id.is_empty()).then_some(id)
}

fn error(class: ErrorClass, code: &str, message: String) -> CloudError {
    CloudError::new(class, OPERATION, code, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VM: &str =
        "/subscriptions/s/resourceGroups/mc/providers/Microsoft.Compute/virtualMachines/vm";

    fn claim() -> NodeClaim {
        let spec = json!({
            "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
        });
        let status = json!({ "providerID": format!("azure://{VM}") });
        let metadata = json!({ "name": "default-abc12" });
        let object = json!({ "metadata": metadata, "spec": spec, "status": status });
        serde_json::from_value(object).unwrap()
    }

    fn machine(tag: Option<&str>, vm: Option<&str>) -> Machine {
        let tags = match tag {
            Some(tag) => json!({ crate::machines::NODECLAIM_TAG: tag }),
            None => json!({}),
        };
        let object = json!({ "name": "m", "properties": { "tags": tags, "resourceId": vm } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_machine_is_owned_by_its_tag_or_by_the_recorded_vm() {
        let owned = |tag, vm| is_of_claim(&machine(tag, vm), &claim()).ok();
        assert_eq!(owned(Some("default-abc12"), None), Some(true));
        assert_eq!(owned(Some("default-xyz"), Some(VM)), Some(false), "the tag counts");
        let upper = VM.to_uppercase();
        assert_eq!(owned(None, Some(upper.as_str())), Some(true));
        assert_eq!(owned(None, Some("/subscriptions/s/x/y/z/1/2/other")), Some(false));
        assert_eq!(owned(None, None), None, "nobody can tell");
    }
}
