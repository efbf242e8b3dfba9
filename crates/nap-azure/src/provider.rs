//! The Azure implementation of [`CloudProvider`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use nap_api::aksnodeclass::{FipsMode, ImageFamily};
use nap_api::{AKSNodeClass, NodeClaim, OfferingRef, Requirements, labels};
use nap_clock::Clock;
use nap_cloud::{
    CloudError, CloudProvider, ErrorClass, Instance, InstanceDrift, NodeClassReport, RepairPolicy,
    TerminationNotice,
};
use nap_engine::{CapacityType, Catalogue, InstanceType};
use nap_units::{Resources, Rounding};

use crate::arm::{
    ArmClient, Failure, HttpService, POLL_BOUND, TokenProvider, https_client, tokens_from_env,
};
use crate::drift::{self, ListedMachines};
use crate::embedded::Lifecycle;
use crate::instance_types::{Settings, instance_type};
use crate::machines::{
    API_VERSION, Machine, MachineRequest, Machines, NODEPOOL_TAG, ProvisioningState, is_vm_in,
    machine_name, machine_name_of, machine_tags, tags,
};
use crate::offering_selection::{self, Wanted};
use crate::prices::Prices;
use crate::region::RegionCatalogue;
use crate::skus::Sku;
use crate::{AzureConfig, AzureError, images, node_class, notices};

/// Most offerings that one call tries. Each failure is remembered, so a later call continues where
/// this one stopped.
const MAX_TRIES: usize = 10;
/// Interval at which a machine that is being created is polled.
const ADOPT_INTERVAL: Duration = Duration::from_secs(5);

/// Launches agent-pool machines in an AKS cluster.
pub struct AzureProvider {
    config: AzureConfig,
    arm: ArmClient,
    machines: Machines,
    region: RegionCatalogue,
    listed: ListedMachines,
}

impl AzureProvider {
    /// Creates a provider over any service: Azure itself, or an emulator.
    pub fn new(
        config: AzureConfig,
        clock: Clock,
        service: HttpService,
        tokens: Arc<dyn TokenProvider>,
    ) -> Self {
        let arm = ArmClient::new(service.clone(), tokens, clock.clone(), &config.arm_endpoint);
        let prices = ArmClient::anonymous(service, clock, &config.prices_endpoint);
        Self {
            machines: Machines::new(arm.clone(), &config),
            region: RegionCatalogue::new(config.clone(), arm.clone(), prices),
            listed: ListedMachines::default(),
            arm,
            config,
        }
    }

    /// Creates a provider for the endpoints of the settings, with the identity of the environment.
    pub fn connect(config: AzureConfig, clock: Clock) -> Result<Self, AzureError> {
        let service = https_client()?;
        let tokens = tokens_from_env(service.clone(), clock.clone(), &config.arm_endpoint)?;
        Ok(Self::new(config, clock, service, tokens))
    }

    /// Settings of the provider.
    pub fn config(&self) -> &AzureConfig {
        &self.config
    }

    /// The ARM client, for uses beside the provider such as a catalogue refresh.
    pub fn arm(&self) -> &ArmClient {
        &self.arm
    }

    /// Adopts the machine that an earlier call created for the NodeClaim, and waits until it is
    /// ready. `None` if there is none; one that failed is removed and its failure remembered.
    async fn adopt(&self, name: &str, claim: &str) -> Result<Option<Instance>, CloudError> {
        let operation = format!("create machine {name}");
        let error = |class, code: &str, message: &str| {
            Err(CloudError::new(class, operation.as_str(), code, message))
        };
        let clock = self.arm.clock();
        let begun = clock.now();
        loop {
            let machine = match self.machines.get(name).await {
                Ok(machine) => machine,
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            };
            if machine.owner() != Some(claim) {
                let message = "a machine of this name exists and belongs to another owner";
                return error(ErrorClass::Invalid, "MachineNameTaken", message);
            }
            if let Some(failure) = machine.failure(&operation) {
                if let Some(sku) = self.region.sku(&machine.properties.hardware.vm_size).await? {
                    let zone = machine.zone(&self.config.location);
                    self.region.learn(&failure, &sku, &zone, machine.capacity_type());
                }
                self.remove(name).await?;
                return Ok(None);
            }
            match machine.properties.provisioning_state {
                ProvisioningState::Succeeded => return self.instance(&machine).await.map(Some),
                ProvisioningState::Deleting => {
                    let message = "the machine is being deleted";
                    return error(ErrorClass::Transient, "MachineDeleting", message);
                }
                ProvisioningState::Failed | ProvisioningState::InProgress => {}
            }
            if clock.now().duration_since(begun) >= POLL_BOUND {
                let message = "the machine is not ready after 15 minutes";
                return error(ErrorClass::Transient, "OperationTimedOut", message);
            }
            clock.sleep(ADOPT_INTERVAL).await;
        }
    }

    /// Creates one machine and waits until it exists. A machine that failed is removed.
    async fn launch(
        &self,
        name: &str,
        request: &MachineRequest<'_>,
    ) -> Result<Instance, CloudError> {
        let body = request.body()?;
        let hold = self.region.hold_quota(request.sku, request.offering.capacity_type);
        let operation = format!("create machine {name}");
        let accepted = self.machines.put(name, &body).await?;
        let ended = accepted.wait(&self.arm, &operation).await;
        let machine = match (ended, self.machines.get(name).await) {
            (Ok(()), machine) => machine?,
            // The machine knows the cause; the operation often says only that it failed.
            (Err(error), Ok(machine)) if machine.failure(&operation).is_none() => {
                return Err(error);
            }
            (Err(_), Ok(machine)) => machine,
            (Err(error), Err(_)) => return Err(error),
        };
        if let Some(failure) = machine.failure(&operation) {
            self.remove(name).await?;
            return Err(failure);
        }
        let instance = self.instance(&machine).await?;
        hold.keep();
        Ok(instance)
    }

    /// Deletes a machine and waits until it is gone.
    async fn remove(&self, name: &str) -> Result<(), CloudError> {
        match self.machines.delete(name).await {
            Ok(accepted) => accepted.wait(&self.arm, &format!("delete machine {name}")).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether AKS runs node auto-provisioning in the cluster itself.
    pub async fn is_managed_provisioning_on(&self) -> Result<bool, CloudError> {
        let cluster = self.managed_cluster().await?;
        let mode = cluster.pointer("/properties/nodeProvisioningProfile/mode");
        let mode = mode.and_then(serde_json::Value::as_str).unwrap_or_default();
        Ok(mode.eq_ignore_ascii_case("Auto"))
    }

    async fn managed_cluster(&self) -> Result<serde_json::Value, CloudError> {
        let path = format!("{}?api-version={API_VERSION}", self.config.cluster_path());
        self.arm.get("get the managed cluster", &path).await
    }

    /// Kubernetes version of new machines: the configured one, or the control plane's.
    async fn kubernetes_version(&self) -> Result<String, CloudError> {
        if let Some(version) = &self.config.kubernetes_version {
            return Ok(version.clone());
        }
        let cluster = self.managed_cluster().await?;
        let current = ["currentKubernetesVersion", "kubernetesVersion"]
            .iter()
            .find_map(|name| cluster.pointer(&format!("/properties/{name}"))?.as_str());
        current.map(str::to_owned).ok_or_else(|| {
            let message = "the managed cluster does not state its Kubernetes version";
            CloudError::new(
                ErrorClass::Transient,
                "get the managed cluster",
                "InvalidResponse",
                message,
            )
        })
    }

    /// The machine name in a provider id. An id of another cloud, cluster or form is not found. A
    /// VM of the cluster that is not a machine is an error: it may exist, and cannot be managed
    /// here.
    fn name_of(&self, provider_id: &str) -> Result<String, CloudError> {
        let pool = &self.config.agent_pool;
        if let Some(name) = machine_name_of(provider_id, pool) {
            return Ok(name);
        }
        let is_vm = is_vm_in(provider_id, &self.config.node_resource_group);
        let class = if is_vm { ErrorClass::Invalid } else { ErrorClass::NotFound };
        let message = format!("`{provider_id}` is not a machine of agent pool `{pool}`");
        Err(CloudError::new(class, "find a machine", "NotAMachine", message))
    }

    /// Name of the machine of a launched NodeClaim; `None` before it is launched.
    fn name_of_claim(&self, claim: &NodeClaim) -> Option<String> {
        let status = claim.status.as_ref()?;
        self.name_of(status.provider_id.as_deref()?).ok()
    }

    /// Requests the deletion of a machine if it belongs to the NodeClaim. Returns whether there is
    /// such a machine.
    async fn delete_owned(
        &self,
        name: &str,
        is_owned: impl Fn(Option<&str>) -> bool,
    ) -> Result<bool, CloudError> {
        let machine = match self.machines.get(name).await {
            Ok(machine) => machine,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        };
        if !is_owned(machine.owner()) {
            return Ok(false);
        }
        if !machine.is_deleting() {
            self.machines.delete(name).await?;
        }
        Ok(true)
    }

    async fn instance(&self, machine: &Machine) -> Result<Instance, CloudError> {
        let properties = &machine.properties;
        let operation = format!("get machine {}", machine.name);
        let provider_id = machine.provider_id().ok_or_else(|| {
            CloudError::new(
                ErrorClass::Transient,
                operation,
                "NoVirtualMachine",
                "the machine has no VM id yet",
            )
        })?;
        let mut all = properties.kubernetes.node_labels.clone();
        let (mut capacity, mut allocatable) = (Resources::new(), Resources::new());
        if let Some(sku) = self.region.sku(&properties.hardware.vm_size).await? {
            let instance_type = self.machine_type(machine, &sku);
            all.extend(instance_type.requirements.labels());
            let zone = machine.zone(&self.config.location);
            let offering = instance_type.offerings.iter().find(|offering| {
                offering.zone == zone && offering.capacity_type == machine.capacity_type()
            });
            all.extend(offering.map(|offering| offering.requirements.labels()).unwrap_or_default());
            (capacity, allocatable) = (instance_type.capacity, instance_type.allocatable);
        }
        // These hold even for a size that is no longer sold.
        all.insert(labels::INSTANCE_TYPE.to_owned(), properties.hardware.vm_size.clone());
        all.insert(labels::ZONE.to_owned(), machine.zone(&self.config.location));
        all.insert(labels::REGION.to_owned(), self.config.location.clone());
        all.insert(labels::CAPACITY_TYPE.to_owned(), machine.capacity_type().as_str().to_owned());
        all.insert(
            labels::SKU_STORAGE_ULTRA_SSD.to_owned(),
            properties.hardware.ultra_ssd_enabled.to_string(),
        );
        // A size can be either; the machine is one of them.
        let mode = properties.mode.as_deref().unwrap_or("User").to_lowercase();
        all.insert(labels::AKS_MODE.to_owned(), mode);
        if let Some(image) = &properties.node_image_version {
            let generation = images::hyperv_generation(image);
            all.insert(labels::SKU_HYPERV_GENERATION.to_owned(), generation.to_owned());
        }
        let node_pool = properties.tags.get(NODEPOOL_TAG).cloned();
        if let Some(pool) = &node_pool {
            all.insert(labels::NODEPOOL.to_owned(), pool.clone());
        }
        Ok(Instance {
            provider_id,
            node_claim: machine.owner().map(str::to_owned),
            node_pool,
            image_id: properties.node_image_version.clone(),
            labels: all,
            annotations: [
                (labels::AKS_MACHINE_RESOURCE_ID.to_owned(), machine.id.clone()),
                (labels::IN_PLACE_UPDATE_HASH.to_owned(), tags::hash(&properties.tags)),
            ]
            .into(),
            capacity,
            allocatable,
            created: machine.created(),
            deleting: machine.is_deleting(),
            lost: machine.is_lost(),
        })
    }

    /// Instance type of an existing machine, from its own settings.
    fn machine_type(&self, machine: &Machine, sku: &Sku) -> InstanceType {
        let system = &machine.properties.operating_system;
        let family = if system.os_sku == "AzureLinux" {
            ImageFamily::AzureLinux
        } else {
            ImageFamily::Ubuntu
        };
        let mut class = AKSNodeClass::default();
        class.spec.image_family = family;
        class.spec.fips_mode = system.enable_fips.then_some(FipsMode::Fips);
        let mut settings = Settings::new(&self.config, &class);
        settings.os_disk_gb = system.os_disk_size_gb.unwrap_or(settings.os_disk_gb);
        settings.max_pods = machine.properties.kubernetes.max_pods.unwrap_or(settings.max_pods);
        instance_type(sku, &settings, &Prices::default(), |_, _| true)
    }
}

#[async_trait]
impl CloudProvider for AzureProvider {
    async fn create(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
        offerings: &[OfferingRef],
    ) -> Result<Instance, CloudError> {
        let claim_name = claim.metadata.name.clone().unwrap_or_default();
        let name = machine_name(&claim_name)?;
        let operation = format!("create machine {name}");
        if let Some(instance) = self.adopt(&name, &claim_name).await? {
            return Ok(instance);
        }
        let status = class.status.clone().unwrap_or_default();
        let (Some(version), false) = (status.kubernetes_version, status.images.is_empty()) else {
            let message = "the node class has no Kubernetes version or no images yet";
            let code = "NodeClassNotReady";
            return Err(CloudError::new(ErrorClass::NodeClassNotReady, operation, code, message));
        };
        let requirements = Requirements::from_specs(&claim.spec.requirements);
        let requests = Resources::from_quantities(
            claim.spec.resources.requests.iter().map(|(name, amount)| (name.as_str(), amount)),
            Rounding::Up,
        );
        let image =
            |one: &InstanceType| images::select(&status.images, &one.requirements, &requirements);
        let has_image = |one: &InstanceType| image(one).is_some();
        let wanted =
            Wanted { requirements: &requirements, requests: &requests, has_image: &has_image };
        let mut last: Option<CloudError> = None;
        for attempt in 1..=MAX_TRIES {
            let catalogue = self.instance_types(class).await?;
            let next = if offerings.is_empty() {
                offering_selection::cheapest(catalogue.types(), &wanted, &claim_name)
            } else {
                offering_selection::first_planned(catalogue.types(), &wanted, offerings)
            };
            let Some((instance_type, offering)) = next else { break };
            let sku = self.region.sku(&instance_type.name).await?;
            let (Some(sku), Some(image)) = (sku, image(instance_type)) else { break };
            let request = MachineRequest {
                config: &self.config,
                claim,
                class,
                sku: &sku,
                instance_type,
                offering,
                image_id: &image.id,
                kubernetes_version: &version,
            };
            let (zone, capacity_type) = (&offering.zone, offering.capacity_type);
            match self.launch(&name, &request).await {
                Ok(instance) => {
                    tracing::info!(
                        nodeclaim = claim_name,
                        instance_type = instance_type.name,
                        zone,
                        capacity_type = capacity_type.as_str(),
                        price = %offering.price,
                        attempt,
                        "launched instance"
                    );
                    return Ok(instance);
                }
                Err(error) if matches!(error.class, ErrorClass::Capacity | ErrorClass::Quota) => {
                    tracing::info!(
                        nodeclaim = claim_name,
                        instance_type = instance_type.name,
                        zone,
                        capacity_type = capacity_type.as_str(),
                        reason = error.code,
                        "offering unavailable"
                    );
                    if !self.region.learn(&error, &sku, zone, capacity_type) {
                        return Err(error);
                    }
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(no_offering_left(operation, last))
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudError> {
        let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
        let recorded = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
        let recorded = match recorded.map(|id| self.name_of(id)) {
            Some(Ok(name)) => Some(name),
            Some(Err(error)) if !error.is_not_found() => return Err(error),
            Some(Err(_)) | None => None,
        };
        let mut exists = false;
        if let Some(name) = &recorded {
            // A machine without the tag is the NodeClaim's, because its provider id says so.
            let is_owned = |owner: Option<&str>| owner.is_none_or(|owner| owner == claim_name);
            exists |= self.delete_owned(name, is_owned).await?;
        }
        let own = machine_name(claim_name).ok().filter(|own| recorded.as_ref() != Some(own));
        if let Some(name) = own {
            exists |= self.delete_owned(&name, |owner| owner == Some(claim_name)).await?;
        }
        if exists {
            return Ok(());
        }
        let (operation, message) = (format!("delete the machine of {claim_name}"), "it is gone");
        Err(CloudError::new(ErrorClass::NotFound, operation, "NotFound", message))
    }

    async fn delete_orphan(&self, provider_id: &str) -> Result<(), CloudError> {
        let name = self.name_of(provider_id)?;
        if self.delete_owned(&name, |_| true).await? {
            return Ok(());
        }
        let operation = format!("delete machine {name}");
        Err(CloudError::new(ErrorClass::NotFound, operation, "NotFound", "it is gone"))
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let machine = self.machines.get(&self.name_of(provider_id)?).await?;
        let id = machine.provider_id();
        let is_other = id.is_some_and(|id| !id.eq_ignore_ascii_case(provider_id));
        if is_other || machine.is_lost() {
            let message = format!("the VM `{provider_id}` is gone");
            let operation = format!("get machine {}", machine.name);
            let code = "VirtualMachineGone";
            return Err(CloudError::new(ErrorClass::NotFound, operation, code, message));
        }
        self.instance(&machine).await
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let mut instances = Vec::new();
        for machine in self.machines.list().await? {
            // A machine without a VM id is too young to be listed.
            if machine.is_of_cluster(&self.config.cluster_name) && machine.provider_id().is_some() {
                instances.push(self.instance(&machine).await?);
            }
        }
        instances.sort_by(|a, b| a.provider_id.cmp(&b.provider_id));
        Ok(instances)
    }

    async fn instance_types(&self, class: &AKSNodeClass) -> Result<Arc<Catalogue>, CloudError> {
        self.region.catalogue(&Settings::new(&self.config, class)).await
    }

    fn why_not_offered(&self, instance_type: &str) -> Option<String> {
        let today = self.arm().clock().now().to_zoned(jiff::tz::TimeZone::UTC).date();
        let gone = Lifecycle::built_in().gone(instance_type, &self.config.location, today);
        gone.map(|gone| gone.to_string())
    }

    async fn drift(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
    ) -> Result<Option<InstanceDrift>, CloudError> {
        let Some(name) = self.name_of_claim(claim) else { return Ok(None) };
        let machines = self.listed.get(&self.machines, self.arm.clock()).await?;
        Ok(machines.get(&name).and_then(|machine| drift::drift(machine, class)))
    }

    async fn inspect_node_class(&self, class: &AKSNodeClass) -> NodeClassReport {
        let version = self.kubernetes_version().await;
        node_class::inspect(&self.arm, &self.config, class, version).await
    }

    fn in_place_hash(&self, claim: &NodeClaim, class: &AKSNodeClass) -> Option<String> {
        Some(tags::hash(&machine_tags(&self.config, claim, class)))
    }

    async fn update_in_place(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
    ) -> Result<(), CloudError> {
        let Some(name) = self.name_of_claim(claim) else { return Ok(()) };
        self.machines.set_tags(&name, &machine_tags(&self.config, claim, class)).await
    }

    fn termination_notice(
        &self,
        condition: &str,
        message: &str,
        since: Timestamp,
    ) -> Option<TerminationNotice> {
        notices::notice(condition, message, since)
    }

    async fn remember_eviction(&self, claim: &NodeClaim) {
        let all = claim.metadata.labels.clone().unwrap_or_default();
        let label = |key: &str| all.get(key).map_or("", String::as_str);
        let spot = CapacityType::Spot;
        if label(labels::CAPACITY_TYPE) != spot.as_str() {
            return;
        }
        if let Ok(Some(sku)) = self.region.sku(label(labels::INSTANCE_TYPE)).await {
            let code = Failure::EVICTED;
            let error = CloudError::new(ErrorClass::Capacity, "keep a spot VM", code, "evicted");
            self.region.learn(&error, &sku, label(labels::ZONE), spot);
        }
    }

    fn repair_policies(&self) -> &[RepairPolicy] {
        &notices::REPAIR_POLICIES
    }
}

/// The error when no offering of a NodeClaim can be launched.
fn no_offering_left(operation: String, last: Option<CloudError>) -> CloudError {
    let (code, message) = if let Some(error) = last {
        let message =
            format!("no offering of the NodeClaim is left; the last failed: {}", error.message);
        (error.code, message)
    } else {
        let message = "no available offering satisfies the NodeClaim and holds its requests";
        ("InsufficientCapacity".to_owned(), message.to_owned())
    };
    CloudError::new(ErrorClass::Capacity, operation, code, message)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;

    use super::*;
    use crate::arm::{StaticToken, http_service};

    #[tokio::test]
    async fn managed_node_auto_provisioning_is_seen() {
        for (profile, expected) in [
            (r#"{"nodeProvisioningProfile":{"mode":"Auto"}}"#, true),
            (r#"{"nodeProvisioningProfile":{"mode":"Manual"}}"#, false),
            (r#"{"nodeProvisioningProfile":null}"#, false),
            ("{}", false),
        ] {
            let body = format!(r#"{{"properties":{profile}}}"#);
            let service = http_service(tower::service_fn(move |_: Request<Full<Bytes>>| {
                let body = Full::new(Bytes::from(body.clone()));
                async { Ok::<_, std::convert::Infallible>(Response::new(body)) }
            }));
            let config = AzureConfig::new("s", "rg", "c", "eastus");
            let token = Arc::new(StaticToken("t".to_owned()));
            let provider = AzureProvider::new(config, Clock::wall(), service, token);
            assert_eq!(provider.is_managed_provisioning_on().await.unwrap(), expected, "{profile}");
        }
    }
}
