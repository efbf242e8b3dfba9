//! `nap azure smoke`: one machine from its creation to its deletion, with a transcript.
//!
//! The machine is made by the production provider for a NodeClaim that exists only here, so that a
//! `nap run` in the cluster does not act on it for its first five minutes. Whatever happens (an
//! error, Ctrl-C) the machine is deleted before the command ends.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use nap_api::nodeclaim::ResourceRequirements;
use nap_api::nodepool::NodeClassRef;
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{
    AKSNodeClass, AKSNodeClassStatus, NillableDuration, NodeClaim, NodeClaimSpec, Operator, labels,
};
use nap_azure::machines::{Machine, Machines, ProvisioningState, machine_name};
use nap_azure::prerequisites::{self, Status};
use nap_azure::{AzureConfig, AzureProvider};
use nap_clock::Clock;
use nap_cloud::{CloudError, CloudProvider, NodeClassFinding};

use super::check::{Cluster, count, summary};
use super::masks::Masks;
use crate::cli::{ClusterArgs, SmokeArgs};
use crate::connect::connect;
use crate::shutdown::interrupted;
use crate::user_error::UserError;

/// Longest wait for the machine, for its node and for its deletion, each.
const MAX_WAIT: SignedDuration = SignedDuration::from_mins(15);
/// Longest wait for the Node object to go after its machine.
const MAX_NODE_WAIT: SignedDuration = SignedDuration::from_mins(5);
/// Interval of polls.
const INTERVAL: Duration = Duration::from_secs(5);
/// Polls in a row that must not find the machine before it counts as gone: a request to create it
/// may still be under way when the command is interrupted.
const GONE_POLLS: u32 = 3;

/// Creates one machine, waits for its node, and deletes it.
pub async fn smoke(args: SmokeArgs) -> anyhow::Result<()> {
    let clock = if args.speed > 1 {
        Clock::starting_at(Clock::wall().now(), args.speed)
    } else {
        Clock::wall()
    };
    let client = node_client(&args).await?;
    let facts = Cluster::of(&args.cluster, clock.clone())?.read().await?;
    let config = facts.config().clone();
    let mut transcript = Transcript::create(&args, &config, clock.clone())?;
    let rows = prerequisites::check(&facts);
    transcript.say(&format!("nap {}, region {}", env!("CARGO_PKG_VERSION"), config.location));
    for row in &rows {
        transcript.say_of(&format!("check {:<8} {}: ", row.status, row.id), &row.found);
    }
    transcript.say(&summary(&rows));
    let failed = count(&rows, Status::Fail);
    if failed > 0 && !args.force {
        transcript.say("result: refused, because prerequisites are not met");
        let message = format!("{failed} prerequisite(s) not met: no machine was created");
        let hint = "`nap azure check` has the fixes; --force goes on without them";
        return Err(UserError::new(message, hint).into());
    }
    let smoke = Smoke::new(config, clock)?;
    // From here on Ctrl-C is heard, and every way out leads through the deletion.
    let interrupt = interrupted()?;
    transcript.say(&format!("machine {} is to be created; Ctrl-C deletes it", smoke.name));
    let outcome = tokio::select! {
        biased;
        () = interrupt => Err(anyhow::anyhow!("interrupted")),
        outcome = smoke.create(client.as_ref(), &mut transcript) => outcome,
    };
    if let Err(error) = &outcome {
        transcript.say_of("failed: ", &format!("{error:#}"));
    }
    let deleted = smoke.delete(client.as_ref(), &mut transcript).await;
    if let Err(error) = &deleted {
        transcript.say_of("NOT deleted: ", &error.to_string());
    }
    let passed = outcome.is_ok() && deleted.is_ok();
    transcript.say(if passed { "result: passed" } else { "result: failed" });
    println!("The transcript is in {}", args.transcript.display());
    if deleted.is_err() {
        let message = format!("machine {} may still exist and cost money", smoke.name);
        let hint = format!(
            "az aks nodepool delete-machines --resource-group {} --cluster-name {} --name {} \
             --machine-names {}",
            smoke.config.resource_group,
            smoke.config.cluster_name,
            smoke.config.agent_pool,
            smoke.name
        );
        return Err(UserError::new(message, hint).into());
    }
    outcome.map_err(|error| {
        let hint = "the machine was deleted; the transcript has each step";
        UserError::new(format!("{error:#}"), hint).into()
    })
}

/// Client of the cluster's API server; `None` if no kubeconfig is given.
async fn node_client(args: &SmokeArgs) -> anyhow::Result<Option<Client>> {
    let in_environment = std::env::var("KUBECONFIG").is_ok_and(|path| !path.is_empty());
    if args.kubeconfig.is_none() && args.context.is_none() && !in_environment {
        return Ok(None);
    }
    let cluster =
        ClusterArgs { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let client = connect(&cluster).await?;
    client.apiserver_version().await.map_err(|error| {
        let message = format!("cannot reach the cluster: {error}");
        UserError::new(message, "check the server address in your kubeconfig")
    })?;
    Ok(Some(client))
}

/// The one machine.
struct Smoke {
    config: AzureConfig,
    provider: AzureProvider,
    machines: Machines,
    clock: Clock,
    claim: NodeClaim,
    /// Name of the machine.
    name: String,
}

impl Smoke {
    fn new(config: AzureConfig, clock: Clock) -> anyhow::Result<Self> {
        let provider = AzureProvider::connect(config.clone(), clock.clone())?;
        let machines = Machines::new(provider.arm().clone(), &config);
        let started = clock.now().as_second();
        let claim = claim(&format!("nap-smoke-{started:x}{:x}", std::process::id()))?;
        let name = machine_name(&claim.name_any())?;
        Ok(Self { config, provider, machines, clock, claim, name })
    }

    /// Creates the machine, and waits until it runs and its node is ready.
    async fn create(
        &self,
        client: Option<&Client>,
        transcript: &mut Transcript,
    ) -> anyhow::Result<()> {
        let class = self.class().await?;
        let version = class.status.as_ref().and_then(|status| status.kubernetes_version.clone());
        transcript.say(&format!("Kubernetes {}", version.unwrap_or_default()));
        let instance = self.provider.create(&self.claim, &class, &[]).await.map_err(explain)?;
        let label = |key: &str| instance.labels.get(key).map_or("unknown", String::as_str);
        transcript.say(&format!(
            "created: {} {} in zone {}",
            label(labels::INSTANCE_TYPE),
            label(labels::CAPACITY_TYPE),
            label(labels::ZONE)
        ));
        let machine = self.until_running().await?;
        let image = machine.properties.node_image_version.as_deref().unwrap_or("unknown");
        transcript.say(&format!("the machine is provisioned with image {image}"));
        let Some(client) = client else {
            transcript.say("no kubeconfig: the node is not waited for");
            return Ok(());
        };
        let provider_id = machine.provider_id().unwrap_or(instance.provider_id);
        self.until_ready(client, &provider_id, transcript).await
    }

    /// A default node class with the status that the controllers would give it.
    async fn class(&self) -> anyhow::Result<AKSNodeClass> {
        let mut class = AKSNodeClass::default();
        let report = self.provider.inspect_node_class(&class).await;
        for finding in report.findings.values() {
            match finding {
                NodeClassFinding::Holds { .. } => {}
                NodeClassFinding::Violated { reason, message } => {
                    anyhow::bail!("node class: {message} ({reason})");
                }
                NodeClassFinding::Unknown { message } => anyhow::bail!("node class: {message}"),
            }
        }
        class.status = Some(AKSNodeClassStatus {
            images: report.images.unwrap_or_default(),
            kubernetes_version: report.kubernetes_version,
            ..AKSNodeClassStatus::default()
        });
        Ok(class)
    }

    async fn until_running(&self) -> anyhow::Result<Machine> {
        let begun = self.clock.now();
        while self.clock.now().duration_since(begun) < MAX_WAIT {
            let machine = self.machines.get(&self.name).await.map_err(explain)?;
            if let Some(failure) = machine.failure(&format!("create machine {}", self.name)) {
                return Err(explain(failure));
            }
            if machine.properties.provisioning_state == ProvisioningState::Succeeded {
                return Ok(machine);
            }
            self.clock.sleep(INTERVAL).await;
        }
        anyhow::bail!("the machine is not provisioned after {} min", MAX_WAIT.as_mins())
    }

    async fn until_ready(
        &self,
        client: &Client,
        provider_id: &str,
        transcript: &mut Transcript,
    ) -> anyhow::Result<()> {
        let begun = self.clock.now();
        let mut joined = false;
        while self.clock.now().duration_since(begun) < MAX_WAIT {
            if let Some(node) = find_node(client, provider_id).await? {
                if !joined {
                    joined = true;
                    transcript.say(&format!("node {} joined", node.name_any()));
                }
                if is_ready(&node) {
                    let info = node.status.and_then(|status| status.node_info);
                    let version = info.map(|info| info.kubelet_version).unwrap_or_default();
                    transcript.say(&format!("the node is ready, kubelet {version}"));
                    return Ok(());
                }
            }
            self.clock.sleep(INTERVAL).await;
        }
        let what = if joined { "the node is not ready" } else { "no node joined" };
        anyhow::bail!("{what} after {} min", MAX_WAIT.as_mins())
    }

    /// Deletes the machine and waits until it is gone, and its node.
    async fn delete(
        &self,
        client: Option<&Client>,
        transcript: &mut Transcript,
    ) -> Result<(), CloudError> {
        transcript.say("deleting the machine; Ctrl-C does not stop it");
        let begun = self.clock.now();
        let (mut gone, mut provider_id, mut last) = (0, None, None);
        while gone < GONE_POLLS {
            match self.machines.get(&self.name).await {
                Ok(machine) => {
                    gone = 0;
                    provider_id = machine.provider_id().or(provider_id);
                    // Repeated, because a deletion may fail, or the machine appear only now.
                    match self.provider.delete(&self.claim).await {
                        Err(error) if !error.is_not_found() => report(&mut last, error, transcript),
                        _ => {}
                    }
                }
                Err(error) if error.is_not_found() => gone += 1,
                Err(error) => report(&mut last, error, transcript),
            }
            if gone < GONE_POLLS && self.clock.now().duration_since(begun) >= MAX_WAIT {
                let message = format!("it exists after {} min", MAX_WAIT.as_mins());
                let class = nap_cloud::ErrorClass::Transient;
                let operation = format!("delete machine {}", self.name);
                return Err(last.unwrap_or_else(|| {
                    CloudError::new(class, operation, "DeleteTimedOut", message)
                }));
            }
            self.clock.sleep(INTERVAL).await;
        }
        transcript.say("the machine is gone");
        if let (Some(client), Some(provider_id)) = (client, provider_id) {
            self.until_node_gone(client, &provider_id, transcript).await;
        }
        Ok(())
    }

    /// The Node costs nothing, so that one which stays is only reported.
    async fn until_node_gone(
        &self,
        client: &Client,
        provider_id: &str,
        transcript: &mut Transcript,
    ) {
        let begun = self.clock.now();
        while self.clock.now().duration_since(begun) < MAX_NODE_WAIT {
            match find_node(client, provider_id).await {
                Ok(None) => return transcript.say("the node is gone"),
                Ok(Some(_)) => {}
                Err(error) => {
                    return transcript.say_of("nodes cannot be listed: ", &error.to_string());
                }
            }
            self.clock.sleep(INTERVAL).await;
        }
        transcript.say("the Node object is still there; Kubernetes removes it later");
    }
}

/// Keeps the last error, and says it unless it was said before.
fn report(last: &mut Option<CloudError>, error: CloudError, transcript: &mut Transcript) {
    if last.as_ref().is_none_or(|last| last.to_string() != error.to_string()) {
        transcript.say_of("will be tried again: ", &format!("{error} ({})", error.code));
    }
    *last = Some(error);
}

/// An error of the cloud with its code.
#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn explain(error: CloudError) -> anyhow::Error {
    anyhow::anyhow!("{error} ({})", error.code)
}

async fn find_node(client: &Client, provider_id: &str) -> anyhow::Result<Option<Node>> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(nodes.items.into_iter().find(|node| {
        let found = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        found.is_some_and(|found| found.eq_ignore_ascii_case(provider_id))
    }))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// A NodeClaim with the requirements of AKS's default NodePool; the provider takes the cheapest
/// size. It belongs to no NodePool.
fn claim(name: &str) -> anyhow::Result<NodeClaim> {
    let requirement = |key: &str, value: &str| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: Operator::In,
        values: vec![value.to_owned()],
        min_values: None,
    };
    let spec = NodeClaimSpec {
        taints: Vec::new(),
        startup_taints: Vec::new(),
        requirements: vec![
            requirement(labels::ARCH, "amd64"),
            requirement(labels::OS, "linux"),
            requirement(labels::CAPACITY_TYPE, "on-demand"),
            requirement(labels::SKU_FAMILY, "D"),
        ],
        resources: ResourceRequirements { requests: [("cpu".to_owned(), "1".parse()?)].into() },
        node_class_ref: NodeClassRef::aks("default"),
        termination_grace_period: None,
        expire_after: NillableDuration::never(),
    };
    Ok(NodeClaim::new(name, spec))
}

/// Lines with their time since the start, on standard output and in a file.
struct Transcript {
    file: File,
    masks: Masks,
    clock: Clock,
    begun: Timestamp,
}

impl Transcript {
    fn create(args: &SmokeArgs, config: &AzureConfig, clock: Clock) -> anyhow::Result<Self> {
        let file = File::create(&args.transcript).map_err(|error| {
            let message = format!("--transcript: {}: {error}", args.transcript.display());
            UserError::new(message, "name a file that can be written")
        })?;
        // A full disk or a closed pipe must not keep the machine from being deleted.
        crate::output::outlive_reader();
        let begun = clock.now();
        Ok(Self { file, masks: Masks::new(config), clock, begun })
    }

    /// A line of words that are the same for every cluster.
    fn say(&mut self, text: &str) {
        let seconds = self.clock.now().duration_since(self.begun).as_secs().max(0);
        let line = format!("[{:02}:{:02}] {text}\n", seconds / 60, seconds % 60);
        crate::output::write(format_args!("{line}"));
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            tracing::error!(%error, "cannot write the transcript");
        }
    }

    /// A line that ends with words of Azure, masked.
    fn say_of(&mut self, text: &str, found: &str) {
        let found = self.masks.apply(&found.replace('\n', " "));
        self.say(&format!("{text}{found}"));
    }
}
