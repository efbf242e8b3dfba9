//! Builds the files of `catalogue/` from tables of published facts.
//!
//! `cargo run -p nap-azure --example build_catalogue -- FACTS FOLDER` reads the CSV files of the
//! folder FACTS, `lifecycle.csv`, and `left_out.csv` of FOLDER, and writes `skus.csv`, `prices.csv`
//! and `regions.csv` into FOLDER. `catalogue/README.md` lists the tables and the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use nap_azure::embedded::{CATALOGUE_DAY, CatalogueSku, EmbeddedCatalogue, Gone, Lifecycle};
use nap_azure::embedded::{Region, Sale, refresh};
use nap_units::UsdPerHour;

/// Day of the price table.
const PRICES_OF: &str = "2026-06-18";
/// Spot price in thousandths of the list price of a size without an observed one: above nine tenths
/// of the observed ones.
const ASSUMED_SPOT_RATIO: i64 = 250;
/// Generation since which accelerated networking is required on general purpose sizes.
const NETWORKING_REQUIRED_SINCE: u32 = 5;

type Row = BTreeMap<String, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [facts, folder] = arguments.as_slice() else {
        eprintln!("usage: build_catalogue FACTS FOLDER");
        return ExitCode::from(2);
    };
    match build(Path::new(facts), Path::new(folder)) {
        Ok(sizes) => {
            println!("{sizes} sizes");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn build(facts: &Path, folder: &Path) -> Result<usize, String> {
    let mut catalogue = EmbeddedCatalogue::default();
    let prices = prices(facts, &left_out(folder)?)?;
    let priced: BTreeSet<&String> = prices.values().flat_map(BTreeMap::keys).collect();
    let regions = table(&facts.join("azure_region_zones.csv"))?;
    for name in priced {
        let row = regions.iter().find(|row| row["region"] == *name);
        let text = |key: &str| row.map_or("", |row| row[key].as_str());
        let zones = text("logical_zones").split('|').filter(|zone| !zone.is_empty());
        catalogue.add_region(Region {
            name: name.clone(),
            display_name: row.map_or(name, |row| &row["display_name"]).clone(),
            zones: zones.map(str::to_owned).collect(),
            prices_of: PRICES_OF.to_owned(),
            is_live: false,
        });
    }
    let known: BTreeSet<String> = table(&facts.join("azure_known_skus.csv"))?
        .into_iter()
        .map(|row| row["sku"].clone())
        .collect();
    let spot = spot_ratios(facts)?;
    let rows = table(&facts.join("azure_skus.csv"))?;
    let temporary: BTreeMap<&str, i64> =
        rows.iter().map(|row| (row["sku"].as_str(), local_mib(row))).collect();
    let mut sizes = 0;
    for row in &rows {
        let Some(sales) = prices.get(row["sku"].as_str()) else { continue };
        let Some(mut sku) = size(row, &known, spot.get(&row["sku"]).copied()) else { continue };
        if row["docs_series"] == "dldsv5-series" {
            // The table of the series lacks them; they are those of Ddsv5.
            let twin = sku.name.replace("lds_v5", "ds_v5");
            sku.temp_mib = temporary.get(twin.as_str()).copied().unwrap_or(0);
        }
        let gone = Lifecycle::built_in().gone(&sku.name, "", CATALOGUE_DAY);
        if gone == Some(Gone::PriceListOnly) || (gone.is_none() && sku.listed_in.is_empty()) {
            continue;
        }
        catalogue.add_size(sku, sales.clone());
        sizes += 1;
    }
    refresh::write_files(&catalogue, folder).map_err(|error| error.to_string())?;
    Ok(sizes)
}

/// A size; `None` if the facts do not make a whole one, or if it is a constrained size.
fn size(row: &Row, known: &BTreeSet<String>, observed: Option<i64>) -> Option<CatalogueSku> {
    let number = |key: &str| row[key].parse::<i64>().unwrap_or(0);
    let is = |key: &str| row[key] == "True";
    let name = row["sku"].trim().to_owned();
    let arch = row["arch"].clone();
    let vcpus = row["vcpus"].parse().ok()?;
    let memory_gib = row["memory_gib"].parse().ok()?;
    if !row["name_constrained"].is_empty() || arch.is_empty() {
        return None;
    }
    let generation: u32 = row["name_version"].parse().unwrap_or(1);
    let general = ["D", "E", "F"].contains(&row["name_family"].as_str());
    // One page documents Dv2 and DSv2 of much memory; its disk features are those of DSv2.
    let not_ds = row["docs_series"] == "dv2-dsv2-series-memory" && row["name_subfamily"] != "S";
    let ephemeral_os_disk = is("ephemeral_os_disk") && !not_ds;
    let local_nvme = is("local_nvme");
    let nvme_mib = match number("nvme_disk_mib") {
        0 if local_nvme => local_mib(row),
        stated => stated,
    };
    let temp_mib = match number("max_resource_volume_mib") {
        0 if !local_nvme => local_mib(row),
        stated => stated,
    };
    let burstable = row["name_family"] == "B";
    let promotional = name.ends_with("_Promo");
    let sold_as_spot = !burstable && !promotional && row["low_priority_capable_exact"] != "False";
    // A price that was not below the list price says nothing about spot.
    let spot = observed.unwrap_or(ASSUMED_SPOT_RATIO);
    let listed_in = if known.contains(&name) {
        "known"
    } else if ["fake", "autoscaler"].contains(&row["vcpus_src"].as_str()) {
        "api"
    } else if row["vcpus_src"].starts_with("msdocs") {
        "docs"
    } else {
        ""
    };
    let hyperv = row["hyperv_generations"].replace([',', '|'], "+");
    let second_only = arch == "arm64" || generation >= 6;
    Some(CatalogueSku {
        family: row["sku_family_quota"].clone(),
        vcpus,
        memory_gib,
        gpus: match number("gpus") {
            0 if !row["gpu_manufacturer"].is_empty() => number("accelerators_docs"),
            stated => stated,
        },
        premium_io: is("premium_io") && !not_ds,
        // The documentation says "Required" there, which the table leaves blank.
        accelerated_networking: is("accelerated_networking")
            || (row["accelerated_networking"].is_empty()
                && general
                && generation >= NETWORKING_REQUIRED_SINCE),
        hyperv_generations: match hyperv.as_str() {
            "" if second_only => "V2".to_owned(),
            "" => "V1".to_owned(),
            _ => hyperv,
        },
        ephemeral_os_disk,
        nvme_mib,
        cache_bytes: number("cached_disk_bytes"),
        temp_mib,
        nvme_placement: ephemeral_os_disk && local_nvme && nvme_mib > 0,
        encryption_at_host: Some(is("encryption_at_host_exact"))
            .filter(|_| !row["encryption_at_host_exact"].is_empty()),
        spot_ratio_milli: Some(spot).filter(|ratio| sold_as_spot && *ratio < 1000),
        max_data_disks: Some(number("max_data_disks")).filter(|disks| *disks > 0),
        listed_in: listed_in.to_owned(),
        name,
        arch,
    })
}

/// Local disks in MiB. A blank number of disks is one disk.
fn local_mib(row: &Row) -> i64 {
    let number = |key: &str| row[key].parse::<f64>().ok();
    let disks = number("temp_disk_count").unwrap_or(1.0);
    #[expect(clippy::cast_possible_truncation, reason = "disks are far below 2^53 MiB")]
    let mib = (disks * number("temp_disk_gib_each").unwrap_or(0.0) * 1024.0) as i64;
    mib
}

/// Regions and patterns of sizes whose prices are not believed.
fn left_out(folder: &Path) -> Result<Vec<(String, String, String)>, String> {
    let rows = table(&folder.join("left_out.csv"))?;
    let parts = rows.into_iter().map(|row| {
        let (front, back) = row["size"].split_once('*').unwrap_or((&row["size"], ""));
        (row["region"].clone(), front.to_owned(), back.to_owned())
    });
    Ok(parts.collect())
}

fn prices(
    facts: &Path,
    left_out: &[(String, String, String)],
) -> Result<BTreeMap<String, BTreeMap<String, Sale>>, String> {
    let mut prices: BTreeMap<String, BTreeMap<String, Sale>> = BTreeMap::new();
    for row in table(&facts.join("azure_prices.csv"))? {
        let (name, region) = (&row["sku"], &row["region"]);
        let is_left_out = left_out.iter().any(|(where_, front, back)| {
            let middle =
                name.strip_prefix(front.as_str()).and_then(|rest| rest.strip_suffix(&**back));
            where_ == region
                && middle.is_some_and(|middle| middle.chars().all(|one| one.is_ascii_digit()))
        });
        let price = UsdPerHour::parse(&row["on_demand_usd_per_hour"])
            .ok_or_else(|| format!("{name} in {region}: not a price"))?;
        // Zero is a placeholder.
        if price > UsdPerHour::ZERO && !is_left_out {
            let sale = Sale { on_demand: price, spot: None, zones: None };
            prices.entry(name.clone()).or_default().insert(region.clone(), sale);
        }
    }
    Ok(prices)
}

/// Median ratio of the spot to the list price over regions, in thousandths, by size.
fn spot_ratios(facts: &Path) -> Result<BTreeMap<String, i64>, String> {
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in table(&facts.join("azure_spot_prices_us_2024.csv"))? {
        let number = |key: &str| row[key].parse::<f64>().unwrap_or(0.0);
        let list = number("on_demand_usd_per_hour_2024");
        if list > 0.0 {
            let ratio = number("spot_usd_per_hour_2024") / list;
            ratios.entry(row["sku"].clone()).or_default().push(ratio);
        }
    }
    let median = |mut list: Vec<f64>| {
        list.sort_by(f64::total_cmp);
        let (low, high) = (list[(list.len() - 1) / 2], list[list.len() / 2]);
        #[expect(clippy::cast_possible_truncation, reason = "a ratio of prices")]
        let milli = (f64::midpoint(low, high) * 1000.0).round_ties_even() as i64;
        milli
    };
    Ok(ratios.into_iter().map(|(name, list)| (name, median(list))).collect())
}

/// Rows of a CSV file by column name. A cell with a comma is quoted.
fn table(path: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    let mut lines = text.lines().map(cells);
    let header = lines.next().unwrap_or_default();
    lines
        .map(|cells| {
            if cells.len() != header.len() {
                return Err(format!("{}: {cells:?} has another width", path.display()));
            }
            Ok(header.iter().cloned().zip(cells).collect())
        })
        .collect()
}

fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => {
                if let Some(cell) = cells.last_mut() {
                    cell.push(other);
                }
            }
        }
    }
    cells
}
