//! The subresources of pods: `binding`, by which a scheduler places a pod, and `eviction`, by which
//! a pod is deleted only if its disruption budget agrees.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::delete::check_preconditions;
use super::{DeleteOptions, WriteOptions, decode};
use crate::ResponseBody;
use crate::error::{ApiError, Result};
use crate::object;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::{GroupResource, Resource};
use crate::selectors;
use crate::server::{State, success};
use crate::store::Key;

/// A budget with more pods under way than this is not trusted to be current.
const MAX_DISRUPTED_PODS: usize = 2000;

impl State {
    pub(crate) fn bind_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        let options = WriteOptions::parse(&request.query)?;
        let binding = decode(request)?;
        let node = object::text(&binding, &["target", "name"]).to_owned();
        let kind = object::text(&binding, &["target", "kind"]);
        if node.is_empty() || !matches!(kind, "" | "Node") {
            return Err(ApiError::bad_request("binding: target must name a Node"));
        }
        let pods = resource.group_resource();
        let pod =
            self.store.get(&pods, key).ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        let conflict = |why: String| {
            let mut error = ApiError::conflict(resource, &key.1, "");
            error.message =
                format!("Operation cannot be fulfilled on pods/binding \"{}\": {why}", key.1);
            error
        };
        let wanted = object::uid(&binding);
        if !wanted.is_empty() && wanted != object::uid(&pod) {
            return Err(conflict(format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {}",
                object::uid(&pod)
            )));
        }
        if object::is_deleting(&pod) {
            return Err(conflict(format!(
                "pod {} is being deleted, cannot be assigned to a host",
                key.1
            )));
        }
        let held = object::text(&pod, &["spec", "nodeName"]);
        if !held.is_empty() {
            return Err(conflict(format!("pod {} is already assigned to node \"{held}\"", key.1)));
        }
        if !object::list(&pod, &["spec", "schedulingGates"]).is_empty() {
            return Err(conflict(format!("pod {} has non-empty .spec.schedulingGates", key.1)));
        }
        let mut pod = (*pod).clone();
        pod["spec"]["nodeName"] = json!(node);
        set_condition(
            &mut pod,
            json!({
                "type": "PodScheduled", "status": "True",
                "lastProbeTime": null, "lastTransitionTime": self.timestamp(),
            }),
        );
        for field in ["annotations", "labels"] {
            let given = object::at(&binding, &["metadata", field]).and_then(Value::as_object);
            for (name, value) in given.into_iter().flatten() {
                let held = object::child(object::child(&mut pod, "metadata"), field);
                object::fields_mut(held).insert(name.clone(), value.clone());
            }
        }
        self.label_by_node(&mut pod);
        if !options.dry_run {
            self.store.put(&pods, pod);
        }
        Ok(render::json(201, &success(&Value::Null)))
    }

    pub(crate) fn evict_verb(
        &mut self,
        request: &ApiRequest,
        resource: &Arc<Resource>,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        let eviction = decode(request)?;
        let named = object::name(&eviction);
        if !named.is_empty() && named != key.1 {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let mut options =
            DeleteOptions::from_body(eviction.get("deleteOptions").unwrap_or(&Value::Null))?;
        options.dry_run |= request.query.dry_run()?;
        let pod = self
            .store
            .get(&resource.group_resource(), key)
            .ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        let unprotected = object::is_deleting(&pod)
            || matches!(
                object::text(&pod, &["status", "phase"]),
                "Pending" | "Succeeded" | "Failed"
            );
        if !unprotected {
            self.ask_budget(&pod, &options)?;
        }
        if !options.dry_run {
            check_preconditions(resource, key, &pod, &options)?;
            let mut pod = (*pod).clone();
            set_condition(
                &mut pod,
                json!({
                    "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting",
                    "lastProbeTime": null, "lastTransitionTime": self.timestamp(),
                }),
            );
            let marked = self.store.put(&resource.group_resource(), pod);
            if !options.resource_version.is_empty() {
                object::resource_version(&marked).clone_into(&mut options.resource_version);
            }
        }
        self.delete(resource, key, &options)?;
        Ok(render::json(201, &success(&Value::Null)))
    }

    /// Takes one disruption from the pod's budget, or refuses.
    fn ask_budget(&mut self, pod: &Value, options: &DeleteOptions) -> Result<()> {
        let budgets = GroupResource::new("policy", "poddisruptionbudgets");
        let matching: Vec<Arc<Value>> = self
            .store
            .collections
            .get(&budgets)
            .map(|held| {
                held.objects.values().filter(|budget| covers(budget, pod)).cloned().collect()
            })
            .unwrap_or_default();
        let budget = match matching.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                return Err(ApiError::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource \
                     does not support.",
                ));
            }
        };
        let count = |field: &str| object::integer(budget, &["status", field]).unwrap_or(0);
        let name = object::name(budget);
        if !is_ready(pod) {
            let healthy =
                count("currentHealthy") >= count("desiredHealthy") && count("desiredHealthy") > 0;
            let always =
                object::text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
            if always || healthy {
                return Ok(());
            }
        }
        let refusal = "Cannot evict pod as it would violate the pod's disruption budget.";
        let generation = object::integer(budget, &["metadata", "generation"]).unwrap_or(0);
        if count("observedGeneration") < generation {
            let cause =
                format!("The disruption budget {name} is still being processed by the server.");
            return Err(ApiError::disruption_budget(refusal, &cause, Some(10)));
        }
        let disrupted = object::at(budget, &["status", "disruptedPods"]).and_then(Value::as_object);
        let forbid = |why: &str| {
            let mut error = ApiError::bad_request(why);
            (error.code, error.reason) = (403, "Forbidden");
            error
        };
        if count("disruptionsAllowed") < 0 {
            return Err(forbid("pdb disruptions allowed is negative"));
        }
        if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED_PODS) {
            return Err(forbid(
                "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            ));
        }
        if count("disruptionsAllowed") == 0 {
            let cause = format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                count("desiredHealthy"),
                count("currentHealthy")
            );
            return Err(ApiError::disruption_budget(refusal, &cause, None));
        }
        if !options.dry_run {
            let now = self.timestamp();
            let left = count("disruptionsAllowed") - 1;
            let mut budget = (**budget).clone();
            budget["status"]["disruptionsAllowed"] = json!(left);
            let pods = object::child(object::child(&mut budget, "status"), "disruptedPods");
            object::fields_mut(pods).insert(object::name(pod).to_owned(), json!(now));
            if left == 0 {
                let observed = object::integer(&budget, &["status", "observedGeneration"]);
                set_condition(
                    &mut budget,
                    json!({
                        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods",
                        "message": "", "lastTransitionTime": now, "observedGeneration": observed,
                    }),
                );
            }
            self.store.put(&budgets, budget);
        }
        Ok(())
    }
}

/// A budget without a selector covers nothing; one with an empty selector covers its namespace.
fn covers(budget: &Value, pod: &Value) -> bool {
    object::namespace(budget) == object::namespace(pod)
        && object::at(budget, &["spec", "selector"]).is_some_and(|selector| {
            selectors::labels_match(
                &selectors::from_object(selector),
                object::at(pod, &["metadata", "labels"]),
            )
        })
}

fn is_ready(pod: &Value) -> bool {
    object::list(pod, &["status", "conditions"])
        .iter()
        .any(|c| object::text(c, &["type"]) == "Ready" && object::text(c, &["status"]) == "True")
}

fn set_condition(object: &mut Value, condition: Value) {
    let status = object::child(object, "status");
    let conditions = object::fields_mut(status).entry("conditions").or_insert_with(|| json!([]));
    if let Value::Array(list) = conditions {
        list.retain(|held| held.get("type") != condition.get("type"));
        list.push(condition);
    }
}
