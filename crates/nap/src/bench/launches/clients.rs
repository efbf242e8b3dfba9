//! The clients that launch a burst.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::join_all;
use http::{Method, Request};
use http_body_util::Full;
use nap_api::{NodeClaim, NodeClaimStatus, OfferingRef};
use nap_azure::AzureProvider;
use nap_azure::arm::TokenProvider as _;
use nap_azure::machines::API_VERSION;
use nap_cloud::{CloudError, CloudProvider, Creation, ErrorClass, Instance};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::super::args::LaunchesArgs;
use super::scene::{Candidate, Counts, Scene, claim, without_usages};

/// Longest time that the burst may take, on the clock of the emulated Azure.
const MAX_TIME: Duration = Duration::from_hours(6);
/// Interval at which each client looks at a machine.
const POLL: Duration = Duration::from_secs(5);
/// Time between two waves.
const WAVE: Duration = Duration::from_mins(1);

/// Launches every machine of the burst when its wave comes.
async fn burst(
    scene: &Scene,
    args: &LaunchesArgs,
    one: impl AsyncFn(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Counts> {
    let in_wave = args.machines.div_ceil(usize::try_from(args.waves).unwrap_or(1)).max(1);
    let machine = async |number: usize| {
        let wave = u32::try_from(number / in_wave).unwrap_or(u32::MAX);
        scene.clock.sleep(WAVE.saturating_mul(wave)).await;
        one(number).await
    };
    let all = join_all((0..args.machines).map(machine));
    let done = tokio::time::timeout(MAX_TIME, all).await.context("the burst did not end")?;
    done.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    scene.result(args.machines)
}

/// nap's provider, as the controllers use it: a machine that fails later is deleted, and its pods
/// get another at once.
pub(super) async fn with_memory(scene: &Scene, args: &LaunchesArgs) -> anyhow::Result<Counts> {
    let (config, clock) = (scene.config(), scene.clock.clone());
    let provider =
        AzureProvider::new(config, clock, scene.service.clone(), Arc::new(scene.tokens()));
    let launch = async |claim: &NodeClaim, _: &mut Vec<&Candidate>| {
        provider.create(claim, &scene.class, &[]).await
    };
    burst(scene, args, async |number| one(scene, &provider, number, &launch).await).await
}

/// nap's provider with neither a count of quotas nor a memory of failures. Each machine goes
/// through the offerings by price for itself.
pub(super) async fn without_memory(scene: &Scene, args: &LaunchesArgs) -> anyhow::Result<Counts> {
    let (config, clock) = (scene.config(), scene.clock.clone());
    let service = without_usages(scene.service.clone());
    let provider =
        AzureProvider::new(config, clock, service, Arc::new(scene.tokens())).without_memory();
    let launch = async |claim: &NodeClaim, left: &mut Vec<&Candidate>| loop {
        let planned: Vec<OfferingRef> =
            left.first().map(|one| reference(one)).into_iter().collect();
        match provider.create(claim, &scene.class, &planned).await {
            Err(error) if matches!(error.class, ErrorClass::Quota | ErrorClass::Capacity) => {
                drop_first(left, error.class == ErrorClass::Quota)?;
            }
            other => return other,
        }
    };
    burst(scene, args, async |number| one(scene, &provider, number, &launch).await).await
}

fn reference(one: &Candidate) -> OfferingRef {
    OfferingRef {
        instance_type: one.size.clone(),
        zone: one.zone.clone(),
        capacity_type: "on-demand".to_owned(),
        price: one.price,
    }
}

/// Drops the offering that failed, with its family if that is over its quota.
fn drop_first(left: &mut Vec<&Candidate>, family: bool) -> Result<(), CloudError> {
    if left.is_empty() {
        let (class, message) = (ErrorClass::Capacity, "no offering is left");
        return Err(CloudError::new(class, "launch a machine", "NoOfferingLeft", message));
    }
    let failed = left.remove(0);
    left.retain(|one| !family || one.family != failed.family);
    Ok(())
}

/// The offerings of a machine by price; the zones of one size begin with another for each machine.
fn by_price(scene: &Scene, number: usize) -> Vec<&Candidate> {
    let mut left: Vec<&Candidate> = scene.candidates.iter().collect();
    for zones in left.chunk_by_mut(|a, b| (&a.size, a.regional) == (&b.size, b.regional)) {
        let turn = number % zones.len();
        zones.rotate_left(turn);
    }
    left
}

/// Launches one machine and watches it until it exists; those that failed are deleted meanwhile.
async fn one<'a>(
    scene: &'a Scene,
    provider: &AzureProvider,
    number: usize,
    launch: &impl AsyncFn(&NodeClaim, &mut Vec<&'a Candidate>) -> Result<Instance, CloudError>,
) -> anyhow::Result<()> {
    let mut left = by_price(scene, number);
    let mut failed: Vec<NodeClaim> = Vec::new();
    for attempt in 0.. {
        let name = format!("burst-{number:05}-{attempt}");
        let mut claim = claim(&name);
        let made = launch(&claim, &mut left).await?;
        let provider_id = Some(made.provider_id);
        claim.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
        loop {
            scene.clock.sleep(POLL).await;
            delete(provider, &mut failed).await?;
            match provider.creation(&claim).await? {
                Creation::InProgress => {}
                Creation::Succeeded => {
                    scene.succeed(&name, attempt == 0);
                    while !failed.is_empty() {
                        scene.clock.sleep(POLL).await;
                        delete(provider, &mut failed).await?;
                    }
                    return Ok(());
                }
                Creation::Failed(error) => {
                    scene.fail(&error.code, &error.message);
                    // Of no use to a provider that chooses by itself.
                    drop_first(&mut left, false)?;
                    failed.push(claim);
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Asks for the deletion of machines, and drops those that are gone.
async fn delete(provider: &AzureProvider, claims: &mut Vec<NodeClaim>) -> anyhow::Result<()> {
    let mut remaining = Vec::new();
    for claim in claims.drain(..) {
        match provider.delete(&claim).await {
            Ok(()) => remaining.push(claim),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    *claims = remaining;
    Ok(())
}

/// Launches each machine with its own requests and without any memory.
pub(super) async fn one_by_one(scene: &Scene, args: &LaunchesArgs) -> anyhow::Result<Counts> {
    let token = scene.tokens().token().await?.secret;
    let pool = scene.config().agent_pool_path();
    let send = async |method: Method, path: String, body: Value| loop {
        let url = format!("https://management.azure.com{pool}/{path}?api-version={API_VERSION}");
        let request = Request::builder().method(&method).uri(url);
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let response = scene.service.clone().oneshot(request?).await;
        let response = response.map_err(|error| anyhow::anyhow!("{error}"))?;
        if response.status() == 429 {
            let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let wait = wait.and_then(|text| text.parse().ok()).unwrap_or(1);
            scene.clock.sleep(Duration::from_secs(wait)).await;
            continue;
        }
        let parsed = serde_json::from_slice(response.body()).unwrap_or(Value::Null);
        return anyhow::Ok((response.status(), parsed));
    };
    let image = scene.class.status.as_ref().and_then(|status| status.images.first());
    let image = image.and_then(|image| nap_azure::images::node_image_version(&image.id));
    let image = image.context("no image")?;
    let one = async |number: usize| -> anyhow::Result<()> {
        let mut full = BTreeSet::new();
        for (attempt, candidate) in by_price(scene, number).into_iter().enumerate() {
            let Candidate { size, zone, family, .. } = candidate;
            if full.contains(family) {
                continue;
            }
            let name = format!("burst-{number:05}-{attempt}");
            let zones: Vec<&str> =
                zone.rsplit_once('-').map(|(_, zone)| zone).into_iter().collect();
            let body = json!({ "zones": zones, "properties": {
                "hardware": { "vmSize": size }, "nodeImageVersion": image, "priority": "Regular",
                "tags": { "karpenter.azure.com_aksmachine_nodeclaim": name },
            } });
            let (status, answer) = send(Method::PUT, format!("machines/{name}"), body).await?;
            if !status.is_success() {
                if answer.to_string().contains("quota") {
                    full.insert(family);
                }
                continue;
            }
            loop {
                scene.clock.sleep(POLL).await;
                let (_, machine) =
                    send(Method::GET, format!("machines/{name}"), Value::Null).await?;
                let properties = &machine["properties"];
                match properties["provisioningState"].as_str() {
                    Some("Succeeded") => {
                        scene.succeed(&name, attempt == 0);
                        return Ok(());
                    }
                    Some("Failed") => {
                        let error = &properties["status"]["provisioningError"]["details"][0];
                        let text = |member: &str| error[member].as_str().unwrap_or_default();
                        scene.fail(text("code"), text("message"));
                        let names = json!({ "machineNames": [name] });
                        send(Method::POST, "deleteMachines".to_owned(), names).await?;
                        break;
                    }
                    _ => {}
                }
            }
        }
        anyhow::bail!("no offering is left for machine {number}")
    };
    burst(scene, args, one).await
}
