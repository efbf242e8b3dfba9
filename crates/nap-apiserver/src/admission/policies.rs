//! ValidatingAdmissionPolicy: rules in CEL on what is created and updated.
//!
//! Left out: policies on deletions and on subresources, `authorizer`, and parameters that a
//! selector chooses.

use std::sync::Arc;

use kube::core::cel::KubeCelExt as _;
use kube::core::cel::cel::objects::{Key, Map};
use kube::core::cel::cel::{Context, Program, Value as CelValue};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::object;
use crate::resources::{GroupResource, Resource};
use crate::selectors;
use crate::server::State;
use crate::verbs::reviews;

const GROUP: &str = "admissionregistration.k8s.io";

/// A request in the terms of a policy.
struct Asked<'a> {
    resource: &'a Resource,
    operation: &'static str,
    old: Option<&'a Value>,
    object: &'a Value,
    namespace: Option<Arc<Value>>,
}

impl State {
    pub(super) fn check_policies(
        &self,
        resource: &Resource,
        old: Option<&Value>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let plural = "validatingadmissionpolicybindings";
        let bindings = self.store.collections.get(&GroupResource::new(GROUP, plural));
        let Some(bindings) = bindings.filter(|held| !held.objects.is_empty()) else {
            return Ok(());
        };
        // The rules themselves are not judged, so that a wrong one can be taken back.
        if resource.group == GROUP {
            return Ok(());
        }
        let namespaces = GroupResource::new("", "namespaces");
        let asked = Asked {
            resource,
            operation: if old.is_some() { "UPDATE" } else { "CREATE" },
            old,
            object,
            namespace: self
                .store
                .get(&namespaces, &(String::new(), object::namespace(object).to_owned())),
        };
        for binding in bindings.objects.values() {
            let policy = object::text(binding, &["spec", "policyName"]);
            let key = (String::new(), policy.to_owned());
            let policies = GroupResource::new(GROUP, "validatingadmissionpolicies");
            let Some(policy) = self.store.get(&policies, &key) else { continue };
            let constraints = &policy["spec"]["matchConstraints"];
            let narrower = object::at(binding, &["spec", "matchResources"]);
            if !asked.matches(constraints)
                || narrower.is_some_and(|narrower| !asked.is_selected(narrower))
            {
                continue;
            }
            self.judge(&asked, &policy, binding, warnings)?;
        }
        Ok(())
    }

    fn judge(
        &self,
        asked: &Asked<'_>,
        policy: &Value,
        binding: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let names = format!(
            "ValidatingAdmissionPolicy '{}' with binding '{}'",
            object::name(policy),
            object::name(binding)
        );
        let actions = object::list(binding, &["spec", "validationActions"]);
        let acts = |action: &str| actions.iter().any(|held| held == action);
        let fails_open = object::text(policy, &["spec", "failurePolicy"]) == "Ignore";
        let problems = match self.problems(asked, policy, binding) {
            Ok(problems) => problems,
            Err(_) if fails_open => return Ok(()),
            Err(error) => vec![("Invalid".to_owned(), error)],
        };
        let Some((reason, message)) = problems.first() else { return Ok(()) };
        if acts("Warn") {
            for (_, message) in &problems {
                warnings.push(format!("Validation failed for {names}: {message}"));
            }
        }
        if !acts("Deny") && !actions.is_empty() {
            return Ok(());
        }
        let why = format!("{names} denied request: {message}");
        let mut error = ApiError::forbidden(asked.resource, object::name(asked.object), &why);
        (error.code, error.reason) = match reason.as_str() {
            "Forbidden" => (403, "Forbidden"),
            "Unauthorized" => (401, "Unauthorized"),
            "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
            _ => (422, "Invalid"),
        };
        Err(error)
    }

    /// Reason and message of each rule that does not hold; an error is an expression that cannot
    /// be evaluated.
    fn problems(
        &self,
        asked: &Asked<'_>,
        policy: &Value,
        binding: &Value,
    ) -> std::result::Result<Vec<(String, String)>, String> {
        let mut context = Context::default().with_all();
        let mut bind = |name: &str, value: &Value| {
            context.add_variable(name, value.clone()).map_err(|error| error.to_string())
        };
        bind("object", asked.object)?;
        bind("oldObject", asked.old.unwrap_or(&Value::Null))?;
        bind("request", &asked.request())?;
        bind("namespaceObject", asked.namespace.as_deref().unwrap_or(&Value::Null))?;
        match self.params(asked, policy, binding)? {
            Params::Found(params) => bind("params", &params)?,
            Params::Skip => return Ok(Vec::new()),
        }
        for condition in object::list(policy, &["spec", "matchConditions"]) {
            let expression = object::text(condition, &["expression"]);
            if evaluate(expression, &context)? != CelValue::Bool(true) {
                return Ok(Vec::new());
            }
        }
        let mut variables: Vec<(Key, CelValue)> = Vec::new();
        for variable in object::list(policy, &["spec", "variables"]) {
            let value = evaluate(object::text(variable, &["expression"]), &context)?;
            let name = object::text(variable, &["name"]).to_owned();
            variables.push((Key::String(Arc::new(name)), value));
            let known = Map { map: Arc::new(variables.iter().cloned().collect()) };
            context.add_variable_from_value("variables", CelValue::Map(known));
        }
        let mut problems = Vec::new();
        for validation in object::list(policy, &["spec", "validations"]) {
            let expression = object::text(validation, &["expression"]);
            match evaluate(expression, &context)? {
                CelValue::Bool(true) => {}
                CelValue::Bool(false) => {
                    let computed = object::text(validation, &["messageExpression"]);
                    let computed = match computed {
                        "" => None,
                        text => match evaluate(text, &context) {
                            Ok(CelValue::String(text)) => Some(text.to_string()),
                            _ => None,
                        },
                    };
                    let message = match object::text(validation, &["message"]) {
                        "" => format!("failed expression: {expression}"),
                        text => text.to_owned(),
                    };
                    let reason = object::text(validation, &["reason"]).to_owned();
                    problems.push((reason, computed.unwrap_or(message)));
                }
                _ => return Err(format!("expression '{expression}' is not a boolean")),
            }
        }
        Ok(problems)
    }

    /// The parameters that a binding names.
    fn params(
        &self,
        asked: &Asked<'_>,
        policy: &Value,
        binding: &Value,
    ) -> std::result::Result<Params, String> {
        let Some(kind) = object::at(policy, &["spec", "paramKind"]) else {
            return Ok(Params::Found(Value::Null));
        };
        let name = object::text(binding, &["spec", "paramRef", "name"]);
        if name.is_empty() {
            return Err("parameters that a selector chooses are not supported".to_owned());
        }
        let resource = self
            .registry
            .by_kind(object::text(kind, &["apiVersion"]), object::text(kind, &["kind"]))
            .ok_or_else(|| "failed to find resource referenced by paramKind".to_owned())?;
        let namespace = match object::text(binding, &["spec", "paramRef", "namespace"]) {
            _ if !resource.namespaced => "",
            "" => object::namespace(asked.object),
            given => given,
        };
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(params) = self.store.get(&resource.group_resource(), &key) {
            return Ok(Params::Found((*params).clone()));
        }
        match object::text(binding, &["spec", "paramRef", "parameterNotFoundAction"]) {
            "Allow" => Ok(Params::Skip),
            _ => {
                Err("no params found for policy binding with `Deny` parameterNotFoundAction"
                    .to_owned())
            }
        }
    }
}

enum Params {
    Found(Value),
    /// Without its parameters the policy says nothing.
    Skip,
}

fn evaluate(expression: &str, context: &Context<'_>) -> std::result::Result<CelValue, String> {
    let program = Program::compile(expression)
        .map_err(|error| format!("expression '{expression}' cannot be compiled: {error}"))?;
    program
        .execute(context)
        .map_err(|error| format!("expression '{expression}' resulted in error: {error}"))
}

impl Asked<'_> {
    fn request(&self) -> Value {
        let resource = self.resource;
        json!({
            "operation": self.operation,
            "name": object::name(self.object), "namespace": object::namespace(self.object),
            "dryRun": false, "userInfo": reviews::user(),
            "kind": {
                "group": resource.group, "version": resource.version, "kind": resource.kind,
            },
            "resource": {
                "group": resource.group, "version": resource.version,
                "resource": resource.plural,
            },
        })
    }

    /// Whether the constraints of a policy are about the request.
    fn matches(&self, constraints: &Value) -> bool {
        let any =
            |list: &str| object::list(constraints, &[list]).iter().any(|rule| self.is_named(rule));
        any("resourceRules") && !any("excludeResourceRules") && self.is_selected(constraints)
    }

    fn is_named(&self, rule: &Value) -> bool {
        let has = |field: &str, value: &str| {
            object::list(rule, &[field]).iter().any(|held| held == value || held == "*")
        };
        let names = object::list(rule, &["resourceNames"]);
        has("apiGroups", &self.resource.group)
            && has("apiVersions", &self.resource.version)
            && has("operations", self.operation)
            && (has("resources", &self.resource.plural) || has("resources", "*/*"))
            && (names.is_empty() || names.iter().any(|name| name == object::name(self.object)))
    }

    /// Whether the selectors, and the rules where there are some, choose the request.
    fn is_selected(&self, constraints: &Value) -> bool {
        let chosen = |field: &str, object: Option<&Value>| {
            let Some(selector) = constraints.get(field) else { return true };
            let labels = object.and_then(|object| object::at(object, &["metadata", "labels"]));
            selectors::labels_match(&selectors::from_object(selector), labels)
        };
        let rules = object::list(constraints, &["resourceRules"]);
        let named = rules.is_empty() || rules.iter().any(|rule| self.is_named(rule));
        let in_namespace =
            !self.resource.namespaced || chosen("namespaceSelector", self.namespace.as_deref());
        named && in_namespace && chosen("objectSelector", Some(self.object))
    }
}
