//! The launch of a NodeClaim as a machine, and its progress until the VM exists.
//!
//! A launch ends when Azure has accepted the machine: a refusal falls through to the next offering
//! at once. What fails later takes the name of the NodeClaim with it, so that its pods are planned
//! again with what was learnt.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nap_api::{AKSNodeClass, NodeClaim, OfferingRef, Requirements, labels};
use nap_cloud::{CloudError, CloudProvider, Creation, ErrorClass, Instance};
use nap_engine::InstanceType;
use nap_units::{Resources, Rounding};

use crate::arm::{Failure, operation_failure};
use crate::class_holds::ClassHolds;
use crate::machines::{
    Created, Machine, MachineRequest, NewMachine, ProvisioningState, machine_name,
};
use crate::offering_selection::{self, Wanted};
use crate::{AzureConfig, AzureProvider, images};

/// Most offerings that one call tries. Each failure is remembered, so a later call continues where
/// this one stopped.
const MAX_TRIES: usize = 10;
/// Most offerings that one call chooses, those included whose quota other launches have taken.
const MAX_CHOICES: usize = 100;
/// Time for which a class is not ready after its subnet had no address left.
const FULL_SUBNET_LIFETIME: SignedDuration = SignedDuration::from_mins(5);
/// Age below which an accepted machine is taken to be in progress without asking.
const MIN_AGE: SignedDuration = SignedDuration::from_secs(5);
/// Interval at which an accepted machine is looked for in the list.
const APPEAR_INTERVAL: Duration = Duration::from_secs(2);
/// Code of the error of a machine that was accepted and has no VM yet.
pub(crate) const NO_VM: &str = "NoVirtualMachine";
/// Most times that it is looked for.
const MAX_LOOKS: u32 = 10;

/// A subnet that had no address left for a VM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FullSubnet {
    /// The one with an ARM id, in lower case: Azure ignores case, and returns another one.
    Named(String),
    /// The one that AKS chooses for a class that names none.
    Chosen {
        /// Name of the class.
        class: String,
    },
}

impl FullSubnet {
    /// The subnet that a class asks for.
    fn of(class: &AKSNodeClass, config: &AzureConfig) -> Self {
        let id = class.spec.vnet_subnet_id.as_deref().or(config.vnet_subnet_id.as_deref());
        let name = class.metadata.name.as_deref().unwrap_or_default();
        id.filter(|id| !id.is_empty()).map_or_else(|| Self::chosen(name), Self::named)
    }

    fn named(id: &str) -> Self {
        Self::Named(id.trim_end_matches('/').to_lowercase())
    }

    fn chosen(class: &str) -> Self {
        Self::Chosen { class: class.to_owned() }
    }
}

impl AzureProvider {
    /// Creates the machine of a NodeClaim with the first offering that Azure accepts, or adopts the
    /// machine that an earlier call created.
    pub(crate) async fn launch(
        &self,
        claim: &NodeClaim,
        class: &AKSNodeClass,
        offerings: &[OfferingRef],
    ) -> Result<Instance, CloudError> {
        let claim_name = claim.metadata.name.clone().unwrap_or_default();
        let name = machine_name(&claim_name)?;
        let operation = format!("create machine {name}");
        if let Some(machine) = self.fleet.find_created(&name).await? {
            return self.adopt(&machine, claim).await;
        }
        if let Some(message) = self.why_held(claim, class) {
            // The condition of the class says the same, some seconds later.
            let (class, code) = (ErrorClass::NodeClassNotReady, "NodeClassNotReady");
            return Err(CloudError::new(class, operation, code, message));
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
        let doubts = self.region.doubts();
        let wanted = Wanted {
            requirements: &requirements,
            requests: &requests,
            has_image: &has_image,
            doubts: &doubts,
        };
        let mut last: Option<CloudError> = None;
        let mut attempt = 0;
        for _ in 0..MAX_CHOICES {
            if attempt == MAX_TRIES {
                break;
            }
            let catalogue = self.instance_types(class).await?;
            let next = if offerings.is_empty() {
                offering_selection::cheapest(catalogue.types(), &wanted, &claim_name)
            } else {
                offering_selection::first_planned(catalogue.types(), &wanted, offerings)
            };
            let Some((instance_type, offering)) = next else { break };
            let sku = self.region.sku(&instance_type.name).await?;
            let (Some(sku), Some(image)) = (sku, image(instance_type)) else { break };
            let (zone, capacity_type) = (&offering.zone, offering.capacity_type);
            // Another launch may have taken the quota since the catalogue was made; then the next
            // catalogue lacks the offering.
            let hold = self.region.hold_quota(&claim_name, &sku, capacity_type);
            let Some(hold) = hold else { continue };
            attempt += 1;
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
            let new = NewMachine { name: name.clone(), body: request.body()? };
            let requested = self.request(new, claim).await;
            let is_about_offering = |error: &CloudError| {
                error.class != ErrorClass::CreationFailed
                    && Failure::of_launch(error, &sku.name, zone).is_about_offering()
            };
            match requested {
                Ok(instance) => {
                    hold.keep();
                    tracing::info!(
                        nodeclaim = claim_name,
                        instance_type = instance_type.name,
                        zone,
                        capacity_type = capacity_type.as_str(),
                        price = %offering.price,
                        price_is_estimate = self.price_estimates().covers(capacity_type),
                        attempt,
                        correlation_id = instance.annotations.get(labels::AZURE_CORRELATION_ID),
                        "launched instance"
                    );
                    return Ok(instance);
                }
                Err(error) if is_about_offering(&error) => {
                    tracing::info!(
                        nodeclaim = claim_name,
                        instance_type = instance_type.name,
                        zone,
                        capacity_type = capacity_type.as_str(),
                        reason = error.code,
                        correlation_id = error.correlation_id,
                        "offering unavailable"
                    );
                    drop(hold);
                    let is_learnt = self.region.learn(&error, &sku, zone, capacity_type);
                    let error = with_remedy(error);
                    if !is_learnt {
                        return Err(error);
                    }
                    last = Some(error);
                }
                Err(error) => {
                    if error.code == NO_VM {
                        // Azure counts the machine all the same.
                        hold.keep();
                    }
                    self.note_full_subnet(&FullSubnet::of(class, &self.config), &error);
                    return Err(with_remedy(error));
                }
            }
        }
        Err(no_offering_left(operation, last))
    }

    /// Remembers a subnet that had no address left: further machines would be refused again.
    fn note_full_subnet(&self, subnet: &FullSubnet, error: &CloudError) {
        if Failure::of_error(error) != Failure::SubnetFull {
            return;
        }
        let until = self.arm.clock().now().checked_add(FULL_SUBNET_LIFETIME);
        let known = (error.condition_message(), until.unwrap_or(Timestamp::MAX));
        let mut full = self.full_subnets.lock().unwrap_or_else(PoisonError::into_inner);
        full.insert(subnet.clone(), known);
    }

    /// Azure's words about the subnet of a class that had no address left lately; `None` if it had.
    pub(crate) fn full_subnet(&self, class: &AKSNodeClass) -> Option<String> {
        let now = self.arm.clock().now();
        let mut full = self.full_subnets.lock().unwrap_or_else(PoisonError::into_inner);
        full.retain(|_, (_, until)| now < *until);
        full.get(&FullSubnet::of(class, &self.config)).map(|(message, _)| {
            format!("{message}; enlarge the subnet, or name another one in spec.vnetSubnetID")
        })
    }

    /// Requests a machine, and returns it once its VM is known.
    async fn request(&self, new: NewMachine, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let created = match self.fleet.create(new.clone()).await {
            Ok(created) => created,
            // A process before this one may have created the machine with another size.
            Err(error) if error.class == ErrorClass::Invalid => {
                return match self.fleet.machines().get(&new.name).await {
                    Ok(machine) if machine.owner() == claim.metadata.name.as_deref() => {
                        self.adopt(&machine, claim).await
                    }
                    _ => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let has_vm = |machine: &Machine| machine.provider_id().is_some();
        let machine = match created.machine.clone().filter(has_vm) {
            Some(machine) => machine,
            None => self.appeared(&new, &created).await?,
        };
        let mut instance = self.adopt(&machine, claim).await?;
        let named = [
            (labels::AZURE_OPERATION, created.operation),
            (labels::AZURE_CORRELATION_ID, created.correlation_id),
        ];
        for (key, value) in named {
            instance.annotations.extend(value.map(|value| (key.to_owned(), value)));
        }
        Ok(instance)
    }

    /// Waits until the VM of an accepted machine is known.
    async fn appeared(&self, new: &NewMachine, created: &Created) -> Result<Machine, CloudError> {
        let clock = self.arm.clock();
        let mut since = created.at;
        for look in 1..=MAX_LOOKS {
            let listed = self.fleet.listed_since(&new.name, since).await?;
            match listed {
                Some(machine) if machine.provider_id().is_some() => return Ok(machine),
                // The batch header is not part of the published API.
                None if look == 2 && created.batched => {
                    tracing::warn!(machine = new.name, "machine of a batch is missing");
                    self.fleet.machines().put(&new.name, &new.body).await?;
                }
                _ => {}
            }
            clock.sleep(APPEAR_INTERVAL).await;
            since = clock.now();
        }
        let operation = format!("create machine {}", new.name);
        let message = "the machine was accepted and has no VM yet";
        Err(CloudError::new(ErrorClass::Transient, operation, NO_VM, message))
    }

    /// The instance of a machine that exists, if it belongs to the NodeClaim.
    async fn adopt(&self, machine: &Machine, claim: &NodeClaim) -> Result<Instance, CloudError> {
        let operation = format!("create machine {}", machine.name);
        let error = |class, code: &str, message: &str| {
            Err(CloudError::new(class, operation.as_str(), code, message))
        };
        if machine.owner() != Some(claim.metadata.name.as_deref().unwrap_or_default()) {
            let message = "a machine of this name exists and belongs to another owner";
            return error(ErrorClass::Invalid, "MachineNameTaken", message);
        }
        if machine.is_deleting() {
            let message = "the machine is being deleted";
            return error(ErrorClass::Transient, "MachineDeleting", message);
        }
        if let Some(failure) = machine.failure(&operation) {
            return Err(self.failed(claim, machine, failure).await);
        }
        self.instance(machine).await
    }

    /// The failure of an accepted machine, after what it tells was learnt. Azure counts its vCPUs
    /// until it is deleted, so its quota stays held.
    async fn failed(
        &self,
        claim: &NodeClaim,
        machine: &Machine,
        failure: CloudError,
    ) -> CloudError {
        // The class may name no subnet: AKS states the one that it has chosen all the same.
        self.note_full_subnet(&FullSubnet::chosen(&claim.spec.node_class_ref.name), &failure);
        if let Some(id) = &machine.properties.network.vnet_subnet_id {
            self.note_full_subnet(&FullSubnet::named(id), &failure);
        }
        let (size, zone) =
            (&machine.properties.hardware.vm_size, machine.zone(&self.config.location));
        if let Ok(Some(sku)) = self.region.sku(size).await {
            self.region.learn(&failure, &sku, &zone, machine.capacity_type());
        }
        let cause = Failure::of_launch(&failure, size, &zone);
        let failure = with_remedy(failure);
        if !cause.is_about_offering() && cause != Failure::SubnetFull {
            let now = self.arm.clock().now();
            let class = &claim.spec.node_class_ref.name;
            self.class_holds().fail(class, &failure, machine.created(), now);
        }
        CloudError { class: ErrorClass::CreationFailed, ..failure }
    }

    /// Why no machine of a class would come to exist now; `None` if one may.
    fn why_held(&self, claim: &NodeClaim, class: &AKSNodeClass) -> Option<String> {
        let (name, now) = (&claim.spec.node_class_ref.name, self.arm.clock().now());
        let held = self.class_holds().active(name, now).map(str::to_owned);
        held.or_else(|| self.full_subnet(class))
    }

    /// Classes whose machines fail, whatever their size.
    pub(crate) fn class_holds(&self) -> MutexGuard<'_, ClassHolds> {
        self.class_holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Progress of the machine of a launched NodeClaim.
    pub(crate) async fn progress(&self, claim: &NodeClaim) -> Result<Creation, CloudError> {
        let claim_name = claim.metadata.name.clone().unwrap_or_default();
        let Some(name) = self.name_of_claim(claim).await? else { return Ok(Creation::Succeeded) };
        let now = self.arm.clock().now();
        if self.fleet.requested(&name).is_some_and(|at| now.duration_since(at) < MIN_AGE) {
            return Ok(Creation::InProgress);
        }
        let operation = format!("create machine {name}");
        let Some(machine) = self.fleet.find(&name).await? else {
            let message = "the machine is gone";
            let gone = CloudError::new(ErrorClass::NotFound, &operation, "MachineGone", message);
            let failure =
                with_request_of(claim, self.cause(claim, &operation).await.unwrap_or(gone));
            self.region.release_quota(&claim_name);
            let class = ErrorClass::CreationFailed;
            return Ok(Creation::Failed(CloudError { class, ..failure }));
        };
        if let Some(mut failure) = machine.failure(&operation) {
            if machine.properties.status.provisioning_error.is_none() {
                failure = self.cause(claim, &operation).await.unwrap_or(failure);
            }
            let failure = with_request_of(claim, failure);
            return Ok(Creation::Failed(self.failed(claim, &machine, failure).await));
        }
        if machine.properties.provisioning_state != ProvisioningState::Succeeded {
            return Ok(Creation::InProgress);
        }
        let zone = machine.zone(&self.config.location);
        let size = &machine.properties.hardware.vm_size;
        // A machine of unknown age may be older than any failure.
        if let Some(requested) = self.fleet.requested(&name).or_else(|| machine.created()) {
            self.region.learn_success(size, &zone, machine.capacity_type(), requested);
            self.class_holds().succeed(&claim.spec.node_class_ref.name, requested);
        }
        Ok(Creation::Succeeded)
    }

    /// The failure that the operation of a NodeClaim tells; `None` if it tells none.
    async fn cause(&self, claim: &NodeClaim, operation: &str) -> Option<CloudError> {
        let url = claim.metadata.annotations.as_ref()?.get(labels::AZURE_OPERATION)?;
        operation_failure(&self.arm, url, operation).await.ok().flatten()
    }
}

/// A failure that a later look has found, with the correlation id of the request that created the
/// machine, unless it has one of its own.
fn with_request_of(claim: &NodeClaim, failure: CloudError) -> CloudError {
    let annotations = claim.metadata.annotations.as_ref();
    let own = annotations.and_then(|all| all.get(labels::AZURE_CORRELATION_ID)).cloned();
    let correlation_id = failure.correlation_id.clone().or(own);
    failure.with_correlation_id(correlation_id)
}

/// An error of Azure with what a user can do about it.
fn with_remedy(error: CloudError) -> CloudError {
    let Some(remedy) = Failure::of_error(&error).remedy() else { return error };
    let message = format!("{}; {remedy}", error.message.trim_end_matches('.'));
    CloudError { message, ..error }
}

/// The error when no offering of a NodeClaim can be launched.
fn no_offering_left(operation: String, last: Option<CloudError>) -> CloudError {
    let Some(last) = last else {
        let message = "no available offering satisfies the NodeClaim and holds its requests";
        let (class, code) = (ErrorClass::Capacity, "InsufficientCapacity");
        return CloudError::new(class, operation, code, message);
    };
    let message =
        format!("no offering of the NodeClaim is left; the last failed: {}", last.message);
    CloudError { class: ErrorClass::Capacity, operation, message, ..last }
}
