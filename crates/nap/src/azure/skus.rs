//! `nap azure skus`: the sizes that would be considered, and why the others are not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use nap_api::requirement::Undefined;
use nap_api::{AKSNodeClass, NodePool, Requirement, Requirements, labels};
use nap_azure::embedded::{EmbeddedCatalogue, Lifecycle, Region};
use nap_azure::instance_types::{Settings, instance_type};
use nap_azure::not_offered::{NotOffered, offered, offered_live};
use nap_azure::prices::Prices;
use nap_azure::quota::{self, Quota};
use nap_azure::skus::{self, ResourceSku, Sku};
use nap_azure::{CatalogueSource, PriceSource};
use nap_clock::Clock;
use nap_engine::{CapacityType, InstanceType};
use nap_units::{CPU, UsdPerHour};
use serde_json::{Value, json};

use super::live::{self, Live};
use crate::catalogue::{self, Origin, settings};
use crate::cli::{SkusArgs, SkusFormat};
use crate::user_error::UserError;

/// Said of quota unless Azure was asked.
const NO_LOGIN: &str = "not known without a login";

/// A size with the verdict.
struct Row {
    name: String,
    verdict: Result<Considered, String>,
}

/// A size that would be considered.
struct Considered {
    family: String,
    vcpus: i64,
    memory_gib: f64,
    gpus: i64,
    on_demand: Option<UsdPerHour>,
    spot: Option<UsdPerHour>,
    zones: Vec<String>,
    closed_since: Option<&'static str>,
    retires_on: Option<String>,
    /// Whether the node class asks for encryption at host, which no source states of the size.
    encryption_estimated: bool,
    /// vCPUs left of the scarcest quota that it counts against on demand; `None` if no quota is
    /// known.
    quota_left: Option<i64>,
}

impl Considered {
    /// Whether the quota that is known to be left is not enough for one VM.
    fn is_over_quota(&self) -> bool {
        self.quota_left.is_some_and(|left| left < self.vcpus)
    }
}

/// What a region sells, and for how much.
struct Market<'a> {
    region: Region,
    prices: Prices,
    /// Quota of the subscription; `None` without a login.
    quota: Option<Quota>,
    sizes: MarketSizes<'a>,
}

/// Where sizes come from.
enum MarketSizes<'a> {
    Catalogue(&'a EmbeddedCatalogue),
    /// Rows that Azure lists for the subscription, by name.
    Live(BTreeMap<String, ResourceSku>),
}

impl<'a> Market<'a> {
    fn of_catalogue(sizes: &'a EmbeddedCatalogue, region: &Region) -> Self {
        let (prices, region) = (sizes.prices_in(&region.name), region.clone());
        Self { region, prices, quota: None, sizes: MarketSizes::Catalogue(sizes) }
    }

    /// What Azure lists for the subscription now, in any region of its cloud, with the source of
    /// the prices.
    async fn of_subscription(name: &str, live: &Live) -> anyhow::Result<(Self, PriceSource)> {
        let rows = skus::list(&live.arm, &live.subscription, name).await;
        let rows = rows.map_err(|error| live::failed("--subscription", &error))?;
        let machines = |row: &ResourceSku| row.resource_type == "virtualMachines";
        let rows: BTreeMap<String, ResourceSku> =
            rows.into_iter().filter(machines).map(|row| (row.name.clone(), row)).collect();
        if rows.is_empty() {
            let message = format!("--region: Azure lists no VM size in `{name}`");
            let hint = "`az account list-locations` names the regions of the subscription";
            return Err(UserError::new(message, hint).into());
        }
        let left = quota::fetch(&live.arm, &live.subscription, name).await;
        let left = left.map_err(|error| live::failed("--subscription", &error))?;
        let (prices, source) = nap_azure::prices_or_built_in(&live.prices, name).await;
        let quota = Some(Quota::counted(left));
        let region = Region { name: name.to_owned(), ..Region::default() };
        Ok((Self { region, prices, quota, sizes: MarketSizes::Live(rows) }, source))
    }

    /// Names of all sizes that are listed.
    fn names(&self) -> Vec<String> {
        match &self.sizes {
            MarketSizes::Catalogue(sizes) => sizes.skus().map(|sku| sku.name.clone()).collect(),
            MarketSizes::Live(rows) => rows.keys().cloned().collect(),
        }
    }

    /// The size, or why a node class cannot have it.
    fn offered(&self, settings: &Settings, name: &str, today: Date) -> Result<Sku, NotOffered> {
        match &self.sizes {
            MarketSizes::Catalogue(sizes) => offered(sizes, &self.region, settings, name),
            MarketSizes::Live(rows) => {
                offered_live(rows.get(name), &self.prices, settings, name, today)
            }
        }
    }

    /// Whether encryption at host of a size is an estimate.
    fn is_estimated(&self, name: &str) -> bool {
        match &self.sizes {
            MarketSizes::Catalogue(sizes) => {
                sizes.sku(name).is_some_and(|sku| sku.encryption_at_host.is_none())
            }
            MarketSizes::Live(_) => false,
        }
    }

    /// vCPUs left for a size on demand; `None` if no quota is known.
    fn quota_left(&self, sku: &Sku) -> Option<i64> {
        let quota = self.quota.as_ref()?;
        let charge = quota::charge(&sku.family, sku.vcpus, CapacityType::OnDemand);
        charge.quotas.iter().filter_map(|name| quota.left(name)).min()
    }

    /// vCPUs left for all spot VMs; `None` if no quota is known.
    fn spot_quota_left(&self) -> Option<i64> {
        self.quota.as_ref()?.left(quota::SPOT_CORES)
    }
}

/// Prints the sizes of a region.
pub async fn skus(args: SkusArgs) -> anyhow::Result<()> {
    let sizes = catalogue::load(&args.catalogue)?;
    let (wanted, class) = wanted(&args)?;
    let now = Clock::wall().now();
    let (market, origin) = if let Some(live) = live::connect(&args.live)? {
        let (market, prices) = Market::of_subscription(&args.region, &live).await?;
        if prices != PriceSource::Live {
            eprintln!("note: the price API has no answer: built-in list prices are used");
        }
        let source = CatalogueSource { listed: now, prices, has_quota: true };
        let origin = Origin::live(source, &args.region);
        (market, origin)
    } else {
        let region = catalogue::region(&sizes, &args.region)?;
        (Market::of_catalogue(&sizes, region), Origin::of(region, &args.catalogue))
    };
    let settings = settings(&market.region.name, class.as_ref());
    let rows = rows(&market, &settings, &wanted, now.to_zoned(TimeZone::UTC).date());
    let text = match args.output {
        SkusFormat::Table => table(&market, &origin, &rows),
        SkusFormat::Json => {
            let document = document(&market, &origin, &rows);
            serde_json::to_string_pretty(&document)? + "\n"
        }
    };
    crate::output::write(format_args!("{text}"));
    Ok(())
}

/// The requirements of the options, and the node class of the file.
fn wanted(args: &SkusArgs) -> anyhow::Result<(Requirements, Option<AKSNodeClass>)> {
    let mut wanted = Requirements::new();
    for pair in args.requirements.iter().filter(|pair| !pair.trim().is_empty()) {
        let (key, values) = pair.split_once('=').unwrap_or((pair, ""));
        let values: Vec<&str> = values.split('|').filter(|value| !value.is_empty()).collect();
        if key.trim().is_empty() || values.is_empty() {
            let message = format!("--requirements: `{pair}` is not `key=value` or `key=a|b`");
            let hint = format!("such as --requirements {}=D", labels::SKU_FAMILY);
            return Err(UserError::new(message, hint).into());
        }
        wanted.add(key.trim(), Requirement::is_in(values));
    }
    let mut class = None;
    if let Some(file) = &args.file {
        let (pool, found) = read(file)?;
        wanted.extend(&Requirements::from_specs(&pool.spec.template.spec.requirements));
        class = found;
    }
    Ok((wanted, class))
}

/// The only NodePool of a manifest, and its node class if it is there too.
fn read(file: &Path) -> anyhow::Result<(NodePool, Option<AKSNodeClass>)> {
    let refuse = |problem: String| {
        UserError::new(
            format!("-f: {}: {problem}", file.display()),
            "name a file with one NodePool",
        )
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| {
        refuse(format!("is not YAML: {}", error.to_string().replace('\n', " ")))
    })?;
    let mut pools = Vec::new();
    let mut classes: BTreeMap<String, AKSNodeClass> = BTreeMap::new();
    for mut document in documents {
        nap_api::normalise::manifest(&mut document);
        match document.get("kind").and_then(Value::as_str) {
            Some("NodePool") => {
                let pool: NodePool = serde_json::from_value(document)
                    .map_err(|error| refuse(format!("NodePool: {error}")))?;
                pools.push(pool);
            }
            Some("AKSNodeClass") => {
                let class: AKSNodeClass = serde_json::from_value(document)
                    .map_err(|error| refuse(format!("AKSNodeClass: {error}")))?;
                classes.insert(class.metadata.name.clone().unwrap_or_default(), class);
            }
            _ => {}
        }
    }
    if pools.len() != 1 {
        return Err(refuse(format!("has {} NodePools, not one", pools.len())).into());
    }
    let pool = pools.pop().context("one NodePool")?;
    let class = classes.remove(&pool.spec.template.spec.node_class_ref.name);
    Ok((pool, class))
}

fn rows(market: &Market<'_>, settings: &Settings, wanted: &Requirements, today: Date) -> Vec<Row> {
    let (region, prices) = (&market.region, &market.prices);
    // Names that are not listed can only be asked for: a retired size without a price.
    let asked = wanted.get(labels::INSTANCE_TYPE).into_iter().flat_map(Requirement::values);
    let mut names = market.names();
    names.extend(asked.map(str::to_owned));
    names.sort();
    names.dedup();
    let row = |name: String| {
        let verdict = market.offered(settings, &name, today).map_err(|why| why.to_string());
        let verdict = verdict.and_then(|sku| {
            let made = instance_type(&sku, settings, prices, |_, _| true);
            unmet(&made, wanted).map_or(Ok(()), Err)?;
            let price = |kind| prices.get(&name, kind).filter(|_| sold(&made, kind));
            Ok(Considered {
                family: sku.family.clone(),
                vcpus: made.capacity.get(CPU) / 1000,
                memory_gib: sku.memory_gib,
                gpus: sku.gpus,
                on_demand: price(CapacityType::OnDemand),
                spot: price(CapacityType::Spot),
                zones: sku.zones.iter().cloned().collect(),
                closed_since: Lifecycle::built_in().closed_since(&name),
                retires_on: Lifecycle::built_in()
                    .retires_on(&name, &region.name)
                    .map(|day| day.to_string()),
                encryption_estimated: settings.encryption_at_host && market.is_estimated(&name),
                quota_left: market.quota_left(&sku),
            })
        });
        Row { name, verdict }
    };
    names.into_iter().map(row).collect()
}

fn sold(made: &InstanceType, kind: CapacityType) -> bool {
    made.offerings.iter().any(|offering| offering.available && offering.capacity_type == kind)
}

/// The requirement that no offering of a size meets; `None` if one meets them all.
pub(super) fn unmet(made: &InstanceType, wanted: &Requirements) -> Option<String> {
    let meets = |wanted: &Requirements| {
        made.offerings.iter().filter(|offering| offering.available).any(|offering| {
            let mut machine = made.requirements.clone();
            machine.extend(&offering.requirements);
            machine.compatible(wanted, Undefined::Deny).is_ok()
        })
    };
    let mut known = Requirements::new();
    for (key, requirement) in wanted.iter().filter(|(key, _)| labels::is_well_known(key)) {
        known.set(key, requirement.clone());
    }
    if meets(&known) {
        return None;
    }
    for (key, requirement) in known.iter() {
        let mut one = Requirements::new();
        one.set(key, requirement.clone());
        if !meets(&one) {
            return Some(format!("excluded by the requirement on {key}"));
        }
    }
    Some("no offering meets all requirements together".to_owned())
}

fn table(market: &Market<'_>, origin: &Origin, rows: &[Row]) -> String {
    let mut considered: Vec<(&str, &Considered)> = Vec::new();
    let mut excluded: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in rows {
        match &row.verdict {
            Ok(found) => considered.push((&row.name, found)),
            Err(why) => excluded.entry(why).or_default().push(&row.name),
        }
    }
    considered.sort_by_key(|(name, one)| (one.on_demand.or(one.spot), *name));
    let mut text =
        format!("{} sizes would be considered in {}\n\n", considered.len(), market.region.name);
    let head = ["SIZE", "VCPU", "GIB", "GPU", "PER HOUR", "SPOT", "QUOTA LEFT", "ZONES", "NOTE"];
    let _ = writeln!(
        text,
        "{:<36} {:>5} {:>7} {:>4} {:>10} {:>10} {:>10}  {:<6} {}",
        head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7], head[8]
    );
    for (name, one) in &considered {
        let price = |price: Option<UsdPerHour>, kind| {
            price.map_or("-".to_owned(), |price| format!("{}{price}", origin.mark(kind)))
        };
        let mut notes = Vec::new();
        notes.extend(one.closed_since.map(|since| format!("closed since {since}")));
        notes.extend(one.retires_on.as_ref().map(|on| format!("retires {on}")));
        notes.extend(one.is_over_quota().then(|| "over quota".to_owned()));
        notes.extend(one.encryption_estimated.then(|| "encryption at host estimated".to_owned()));
        let line = format!(
            "{name:<36} {:>5} {:>7} {:>4} {:>10} {:>10} {:>10}  {:<6} {}",
            one.vcpus,
            one.memory_gib,
            one.gpus,
            price(one.on_demand, CapacityType::OnDemand),
            price(one.spot, CapacityType::Spot),
            one.quota_left.map_or("-".to_owned(), |left| left.to_string()),
            if one.zones.is_empty() { "-".to_owned() } else { one.zones.join(",") },
            notes.join("; ")
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let count: usize = excluded.values().map(Vec::len).sum();
    let _ = writeln!(text, "\n{count} sizes are excluded");
    for (why, names) in &excluded {
        let shown = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 4 { ", …" } else { "" };
        let _ = writeln!(text, "  {:>5}  {why}: {shown}{more}", names.len());
    }
    let _ =
        writeln!(text, "\n{}", origin.text(considered.iter().any(|(_, one)| one.spot.is_some())));
    let quota = match (&market.quota, market.spot_quota_left()) {
        (None, _) => NO_LOGIN.to_owned(),
        (Some(_), None) => "as Azure states it now".to_owned(),
        (Some(_), Some(left)) => format!("as Azure states it now; {left} vCPUs left for spot"),
    };
    let _ = writeln!(text, "quota: {quota}");
    text
}

fn document(market: &Market<'_>, origin: &Origin, rows: &[Row]) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 micro-dollars")]
    let dollars = |price: Option<UsdPerHour>| price.map(|price| price.micros() as f64 / 1e6);
    let considered = rows.iter().filter_map(|row| {
        let one = row.verdict.as_ref().ok()?;
        Some(json!({
            "name": row.name,
            "quotaFamily": one.family,
            "vcpus": one.vcpus,
            "memoryGib": one.memory_gib,
            "gpus": one.gpus,
            "onDemandUsdPerHour": dollars(one.on_demand),
            "spotUsdPerHour": dollars(one.spot),
            "zones": one.zones,
            "closedSince": one.closed_since,
            "retiresOn": one.retires_on,
            "encryptionAtHostIsEstimate": one.encryption_estimated,
            "quotaLeftVcpus": one.quota_left,
            "withinQuota": one.quota_left.map(|_| !one.is_over_quota()),
        }))
    });
    let excluded = rows.iter().filter_map(|row| {
        let why = row.verdict.as_ref().err()?;
        Some(json!({ "name": row.name, "reason": why }))
    });
    json!({
        "version": 1,
        "region": market.region.name,
        "prices": { "date": origin.date, "estimates": origin.estimates() },
        "quota": if market.quota.is_some() { Value::Null } else { Value::from(NO_LOGIN) },
        "spotQuotaLeftVcpus": market.spot_quota_left(),
        "considered": considered.collect::<Vec<_>>(),
        "excluded": excluded.collect::<Vec<_>>(),
    })
}
