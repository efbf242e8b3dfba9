//! The agent-pool machines API: asynchronous create and delete, update of tags, list and get.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::accept::{Place, tags_of, zones_of};
use super::batch::{batch_error, read_header};
use super::lifecycle::Created;
use super::members::{check_deletion, check_machine};
use super::request::{Answer, ArmRequest, Refusal, page, refuse, reply, reply_with};
use super::state::{MachineRecord, MachineState, State};
use super::{Inner, VmIds};

/// Time that an update of tags takes.
const TAG_UPDATE: Duration = Duration::from_secs(4);

impl Inner {
    pub(crate) fn list_machines(&self, request: &ArmRequest) -> Answer {
        let state = self.state();
        let all: Vec<Value> = state.machines.values().map(|machine| self.show(machine)).collect();
        page(request, &all, self.config.page_size, ("value", "nextLink"))
    }

    pub(crate) fn get_machine(&self, name: &str) -> Answer {
        match self.state().machines.get(name) {
            Some(machine) => self.reply_machine(200, machine, Vec::new()),
            None => refuse(404, "NotFound", &format!("Machine {name} not found.")),
        }
    }

    pub(crate) fn put_machine(self: &Arc<Self>, request: &ArmRequest, name: &str) -> Answer {
        let body = match serde_json::from_slice::<Value>(&request.body) {
            Ok(body) => body,
            Err(error) => {
                let message = format!("The request content was invalid: {error}.");
                return refuse(400, "InvalidRequestContent", &message);
            }
        };
        let done = match request.header("batchputmachine") {
            Some(header) => self.put_batch(request, name, &body, header),
            None => self.put_one(request, name, &body),
        };
        done.unwrap_or_else(|refusal| refusal.answer())
    }

    fn put_one(
        self: &Arc<Self>,
        request: &ArmRequest,
        name: &str,
        body: &Value,
    ) -> Result<Answer, Refusal> {
        let mut state = self.state();
        self.check_preconditions(&state, request, name)?;
        let exists = state.machines.contains_key(name);
        check_machine(body, exists)?;
        if exists {
            return self.update(&mut state, request, name, body);
        }
        let template = self.template(&state.changes, request, body)?;
        let place = Place { name, zones: zones_of(body)?, tags: tags_of(body)? };
        let machine = self.accept(&mut state, &template, place)?;
        let operation = state.begin_operation(self.config.clock.now(), Some(name), 1);
        let answer = self.reply_machine(201, &machine, self.operation_headers(request, operation));
        let created = Created::new(&mut state, machine, operation);
        drop(state);
        self.begin_creates(vec![created]);
        Ok(answer)
    }

    /// Creates the machines of a batch. Those that exist already with the same template are left
    /// as they are, so that a request may be repeated.
    fn put_batch(
        self: &Arc<Self>,
        request: &ArmRequest,
        name: &str,
        body: &Value,
        header: &str,
    ) -> Result<Answer, Refusal> {
        let machines = read_header(header, name)?;
        for conditional in ["if-match", "if-none-match"] {
            if request.header(conditional).is_some() {
                let message = format!("The header {conditional} cannot be used with a batch.");
                return Err(Refusal::new(400, "InvalidParameter", message));
            }
        }
        check_machine(body, false)?;
        let mut state = self.state();
        let template = self.template(&state.changes, request, body)?;
        let mut accepted: Vec<MachineRecord> = Vec::new();
        let mut failed: Vec<(String, Refusal)> = Vec::new();
        for machine in machines {
            let name = machine.machine_name.as_str();
            if let Some(existing) = state.machines.get(name) {
                if let Err(refusal) = unchanged(existing, body) {
                    failed.push((name.to_owned(), refusal));
                }
                continue;
            }
            let zones = machine.zones.unwrap_or_default();
            let place = Place { name, zones, tags: machine.tags.unwrap_or_default() };
            match self.accept(&mut state, &template, place) {
                // Counts in the quota of the next one.
                Ok(machine) => {
                    state.machines.insert(name.to_owned(), machine.clone());
                    accepted.push(machine);
                }
                Err(refusal) => failed.push((name.to_owned(), refusal)),
            }
        }
        let now = self.config.clock.now();
        let operation = state.begin_operation(now, Some(name), accepted.len());
        let created: Vec<_> = accepted
            .into_iter()
            .map(|machine| Created::new(&mut state, machine, operation))
            .collect();
        let answer = if failed.is_empty() {
            let headers = self.operation_headers(request, operation);
            match state.machines.get(name) {
                Some(machine) => self.reply_machine(200, machine, headers),
                None => refuse(500, "InternalServerError", "the first machine is missing"),
            }
        } else {
            batch_error(&failed)
        };
        drop(state);
        self.begin_creates(created);
        Ok(answer)
    }

    /// Refuses a PUT whose `If-Match` or `If-None-Match` does not hold.
    fn check_preconditions(
        &self,
        state: &State,
        request: &ArmRequest,
        name: &str,
    ) -> Result<(), Refusal> {
        let current = state.machines.get(name).map(|machine| self.etag(machine));
        let failed = |message: &str| Err(Refusal::new(412, "PreconditionFailed", message));
        if let Some(wanted) = request.header("if-match") {
            let wanted = wanted.trim_matches('"');
            let Some(current) = &current else {
                return failed(&format!("If-Match: machine {name} does not exist."));
            };
            if wanted != "*" && wanted != current {
                let message = format!("If-Match: the eTag of machine {name} is {current}.");
                return failed(&message);
            }
        }
        if request.header("if-none-match") == Some("*") && current.is_some() {
            return failed(&format!("If-None-Match: machine {name} exists."));
        }
        Ok(())
    }

    /// A PUT on a machine that exists: its tags may change, and nothing else.
    fn update(
        self: &Arc<Self>,
        state: &mut State,
        request: &ArmRequest,
        name: &str,
        body: &Value,
    ) -> Result<Answer, Refusal> {
        let tags = tags_of(body)?;
        let now = self.config.clock.now();
        let operation = state.counter + 1;
        let Some(machine) = state.machines.get_mut(name) else {
            return Err(Refusal::new(404, "NotFound", format!("Machine {name} not found.")));
        };
        unchanged(machine, body)?;
        if machine.tags == tags {
            return Ok(self.reply_machine(200, machine, Vec::new()));
        }
        if machine.state == MachineState::Creating {
            let message = format!("machine {name} is being created");
            return Err(Refusal::new(409, "AnotherOperationInProgress", message));
        }
        machine.tags = tags;
        let settled = machine.state != MachineState::Succeeded;
        machine.enter(if settled { machine.state } else { MachineState::Updating });
        let incarnation = machine.incarnation;
        let answer = self.reply_machine(200, machine, self.operation_headers(request, operation));
        let begun = state.begin_operation(now, Some(name), 1);
        debug_assert_eq!(begun, operation, "the answer names the operation that was begun");
        let name = name.to_owned();
        self.later(TAG_UPDATE, move |inner| {
            inner.finish_update(&name, incarnation, operation);
            None
        });
        Ok(answer)
    }

    pub(crate) fn delete_machines(self: &Arc<Self>, request: &ArmRequest) -> Answer {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if let Err(refusal) = check_deletion(&body) {
            return refusal.answer();
        }
        let Some(names) = body.get("machineNames").and_then(Value::as_array) else {
            return refuse(400, "InvalidParameter", "Required parameter machineNames is missing.");
        };
        let mut names: Vec<String> =
            names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect();
        let mut state = self.state();
        names.retain(|name| state.machines.contains_key(name));
        names.sort();
        names.dedup();
        if names.is_empty() {
            return refuse(400, "InvalidParameter", "Cannot find any valid machines to delete.");
        }
        // Machines whose deletion has begun are left to it.
        names.retain(|name| {
            state.machines.get(name).is_some_and(|machine| machine.state != MachineState::Deleting)
        });
        let operation = state.begin_operation(self.config.clock.now(), None, names.len());
        let mut delays = Vec::new();
        for name in names {
            let Some(machine) = state.machines.get_mut(&name) else { continue };
            machine.enter(MachineState::Deleting);
            let delay = self.jitter(&self.config.vm_delete, &format!("delete/{}", machine.vm_name));
            delays.push((delay, name, machine.incarnation));
        }
        drop(state);
        // Ties end in name order.
        delays.sort();
        for (delay, name, incarnation) in delays {
            self.later(delay, move |inner| inner.finish_delete(&name, incarnation, operation));
        }
        reply_with(202, &Value::Null, &self.operation_headers(request, operation))
    }

    /// The machine as the API returns it, with its ETag as header.
    pub(crate) fn reply_machine(
        &self,
        status: u16,
        machine: &MachineRecord,
        mut headers: Vec<(&'static str, String)>,
    ) -> Answer {
        headers.push(("etag", format!("\"{}\"", self.etag(machine))));
        reply_with(status, &self.show(machine), &headers)
    }

    fn etag(&self, machine: &MachineRecord) -> String {
        let text = format!("etag/{}/{}/{}", machine.name, machine.incarnation, machine.version);
        self.guid(&text)
    }

    fn show(&self, machine: &MachineRecord) -> Value {
        let mut properties = machine.properties.clone();
        properties["provisioningState"] = machine.state.as_str().into();
        let is_missing = match self.config.vm_ids {
            VmIds::MissingIfFailed => machine.state == MachineState::Failed,
            VmIds::MissingUntilCreated => machine.state == MachineState::Creating,
            VmIds::NamedByMachine | VmIds::Opaque => false,
        };
        if !is_missing {
            properties["resourceId"] = machine.vm_id.clone().into();
        }
        properties["eTag"] = self.etag(machine).into();
        if !machine.tags.is_empty() {
            properties["tags"] = json!(machine.tags);
        }
        let mut status = json!({
            "creationTimestamp": machine.created.to_string(),
            "vmState": if machine.evicted { "Deleted" } else { "Running" },
            "driftAction": "Synced",
        });
        properties["kubernetes"]["nodeName"] = machine.vm_name.clone().into();
        if let Some((code, message)) = &machine.error {
            status["provisioningError"] = json!({
                "code": "ProvisioningFailed", "message": message,
                "details": [{ "code": code, "message": message }],
            });
        }
        if let Some(drift) = &machine.drift_action {
            status["driftAction"] = drift.action.clone().into();
            status["driftReason"] = drift.reason.clone().into();
        }
        properties["status"] = status;
        json!({
            "id": format!("{}/machines/{}", self.config.agent_pool_id(), machine.name),
            "name": machine.name,
            "type": "Microsoft.ContainerService/managedClusters/agentPools/machines",
            "zones": machine.zones,
            "properties": properties,
        })
    }

    /// `Azure-AsyncOperation`, `Location` and `Retry-After` of an accepted operation.
    pub(crate) fn operation_headers(
        &self,
        request: &ArmRequest,
        operation: u64,
    ) -> Vec<(&'static str, String)> {
        let version = request.query.get("api-version").map(String::as_str).unwrap_or_default();
        let url = |kind: &str| {
            format!(
                "{}/subscriptions/{}/providers/Microsoft.ContainerService/locations/{}/{kind}/{operation:016x}?api-version={version}",
                request.base, self.config.subscription_id, self.config.region
            )
        };
        vec![
            ("azure-asyncoperation", url("operations")),
            ("location", url("operationresults")),
            ("retry-after", self.config.retry_after.as_secs().to_string()),
        ]
    }

    /// Status document of an operation, for `Azure-AsyncOperation`.
    pub(crate) fn operation(&self, request: &ArmRequest, id: &str) -> Answer {
        let state = self.state();
        let number = u64::from_str_radix(id, 16).ok();
        let Some(record) = number.and_then(|number| state.operations.get(&number)) else {
            return refuse(404, "NotFound", &format!("operation `{id}` is unknown"));
        };
        let started = record.started.to_string();
        let mut body = json!({ "id": request.path, "name": id, "startTime": started });
        let mut headers = Vec::new();
        body["status"] = match (&record.failure, record.pending) {
            (_, 1..) => {
                headers.push(("retry-after", self.config.retry_after.as_secs().to_string()));
                "InProgress".into()
            }
            (None, 0) => "Succeeded".into(),
            (Some((code, message)), 0) => {
                body["error"] = json!({ "code": code, "message": message });
                "Failed".into()
            }
        };
        reply_with(200, &body, &headers)
    }

    /// Result of an operation, for `Location`.
    pub(crate) fn operation_result(&self, request: &ArmRequest, id: &str) -> Answer {
        let state = self.state();
        let number = u64::from_str_radix(id, 16).unwrap_or_default();
        let Some(record) = state.operations.get(&number) else {
            return refuse(404, "NotFound", &format!("operation `{id}` is unknown"));
        };
        if record.pending > 0 {
            return reply_with(202, &Value::Null, &self.operation_headers(request, number));
        }
        if let Some((code, message)) = &record.failure {
            return refuse(409, code, message);
        }
        match record.machine.as_ref().map(|name| state.machines.get(name)) {
            Some(Some(machine)) => self.reply_machine(200, machine, Vec::new()),
            _ => reply(204, &Value::Null),
        }
    }
}

/// Refuses a body that would change more than the tags of a machine. Members that the body does
/// not have stay as they are.
fn unchanged(machine: &MachineRecord, body: &Value) -> Result<(), Refusal> {
    if machine.state == MachineState::Deleting {
        let message = format!("machine {} is being deleted", machine.name);
        return Err(Refusal::new(409, "AnotherOperationInProgress", message));
    }
    let mut sent = body.get("properties").cloned().unwrap_or_default();
    if let Some(members) = sent.as_object_mut() {
        members.remove("tags");
        for read_only in ["provisioningState", "resourceId", "eTag", "status"] {
            members.remove(read_only);
        }
    }
    if let Some(kubernetes) = sent.get_mut("kubernetes").and_then(Value::as_object_mut) {
        kubernetes.remove("nodeName");
    }
    match difference(&sent, &machine.properties, "properties") {
        None => Ok(()),
        Some(path) => {
            let message = format!("Changing property '{path}' is not allowed.");
            Err(Refusal::new(400, "PropertyChangeNotAllowed", message))
        }
    }
}

/// Path of the first member of `sent` that `kept` does not have like that.
fn difference(sent: &Value, kept: &Value, path: &str) -> Option<String> {
    match (sent, kept) {
        (Value::Null, _) => None,
        (Value::Object(members), Value::Object(_)) => members.iter().find_map(|(name, value)| {
            difference(value, &kept[name.as_str()], &format!("{path}.{name}"))
        }),
        (Value::Object(members), Value::Null) if members.is_empty() => None,
        // The id of a resource.
        (Value::String(sent), Value::String(kept))
            if sent.starts_with('/') && sent.eq_ignore_ascii_case(kept) =>
        {
            None
        }
        _ => (sent != kept).then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_changed_member_is_named() {
        let kept = json!({ "hardware": { "vmSize": "A" }, "mode": "User", "network": {} });
        let path = |sent: Value| difference(&sent, &kept, "properties");
        assert_eq!(path(json!({ "hardware": { "vmSize": "A" } })), None);
        assert_eq!(path(json!({ "hardware": { "gpuProfile": null } })), None);
        let changed = path(json!({ "hardware": { "vmSize": "B" } }));
        assert_eq!(changed.as_deref(), Some("properties.hardware.vmSize"));
        let added = path(json!({ "mode": "User", "priority": "Spot" }));
        assert_eq!(added.as_deref(), Some("properties.priority"));
    }
}
