//! The reads behind the checks, over ARM.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nap_cloud::{CloudError, ErrorClass};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::facts::{Fact, Facts, ManagedCluster, Permission, Read, Role, Unknown, Usage, parse};
use super::subscription::{FEATURE, PROVIDERS};
use super::versions::read_cli;
use crate::AzureConfig;
use crate::arm::{ArmClient, percent_encode};
use crate::machines::API_VERSION;
use crate::{canonical_region, images, skus};

const NETWORK_API: &str = "2024-05-01";
const AUTHORIZATION_API: &str = "2022-04-01";
const SUBSCRIPTION_API: &str = "2022-12-01";
const PROVIDERS_API: &str = "2021-04-01";
const FEATURES_API: &str = "2021-07-01";
const USAGES_API: &str = "2025-04-01";
/// Longest wait for the price API, which a firewall may swallow.
const MAX_PRICE_WAIT: Duration = Duration::from_secs(10);

/// Reads facts about one cluster.
pub struct Reader {
    /// ARM, with a login.
    pub arm: ArmClient,
    /// The retail price API.
    pub prices: ArmClient,
    /// Settings of `nap run`.
    pub config: AzureConfig,
    /// Variables that `nap run` needs and that are unset; their settings come from the cluster.
    pub unset: Vec<&'static str>,
    /// Program of the Azure CLI, `az`.
    pub cli: PathBuf,
}

/// Reads the managed cluster as ARM has it.
pub async fn managed_cluster(arm: &ArmClient, config: &AzureConfig) -> Result<Value, CloudError> {
    let path = format!("{}?api-version={API_VERSION}", config.cluster_path());
    arm.get("get the managed cluster", &path).await
}

impl Reader {
    /// Reads everything. Fails only if the cluster itself cannot be read.
    pub async fn read(mut self) -> Result<Facts, CloudError> {
        let document = managed_cluster(&self.arm, &self.config).await?;
        let cluster: ManagedCluster = parse(document).map_err(|error| {
            let operation = "get the managed cluster";
            CloudError::new(ErrorClass::Transient, operation, "InvalidResponse", error)
        })?;
        if self.unset.contains(&"LOCATION") {
            self.config.location = canonical_region(&cluster.location);
        }
        if self.unset.contains(&"AZURE_NODE_RESOURCE_GROUP") {
            self.config.node_resource_group.clone_from(&cluster.properties.node_resource_group);
        }
        let subscription = format!("/subscriptions/{}", self.config.subscription_id);
        let cluster_path = self.config.cluster_path();
        let group = format!("{subscription}/resourceGroups/{}", self.config.resource_group);
        let (id, location) = (&self.config.subscription_id, &self.config.location);
        let usages = format!(
            "{subscription}/providers/Microsoft.Compute/locations/{location}/usages?api-version={USAGES_API}"
        );
        let usages: Result<Vec<Usage>, CloudError> = self.arm.list("list quota", &usages).await;
        let region_reads = BTreeMap::from([
            ("quota", outcome(&usages)),
            ("sizes", outcome(&skus::list(&self.arm, id, location).await)),
            ("node images", outcome(&images::list(&self.arm, &self.config).await)),
        ]);
        let mut facts = Facts {
            pools: self
                .list("list agent pools", &format!("{cluster_path}/agentPools"), API_VERSION)
                .await,
            maintenance: self.maintenance(&cluster_path).await,
            subnets: BTreeMap::new(),
            security_groups: BTreeMap::new(),
            route_tables: BTreeMap::new(),
            identity_roles: BTreeMap::new(),
            caller_on_cluster: self.permissions(&cluster_path).await,
            caller_on_group: self.permissions(&group).await,
            subscription: self
                .text("get the subscription", &subscription, SUBSCRIPTION_API, "/state")
                .await,
            providers: self.providers(&subscription).await,
            feature: self.feature(&subscription).await,
            usages: usages.map_err(|error| unknown(&error)),
            region_reads,
            cli: read_cli(&self.cli).await,
            prices: self.ask_prices().await,
            node_pools: Vec::new(),
            cluster,
            unset: self.unset.clone(),
            config: self.config.clone(),
        };
        self.network(&mut facts).await;
        Ok(facts)
    }

    /// The subnets of nodes and of the API server, with what is attached to them and the roles on
    /// them.
    async fn network(&self, facts: &mut Facts) {
        let nodes = facts.node_subnets().unwrap_or_default();
        let mut ids: Vec<String> = nodes.into_iter().chain(facts.api_server_subnet()).collect();
        ids.sort();
        ids.dedup();
        let mut definitions: BTreeMap<String, Fact<Role>> = BTreeMap::new();
        for id in ids {
            let subnet: Fact<super::facts::Subnet> =
                self.get(&format!("get subnet {}", name(&id)), &id, NETWORK_API).await;
            if let Ok(subnet) = &subnet {
                if let Some(group) = &subnet.properties.network_security_group
                    && !facts.security_groups.contains_key(&group.id.to_lowercase())
                {
                    let operation = format!("get security group {}", name(&group.id));
                    let found = self.get(&operation, &group.id, NETWORK_API).await;
                    facts.security_groups.insert(group.id.to_lowercase(), found);
                }
                if let Some(table) = &subnet.properties.route_table
                    && !facts.route_tables.contains_key(&table.id.to_lowercase())
                {
                    let operation = format!("get route table {}", name(&table.id));
                    let found = self.get(&operation, &table.id, NETWORK_API).await;
                    facts.route_tables.insert(table.id.to_lowercase(), found);
                }
            }
            facts.subnets.insert(id.clone(), subnet);
            let principals = facts.cluster.identity.principals();
            let roles = self.roles(&id, &principals, &mut definitions).await;
            facts.identity_roles.insert(id, roles);
        }
    }

    /// Roles of the cluster's identities at a scope or above it, through groups too.
    async fn roles(
        &self,
        scope: &str,
        principals: &[&str],
        definitions: &mut BTreeMap<String, Fact<Role>>,
    ) -> Fact<Vec<Role>> {
        if principals.is_empty() {
            return Err(Unknown("the cluster states no identity".to_owned()));
        }
        let mut roles = Vec::new();
        for principal in principals {
            let filter = percent_encode(&format!("atScope() and assignedTo('{principal}')"));
            let path = format!(
                "{scope}/providers/Microsoft.Authorization/roleAssignments?api-version={AUTHORIZATION_API}&$filter={filter}"
            );
            let operation = format!("list role assignments on {}", name(scope));
            let found: Result<Vec<Value>, CloudError> = self.arm.list(&operation, &path).await;
            for assignment in found.map_err(|error| unknown(&error))? {
                let id = assignment.pointer("/properties/roleDefinitionId").and_then(Value::as_str);
                let Some(id) = id else { continue };
                if !definitions.contains_key(id) {
                    let role = self.role(id).await;
                    definitions.insert(id.to_owned(), role);
                }
                roles.extend(definitions.get(id).cloned().transpose()?);
            }
        }
        Ok(roles)
    }

    async fn role(&self, id: &str) -> Fact<Role> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Definition {
            properties: Properties,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Properties {
            role_name: String,
            permissions: Vec<Permission>,
        }
        let operation = format!("get role definition {}", name(id));
        let found: Definition = self.get(&operation, id, AUTHORIZATION_API).await?;
        let Properties { role_name, permissions } = found.properties;
        Ok(Role { name: role_name, permissions })
    }

    async fn permissions(&self, scope: &str) -> Fact<Vec<Permission>> {
        let path = format!("{scope}/providers/Microsoft.Authorization/permissions");
        self.list("list the caller's permissions", &path, AUTHORIZATION_API).await
    }

    async fn maintenance(&self, cluster: &str) -> Fact<Vec<String>> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let path = format!("{cluster}/maintenanceConfigurations");
        let found: Vec<Named> =
            self.list("list maintenance configurations", &path, API_VERSION).await?;
        Ok(found.into_iter().map(|one| one.name).collect())
    }

    async fn providers(&self, subscription: &str) -> BTreeMap<&'static str, Fact<String>> {
        let mut states = BTreeMap::new();
        for provider in PROVIDERS {
            let path = format!("{subscription}/providers/{provider}");
            let operation = format!("get resource provider {provider}");
            let state = self.text(&operation, &path, PROVIDERS_API, "/registrationState").await;
            states.insert(provider, state);
        }
        states
    }

    async fn feature(&self, subscription: &str) -> Fact<Option<String>> {
        let path = format!(
            "{subscription}/providers/Microsoft.Features/providers/Microsoft.ContainerService/features/{FEATURE}?api-version={FEATURES_API}"
        );
        match self.arm.get(&format!("get feature {FEATURE}"), &path).await {
            Ok(found) => {
                Ok(found.pointer("/properties/state").and_then(Value::as_str).map(str::to_owned))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(unknown(&error)),
        }
    }

    /// Asks the price API for one price.
    async fn ask_prices(&self) -> Result<(), String> {
        let filter = format!(
            "serviceName eq 'Virtual Machines' and armRegionName eq '{}' and armSkuName eq 'Standard_D2s_v5'",
            self.config.location
        );
        let path = format!(
            "/api/retail/prices?api-version=2023-01-01-preview&$filter={}",
            percent_encode(&filter)
        );
        let asked = self.prices.get("get a price", &path);
        match tokio::time::timeout(MAX_PRICE_WAIT, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.message),
            Err(_) => Err(format!("no answer within {} s", MAX_PRICE_WAIT.as_secs())),
        }
    }

    async fn get<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
        version: &str,
    ) -> Fact<T> {
        let path = format!("{path}?api-version={version}");
        let document = self.arm.get(operation, &path).await.map_err(|error| unknown(&error))?;
        parse(document).map_err(|error| Unknown(format!("{operation}: {error}")))
    }

    async fn list<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
        version: &str,
    ) -> Fact<Vec<T>> {
        let path = format!("{path}?api-version={version}");
        let found: Result<Vec<Value>, CloudError> = self.arm.list(operation, &path).await;
        let found = found.map_err(|error| unknown(&error))?;
        let items: Result<Vec<T>, serde_json::Error> = found.into_iter().map(parse).collect();
        items.map_err(|error| Unknown(format!("{operation}: {error}")))
    }

    /// A text in a document.
    async fn text(&self, operation: &str, path: &str, version: &str, at: &str) -> Fact<String> {
        let found: Value = self.get(operation, path, version).await?;
        let text = found.pointer(at).and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| Unknown(format!("{operation}: no `{at}`")))
    }
}

/// The last part of an ARM id.
fn name(id: &str) -> &str {
    super::facts::last_segment(id)
}

fn outcome<T>(read: &Result<T, CloudError>) -> Read {
    match read {
        Ok(_) => Read::Done,
        Err(error) if error.class == ErrorClass::Auth => Read::Forbidden,
        Err(error) => Read::Failed(error.to_string()),
    }
}

fn unknown(error: &CloudError) -> Unknown {
    Unknown(format!("{error} ({})", error.code))
}
