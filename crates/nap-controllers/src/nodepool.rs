//! NodePools: status, drift hash and conditions.

use std::time::Duration;

use nap_api::disruption::Settings;
use nap_api::nodepool::{
    DISRUPTION_SETTINGS_VALID, INSTANCE_TYPES_OFFERED, NODE_CLASS_READY, NODE_REGISTRATION_HEALTHY,
    NORMALISED, NodePoolStatus, PRICE_BOUNDED, VALIDATION_SUCCEEDED,
};
use nap_api::{
    AKSNodeClass, NodeClaim, NodePool, Operator, Requirements, conditions, labels, validation,
};
use nap_engine::Catalogue;
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS};

use crate::cluster::pool_of;
use crate::context::{Context, Outcome};
use crate::events::Severity;
use crate::extreme_price;
use crate::hash_migration::HashStamp;
use crate::nodeclaim::registration_health::is_outdated;
use crate::permissions::{KARPENTER, Permission};
use crate::snapshot::pool_usage;

/// The hash is written on NodePools and NodeClaims, and statuses.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(KARPENTER, "nodepools", &["get", "patch"]),
    Permission::new(KARPENTER, "nodepools/status", &["patch"]),
    Permission::new(KARPENTER, "nodeclaims", &["patch"]),
];

/// The conditions that `Ready` depends on.
const DEPENDENTS: [&str; 2] = [VALIDATION_SUCCEEDED, NODE_CLASS_READY];

/// Reason of the condition of a NodePool whose instance types are not offered.
const NO_INSTANCE_TYPE: &str = "NoInstanceTypeOffered";
/// Reason of the event about that, as the incumbent has it.
const NO_COMPATIBLE_TYPE: &str = "NoCompatibleInstanceTypes";
/// Reason of the condition and the event of a NodePool with an annotation that cannot be read.
const INVALID_ANNOTATION: &str = "InvalidAnnotation";
/// Reason of the condition and the event of a NodePool that can reach an extreme price.
const EXTREME_PRICE_REACHABLE: &str = "ExtremePriceReachable";
/// Type of the condition of a NodePool with offerings that are not tried for a while.
const OFFERINGS_AVAILABLE: &str = "OfferingsAvailable";
/// Its reason.
const LATELY_REFUSED: &str = "LatelyRefused";
/// Most offerings that its message names.
const MAX_NAMED_OFFERINGS: usize = 3;
/// Interval at which such a NodePool is looked at again: the cloud may offer other types.
const OFFERED_INTERVAL: Duration = Duration::from_mins(10);
/// Most instance types that a message explains.
const MAX_NAMED_TYPES: usize = 10;

/// Updates the hash and the status of one NodePool.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let Some(pool) = context.index().pool(name).cloned() else {
        context.memory().registrations.reset(name);
        context.memory().prices.forget(name);
        return Ok(None);
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let stamp = HashStamp::of_pool(&pool);
    if !stamp.is_on(&*pool) {
        let belongs = |claim: &NodeClaim| pool_of(claim) == Some(name);
        stamp.migrate(context, &*pool, belongs).await?;
        context.annotate::<NodePool>(name, stamp.annotations()).await?;
    }
    let now = context.clock.now();
    let (usage, class) = {
        let index = context.index();
        let class = index.class(&pool.spec.template.spec.node_class_ref.name).cloned();
        (pool_usage(&index, name), class)
    };
    if is_outdated(&pool, pool.status.as_ref(), class.as_deref()) {
        context.memory().registrations.reset(name);
    }
    let not_offered = match &class {
        Some(class) => not_offered(context, &pool, class).await,
        None => None,
    };
    if let Some(message) = &not_offered {
        context.events.publish(&*pool, Severity::Warning, NO_COMPATIBLE_TYPE, message);
    }
    let extreme = match &class {
        Some(class) => extreme_price::find(context, &pool, class).await,
        None => None,
    };
    if let Some(warning) = extreme.as_ref().filter(|warning| warning.is_new) {
        let (severity, reason) = (Severity::Warning, EXTREME_PRICE_REACHABLE);
        context.events.publish(&*pool, severity, reason, &warning.message);
    }
    let extreme = extreme.map(|warning| warning.message);
    let short = shortages(context, &pool);
    let mut unreadable = Settings::of(&pool).err().unwrap_or_default();
    unreadable.extend(validation::unreadable_schedules(&pool));
    let unreadable = (!unreadable.is_empty()).then(|| unreadable.join("; "));
    if let Some(message) = &unreadable {
        context.events.publish(&*pool, Severity::Warning, INVALID_ANNOTATION, message);
    }
    context
        .update_status::<NodePool>(name, |pool| {
            let generation = pool.metadata.generation;
            let problems = validation::validate_nodepool(pool);
            let mut status = pool.status.clone().unwrap_or_default();
            let created = pool.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
            conditions::initialise(&mut status.conditions, &DEPENDENTS, generation, created);
            if is_outdated(pool, pool.status.as_ref(), class.as_deref()) {
                let (type_, value) = (NODE_REGISTRATION_HEALTHY, conditions::Status::Unknown);
                let (reason, message) =
                    ("AwaitingReconciliation", "object is awaiting reconciliation");
                let list = &mut status.conditions;
                conditions::set(list, type_, value, reason, message, generation, now);
            }
            let mut resources = usage.clone();
            for resource in [CPU, MEMORY, PODS, EPHEMERAL_STORAGE] {
                resources.set(resource, usage.get(resource));
            }
            status.resources = resources.to_quantities();
            status.nodes = usage.get(nap_engine::NODES);
            if problems.is_empty() {
                conditions::set_true(&mut status.conditions, VALIDATION_SUCCEEDED, generation, now);
            } else {
                let message = problems.join("; ");
                let (status_, reason) = (conditions::Status::False, "NodePoolValidationFailed");
                conditions::set(
                    &mut status.conditions,
                    VALIDATION_SUCCEEDED,
                    status_,
                    reason,
                    &message,
                    generation,
                    now,
                );
            }
            set_normalised(&mut status, pool, now);
            for (type_, reason, problem) in [
                (INSTANCE_TYPES_OFFERED, NO_INSTANCE_TYPE, &not_offered),
                (DISRUPTION_SETTINGS_VALID, INVALID_ANNOTATION, &unreadable),
                (PRICE_BOUNDED, EXTREME_PRICE_REACHABLE, &extreme),
                (OFFERINGS_AVAILABLE, LATELY_REFUSED, &short),
            ] {
                let (list, value) = (&mut status.conditions, conditions::Status::False);
                match problem {
                    Some(message) => {
                        conditions::set(list, type_, value, reason, message, generation, now);
                    }
                    None => {
                        conditions::clear(list, type_);
                    }
                }
            }
            set_node_class_ready(&mut status, pool, class.as_deref(), now);
            conditions::summarise(&mut status.conditions, &DEPENDENTS, generation, now);
            let changed = pool.status.as_ref() != Some(&status);
            pool.status = Some(status);
            changed
        })
        .await?;
    // Shortages end by themselves.
    Ok(not_offered.or(short).map(|_| OFFERED_INTERVAL))
}

/// The offerings within the requirements of a NodePool that are not tried for a while; `None` if
/// all are.
fn shortages(context: &Context, pool: &NodePool) -> Option<String> {
    let requirements = Requirements::from_specs(&pool.spec.template.spec.requirements);
    let all = context.cloud.shortages(&requirements);
    let more = all.len().saturating_sub(MAX_NAMED_OFFERINGS);
    let named: Vec<&str> = all.iter().take(MAX_NAMED_OFFERINGS).map(String::as_str).collect();
    let tail = if more > 0 { format!("; and {more} more") } else { String::new() };
    (!all.is_empty()).then(|| format!("not tried for now: {}{tail}", named.join("; ")))
}

/// Why the cloud offers none of the instance types that the requirements name; `None` if it offers
/// one, if they name none, or if the cloud does not answer.
async fn not_offered(context: &Context, pool: &NodePool, class: &AKSNodeClass) -> Option<String> {
    let requirements = Requirements::from_specs(&pool.spec.template.spec.requirements);
    let offered = context.cloud.instance_types(class).await.ok()?;
    if let Some(message) = without_value(&requirements, &offered) {
        return Some(message);
    }
    let named = requirements.get(labels::INSTANCE_TYPE);
    let named = named.filter(|named| named.operator() == Operator::In)?;
    let is_offered = |name: &str| offered.types().iter().any(|one| one.name == name);
    if offered.types().is_empty() || named.values().iter().any(is_offered) {
        return None;
    }
    let reasons = named.values().iter().take(MAX_NAMED_TYPES).map(|name| {
        let why = context.cloud.why_not_offered(name);
        format!("{name} is {}", why.as_deref().unwrap_or("not offered in the region"))
    });
    let reasons: Vec<String> = reasons.collect();
    Some(format!("no instance type that the requirements name is offered: {}", reasons.join("; ")))
}

/// A message about a label whose values no instance type has, such as a family that does not
/// exist. Labels that no instance type has at all are those of the user.
fn without_value(requirements: &Requirements, offered: &Catalogue) -> Option<String> {
    let all = || {
        offered.types().iter().flat_map(|one| {
            let of_offerings = one.offerings.iter().map(|offering| &*offering.requirements);
            std::iter::once(&one.requirements).chain(of_offerings)
        })
    };
    let asked = requirements
        .iter()
        .filter(|(key, wanted)| *key != labels::INSTANCE_TYPE && wanted.operator() == Operator::In);
    asked.into_iter().find_map(|(key, wanted)| {
        let has = |one: &Requirements| one.get(key).is_some_and(|own| own.intersects(wanted));
        if all().any(has) || !all().any(|one| one.get(key).is_some()) {
            return None;
        }
        Some(format!("no instance type of the region has `{key}` {wanted}"))
    })
}

/// Reports old spellings in the spec and how they were read.
fn set_normalised(status: &mut NodePoolStatus, pool: &NodePool, now: jiff::Timestamp) {
    let notes: Vec<String> = pool.spec.understood.iter().map(ToString::to_string).collect();
    if notes.is_empty() {
        conditions::clear(&mut status.conditions, NORMALISED);
        return;
    }
    let (value, generation) = (conditions::Status::True, pool.metadata.generation);
    let message = notes.join("; ");
    conditions::set(
        &mut status.conditions,
        NORMALISED,
        value,
        "OldSpelling",
        &message,
        generation,
        now,
    );
}

/// Copies the readiness of the node class, or reports that it cannot be used.
fn set_node_class_ready(
    status: &mut NodePoolStatus,
    pool: &NodePool,
    class: Option<&AKSNodeClass>,
    now: jiff::Timestamp,
) {
    use conditions::Status::{False, Unknown};
    let generation = pool.metadata.generation;
    let reference = &pool.spec.template.spec.node_class_ref;
    let supported = reference.group == labels::AZURE_GROUP && reference.kind == "AKSNodeClass";
    let mut set = |value, reason: &str, message: &str| {
        conditions::set(
            &mut status.conditions,
            NODE_CLASS_READY,
            value,
            reason,
            message,
            generation,
            now,
        );
    };
    match class {
        _ if !supported => {
            let message = format!(
                "spec.template.spec.nodeClassRef is {}/{}: use karpenter.azure.com/AKSNodeClass",
                reference.group, reference.kind
            );
            set(False, "NodeClassNotFound", &message);
        }
        None => {
            let message = format!(
                "AKSNodeClass `{}` does not exist: create it, or name another",
                reference.name
            );
            set(False, "NodeClassNotFound", &message);
        }
        Some(class) if class.metadata.deletion_timestamp.is_some() => {
            set(False, "NodeClassTerminating", "the AKSNodeClass is being deleted");
        }
        Some(class) => {
            let conditions = class
                .status
                .as_ref()
                .map(|status| status.conditions.as_slice())
                .unwrap_or_default();
            match conditions::get(conditions, conditions::READY) {
                Some(ready) if ready.status == "True" => {
                    conditions::set_true(&mut status.conditions, NODE_CLASS_READY, generation, now);
                    status.node_class_observed_generation = class.metadata.generation;
                }
                Some(ready) if ready.status == "False" => {
                    set(False, &ready.reason.clone(), &ready.message.clone());
                }
                _ => set(
                    Unknown,
                    "NodeClassReadinessUnknown",
                    "the AKSNodeClass has no Ready condition yet",
                ),
            }
        }
    }
}
