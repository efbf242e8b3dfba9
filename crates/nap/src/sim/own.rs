//! `nap sim -f`: the user's own workloads on the embedded cluster in virtual time, with a schedule
//! of scalings, as a timeline with its cost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{ResourceExt, discovery};
use nap_sim::world::World;
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::SimArgs;
use crate::catalogue::SPOT_NOTE;
use crate::manifests::read::Document;
use crate::manifests::{self, check, read};
use crate::plan::cluster::count;
use crate::plan::format::cents;
use crate::user_error::UserError;

/// Time between two looks at the cluster.
const STEP: Duration = Duration::from_secs(30);
/// Maximum number of scalings of a schedule.
const MAX_SCALINGS: usize = 10_000;
/// Maximum number of waiting pods that are shown.
const MAX_SHOWN: usize = 5;
/// Kinds that others need, in the order in which they are applied; all others come after.
const FIRST: [&str; 7] = [
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "RuntimeClass",
    "StorageClass",
    "AKSNodeClass",
    "NodePool",
];

/// One scaling of a schedule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scaling {
    /// Time after the start, such as `1h30m`.
    at: String,
    /// `namespace/name`, or the name in `default`.
    scale: String,
    /// `Deployment` unless it is said.
    #[serde(default = "deployment")]
    kind: String,
    replicas: u32,
}

fn deployment() -> String {
    "Deployment".to_owned()
}

/// A moment of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moment {
    seconds: i64,
    event: Option<String>,
    nodes: BTreeMap<String, usize>,
    running: usize,
    pending: usize,
    #[serde(rename = "microUsdPerHour")]
    price: i64,
    price_is_estimate: bool,
}

/// The report of `--json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Story {
    hours: u32,
    timeline: Vec<Moment>,
    machines: usize,
    cost_micros: i64,
    cost_is_estimate: bool,
    /// The pods without a node at the end, and why.
    waiting: Vec<Waiting>,
}

/// A pod without a node at the end.
#[derive(Debug, Serialize)]
struct Waiting {
    namespace: String,
    name: String,
    /// What the last event about it says; `None` if none does.
    reason: Option<String>,
}

/// Simulates the manifests of the arguments on a fresh world, and prints the timeline.
pub async fn simulate(args: &SimArgs, world: &World) -> anyhow::Result<()> {
    let documents = read::read(&args.files)?;
    check::refuse(&documents, &[])?;
    let mut scalings = match &args.schedule {
        Some(file) => schedule(file, &documents)?,
        None => Vec::new(),
    };
    scalings.reverse();
    world.install_crds().await?;
    if !documents.iter().any(|document| document.text("/kind") == "NodePool") {
        eprintln!("note: no NodePool given: the default one of AKS Node Auto-Provisioning is used");
        manifests::apply(&world.client(), manifests::DEFAULT_NODEPOOL).await?;
    }
    for name in classes_not_given(&documents) {
        eprintln!("note: AKSNodeClass `{name}` is not given: its defaults are used");
        let class = json!({ "apiVersion": "karpenter.azure.com/v1beta1", "kind": "AKSNodeClass",
            "metadata": { "name": name }, "spec": {} });
        manifests::apply_object(&world.client(), &serde_json::from_value(class)?).await?;
    }
    let story = tell(args, world, documents, scalings);
    let story = tokio::select! {
        biased;
        story = story => story?,
        result = world.run(true) => {
            result?;
            anyhow::bail!("the embedded cluster stopped")
        }
    };
    waiting_at_the_end(&story);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&story)?);
        return super::no_violations(world);
    }
    for moment in &story.timeline {
        println!("{}", line(moment));
    }
    let cost = UsdPerHour::from_micros(story.cost_micros);
    let vms = count(story.machines, "VM");
    let mark = if story.cost_is_estimate { "~" } else { "" };
    println!("\n{vms} in {} h, {mark}{} in all", story.hours, cents(cost));
    if story.cost_is_estimate {
        println!("{SPOT_NOTE}");
    }
    super::no_violations(world)
}

/// The AKSNodeClasses that NodePools name and the manifests do not have.
fn classes_not_given(documents: &[Document]) -> BTreeSet<String> {
    let of = |kind: &'static str, name: &'static str| {
        let those = documents.iter().filter(move |document| document.text("/kind") == kind);
        those.map(|document| document.text(name).to_owned()).collect::<BTreeSet<String>>()
    };
    let used = of("NodePool", "/spec/template/spec/nodeClassRef/name");
    let given = of("AKSNodeClass", "/metadata/name");
    used.difference(&given).filter(|name| !name.is_empty()).cloned().collect()
}

/// Says which pods have no node at the end, and why.
fn waiting_at_the_end(story: &Story) {
    if story.waiting.is_empty() {
        return;
    }
    let pods = count(story.waiting.len(), "pod");
    eprintln!("warning: {pods} without a node at the end:");
    for Waiting { namespace, name, reason } in story.waiting.iter().take(MAX_SHOWN) {
        let reason = reason.as_deref().unwrap_or("no event says why");
        eprintln!("  {namespace}/{name}: {reason}");
    }
    if story.waiting.len() > MAX_SHOWN {
        eprintln!("  and {} more; --json lists all", story.waiting.len() - MAX_SHOWN);
    }
}

/// The pods without a node, each with what the last event about it says.
async fn waiting(world: &World) -> anyhow::Result<Vec<Waiting>> {
    let all = ListParams::default();
    let pods: Vec<Pod> = Api::all(world.client()).list(&all).await?.items;
    let without_node = pods.into_iter().filter(|pod| {
        let status = pod.status.as_ref();
        pod.metadata.deletion_timestamp.is_none()
            && pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none())
            && status.and_then(|status| status.phase.as_deref()) == Some("Pending")
    });
    let events: Vec<Event> = Api::all(world.client()).list(&all).await?.items;
    let reason = |pod: &Pod| {
        let about = events.iter().filter(|event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some("Pod")
                && object.namespace == pod.metadata.namespace
                && object.name == pod.metadata.name
                && event.reason.as_deref() == Some("FailedScheduling")
        });
        // What nap says knows the NodePools; the scheduler only knows nodes.
        let by_nap = |event: &Event| {
            let source = event.source.as_ref().and_then(|source| source.component.as_deref());
            source == Some(nap_controllers::events::COMPONENT)
        };
        let last = about
            .max_by_key(|event| (by_nap(event), event.last_timestamp.as_ref().map(|time| time.0)));
        last.and_then(|event| event.message.clone())
    };
    let waiting = without_node.map(|pod| Waiting {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        reason: reason(&pod),
    });
    Ok(waiting.collect())
}

async fn tell(
    args: &SimArgs,
    world: &World,
    documents: Vec<Document>,
    mut scalings: Vec<(i64, Scaling)>,
) -> anyhow::Result<Story> {
    let clock = world.clock();
    let start = clock.now();
    apply(world, documents).await?;
    let end = i64::from(args.hours) * 3600;
    let mut timeline: Vec<Moment> = Vec::new();
    let mut event = Some("start".to_owned());
    loop {
        let seconds = clock.now().duration_since(start).as_secs();
        while scalings.last().is_some_and(|(at, _)| *at <= seconds)
            && let Some((_, scaling)) = scalings.pop()
        {
            scale(world, &scaling).await?;
            let Scaling { kind, scale, replicas, .. } = &scaling;
            event = Some(format!("{kind} {scale} is scaled to {replicas}"));
        }
        let now = look(world, seconds, event.take()).await?;
        let same = |one: &Moment| {
            let key = |one: &Moment| (one.nodes.clone(), one.running, one.pending, one.price);
            key(one) == key(&now)
        };
        if now.event.is_some() || !timeline.last().is_some_and(same) {
            timeline.push(now);
        }
        if seconds >= end {
            break;
        }
        let left = u64::try_from(end - seconds).unwrap_or(1);
        clock.sleep(STEP.min(Duration::from_secs(left))).await;
    }
    let now: Timestamp = clock.now();
    let waiting = waiting(world).await?;
    Ok(Story {
        hours: args.hours,
        timeline,
        machines: world.azure().bill().len(),
        cost_micros: world.azure().total_cost_micros(now),
        cost_is_estimate: !world.azure().bill_mark().is_empty(),
        waiting,
    })
}

fn line(moment: &Moment) -> String {
    let Moment { seconds, event, nodes, running, pending, price, price_is_estimate } = moment;
    let mark = if *price_is_estimate { "~" } else { "" };
    let clock = format!("[{:02}:{:02}:{:02}]", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let nodes: Vec<String> = nodes.iter().map(|(size, count)| format!("{count} {size}")).collect();
    let nodes = if nodes.is_empty() { "no nodes".to_owned() } else { nodes.join(", ") };
    let price = UsdPerHour::from_micros(*price);
    let event = event.as_ref().map(|event| format!("  ({event})")).unwrap_or_default();
    let running = count(*running, "pod");
    format!("{clock} {mark}{price}/h  {running} run, {pending} wait; {nodes}{event}")
}

async fn look(world: &World, seconds: i64, event: Option<String>) -> anyhow::Result<Moment> {
    let all = ListParams::default();
    let pods: Vec<Pod> = Api::all(world.client()).list(&all).await?.items;
    let nodes: Vec<Node> = Api::all(world.client()).list(&all).await?.items;
    let phase = |phase: &str| {
        let is = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
        };
        pods.iter().filter(is).count()
    };
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for node in &nodes {
        let size = node.labels().get(nap_api::labels::INSTANCE_TYPE).cloned().unwrap_or_default();
        *sizes.entry(size).or_default() += 1;
    }
    let machines = world.azure().machines();
    let price: UsdPerHour = machines.iter().map(|machine| machine.price).sum();
    let types = machines.iter().map(|machine| machine.capacity_type);
    let price_is_estimate = !world.azure().price_estimates().mark_sum(types).is_empty();
    let (running, pending) = (phase("Running"), phase("Pending"));
    let price = price.micros();
    Ok(Moment { seconds, event, nodes: sizes, running, pending, price, price_is_estimate })
}

/// Applies the manifests, with the namespaces that they name.
async fn apply(world: &World, mut documents: Vec<Document>) -> anyhow::Result<()> {
    let rank = |document: &Document| {
        let kind = document.text("/kind");
        FIRST.iter().position(|first| *first == kind).unwrap_or(FIRST.len())
    };
    documents.sort_by_key(rank);
    let client = world.client();
    let namespaces: BTreeSet<String> = documents
        .iter()
        .map(|document| document.text("/metadata/namespace").to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    for name in namespaces {
        let value =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let namespace: DynamicObject = serde_json::from_value(value)?;
        manifests::apply_object(&client, &namespace).await?;
    }
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    for document in &documents {
        let (version, kind) = (document.text("/apiVersion"), document.text("/kind"));
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        if discovery::pinned_kind(&client, &gvk).await.is_err() {
            *left_out.entry(kind.to_owned()).or_default() += 1;
            continue;
        }
        let object: DynamicObject = serde_json::from_value(document.value.clone())?;
        let applied = manifests::apply_object(&client, &object).await;
        applied.map_err(|error| document.error("", format!("{error:#}")))?;
    }
    if !left_out.is_empty() {
        let kinds: Vec<String> =
            left_out.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
        eprintln!(
            "note: left out, as the embedded cluster does not serve them: {}",
            kinds.join(", ")
        );
    }
    Ok(())
}

async fn scale(world: &World, scaling: &Scaling) -> anyhow::Result<()> {
    let (namespace, name) = scaling.scale.split_once('/').unwrap_or(("default", &scaling.scale));
    let client = world.client();
    let gvk = GroupVersionKind::gvk("apps", "v1", &scaling.kind);
    let (resource, _) = discovery::pinned_kind(&client, &gvk).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
    let patch = json!({ "spec": { "replicas": scaling.replicas } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("--schedule: {} `{namespace}/{name}`", scaling.kind))?;
    Ok(())
}

/// Reads a schedule: seconds after the start, and the scalings, in their order.
fn schedule(file: &Path, documents: &[Document]) -> anyhow::Result<Vec<(i64, Scaling)>> {
    let refuse = |problem: String| {
        let message = format!("--schedule: {}: {problem}", file.display());
        let hint = "write a list such as `- {at: 1h30m, scale: shop/web, replicas: 20}`";
        anyhow::Error::from(UserError::new(message, hint))
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let list: Vec<Scaling> = serde_saphyr::from_str(&text)
        .map_err(|error| refuse(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
    if list.len() > MAX_SCALINGS {
        return Err(refuse(format!("has more than {MAX_SCALINGS} scalings")));
    }
    let mut scalings = Vec::new();
    for (index, scaling) in list.into_iter().enumerate() {
        let number = index + 1;
        let at = nap_api::duration::parse_go_duration(&scaling.at).ok_or_else(|| {
            refuse(format!("item {number}: at: `{}` is not a duration", scaling.at))
        })?;
        let (namespace, name) =
            scaling.scale.split_once('/').unwrap_or(("default", scaling.scale.as_str()));
        let is_target = |document: &Document| {
            let text = |pointer: &str| document.value.pointer(pointer).and_then(Value::as_str);
            text("/kind") == Some(&scaling.kind)
                && text("/metadata/name") == Some(name)
                && text("/metadata/namespace").unwrap_or("default") == namespace
        };
        if !documents.iter().any(is_target) {
            let problem = format!(
                "item {number}: scale: there is no {} `{namespace}/{name}` in the manifests",
                scaling.kind
            );
            return Err(refuse(problem));
        }
        scalings.push((i64::try_from(at.as_secs()).unwrap_or(i64::MAX), scaling));
    }
    scalings.sort_by_key(|(at, _)| *at);
    Ok(scalings)
}
