//! The Azure implementation of [`CloudProvider`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use nap_api::aksnodeclass::{FipsMode, ImageFamily};
use nap_api::disruption::{Maintenance, MaintenanceSchedule, Span};
use nap_api::{AKSNodeClass, NodeClaim, OfferingRef, Requirements, labels};
use nap_clock::Clock;
use nap_cloud::{
    CloudError, CloudProvider, Creation, ErrorClass, Instance, InstanceDrift, NodeClassCondition,
    NodeClassFinding, NodeClassReport, QuotaCharge, QuotaCount, RepairPolicy, TerminationNotice,
};
use nap_engine::{CapacityType, Catalogue, InstanceType, PriceEstimates};
use nap_units::Resources;

use crate::arm::{ArmClient, HttpService, TokenProvider, https_client, tokens_from_env};
use crate::class_holds::ClassHolds;
use crate::drift;
use crate::embedded::{EmbeddedCatalogue, Lifecycle};
use crate::fleet::Fleet;
use crate::identity::is_of_claim;
use crate::instance_types::{Settings, instance_type};
use crate::launch::{FullSubnet, NO_VM};
use crate::machines::{
    API_VERSION, Machine, Machines, NODEPOOL_TAG, machine_name, machine_tags, tags,
};
use crate::not_offered::replacements;
use crate::prices::Prices;
use crate::region::RegionCatalogue;
use crate::shortage::Shortage;
use crate::skus::Sku;
use crate::{
    AzureConfig, AzureError, CatalogueSource, PriceSource, images, maintenance, node_class, notices,
};

/// Age up to which a list of machines tells of drift, which is no hurry.
const DRIFT_AGE: SignedDuration = SignedDuration::from_mins(1);

/// Launches agent-pool machines in an AKS cluster.
pub struct AzureProvider {
    pub(crate) config: AzureConfig,
    pub(crate) arm: ArmClient,
    pub(crate) region: RegionCatalogue,
    pub(crate) fleet: Fleet,
    /// Subnets that had no address left for a VM, with Azure's words and how long they count.
    pub(crate) full_subnets: Mutex<BTreeMap<FullSubnet, (String, Timestamp)>>,
    pub(crate) class_holds: Mutex<ClassHolds>,
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
            fleet: Fleet::new(Machines::new(arm.clone(), &config), arm.clock().clone()),
            region: RegionCatalogue::new(config.clone(), arm.clone(), prices),
            full_subnets: Mutex::default(),
            class_holds: Mutex::default(),
            arm,
            config,
        }
    }

    /// Lets the provider forget every failure at once, to measure what the memory is worth: a
    /// refusal then ends a launch, and its caller names other offerings.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        self.region.learns = false;
        self
    }

    /// Creates a provider for the endpoints of the settings, with the identity of the environment.
    pub fn connect(config: AzureConfig, clock: Clock) -> Result<Self, AzureError> {
        let service = https_client()?;
        let tokens = tokens_from_env(
            service.clone(),
            clock.clone(),
            &config.entra,
            Some(&config.subscription_id),
        )?;
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

    /// Where the instance types come from; `None` before they are asked for.
    pub fn catalogue_source(&self) -> Option<CatalogueSource> {
        self.region.source()
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

    pub(crate) async fn instance(&self, machine: &Machine) -> Result<Instance, CloudError> {
        let properties = &machine.properties;
        let operation = format!("get machine {}", machine.name);
        // A machine that failed before it had a VM is known by its own id: it can be deleted.
        let failed = machine.is_failed_without_vm().then(|| format!("azure://{}", machine.id));
        let provider_id = machine.provider_id().or(failed).ok_or_else(|| {
            CloudError::new(ErrorClass::Transient, operation, NO_VM, "the machine has no VM id yet")
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
                (labels::IN_PLACE_UPDATE_HASH.to_owned(), tags::hash_of_machine(&properties.tags)),
            ]
            .into(),
            capacity,
            allocatable,
            created: self.fleet.created(machine),
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
        self.launch(claim, class, offerings).await
    }

    async fn creation(&self, claim: &NodeClaim) -> Result<Creation, CloudError> {
        self.progress(claim).await
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudError> {
        let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
        let recorded = match self.name_of_claim(claim).await {
            Ok(name) => name,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        let mut exists = false;
        if let Some(name) = &recorded {
            exists |= self.delete_owned(name, |machine| is_of_claim(machine, claim)).await?;
        }
        let own = machine_name(claim_name).ok().filter(|own| recorded.as_ref() != Some(own));
        if let Some(name) = own {
            let is_owned = |machine: &Machine| Ok(machine.owner() == Some(claim_name));
            exists |= self.delete_owned(&name, is_owned).await?;
        }
        if exists {
            return Ok(());
        }
        // Azure counts a machine until it is gone.
        self.region.release_quota(claim_name);
        let (operation, message) = (format!("delete the machine of {claim_name}"), "it is gone");
        Err(CloudError::new(ErrorClass::NotFound, operation, "NotFound", message))
    }

    async fn why_unmanaged(&self, claim: &NodeClaim) -> Option<String> {
        self.why_unmanaged(claim).await
    }

    async fn delete_orphan(&self, provider_id: &str) -> Result<(), CloudError> {
        let name = self.name_of(provider_id).await?;
        let is_ours = |machine: &Machine| Ok(machine.is_of_cluster(&self.config.cluster_name));
        if self.delete_owned(&name, is_ours).await? {
            return Ok(());
        }
        let operation = format!("delete machine {name}");
        Err(CloudError::new(ErrorClass::NotFound, operation, "NotFound", "it is gone"))
    }

    async fn get(&self, provider_id: &str) -> Result<Instance, CloudError> {
        let name = self.name_of(provider_id).await?;
        let machine = match self.fleet.machines().get(&name).await {
            Err(error) if error.is_not_found() => {
                self.fleet.machines().confirm_cluster().await?;
                return Err(error);
            }
            other => other?,
        };
        let is_other = machine.provider_id().is_some() && !machine.has_provider_id(provider_id);
        if is_other || machine.is_lost() {
            let message = format!("the VM `{provider_id}` is gone");
            let operation = format!("get machine {}", machine.name);
            let code = "VirtualMachineGone";
            return Err(CloudError::new(ErrorClass::NotFound, operation, code, message));
        }
        self.instance(&machine).await
    }

    async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        let listed = self.fleet.list().await?;
        self.fleet.see(&listed);
        let ours = listed.machines().filter(|one| one.is_of_cluster(&self.config.cluster_name));
        let mut instances = Vec::new();
        // A machine without a VM id is too young to be listed, unless it has failed.
        let is_listed = |one: &&Machine| one.provider_id().is_some() || one.is_failed_without_vm();
        for machine in ours.filter(is_listed) {
            instances.push(self.instance(machine).await?);
        }
        for machine in self.fleet.newly_evicted(&listed) {
            let zone = machine.zone(&self.config.location);
            tracing::info!(machine = machine.name, zone, "spot VM was evicted");
            self.region.learn_eviction(&machine.properties.hardware.vm_size, &zone);
        }
        instances.sort_by(|a, b| a.provider_id.cmp(&b.provider_id));
        Ok(instances)
    }

    async fn instance_types(&self, class: &AKSNodeClass) -> Result<Arc<Catalogue>, CloudError> {
        self.region.catalogue(&Settings::new(&self.config, class)).await
    }

    fn quota(&self) -> QuotaCount {
        self.region.quota()
    }

    fn quota_charge(&self, offering: &OfferingRef) -> Option<QuotaCharge> {
        let capacity_type = CapacityType::parse(&offering.capacity_type)?;
        self.region.quota_charge(&offering.instance_type, capacity_type)
    }

    fn capacity_memory(&self, known: Option<&str>) -> Option<String> {
        Some(self.region.memory_text()).filter(|text| Some(text.as_str()) != known)
    }

    fn restore_capacity_memory(&self, text: &str) {
        self.region.restore_memory(text);
    }

    fn next_retry(&self) -> Option<Timestamp> {
        self.region.next_retry()
    }

    fn price_estimates(&self) -> PriceEstimates {
        match self.region.source().map(|source| source.prices) {
            None => PriceEstimates::None,
            Some(PriceSource::Live) => self.config.served_estimates,
            Some(built_in) => built_in.estimates(),
        }
    }

    fn unavailable_offerings(&self) -> BTreeMap<(CapacityType, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for one in self.region.shortages() {
            *counts.entry((one.capacity_type, one.cause.as_str())).or_default() += 1;
        }
        counts
    }

    fn shortages(&self, requirements: &Requirements) -> Vec<String> {
        let all = self.region.shortages();
        let catalogue = self.region.last_catalogue().filter(|_| !all.is_empty());
        let Some(catalogue) = catalogue else { return Vec::new() };
        let within = |one: &&InstanceType| one.requirements.intersects(requirements).is_ok();
        let types = catalogue.types().iter().filter(within);
        let types: Vec<(Sku, &InstanceType)> =
            types.filter_map(|one| Some((self.region.known_sku(&one.name)?, one))).collect();
        let concerns = |shortage: &Shortage| {
            types.iter().any(|(sku, one)| {
                one.offerings.iter().any(|offering| {
                    shortage.covers(sku, &offering.zone, offering.capacity_type)
                        && offering.requirements.intersects(requirements).is_ok()
                })
            })
        };
        let concerned = all.iter().filter(|shortage| concerns(shortage));
        let say = |one: &Shortage| {
            format!("{one} until {} ({})", one.until.strftime("%FT%TZ"), one.cause)
        };
        concerned.map(say).collect()
    }

    fn why_not_offered(&self, instance_type: &str) -> Option<String> {
        let today = self.arm().clock().now().to_zoned(jiff::tz::TimeZone::UTC).date();
        let gone = Lifecycle::built_in().gone(instance_type, &self.config.location, today)?;
        let wanted = EmbeddedCatalogue::embedded().sku(instance_type);
        let instead: Vec<String> = match (wanted, self.region.last_catalogue()) {
            (Some(wanted), Some(sold)) => {
                replacements(wanted, sold.types()).into_iter().map(|(name, _)| name).collect()
            }
            _ => Vec::new(),
        };
        if instead.is_empty() {
            return Some(gone.to_string());
        }
        Some(format!("{gone}, instead serve {}", instead.join(", ")))
    }

    async fn drift(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
    ) -> Result<Option<InstanceDrift>, CloudError> {
        let Some(name) = self.name_of_claim(claim).await? else { return Ok(None) };
        let listed = self.fleet.listed_within(DRIFT_AGE).await?;
        Ok(listed.get(&name).and_then(|machine| drift::drift(machine, class)))
    }

    async fn inspect_node_class(&self, class: &AKSNodeClass) -> NodeClassReport {
        let version = self.kubernetes_version().await;
        let mut report = node_class::inspect(&self.arm, &self.config, class, version).await;
        if let Some(message) = self.full_subnet(class) {
            let finding = NodeClassFinding::violated("SubnetFull", message);
            report.findings.insert(NodeClassCondition::Subnets, finding);
        }
        let name = class.metadata.name.as_deref().unwrap_or_default();
        if let Some(message) = self.class_holds().active(name, self.arm.clock().now()) {
            let finding = NodeClassFinding::violated("MachineCreationFailed", message);
            report.findings.insert(NodeClassCondition::Validation, finding);
        }
        report
    }

    async fn maintenance(
        &self,
        schedule: MaintenanceSchedule,
        within: Span,
    ) -> Result<Maintenance, CloudError> {
        maintenance::read(&self.arm, &self.config, schedule, within).await
    }

    fn in_place_hash(&self, claim: &NodeClaim, class: &AKSNodeClass) -> Option<String> {
        Some(tags::hash(&self.config, claim, class))
    }

    async fn update_in_place(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
    ) -> Result<(), CloudError> {
        let Some(name) = self.name_of_claim(claim).await? else { return Ok(()) };
        self.fleet.machines().set_tags(&name, &machine_tags(&self.config, claim, class)).await
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
        if label(labels::CAPACITY_TYPE) == CapacityType::Spot.as_str() {
            self.region.learn_eviction(label(labels::INSTANCE_TYPE), label(labels::ZONE));
        }
    }

    fn repair_policies(&self) -> &[RepairPolicy] {
        &notices::REPAIR_POLICIES
    }
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

    /// ARM with a machine of the cluster, and another size on sale that can be listed or not.
    fn one_machine(has_sizes: bool) -> AzureProvider {
        let catalogue = crate::embedded::EmbeddedCatalogue::embedded();
        let row = catalogue.sku("Standard_D8s_v5").unwrap();
        let row = row.to_resource_sku(catalogue.region("eastus").unwrap());
        let sizes = serde_json::json!({ "value": [row] }).to_string();
        let group = "/subscriptions/s/resourceGroups/rg/providers";
        let machine = serde_json::json!({
            "id": format!(
                "{group}/Microsoft.ContainerService/managedClusters/c/agentPools/p/machines/m"
            ),
            "name": "m",
            "properties": {
                "hardware": { "vmSize": "Standard_D4s_v5" },
                "provisioningState": "Succeeded",
                "resourceId": format!("{group}/Microsoft.Compute/virtualMachines/aks-p-12345678-vm"),
                "tags": { "karpenter.azure.com_cluster": "c", "karpenter.sh_nodepool": "default" },
            },
        });
        let machines = serde_json::json!({ "value": [machine] }).to_string();
        let service = http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
            let path = request.uri().path();
            let (status, body) = match path {
                _ if path.ends_with("/machines") => (200, machines.clone()),
                _ if path.ends_with("/skus") && has_sizes => (200, sizes.clone()),
                _ if path.ends_with("/skus") => (500, String::new()),
                _ => (200, r#"{"value":[]}"#.to_owned()),
            };
            let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
            async { Ok::<_, std::convert::Infallible>(response.unwrap()) }
        }));
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH, 1);
        AzureProvider::new(config, clock, service, Arc::new(StaticToken("t".to_owned())))
    }

    #[tokio::test(start_paused = true)]
    async fn machines_are_never_gone_because_sizes_cannot_be_listed() {
        let listed = one_machine(true).list().await.unwrap();
        assert_eq!(listed.len(), 1, "a size that is not sold is listed too");
        let error = one_machine(false).list().await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Transient, "{error}");
    }
}
