//! `nap plan`, `nap explain` and `nap replay`: decisions without carrying them out.
//!
//! Manifests or a live cluster fill the controllers' index ([`cluster`], [`live`]); [`catalogues`]
//! selects the sizes; the engine solves its snapshot; the plan is printed as a table ([`table`]),
//! as a document ([`document`]) or for one pod ([`explain`]). A saved snapshot ([`record`]) is
//! solved again to the same plan.

mod admission;
mod asked;
mod autoscaling;
mod bound;
mod catalogues;
mod change;
pub mod cluster;
mod contradiction;
mod disruption;
mod disruption_record;
mod document;
mod explain;
mod fleet;
mod footnotes;
pub mod format;
mod gate;
mod left_out;
mod live;
mod objects;
mod on_cluster;
mod overlay;
mod record;
mod system_daemons;
mod table;
mod what_if;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nap_azure::{AzureProvider, Shortage};
use nap_clock::Clock;
use nap_controllers::snapshot::{Catalogues, NodeCache, OverlayRefusal, snapshot};
use nap_controllers::stay_within_quota;
use nap_engine::{
    Catalogue, Launch, Options, Plan, Pod, PodKey, Remedy, RemedySearch, Snapshot, solve,
};
use nap_units::{Resources, Rounding};

use crate::catalogue::Origin;
use crate::cli::{
    ExplainFormat, Format, PlanArgs, PlanCommand, ReplayArgs, SourceArgs, WhatIfArgs,
};
use crate::manifests::{check, read};
pub use crate::output::write_last as show;
use crate::user_error::UserError;
use asked::Asked;
use catalogues::{Offered, exceeded_quota};
use change::State;
use cluster::Cluster;
use disruption_record::DisruptionRecord;
use document::PlanDocument;
use fleet::FleetDocument;
use gate::Gate;
use record::Record;

/// Maximum number of distinct unplaced pods for which a remedy is searched.
const MAX_REMEDIES: usize = 100;

/// Maximum number of names in a hint.
const MAX_NAMES: usize = 5;

/// Input of a decision.
pub struct Problem {
    /// Region of the sizes and prices.
    pub region: String,
    /// Where the prices and zones come from.
    pub origin: Origin,
    /// Input of the engine.
    pub snapshot: Snapshot,
    /// Options of the engine.
    pub options: Options,
    /// `spec.limits` by NodePool.
    pub limits: BTreeMap<String, Resources>,
    /// Offerings that are left out, because Azure lately refused them.
    pub left_out: Vec<Shortage>,
    /// Provider of the instance types; `None` if Azure was not asked.
    provider: Option<AzureProvider>,
    /// Instance types of each NodePool.
    catalogues: Arc<Catalogues>,
    /// Instance types of each node class.
    of_classes: BTreeMap<String, Arc<Catalogue>>,
}

/// A plan and its remedies.
pub struct Decision {
    /// The plan.
    pub plan: Plan,
    /// The smallest change that would place an unplaced pod, by pod.
    pub remedies: BTreeMap<PodKey, Remedy>,
    /// Pods without a remedy for which not every change was tried.
    pub stopped: BTreeSet<PodKey>,
}

impl Problem {
    /// `~` if the price of a launch is an estimate.
    fn mark_launches(&self, launches: &[Launch]) -> &'static str {
        let types = launches.iter().map(|launch| launch.capacity_type);
        self.origin.price_estimates().mark_sum(types)
    }

    fn new(cluster: &mut Cluster, offered: Offered, options: Options, now: Timestamp) -> Self {
        let Offered { region, origin, of_classes, provider, left_out } = offered;
        let state = &cluster.state;
        let limits = state.pools().filter_map(|(name, pool)| {
            let limits = pool.spec.limits.as_ref()?;
            let list = limits.iter().map(|(name, quantity)| (name.as_str(), quantity));
            Some((name.clone(), Resources::from_quantities(list, Rounding::Down)))
        });
        let limits = limits.collect();
        let catalogues = Catalogues::build(state, of_classes.clone(), &Arc::default());
        let snapshot = snapshot(state, &catalogues, &mut NodeCache::default(), now);
        for (name, refused) in &catalogues.refused {
            let why = match refused {
                OverlayRefusal::Invalid(problem) => problem.as_str(),
                OverlayRefusal::Conflict => "it contradicts another one of the same weight",
            };
            cluster.notes.push(format!("NodeOverlay `{name}` does not count: {why}"));
        }
        Self {
            region,
            origin,
            snapshot,
            options,
            limits,
            left_out,
            provider,
            catalogues,
            of_classes,
        }
    }

    /// Solves, and searches remedies for unplaced pods: for `asked`, or for the first
    /// [`MAX_REMEDIES`].
    pub fn solve(&self, asked: Option<&PodKey>) -> Decision {
        let plan = solve(&self.snapshot, &self.options);
        let (remedies, stopped) = self.remedies(&plan, asked);
        Decision { plan, remedies, stopped }
    }

    /// Solves, and moves launches to the offerings with which the controllers would stay within the
    /// quota.
    pub fn decide(&self, cluster: &Cluster) -> Decision {
        let mut decision = self.solve(None);
        if let Some(provider) = &self.provider {
            let (state, catalogues) = (&cluster.state, &self.catalogues);
            stay_within_quota(provider, state, catalogues, &mut decision.plan);
        }
        decision
    }

    /// Remedies by pod, and the pods for which the search was stopped; equal pods share one.
    fn remedies(
        &self,
        plan: &Plan,
        asked: Option<&PodKey>,
    ) -> (BTreeMap<PodKey, Remedy>, BTreeSet<PodKey>) {
        let mut remedies = BTreeMap::new();
        let mut stopped = BTreeSet::new();
        if plan.unplaced.is_empty() {
            return (remedies, stopped);
        }
        let pods: BTreeMap<&PodKey, &Pod> =
            self.snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
        let mut changes = RemedySearch::new(&self.snapshot, plan, &self.options);
        let mut known: BTreeMap<Pod, (Option<Remedy>, bool)> = BTreeMap::new();
        for unplaced in
            plan.unplaced.iter().filter(|one| asked.is_none_or(|asked| *asked == one.pod))
        {
            let Some(pod) = pods.get(&unplaced.pod) else { continue };
            let alike = Pod { key: PodKey::new(pod.key.parts().0, ""), ..(*pod).clone() };
            if !known.contains_key(&alike) {
                if known.len() == MAX_REMEDIES {
                    stopped.insert(unplaced.pod.clone());
                    continue;
                }
                let found = changes.smallest(pod, &unplaced.refusal);
                known.insert(alike.clone(), (found, changes.has_stopped()));
            }
            match known.get(&alike) {
                Some((Some(remedy), _)) => {
                    remedies.insert(unplaced.pod.clone(), remedy.clone());
                }
                Some((None, true)) => drop(stopped.insert(unplaced.pod.clone())),
                _ => {}
            }
        }
        (remedies, stopped)
    }
}

/// Whether a cluster is named beside manifests.
fn names_cluster(source: &SourceArgs) -> bool {
    source.cluster.kubeconfig.is_some() || source.cluster.context.is_some()
}

/// Reads manifests or the cluster, and prints the notes to stderr.
async fn gather(source: &SourceArgs) -> anyhow::Result<(Cluster, Problem)> {
    if !source.files.is_empty() && names_cluster(source) {
        let message = "manifests and --context or --kubeconfig are given, and only one of them can \
                       be the cluster";
        let hint = "leave out one of them; `nap plan` and `nap explain pod` take both, and plan the \
                    manifests on top of the cluster";
        return Err(UserError::new(message, hint).into());
    }
    let options = source.engine.options()?;
    let ties = !options.default_spread.is_empty();
    let (mut cluster, now) = if source.files.is_empty() {
        (live::from_cluster(&source.cluster, ties).await?, Clock::wall().now())
    } else {
        // Later than every timestamp in manifests, so the same files give the same plan at any
        // time.
        let documents = read::read(&source.files)?;
        check::refuse(&documents, &[])?;
        (objects::from_manifests(documents, source, ties)?, Timestamp::MAX)
    };
    let offered = catalogues::choose(source, &mut cluster, now).await?;
    let problem = Problem::new(&mut cluster, offered, options, now);
    for note in cluster.autoscaler_notes.iter().chain(&cluster.notes) {
        eprintln!("note: {note}");
    }
    Ok((cluster, problem))
}

/// `nap plan`.
pub async fn plan(args: PlanArgs) -> anyhow::Result<()> {
    if let Some(PlanCommand::Disruption { source, output, save }) = &args.what {
        let (mut cluster, problem) = gather(source).await?;
        let known = disruption::know(source, &mut cluster).await;
        let preview = disruption::preview(&cluster, &problem, &known);
        if let Some(file) = save {
            DisruptionRecord::new(&problem, &preview)?.save(file)?;
        }
        return show(&disruption::render(&problem, &preview, *output)?);
    }
    let gate = Gate { exit_code: args.exit_code, max_cost: args.max_cost };
    let on_top = names_cluster(&args.source) || !args.state.is_empty();
    if !args.source.files.is_empty() && on_top {
        let (after, change) = on_cluster::decide(&args.source, &args.state).await?;
        let State { cluster, problem, decision, .. } = &after;
        let (cost, changes) = (change.cost_after(), !change.is_empty());
        let mark = change.mark();
        finish(&args, problem, decision)?;
        let nodes = fleet::nodes(cluster, problem);
        let head = change.text() + "\n";
        let mut document = PlanDocument::new(problem, decision);
        document.fleet = Some(FleetDocument::new(&nodes, problem));
        document.change = Some(change);
        print(problem, decision, args.output, &head, &document)?;
        return gate.check(cost, mark, changes || has_changes(cluster, decision));
    }
    let (cluster, problem) = gather(&args.source).await?;
    let decision = problem.decide(&cluster);
    finish(&args, &problem, &decision)?;
    let mut document = PlanDocument::new(&problem, &decision);
    let (mut head, mut cost) = (String::new(), decision.plan.cost);
    let mut mark = problem.mark_launches(&decision.plan.launches);
    if args.source.files.is_empty() {
        let nodes = fleet::nodes(&cluster, &problem);
        head = fleet::table(&nodes, &problem) + "\n";
        cost += fleet::cost(&nodes);
        mark = if mark.is_empty() { fleet::mark(&nodes, &problem) } else { mark };
        document.fleet = Some(FleetDocument::new(&nodes, &problem));
    }
    print(&problem, &decision, args.output, &head, &document)?;
    gate.check(cost, mark, has_changes(&cluster, &decision))
}

/// Whether a plan creates VMs or leaves pods without a place.
fn has_changes(cluster: &Cluster, decision: &Decision) -> bool {
    let plan = &decision.plan;
    !plan.launches.is_empty() || !plan.unplaced.is_empty() || cluster.refused > 0
}

/// Notes an exceeded quota, and saves the plan.
fn finish(args: &PlanArgs, problem: &Problem, decision: &Decision) -> anyhow::Result<()> {
    let provider = problem.provider.as_ref();
    if let Some((quota, over)) = provider.and_then(|it| exceeded_quota(it, &decision.plan)) {
        eprintln!(
            "note: the VMs together exceed the quota `{quota}` by {over} vCPUs, and no other size is \
             within it: the controllers would launch some and wait with the others"
        );
    }
    match &args.save {
        Some(file) => Record::new(problem, decision).save(file),
        None => Ok(()),
    }
}

/// Prints a plan; `head` goes before the tables.
fn print(
    problem: &Problem,
    decision: &Decision,
    format: Format,
    head: &str,
    document: &PlanDocument,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => head.to_owned() + &table::table(problem, decision),
        Format::Wide => head.to_owned() + &table::wide(problem, decision),
        Format::Json => serde_json::to_string_pretty(document)? + "\n",
        Format::Yaml => serde_saphyr::to_string(document)?,
    };
    show(&text)
}

/// `nap replay`.
pub fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let stored = record::read(&args.file)?;
    if stored.is_disruption() {
        return disruption_record::replay(&stored, args.output);
    }
    let record: Record = stored.parse()?;
    let Record { region, origin, snapshot, options, limits, left_out, plan, .. } = record;
    let problem = Problem {
        region,
        origin,
        snapshot,
        options,
        limits,
        left_out,
        provider: None,
        catalogues: Arc::default(),
        of_classes: BTreeMap::new(),
    };
    let decision = problem.solve(None);
    let document = PlanDocument::new(&problem, &decision);
    let differences = record::differences(&plan, &document)?;
    print(&problem, &decision, args.output, "", &document)?;
    record::verdict(&args.file, "plan", &differences, args.output)
}

/// `nap explain pod`.
pub async fn explain_pod(
    name: &str,
    namespace: Option<String>,
    output: ExplainFormat,
    source: SourceArgs,
) -> anyhow::Result<()> {
    let (mut cluster, problem) = if !source.files.is_empty() && names_cluster(&source) {
        let (State { cluster, problem, .. }, _) = on_cluster::decide(&source, &[]).await?;
        (cluster, problem)
    } else {
        gather(&source).await?
    };
    let asked = Asked::parse(name, namespace.as_deref());
    if source.files.is_empty() {
        cluster.workloads = live::workloads(&source.cluster, &asked.namespace).await?;
    }
    let wanted = asked.key();
    let pods = &problem.snapshot.pods;
    let exactly = pods.iter().any(|pod| pod.key.as_str() == wanted)
        || cluster.state.pods().any(|(key, _)| key.as_str() == wanted);
    let exactly = exactly && asked.may_be("Pod");
    let workload = asked.among(&cluster.workloads).filter(|_| !exactly);
    let daemon = problem.snapshot.daemons.iter().find(|one| one.name == wanted);
    if let Some(daemon) = daemon.filter(|_| !exactly && asked.may_be("DaemonSet"))
        && workload.is_none()
    {
        return show(&match output {
            ExplainFormat::Text => explain::daemon(&problem, daemon),
            ExplainFormat::Json => explain::daemon_json(&problem, daemon)?,
        });
    }
    let is_of = |key: &PodKey, pod: Option<&nap_controllers::cluster::Pod>| match workload {
        _ if exactly => key.as_str() == wanted,
        Some(workload) => pod.is_some_and(|pod| workload.owns(pod, &cluster.workloads)),
        // A workload that could not be read is known by the names of its pods.
        None => asked.kind.is_none() && format::stem(key.as_str()) == wanted,
    };
    if let Some(workload) = workload
        && let Some(why) = &workload.refusal
        && cluster.state.pods().any(|(key, pod)| is_of(key, Some(pod)))
    {
        let pods = cluster::count(workload.wanted, "pod");
        eprintln!("note: {} wants {pods}, and some are refused: {why}", workload.title());
    }
    let known: BTreeMap<&PodKey, _> = cluster.state.pods().collect();
    let known_pod = |key: &PodKey| known.get(key).map(|pod| &***pod);
    if let Some(pod) = pods.iter().find(|pod| is_of(&pod.key, known_pod(&pod.key))) {
        let decision = problem.solve(Some(&pod.key));
        let spec = known_pod(&pod.key).map(nap_controllers::cluster::Pod::spec);
        return show(&match output {
            ExplainFormat::Text => explain::explain(&problem, &decision, pod, spec),
            ExplainFormat::Json => explain::json(&problem, &decision, pod, spec)?,
        });
    }
    if let Some((key, pod)) = cluster.state.pods().find(|(key, pod)| is_of(key, Some(pod))) {
        let why = cluster::settled(pod);
        return show(&match output {
            ExplainFormat::Text => format!("{key} needs no new place: {why}\n"),
            ExplainFormat::Json => explain::settled_json(key, &why)?,
        });
    }
    if let Some(workload) = workload {
        let why = workload.without_pods();
        return show(&match output {
            ExplainFormat::Text => {
                format!("{} has no pods\n{}", workload.title(), format::wrap(&why, 2))
            }
            ExplainFormat::Json => explain::no_pods_json(workload, &why)?,
        });
    }
    let last = wanted.rsplit('/').next().unwrap_or_default();
    let mut some: Vec<&str> = cluster.state.pods().map(|(key, _)| key.as_str()).collect();
    // Those of the same name in another namespace first.
    some.sort_by_key(|key| !format::stem(key).ends_with(&format!("/{last}")));
    let hint = if some.is_empty() {
        "there are no pods at all".to_owned()
    } else {
        format!("give NAMESPACE/NAME or -n; there are {}", few(&some))
    };
    let kind = asked.kind.filter(|kind| *kind != "Pod").unwrap_or("pod");
    Err(UserError::new(format!("there is no {kind} `{wanted}`"), hint).into())
}

/// The first names, and `…` if there are more.
fn few(names: &[&str]) -> String {
    let more = if names.len() > MAX_NAMES { ", …" } else { "" };
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).copied().collect();
    format!("{}{more}", shown.join(", "))
}

/// `nap explain node`.
pub async fn explain_node(name: String, source: SourceArgs) -> anyhow::Result<()> {
    let (mut cluster, problem) = gather(&source).await?;
    let known = disruption::know(&source, &mut cluster).await;
    let preview = disruption::preview(&cluster, &problem, &known);
    let asked = preview.nodes.iter().find(|node| node.name == name || node.claim == name);
    if let Some(node) = asked {
        return show(&disruption::explain(&problem, &preview, node));
    }
    let some: Vec<&str> = preview.nodes.iter().map(|node| node.name.as_str()).collect();
    let hint = if some.is_empty() {
        "there is no NodeClaim: only nodes that nap made are disrupted".to_owned()
    } else {
        format!("there are {}", few(&some))
    };
    Err(UserError::new(format!("no node with a NodeClaim is named `{name}`"), hint).into())
}

/// `nap what-if`.
pub async fn what_if(args: WhatIfArgs) -> anyhow::Result<()> {
    let changes = what_if::changes(&args.source.files)?;
    let source = SourceArgs { files: args.state, ..args.source };
    let (mut cluster, problem) = gather(&source).await?;
    let known = disruption::know(&source, &mut cluster).await;
    let before = disruption::preview(&cluster, &problem, &known);
    let after = what_if::decide(&mut cluster, &problem, changes, known);
    show(&what_if::render(&problem, &before, &after))?;
    if args.exit_code && !after.drifted.is_empty() {
        std::process::exit(2);
    }
    Ok(())
}
