//! The provider that the controllers see.

use std::sync::Arc;

use async_trait::async_trait;
use nap_api::aksnodeclass::{ImageFamily, condition};
use nap_api::{AKSNodeClass, NodeClaim, Requirements, labels};
use nap_clock::Clock;
use nap_cloud::{CloudError, CloudProvider, ErrorClass, Instance, NodeClassReport};
use nap_engine::{Catalogue, InstanceType, Offering};
use nap_units::{Resources, Rounding};

use crate::arm::{ArmClient, HttpService, TokenProvider, https_client, tokens_from_env};
use crate::instance_types::{Settings, instance_type};
use crate::machines::{
    API_VERSION, Machine, MachineRequest, Machines, NODECLAIM_TAG, NODEPOOL_TAG, machine_name,
    machine_name_of,
};
use crate::market::Market;
use crate::prices::Prices;
use crate::skus::Sku;
use crate::{AzureConfig, AzureError, choice, images, subnet};

/// How many offerings one call tries before it gives up. Each failure teaches the market, so later
/// calls start further on.
const MAX_TRIES: usize = 10;

/// Makes agent-pool machines in an AKS cluster.
pub struct AzureProvider {
    config: AzureConfig,
    arm: ArmClient,
    machines: Machines,
    market: Market,
}

impl AzureProvider {
    /// A provider over any service: Azure itself, or an emulator.
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
            market: Market::new(config.clone(), arm.clone(), prices),
            arm,
            config,
        }
    }

    /// A provider for the endpoints of the settings, with the identity that the environment
    /// describes.
    pub fn connect(config: AzureConfig, clock: Clock) -> Result<Self, AzureError> {
        let service = https_client()?;
        let tokens = tokens_from_env(service.clone(), clock.clone(), &config.arm_endpoint)?;
        Ok(Self::new(config, clock, service, tokens))
    }

    /// The settings that it was made with.
    pub fn config(&self) -> &AzureConfig {
        &self.config
    }

    /// The ARM client, for what stands beside the provider (such as a catalogue refresh).
    pub fn arm(&self) -> &ArmClient {
        &self.arm
    }

    /// Finds the machine that an earlier call made for the claim, waiting for it if it is not
    /// ready. A failed one is removed and its failure remembered.
    async fn adopt(&self, name: &str, claim: &str) -> Result<Option<Instance>, CloudError> {
        let mut machine = match self.machines.get(name).await {
            Ok(machine) => machine,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let operation = format!("create machine {name}");
        if machine.properties.tags.get(NODECLAIM_TAG).is_none_or(|owner| owner != claim) {
            let message = "a machine of this name exists and belongs to something else";
            return Err(CloudError::new(
                ErrorClass::Invalid,
                operation,
                "MachineNameTaken",
                message,
            ));
        }
        let clock = self.arm.clock();
        let begun = clock.now();
        loop {
            if let Some(failure) = machine.failure(&operation) {
                if let Some(sku) = self.market.sku(&machine.properties.hardware.vm_size).await? {
                    let zone = machine.zone(&self.config.location);
                    self.market.learn(&failure, &sku, &zone, machine.capacity_type());
                }
                self.remove(name).await?;
                return Ok(None);
            }
            match machine.properties.provisioning_state.as_str() {
                "Succeeded" => return self.instance(&machine).await.map(Some),
                "Deleting" => {
                    let message = "the machine is being deleted";
                    return Err(CloudError::new(
                        ErrorClass::Transient,
                        operation,
                        "MachineDeleting",
                        message,
                    ));
                }
                _ => {}
            }
            if clock.now().duration_since(begun) >= crate::arm::POLL_BOUND {
                let message = "the machine is not ready after 15 minutes";
                return Err(CloudError::new(
                    ErrorClass::Transient,
                    operation,
                    "OperationTimedOut",
                    message,
                ));
            }
            clock.sleep(std::time::Duration::from_secs(5)).await;
            machine = match self.machines.get(name).await {
                Err(error) if error.is_not_found() => return Ok(None),
                other => other?,
            };
        }
    }

    /// Makes one machine and waits until it exists. Nothing is left of one that failed.
    async fn launch(
        &self,
        name: &str,
        request: &MachineRequest<'_>,
    ) -> Result<Instance, CloudError> {
        let body = request.body()?;
        self.market.reserve(request.sku, request.offering.capacity_type);
        let accepted = self.machines.put(name, &body).await?;
        let ended = accepted.wait(&self.arm, &format!("create machine {name}")).await;
        let machine = match (ended, self.machines.get(name).await) {
            (Ok(()), machine) => machine?,
            (Err(error), Err(lost)) if lost.is_not_found() => return Err(error),
            // The machine knows the cause; the operation often just says that it failed.
            (Err(error), Ok(machine)) => {
                let failure = machine.failure(&error.operation);
                if failure.is_some() {
                    self.remove(name).await?;
                }
                return Err(failure.unwrap_or(error));
            }
            (Err(error), Err(_)) => return Err(error),
        };
        if let Some(failure) = machine.failure(&format!("create machine {name}")) {
            self.remove(name).await?;
            return Err(failure);
        }
        self.instance(&machine).await
    }

    /// Deletes a machine and waits until it is gone.
    async fn remove(&self, name: &str) -> Result<(), CloudError> {
        match self.machines.delete(name).await {
            Ok(accepted) => accepted.wait(&self.arm, &format!("delete machine {name}")).await,
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks for a machine's deletion unless that was done.
    async fn begin_delete(&self, name: &str) -> Result<(), CloudError> {
        if self.machines.get(name).await?.is_deleting() {
            return Ok(());
        }
        self.machines.delete(name).await.map(|_| ())
    }

    /// The version of new machines: the one that was set, or the control plane's.
    async fn kubernetes_version(&self) -> Result<String, CloudError> {
        if let Some(version) = &self.config.kubernetes_version {
            return Ok(version.clone());
        }
        let path = format!("{}?api-version={API_VERSION}", self.config.cluster_path());
        let cluster = self.arm.get("get the managed cluster", &path).await?;
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

    /// An id of another shape is refused, not reported as gone: something that we cannot see may
    /// still exist.
    fn name_of(&self, provider_id: &str) -> Result<String, CloudError> {
        machine_name_of(provider_id, &self.config.agent_pool).ok_or_else(|| {
            let message =
                format!("`{provider_id}` is no machine of agent pool `{}`", self.config.agent_pool);
            CloudError::new(ErrorClass::Invalid, "find a machine", "NotAMachine", message)
        })
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
        if let Some(sku) = self.market.sku(&properties.hardware.vm_size).await? {
            let kind = self.machine_type(machine, &sku);
            all.extend(kind.requirements.labels());
            let zone = machine.zone(&self.config.location);
            let offering = kind.offerings.iter().find(|offering| {
                offering.zone == zone && offering.capacity_type == machine.capacity_type()
            });
            all.extend(offering.map(|offering| offering.requirements.labels()).unwrap_or_default());
            (capacity, allocatable) = (kind.capacity, kind.allocatable);
        }
        // These hold even for a size that is no longer on offer.
        all.insert(labels::INSTANCE_TYPE.to_owned(), properties.hardware.vm_size.clone());
        all.insert(labels::ZONE.to_owned(), machine.zone(&self.config.location));
        all.insert(labels::REGION.to_owned(), self.config.location.clone());
        all.insert(labels::CAPACITY_TYPE.to_owned(), machine.capacity_type().as_str().to_owned());
        all.insert(
            labels::SKU_STORAGE_ULTRA_SSD.to_owned(),
            properties.hardware.ultra_ssd_enabled.to_string(),
        );
        let node_pool = properties.tags.get(NODEPOOL_TAG).cloned();
        if let Some(pool) = &node_pool {
            all.insert(labels::NODEPOOL.to_owned(), pool.clone());
        }
        Ok(Instance {
            provider_id,
            node_claim: properties.tags.get(NODECLAIM_TAG).cloned(),
            node_pool,
            image_id: properties.node_image_version.clone(),
            labels: all,
            annotations: [(labels::AKS_MACHINE_RESOURCE_ID.to_owned(), machine.id.clone())].into(),
            capacity,
            allocatable,
            created: machine.created(),
            deleting: machine.is_deleting(),
        })
    }

    /// The instance type of a machine that exists, by its own settings.
    fn machine_type(&self, machine: &Machine, sku: &Sku) -> InstanceType {
        let system = &machine.properties.operating_system;
        let family = if system.os_sku == "AzureLinux" {
            ImageFamily::AzureLinux
        } else {
            ImageFamily::Ubuntu
        };
        let mut class = AKSNodeClass::default();
        class.spec.image_family = family;
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
            return Err(CloudError::new(
                ErrorClass::NodeClassNotReady,
                operation,
                "NodeClassNotReady",
                message,
            ));
        };
        let requirements = Requirements::from_specs(&claim.spec.requirements);
        let requests = Resources::from_quantities(
            claim.spec.resources.requests.iter().map(|(name, amount)| (name.as_str(), amount)),
            Rounding::Up,
        );
        let mut last: Option<CloudError> = None;
        for attempt in 1..=MAX_TRIES {
            let catalogue = self.instance_types(class).await?;
            let image = |kind: &InstanceType| images::select(&status.images, &kind.requirements);
            let annotations = claim.metadata.annotations.as_ref();
            let planned = annotations
                .and_then(|all| all.get(labels::PLANNED_OFFERINGS))
                .map_or("", String::as_str);
            let best = choice::best(
                catalogue.types(),
                &requirements,
                &requests,
                &claim_name,
                planned,
                |kind| image(kind).is_some(),
            );
            let Some((kind, offering)) = best else { break };
            let (Some(sku), Some(image)) = (self.market.sku(&kind.name).await?, image(kind)) else {
                break;
            };
            let request = MachineRequest {
                config: &self.config,
                claim,
                class,
                sku: &sku,
                instance_type: kind,
                offering,
                image_id: &image.id,
                kubernetes_version: &version,
            };
            match self.launch(&name, &request).await {
                Ok(instance) => {
                    log_launch(&claim_name, kind, offering, attempt);
                    return Ok(instance);
                }
                Err(error) if matches!(error.class, ErrorClass::Capacity | ErrorClass::Quota) => {
                    tracing::info!(
                        nodeclaim = claim_name,
                        instance_type = kind.name,
                        zone = offering.zone,
                        capacity_type = offering.capacity_type.as_str(),
                        reason = error.code,
                        "an offering cannot be had"
                    );
                    self.market.release(&sku, offering.capacity_type);
                    if !self.market.learn(&error, &sku, &offering.zone, offering.capacity_type) {
                        return Err(error);
                    }
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        let code =
            last.as_ref().map_or("InsufficientCapacity".to_owned(), |error| error.code.clone());
        let message = match last {
            Some(error) => format!(
                "no offering is left that satisfies the claim; the last failure was: {}",
                error.message
            ),
            None => {
                "no available offering satisfies the claim and holds what it asks for".to_owned()
            }
        };
        Err(CloudError::new(ErrorClass::Capacity, operation, code, message))
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudError> {
        let provider_id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
        let name = match provider_id {
            Some(id) => self.name_of(id)?,
            None => machine_name(claim.metadata.name.as_deref().unwrap_or_default())?,
        };
        self.begin_delete(&name).await
    }

    async fn delete_orphan(&self, provider_id: &str) -> Result<(), CloudError> {
        self.begin_delete(&self.name_of(provider_id)?).await
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let machine = self.machines.get(&self.name_of(provider_id)?).await?;
        if machine.is_lost() {
            let message = "the VM of the machine is gone";
            let operation = format!("get machine {}", machine.name);
            return Err(CloudError::new(
                ErrorClass::NotFound,
                operation,
                "VirtualMachineGone",
                message,
            ));
        }
        self.instance(&machine).await
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let mut instances = Vec::new();
        for machine in self.machines.list().await? {
            if !machine.properties.tags.contains_key(NODEPOOL_TAG) {
                continue;
            }
            // A machine that is too young to have a VM id is not worth failing the whole list.
            match self.instance(&machine).await {
                Ok(instance) => instances.push(instance),
                Err(error) => tracing::debug!(%error, "a machine is left out of the list"),
            }
        }
        instances.sort_by(|a, b| a.provider_id.cmp(&b.provider_id));
        Ok(instances)
    }

    async fn instance_types(&self, class: &AKSNodeClass) -> Result<Arc<Catalogue>, CloudError> {
        self.market.catalogue(&Settings::new(&self.config, class)).await
    }

    /// Drift of images and Kubernetes versions is not judged yet: no machine ever counts as drifted
    /// here.
    async fn drifted(&self, _: &NodeClaim, _: &AKSNodeClass) -> Result<Option<String>, CloudError> {
        Ok(None)
    }

    async fn inspect_node_class(
        &self,
        class: &AKSNodeClass,
    ) -> Result<NodeClassReport, CloudError> {
        let version = self.kubernetes_version().await?;
        let published = images::list(&self.arm, &self.config).await?;
        let mut report = NodeClassReport {
            images: images::resolve(&self.config, class.spec.image_family, &version, &published),
            kubernetes_version: Some(version),
            ..NodeClassReport::default()
        };
        if report.images.is_empty() {
            let message = format!(
                "no image of family {:?} is published in the region",
                class.spec.image_family
            );
            report
                .problems
                .insert(condition::IMAGES_READY.to_owned(), ("ImagesNotFound".to_owned(), message));
        }
        let wanted = class.spec.vnet_subnet_id.as_deref();
        if let Some(problem) = subnet::inspect(&self.arm, &self.config, wanted).await? {
            report.problems.insert(condition::SUBNETS_READY.to_owned(), problem);
        }
        Ok(report)
    }
}

fn log_launch(claim: &str, kind: &InstanceType, offering: &Offering, attempt: usize) {
    tracing::info!(
        nodeclaim = claim,
        instance_type = kind.name,
        zone = offering.zone,
        capacity_type = offering.capacity_type.as_str(),
        price = %offering.price,
        attempt,
        "a machine was made"
    );
}
