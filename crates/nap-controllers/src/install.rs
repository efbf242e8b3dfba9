//! Installation of nap's CustomResourceDefinitions, over the incumbent's if they exist.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Time that a server may take to serve a definition that it has stored.
const SERVE_TIMEOUT: Duration = Duration::from_mins(1);

/// Result for one object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The object did not exist.
    Created,
    /// The object existed and was different.
    Updated,
    /// The object existed and was the same.
    Unchanged,
    /// The server does not know the kind. Only warnings depend on it.
    NotSupported,
}

/// Failure to install a definition.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The server refused an object, or was unreachable.
    #[error("{name}: {error}")]
    Refused {
        /// Name of the object.
        name: String,
        /// Verb of the request.
        verb: &'static str,
        /// Plural name of the kind.
        resource: String,
        /// Answer of the server.
        error: kube::Error,
    },
    /// The server stored a definition and does not serve it.
    #[error("{name} is stored, but was not served after {} s: {why}", SERVE_TIMEOUT.as_secs())]
    NotServed {
        /// Name of the definition.
        name: String,
        /// Its conditions.
        why: String,
    },
}

/// Applies every definition and the policy that warns of old spellings, waits until they are
/// served, and reports each. A repeated call changes nothing.
pub async fn install(
    client: &Client,
    mut report: impl FnMut(&str, &str, Outcome),
) -> Result<(), InstallError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in nap_api::crds::all() {
        let outcome = apply(&definitions, &definition).await?;
        established(&definitions, &definition.name_any()).await?;
        report("CustomResourceDefinition", &definition.name_any(), outcome);
    }
    let (policy, binding) = nap_api::policy::old_spellings();
    let outcome = apply_if_known(&Api::all(client.clone()), &policy).await?;
    report("ValidatingAdmissionPolicy", &policy.name_any(), outcome);
    let outcome = apply_if_known(&Api::all(client.clone()), &binding).await?;
    report("ValidatingAdmissionPolicyBinding", &binding.name_any(), outcome);
    Ok(())
}

async fn apply<K>(api: &Api<K>, object: &K) -> Result<Outcome, InstallError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    let refused = |verb| {
        let (name, resource) = (name.clone(), K::plural(&()).into_owned());
        move |error| InstallError::Refused { name, verb, resource, error }
    };
    let before = api.get_opt(&name).await.map_err(refused("get"))?;
    let after = api
        .patch(&name, &PatchParams::apply("nap").force(), &Patch::Apply(object))
        .await
        .map_err(refused("patch"))?;
    Ok(match before {
        None => Outcome::Created,
        Some(before) if before.resource_version() == after.resource_version() => Outcome::Unchanged,
        Some(_) => Outcome::Updated,
    })
}

async fn apply_if_known<K>(api: &Api<K>, object: &K) -> Result<Outcome, InstallError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    match apply(api, object).await {
        Err(InstallError::Refused { error: kube::Error::Api(status), .. })
            if status.code == 404 =>
        {
            Ok(Outcome::NotSupported)
        }
        outcome => outcome,
    }
}

async fn established(api: &Api<CustomResourceDefinition>, name: &str) -> Result<(), InstallError> {
    let deadline = tokio::time::Instant::now() + SERVE_TIMEOUT;
    loop {
        let resource = CustomResourceDefinition::plural(&()).into_owned();
        let refused =
            |error| InstallError::Refused { name: name.to_owned(), verb: "get", resource, error };
        let definition = api.get(name).await.map_err(refused)?;
        let conditions = definition.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
        {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            let why: Vec<String> = conditions
                .into_iter()
                .map(|condition| {
                    format!(
                        "{}={} {}",
                        condition.type_,
                        condition.status,
                        condition.message.unwrap_or_default()
                    )
                })
                .collect();
            return Err(InstallError::NotServed { name: name.to_owned(), why: why.join(", ") });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
