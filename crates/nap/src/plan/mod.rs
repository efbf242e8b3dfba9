//! `nap plan`, `nap explain` and `nap replay`: what would happen, without letting it happen.
//!
//! Manifests or a live cluster fill the index that the controllers use ([`cluster`], [`live`]); the
//! engine decides about its snapshot; and the decision is shown as a table ([`table`]), as a
//! document ([`document`]), or from the point of view of one pod ([`explain`]). A snapshot that was
//! kept ([`record`]) is decided about again to the same result.

mod cluster;
mod document;
mod explain;
mod live;
mod read;
mod record;
mod table;
mod words;
mod workloads;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use nap_clock::Clock;
use nap_controllers::snapshot::{Catalogues, OverlayRefusal};
use nap_engine::{Catalogue, Options, Plan, Pod, PodKey, Remedy, RemedySearch, Snapshot, solve};
use nap_units::{Resources, Rounding};

use crate::catalogue::{DEFAULT_REGION, instance_types, settings};
use crate::cli::{Format, PlanArgs, ReplayArgs, SourceArgs};
use crate::user_error::UserError;
use cluster::Cluster;
use document::PlanDocument;
use record::Record;

/// For how many different pods without a place the smallest change is looked for.
const MAX_REMEDIES: usize = 100;

/// What is decided about.
pub struct Problem {
    /// The region whose sizes and prices are used.
    pub region: String,
    /// What the engine reads.
    pub snapshot: Snapshot,
    /// How the engine decides.
    pub options: Options,
    /// The limits of each pool, as they are written.
    pub limits: BTreeMap<String, Resources>,
}

/// What was decided.
pub struct Decision {
    /// The plan.
    pub plan: Plan,
    /// For pods without a place, the smallest change that would give them one.
    pub remedies: BTreeMap<PodKey, Remedy>,
}

impl Problem {
    fn new(
        cluster: &mut Cluster,
        region: String,
        options: Options,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let state = &cluster.state;
        let mut of_classes: BTreeMap<String, Arc<Catalogue>> = BTreeMap::new();
        let mut known: Vec<(_, Arc<Catalogue>)> = Vec::new();
        for (name, class) in state.classes() {
            let settings = settings(&region, Some(class));
            let same = known
                .iter()
                .find(|(other, _)| *other == settings)
                .map(|(_, types)| Arc::clone(types));
            let types = match same {
                Some(types) => types,
                None => Arc::new(instance_types(&settings)?),
            };
            known.push((settings, Arc::clone(&types)));
            of_classes.insert(name.clone(), types);
        }
        let limits = state.pools().filter_map(|(name, pool)| {
            let limits = pool.spec.limits.as_ref()?;
            let list = limits.iter().map(|(name, quantity)| (name.as_str(), quantity));
            Some((name.clone(), Resources::from_quantities(list, Rounding::Down)))
        });
        let limits = limits.collect();
        let catalogues = Catalogues::build(state, of_classes, &Arc::default());
        let snapshot = nap_controllers::snapshot::snapshot(state, &catalogues, now);
        for (name, refused) in &catalogues.refused {
            let why = match refused {
                OverlayRefusal::Invalid(problem) => problem.as_str(),
                OverlayRefusal::Conflict => "it contradicts another one of the same weight",
            };
            cluster.notes.push(format!("NodeOverlay `{name}` does not count: {why}"));
        }
        Ok(Self { region, snapshot, options, limits })
    }

    /// Decides, and looks for the smallest change for pods without a place: for those that are
    /// asked about, or the first of all.
    pub fn solve(&self, asked: Option<&PodKey>) -> Decision {
        let plan = solve(&self.snapshot, &self.options);
        let remedies = self.remedies(&plan, asked);
        Decision { plan, remedies }
    }

    /// Pods that are alike share a change.
    fn remedies(&self, plan: &Plan, asked: Option<&PodKey>) -> BTreeMap<PodKey, Remedy> {
        let mut remedies = BTreeMap::new();
        if plan.unplaced.is_empty() {
            return remedies;
        }
        let pods: BTreeMap<&PodKey, &Pod> =
            self.snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
        let mut changes = RemedySearch::new(&self.snapshot, plan, &self.options);
        let mut known: BTreeMap<Pod, Option<Remedy>> = BTreeMap::new();
        for unplaced in
            plan.unplaced.iter().filter(|one| asked.is_none_or(|asked| *asked == one.pod))
        {
            let Some(pod) = pods.get(&unplaced.pod) else { continue };
            let alike = Pod { key: PodKey::new(pod.key.parts().0, ""), ..(*pod).clone() };
            if !known.contains_key(&alike) {
                if known.len() == MAX_REMEDIES {
                    continue;
                }
                let found = changes.smallest(pod, &unplaced.refusal);
                known.insert(alike.clone(), found);
            }
            if let Some(Some(remedy)) = known.get(&alike) {
                remedies.insert(unplaced.pod.clone(), remedy.clone());
            }
        }
        remedies
    }
}

/// Reads what is asked about, and says on stderr what a user should know of how it was read.
async fn gather(source: &SourceArgs) -> anyhow::Result<(Cluster, Problem)> {
    let options = source.engine.options()?;
    let ties = !options.default_spread.is_empty();
    let (mut cluster, now) = if source.files.is_empty() {
        (live::from_cluster(&source.cluster, ties).await?, Clock::wall().now())
    } else {
        // Whatever the manifests say of time is long past: the same files give the same plan at any
        // time.
        (cluster::from_manifests(read::read(&source.files)?, ties)?, Timestamp::MAX)
    };
    let region = source.region.clone().or_else(|| live::region_of(&cluster));
    let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
    let problem = Problem::new(&mut cluster, region, options, now)?;
    for note in &cluster.notes {
        eprintln!("note: {note}");
    }
    Ok((cluster, problem))
}

/// `nap plan`.
pub async fn plan(args: PlanArgs) -> anyhow::Result<()> {
    let (_, problem) = gather(&args.source).await?;
    let decision = problem.solve(None);
    if let Some(file) = &args.save {
        Record::new(&problem, &decision).save(file)?;
    }
    print(&problem, &decision, args.output)
}

fn print(problem: &Problem, decision: &Decision, format: Format) -> anyhow::Result<()> {
    let document = || PlanDocument::new(problem, decision);
    let text = match format {
        Format::Table => table::table(problem, decision),
        Format::Wide => table::wide(problem, decision),
        Format::Json => serde_json::to_string_pretty(&document())? + "\n",
        Format::Yaml => serde_saphyr::to_string(&document())?,
    };
    show(&text)
}

/// Writes to standard output. Whoever reads it may stop reading at any time.
fn show(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// `nap replay`.
pub fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let record = Record::load(&args.file)?;
    let Record { region, snapshot, options, limits, plan, .. } = record;
    let problem = Problem { region, snapshot, options, limits };
    let decision = problem.solve(None);
    let differences = record::differences(&plan, &PlanDocument::new(&problem, &decision))?;
    print(&problem, &decision, args.output)?;
    if differences.is_empty() {
        let verdict = "identical to the stored plan";
        if matches!(args.output, Format::Table | Format::Wide) {
            return show(&format!("\n{verdict}\n"));
        }
        eprintln!("{verdict}");
        return Ok(());
    }
    for difference in &differences {
        eprintln!("{difference}");
    }
    let message = format!("{}: the plan differs from the stored one", args.file.display());
    let hint = "the file was changed, or another version of nap wrote it: `nap plan --save` stores it anew";
    Err(UserError::new(message, hint).into())
}

/// `nap explain pod`.
pub async fn explain_pod(name: String, source: SourceArgs) -> anyhow::Result<()> {
    let (cluster, problem) = gather(&source).await?;
    let wanted = if name.contains('/') { name.clone() } else { format!("default/{name}") };
    let is_of = |key: &PodKey| {
        let number = key.0.strip_prefix(&wanted).and_then(|rest| rest.strip_prefix('-'));
        key.0 == wanted || number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let exactly = problem.snapshot.pods.iter().find(|pod| pod.key.0 == wanted);
    if let Some(pod) = exactly.or_else(|| problem.snapshot.pods.iter().find(|pod| is_of(&pod.key)))
    {
        return show(&explain::explain(&problem, &problem.solve(Some(&pod.key)), pod));
    }
    if let Some((key, pod)) = cluster.state.pods().find(|(key, _)| is_of(key)) {
        return show(&format!("{key} needs no new place: {}\n", cluster::settled(pod)));
    }
    let some: Vec<String> = cluster.state.pods().take(5).map(|(_, pod)| pod.name_any()).collect();
    let hint = if some.is_empty() {
        "there are no pods at all".to_owned()
    } else {
        format!("give NAMESPACE/NAME; there are {}, …", some.join(", "))
    };
    Err(UserError::new(format!("there is no pod `{wanted}`"), hint).into())
}
