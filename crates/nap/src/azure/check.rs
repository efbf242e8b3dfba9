//! `nap azure check`: every prerequisite of a cluster, with the fix of what is missing.

use std::fmt::Write as _;
use std::path::PathBuf;

use nap_api::disruption::{Maintenance, MaintenanceSchedule, Span};
use nap_azure::AzureConfig;
use nap_azure::arm::{ArmClient, https_client, tokens_from_env};
use nap_azure::prerequisites::{self, Facts, Reader, Row, Status};
use nap_clock::Clock;
use serde_json::{Value, json};

use super::pool_needs;
use crate::cli::{CheckArgs, CheckFormat, ManagedClusterArgs};
use crate::user_error::UserError;

/// Exit code if the cluster could not be read.
const UNREADABLE: u8 = 2;
/// Variables that the managed cluster states too.
const DERIVED: [&str; 2] = ["LOCATION", "AZURE_NODE_RESOURCE_GROUP"];

/// Prints the rows of a cluster. Fails if a row fails or is unknown.
pub async fn check(args: CheckArgs) -> anyhow::Result<()> {
    let cluster = Cluster::of(&args.cluster, Clock::wall())?;
    let mut facts = cluster.read().await?;
    if args.create_pool {
        facts = cluster.with_pool(facts).await?;
    }
    let region = facts.config().location.clone();
    let needs = match args.files.as_slice() {
        [] => pool_needs::of_cluster(&args.kubernetes, &region).await?,
        files => pool_needs::of_files(files, &region)?,
    };
    let pools: Vec<String> = needs.iter().map(|one| one.name.clone()).collect();
    if !needs.is_empty() {
        facts.set_node_pools(needs);
    }
    let rows = prerequisites::check(&facts);
    let text = match args.output {
        CheckFormat::Table => table(facts.config(), &rows, false),
        CheckFormat::Wide => table(facts.config(), &rows, true),
        CheckFormat::Json => {
            serde_json::to_string_pretty(&document(facts.config(), &pools, &rows))? + "\n"
        }
    };
    crate::output::write(format_args!("{text}"));
    let (failed, unknown) = (count(&rows, Status::Fail), count(&rows, Status::Unknown));
    if failed > 0 {
        let message = format!("{failed} prerequisite(s) not met");
        return Err(UserError::new(message, "each row above has its fix").into());
    }
    if unknown > 0 && !args.allow_unknown {
        let message = format!("{unknown} prerequisite(s) could not be checked");
        let hint = "each row above says why; --allow-unknown accepts them";
        return Err(UserError::new(message, hint).into());
    }
    Ok(())
}

/// Reads maintenance windows of a managed cluster. One that is missing is noted, and so is one that
/// cannot be read, which is then left out.
pub async fn maintenance(
    args: &ManagedClusterArgs,
    schedules: Vec<MaintenanceSchedule>,
    within: Span,
) -> Vec<(MaintenanceSchedule, Maintenance)> {
    let mut windows = Vec::new();
    for schedule in schedules {
        match window(args, schedule, within).await {
            Ok(window) => {
                if window == Maintenance::Absent {
                    eprintln!("note: the managed cluster has no {schedule}, so it never opens");
                }
                windows.push((schedule, window));
            }
            Err(error) => {
                eprintln!("note: {schedule} is not known, so it counts as closed: {error:#}");
            }
        }
    }
    windows
}

async fn window(
    args: &ManagedClusterArgs,
    schedule: MaintenanceSchedule,
    within: Span,
) -> anyhow::Result<Maintenance> {
    let cluster = Cluster::of(args, Clock::wall())?;
    Ok(nap_azure::maintenance::read(&cluster.arm, &cluster.config, schedule, within).await?)
}

/// Number of rows with a status.
pub(super) fn count(rows: &[Row], status: Status) -> usize {
    rows.iter().filter(|row| row.status == status).count()
}

/// A managed cluster and the clients to read it.
pub(super) struct Cluster {
    config: AzureConfig,
    /// Variables that are unset and come from the managed cluster.
    unset: Vec<&'static str>,
    arm: ArmClient,
    prices: ArmClient,
}

impl Cluster {
    /// The cluster of the options and, where they are silent, of the environment of `nap run`.
    pub(super) fn of(args: &ManagedClusterArgs, clock: Clock) -> anyhow::Result<Self> {
        let variable = |name: &str| {
            let option = match name {
                "AZURE_SUBSCRIPTION_ID" => args.subscription.clone(),
                "ARM_RESOURCE_GROUP" => args.resource_group.clone(),
                "CLUSTER_NAME" => args.name.clone(),
                "AKS_MACHINES_POOL_NAME" => args.pool.clone(),
                _ => None,
            };
            option.or_else(|| std::env::var(name).ok()).filter(|value| !value.trim().is_empty())
        };
        let unset: Vec<&'static str> =
            DERIVED.into_iter().filter(|name| variable(name).is_none()).collect();
        let config = AzureConfig::from_variables(|name| match variable(name) {
            None if unset.contains(&name) => Some("unknown".to_owned()),
            // An empty mode is a value of its own.
            None if name == "NETWORK_PLUGIN_MODE" => std::env::var(name).ok(),
            found => found,
        });
        let config = config.map_err(|error| unreadable(&first_line(&error.to_string())))?;
        let service = https_client().map_err(|error| unreadable(&error.to_string()))?;
        let known = !unset.contains(&"ARM_SUBSCRIPTION_ID");
        let of = known.then_some(config.subscription_id.as_str());
        let tokens = tokens_from_env(service.clone(), clock.clone(), &config.entra, of)
            .map_err(|error| unreadable(&first_line(&error.to_string())))?;
        let arm = ArmClient::new(service.clone(), tokens, clock.clone(), &config.arm_endpoint);
        let prices = ArmClient::anonymous(service, clock, &config.prices_endpoint);
        Ok(Self { config, unset, arm, prices })
    }

    /// Reads the facts.
    pub(super) async fn read(&self) -> anyhow::Result<Facts> {
        let reader = Reader {
            arm: self.arm.clone(),
            prices: self.prices.clone(),
            config: self.config.clone(),
            unset: self.unset.clone(),
            cli: PathBuf::from("az"),
        };
        reader.read().await.map_err(|error| unreadable(&format!("{error} ({})", error.code)))
    }

    /// Creates the Machines-mode agent pool if it does not exist, and reads the facts again.
    async fn with_pool(&self, facts: Facts) -> anyhow::Result<Facts> {
        let pool = &self.config.agent_pool;
        match facts.has_agent_pool() {
            None => {
                let message = "--create-pool: the agent pools cannot be listed";
                let hint = "run `nap azure check` for the reason, in row `agent-pool`";
                return Err(UserError::new(message, hint).into());
            }
            Some(true) => {
                eprintln!("--create-pool: agent pool `{pool}` exists already");
                return Ok(facts);
            }
            Some(false) => {}
        }
        eprintln!("creating agent pool `{pool}` in mode Machines");
        prerequisites::create_pool(&self.arm, &self.config).await.map_err(|error| {
            let message = format!("--create-pool: {error} ({})", error.code);
            let hint = "the caller needs \
                        Microsoft.ContainerService/managedClusters/agentPools/write on the cluster";
            UserError::new(message, hint)
        })?;
        self.read().await
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn unreadable(why: &str) -> anyhow::Error {
    let hint = "name the cluster with --subscription, --resource-group and --name or the variables \
                of `docs/running.md`, and log in as `nap run` does (`az login` on a laptop)";
    UserError::new(format!("cannot read the cluster: {why}"), hint).with_code(UNREADABLE).into()
}

/// One line per row. `wide`: the document of each row, not only of those with a fix.
fn table(config: &AzureConfig, rows: &[Row], wide: bool) -> String {
    let mut text = format!(
        "Cluster `{}` in {}, agent pool `{}`\n\n",
        config.cluster_name, config.location, config.agent_pool
    );
    for row in rows {
        let _ = writeln!(text, "{:<8} {}: {}  [{}]", row.status, row.title, row.found, row.id);
        if let Some(fix) = &row.fix {
            let _ = writeln!(text, "{:8}   fix: {fix}", "");
        }
        if wide || row.fix.is_some() {
            let _ = writeln!(text, "{:8}   see: {}", "", row.document);
        }
    }
    let _ = writeln!(text, "\n{}", summary(rows));
    text
}

/// Number of rows by status.
pub(super) fn summary(rows: &[Row]) -> String {
    let all = [Status::Pass, Status::Warn, Status::Fail, Status::Unknown, Status::NotApplicable];
    let counts = all.map(|status| format!("{} {status}", count(rows, status)));
    counts.join(", ")
}

fn document(config: &AzureConfig, pools: &[String], rows: &[Row]) -> Value {
    json!({
        "version": 1,
        "cluster": config.cluster_name,
        "region": config.location,
        "agentPool": config.agent_pool,
        "nodePools": pools,
        "counts": {
            "pass": count(rows, Status::Pass),
            "warn": count(rows, Status::Warn),
            "fail": count(rows, Status::Fail),
            "unknown": count(rows, Status::Unknown),
            "notApplicable": count(rows, Status::NotApplicable),
        },
        "rows": rows,
    })
}
