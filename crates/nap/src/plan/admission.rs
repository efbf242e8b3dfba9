//! What admission does to the pods of manifests: LimitRanges add defaults and refuse, and
//! ResourceQuotas admit only so many.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, LimitRange, LimitRangeItem, PodSpec, ResourceQuota, ResourceRequirements,
    ScopedResourceSelectorRequirement,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use kube::ResourceExt;
use nap_controllers::cluster::pods;
use nap_units::{CPU, MEMORY, Quantity, Resources, Rounding};

use super::format::quantity;

/// Resources that a quota may count without a prefix.
const PLAIN: [&str; 3] = [CPU, MEMORY, "ephemeral-storage"];

type List = BTreeMap<String, WireQuantity>;

/// LimitRanges and ResourceQuotas by namespace.
#[derive(Default)]
pub struct Admission {
    ranges: BTreeMap<String, Vec<LimitRange>>,
    quotas: BTreeMap<String, Vec<Quota>>,
}

/// A ResourceQuota and what was used of it.
struct Quota {
    name: String,
    hard: BTreeMap<String, Quantity>,
    used: BTreeMap<String, i128>,
    scopes: Vec<ScopedResourceSelectorRequirement>,
}

impl Admission {
    /// Adds a LimitRange.
    pub fn add_range(&mut self, range: LimitRange) {
        let namespace = range.namespace().unwrap_or_default();
        self.ranges.entry(namespace).or_default().push(range);
    }

    /// Adds a ResourceQuota. Returns what it limits besides pods, which does not count.
    pub fn add_quota(&mut self, quota: &ResourceQuota) -> Vec<String> {
        let spec = quota.spec.clone().unwrap_or_default();
        let (mut hard, mut others) = (BTreeMap::new(), Vec::new());
        for (name, amount) in spec.hard.into_iter().flatten() {
            match amount.0.parse() {
                Ok(amount) if counted(&name).is_some() => drop(hard.insert(name, amount)),
                _ => others.push(name),
            }
        }
        let named = spec.scopes.into_iter().flatten().map(|scope_name| {
            let operator = "Exists".to_owned();
            ScopedResourceSelectorRequirement { scope_name, operator, values: None }
        });
        let selected = spec.scope_selector.and_then(|selector| selector.match_expressions);
        let quota_of = Quota {
            name: quota.name_any(),
            hard,
            used: BTreeMap::new(),
            scopes: named.chain(selected.into_iter().flatten()).collect(),
        };
        let namespace = quota.namespace().unwrap_or_default();
        self.quotas.entry(namespace).or_default().push(quota_of);
        others
    }

    /// Counts a pod that exists.
    pub fn count(&mut self, namespace: &str, spec: &PodSpec) {
        for quota in self.quotas.get_mut(namespace).into_iter().flatten() {
            if quota.covers(spec) {
                quota.charge(spec);
            }
        }
    }

    /// Adds the defaults of the namespace and counts the pod. `Err` says who refuses it and why.
    pub fn admit(&mut self, namespace: &str, spec: &mut PodSpec) -> Result<(), String> {
        for range in self.ranges.get(namespace).into_iter().flatten() {
            let items = range.spec.iter().flat_map(|spec| &spec.limits);
            for item in items.filter(|item| item.type_ == "Container") {
                let containers = spec.containers.iter_mut();
                containers
                    .chain(spec.init_containers.iter_mut().flatten())
                    .for_each(|container| add_defaults(container, item));
            }
        }
        for range in self.ranges.get(namespace).into_iter().flatten() {
            for item in range.spec.iter().flat_map(|spec| &spec.limits) {
                within(spec, item)
                    .map_err(|why| format!("LimitRange `{}`: {why}", range.name_any()))?;
            }
        }
        let quotas = self.quotas.get_mut(namespace);
        let mut covering: Vec<&mut Quota> =
            quotas.into_iter().flatten().filter(|quota| quota.covers(spec)).collect();
        for quota in &covering {
            quota.has_room(spec).map_err(|why| format!("ResourceQuota `{}`: {why}", quota.name))?;
        }
        for quota in &mut covering {
            quota.charge(spec);
        }
        Ok(())
    }
}

/// Adds default limits and requests. A limit without a request is also the request, before any
/// default.
fn add_defaults(container: &mut Container, item: &LimitRangeItem) {
    let resources = container.resources.get_or_insert_default();
    let given = resources.limits.clone().unwrap_or_default();
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in &given {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    // The API server completes a LimitRange in this way when it is written.
    let mut limits = item.default.clone().unwrap_or_default();
    for (name, most) in item.max.iter().flatten() {
        limits.entry(name.clone()).or_insert_with(|| most.clone());
    }
    let mut defaults = item.default_request.clone().unwrap_or_default();
    for (name, value) in limits.iter().chain(item.min.iter().flatten()) {
        defaults.entry(name.clone()).or_insert_with(|| value.clone());
    }
    for (name, value) in defaults {
        requests.entry(name).or_insert(value);
    }
    let kept = resources.limits.get_or_insert_default();
    for (name, value) in limits {
        kept.entry(name).or_insert(value);
    }
}

/// Whether a pod keeps to the minimum, maximum and ratio of a LimitRange.
fn within(spec: &PodSpec, item: &LimitRangeItem) -> Result<(), String> {
    match item.type_.as_str() {
        "Container" => {
            let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            for container in all {
                let resources = container.resources.clone().unwrap_or_default();
                let amount = |list: &Option<List>, name: &str| {
                    parsed(list.as_ref().and_then(|list| list.get(name)))
                };
                bounded(
                    item,
                    |name| amount(&resources.requests, name),
                    |name| amount(&resources.limits, name),
                )?;
            }
            Ok(())
        }
        "Pod" => {
            let requests = pods::requests(spec).unwrap_or_default();
            let request =
                |name: &str| requests.contains(name).then(|| amount_of(name, requests.get(name)));
            let limits = limits_of(spec);
            let limit =
                |name: &str| limits.contains(name).then(|| amount_of(name, limits.get(name)));
            bounded(item, request, limit)
        }
        _ => Ok(()),
    }
}

fn bounded(
    item: &LimitRangeItem,
    request: impl Fn(&str) -> Option<Quantity>,
    limit: impl Fn(&str) -> Option<Quantity>,
) -> Result<(), String> {
    let kind = &item.type_;
    for (name, least) in item.min.iter().flatten() {
        let Some(bound) = parsed(Some(least)) else { continue };
        match request(name).or_else(|| limit(name)) {
            None => {
                return Err(format!("minimum {name} per {kind} is {bound}; no request is given"));
            }
            Some(asked) if asked < bound => {
                return Err(format!(
                    "minimum {name} per {kind} is {bound}, and the request {asked}"
                ));
            }
            Some(_) => {}
        }
    }
    for (name, most) in item.max.iter().flatten() {
        let Some(bound) = parsed(Some(most)) else { continue };
        match limit(name) {
            None => return Err(format!("maximum {name} per {kind} is {bound}; no limit is given")),
            Some(asked) if asked > bound => {
                return Err(format!("maximum {name} per {kind} is {bound}, and the limit {asked}"));
            }
            Some(_) => {}
        }
    }
    for (name, ratio) in item.max_limit_request_ratio.iter().flatten() {
        let Some(ratio) = parsed(Some(ratio)) else { continue };
        let (Some(request), Some(limit)) = (request(name), limit(name)) else {
            return Err(format!(
                "the limit on {name} per {kind} may be at most {ratio} times the request; not both \
                 are given"
            ));
        };
        let milli = |amount: Quantity| i128::from(amount.to_milli(Rounding::Up));
        if milli(limit) * 1000 > milli(request) * milli(ratio) {
            return Err(format!(
                "the limit on {name} per {kind} may be at most {ratio} times the request, and it \
                 is {limit} for {request}"
            ));
        }
    }
    Ok(())
}

/// Limits of a pod: those of its containers together, or of an init container if that is more.
fn limits_of(spec: &PodSpec) -> Resources {
    let as_requests = |container: &Container| {
        let limits = container.resources.clone().unwrap_or_default().limits;
        let resources =
            ResourceRequirements { requests: limits, ..ResourceRequirements::default() };
        Container { resources: Some(resources), ..container.clone() }
    };
    let spec = PodSpec {
        containers: spec.containers.iter().map(as_requests).collect(),
        init_containers: spec
            .init_containers
            .as_ref()
            .map(|all| all.iter().map(as_requests).collect()),
        ..PodSpec::default()
    };
    pods::requests(&spec).unwrap_or_default()
}

fn parsed(quantity: Option<&WireQuantity>) -> Option<Quantity> {
    quantity?.0.parse().ok()
}

fn amount_of(resource: &str, amount: i64) -> Quantity {
    quantity(resource, amount).parse().unwrap_or(Quantity::from_units(0))
}

/// Whether a quota counts requests or limits by this name, and of which resource; `None` if it
/// counts something else than pods.
fn counted(name: &str) -> Option<(&'static str, &str)> {
    match name {
        "pods" | "count/pods" => Some(("pods", "pods")),
        _ if PLAIN.contains(&name) => Some(("requests", name)),
        _ => match name.split_once('.') {
            Some(("requests", resource)) if resource != "storage" => Some(("requests", resource)),
            Some(("limits", resource)) => Some(("limits", resource)),
            _ => None,
        },
    }
}

impl Quota {
    /// Amount that a pod takes of a resource, in the unit of [`Resources`]; `None` if the pod does
    /// not say.
    fn taken(name: &str, spec: &PodSpec) -> Option<i64> {
        let (kind, resource) = counted(name)?;
        let list = match kind {
            "pods" => return Some(1),
            "limits" => limits_of(spec),
            _ => pods::requests(spec).unwrap_or_default(),
        };
        // A pod without a GPU takes none; one without CPU or memory is refused.
        (list.contains(resource) || !PLAIN[..2].contains(&resource)).then(|| list.get(resource))
    }

    fn has_room(&self, spec: &PodSpec) -> Result<(), String> {
        for (name, hard) in &self.hard {
            let Some(taken) = Self::taken(name, spec) else {
                return Err(format!("every container must specify {name}"));
            };
            let resource = counted(name).map_or("", |(_, resource)| resource);
            let list = [(resource, hard)];
            let hard_amount = Resources::from_quantities(list, Rounding::Down).get(resource);
            let used = self.used.get(name).copied().unwrap_or(0);
            if taken > 0 && used + i128::from(taken) > i128::from(hard_amount) {
                return Err(format!("{name} is limited to {hard}"));
            }
        }
        Ok(())
    }

    fn charge(&mut self, spec: &PodSpec) {
        for name in self.hard.keys() {
            let taken = Self::taken(name, spec).unwrap_or(0);
            *self.used.entry(name.clone()).or_default() += i128::from(taken);
        }
    }

    fn covers(&self, spec: &PodSpec) -> bool {
        let asks = pods::requests(spec).unwrap_or_default();
        let limits = limits_of(spec);
        let best_effort =
            [CPU, MEMORY].iter().all(|name| asks.get(name) == 0 && limits.get(name) == 0);
        self.scopes.iter().all(|scope| match scope.scope_name.as_str() {
            "Terminating" => spec.active_deadline_seconds.is_some(),
            "NotTerminating" => spec.active_deadline_seconds.is_none(),
            "BestEffort" => best_effort,
            "NotBestEffort" => !best_effort,
            "PriorityClass" => {
                let class = spec.priority_class_name.as_deref().unwrap_or_default();
                let listed = scope.values.iter().flatten().any(|value| value == class);
                match scope.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => !class.is_empty(),
                    _ => class.is_empty(),
                }
            }
            // A scope of a newer version may cover any pod.
            _ => false,
        })
    }
}
