//! `nap disable`: turns nap off as AKS documents it, and shows what still holds each node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use nap_clock::Clock;
use nap_controllers::disable::{Remaining, disable_nodepools, remaining};

use crate::cli::ClusterArgs;
use crate::connect::{connect_to, unreachable};
use crate::user_error::UserError;

/// Interval between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// Exit code if nodes are left.
const NODES_LEFT: u8 = 2;

/// Options of `nap disable`.
#[derive(Clone, Debug, Args)]
pub struct DisableArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Wait until no node of a NodePool is left or on its way, and report each that goes or stays
    #[arg(long)]
    pub wait: bool,
    /// Longest time to wait, such as `30m`; without it as long as it takes
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Only show the nodes that are left and what holds each; change nothing
    #[arg(long, conflicts_with = "wait")]
    pub status: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let problem = || format!("`{text}` is not a duration such as `30m`");
    nap_api::duration::parse_go_duration(text).ok_or_else(problem)
}

/// Sets the limits and the taint, and then shows or awaits the end of the nodes. nap must go on
/// running meanwhile: it is nap that moves the pods.
pub async fn disable(args: DisableArgs) -> anyhow::Result<()> {
    let (client, url) = connect_to(&args.cluster).await?;
    let failed = |error: nap_controllers::Error| failed(&url, &error);
    if !args.status {
        for pool in disable_nodepools(&client).await.map_err(failed)? {
            let what = if pool.changed {
                "limits.cpu is 0 and nodes are tainted"
            } else {
                "disabled before"
            };
            println!("nodepool {}: {what}", pool.nodepool);
        }
    }
    let clock = Clock::wall();
    let begun = clock.now();
    let mut known: BTreeMap<String, Remaining> = BTreeMap::new();
    loop {
        let left = remaining(&client).await.map_err(failed)?;
        report(&mut known, &left);
        if left.is_empty() {
            println!("no node of a NodePool is left, and none is on its way");
            println!("next: stop nap; on AKS NAP: `az aks update --node-provisioning-mode Manual`");
            return Ok(());
        }
        let waited = clock.now().duration_since(begun).unsigned_abs();
        if !args.wait || args.timeout.is_some_and(|timeout| waited >= timeout) {
            let (nodes, launching): (Vec<_>, Vec<_>) =
                left.iter().partition(|one| one.object.starts_with("node "));
            let mut message = format!("{} node(s) of NodePools are left", nodes.len());
            if !launching.is_empty() {
                let _ = write!(message, ", and {} NodeClaim(s) without a node", launching.len());
            }
            let hint = "add nodes that nap does not manage, or lift what holds the nodes; \
                        `nap disable --wait` waits for the rest";
            return Err(UserError::new(message, hint).with_code(NODES_LEFT).into());
        }
        clock.sleep(INTERVAL).await;
    }
}

/// The error of a step: the server, what was asked of it, and why it failed.
fn failed(url: &str, error: &nap_controllers::Error) -> anyhow::Error {
    match error {
        nap_controllers::Error::Kube { doing, source } => {
            let listed = doing.strip_prefix("listing ").map(|kind| kind.trim_matches('`'));
            let listed = listed.map(str::to_lowercase);
            match listed {
                Some(kind) => unreachable(url, "list", &kind, source),
                None => unreachable(url, "patch", "nodepools", source),
            }
        }
        nap_controllers::Error::Cloud(_) => {
            let hint = "the steps can be repeated: run `nap disable` again";
            UserError::new(error.to_string(), hint).into()
        }
    }
}

/// Prints what has changed since the last look.
fn report(known: &mut BTreeMap<String, Remaining>, left: &[Remaining]) {
    let now: BTreeMap<String, Remaining> =
        left.iter().map(|one| (one.object.clone(), one.clone())).collect();
    for (object, one) in &now {
        if known.get(object) != Some(one) {
            let holds = one.holds.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            println!("{object} ({}): {}, {} pod(s){holds}", one.nodepool, one.state, one.pods);
        }
    }
    for object in known.keys().filter(|object| !now.contains_key(*object)) {
        println!("{object}: gone");
    }
    *known = now;
}
