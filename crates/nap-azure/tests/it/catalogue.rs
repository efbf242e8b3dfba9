//! The built-in catalogue as a whole: each price, size and date must be plausible beside the
//! others.

use std::collections::{BTreeMap, BTreeSet};

use nap_azure::SizeName;
use nap_azure::embedded::{CATALOGUE_DAY, EmbeddedCatalogue, Lifecycle, Region};
use nap_units::UsdPerHour;

/// Families whose prices do not follow the vCPUs: burstable credits, and memory by variant.
const UNEVEN_FAMILIES: [char; 2] = ['B', 'M'];

/// Series whose prices do not follow the vCPUs, each for its own reason.
const UNEVEN_SERIES: [&str; 14] = [
    // Large-memory sizes share the series: A5, D11, DS11.
    "A", "D", "DS", "D_v2", "DS_v2", // Rounded to whole cents.
    "A_v2",  // E20 has the price of a newer generation.
    "E_v3", "Es_v3", "G", "GS",
    // GPUs, or shares of one, are not proportional to vCPUs.
    "NCas_v3", "NVads_v5", "NCds_v6", "NClds_v6",
];

/// Deviation of a price per vCPU from its series' median that is let pass, in percent.
const TOLERANCE: i64 = 10;

/// Every implausible cell, in words.
fn problems(catalogue: &EmbeddedCatalogue) -> Vec<String> {
    let mut found = Vec::new();
    for region in catalogue.regions() {
        found.extend(uneven_series(catalogue, region));
        let prices = catalogue.prices_in(&region.name);
        for (name, spot) in &prices.spot {
            if prices.on_demand.get(name).is_none_or(|list| spot >= list) {
                found.push(format!("{name} in {}: spot is not below the list price", region.name));
            }
        }
    }
    for sku in catalogue.skus() {
        let sales: BTreeMap<&str, i64> = catalogue
            .regions()
            .filter_map(|region| Some((&*region.name, catalogue.sale(&sku.name, &region.name)?)))
            .map(|(region, sale)| (region, sale.on_demand.micros()))
            .collect();
        let median = median(sales.values().copied().collect());
        for (region, price) in sales {
            if price * 3 <= median || price >= median * 3 {
                found.push(format!("{} in {region}: far from its price elsewhere", sku.name));
            }
        }
        let gone = Lifecycle::built_in().gone(&sku.name, "", CATALOGUE_DAY).is_some();
        if sku.listed_in.is_empty() && !gone {
            found.push(format!("{}: in no list of sizes, and not retired", sku.name));
        }
    }
    found
}

fn uneven_series(catalogue: &EmbeddedCatalogue, region: &Region) -> Vec<String> {
    let mut series: BTreeMap<String, Vec<(&str, i64)>> = BTreeMap::new();
    for sku in catalogue.skus_in(&region.name) {
        let size = sku.name.trim_start_matches("Standard_");
        let Some(name) = SizeName::parse(size) else { continue };
        if UNEVEN_FAMILIES.contains(&name.family) || UNEVEN_SERIES.contains(&&*name.series()) {
            continue;
        }
        let Some(sale) = catalogue.sale(&sku.name, &region.name) else { continue };
        // Accelerators and confidential variants have prices of their own.
        let key = size.replacen(&name.vcpus.to_string(), "", 1);
        series.entry(key).or_default().push((&sku.name, sale.on_demand.micros() / sku.vcpus));
    }
    let mut found = Vec::new();
    for sizes in series.values() {
        let median = median(sizes.iter().map(|(_, price)| *price).collect());
        for (name, price) in sizes {
            if (price - median).abs() * 100 > median * TOLERANCE {
                found.push(format!("{name} in {}: price per vCPU is off its series", region.name));
            }
        }
    }
    found
}

fn median(mut list: Vec<i64>) -> i64 {
    list.sort_unstable();
    list.get(list.len() / 2).copied().unwrap_or(0)
}

#[test]
fn every_cell_is_plausible() {
    let found = problems(EmbeddedCatalogue::embedded());
    assert!(found.is_empty(), "{} problems: {:#?}", found.len(), &found[..found.len().min(20)]);
}

/// Series below the fifth generation that are sold without a known end, by family and generation.
const YOUNG_SERIES: [(&str, u32); 22] = [
    ("B", 2),
    ("DC", 2),
    ("DC", 3),
    ("FX", 1),
    ("FX", 2),
    ("HB", 3),
    ("HB", 4),
    ("HX", 1),
    ("L", 3),
    ("L", 4),
    ("M", 1),
    ("M", 2),
    ("M", 3),
    ("NC", 3),
    ("NC", 4),
    ("ND", 2),
    ("ND", 4),
    ("NG", 1),
    ("NV", 2),
    ("NV", 4),
    ("NM", 1),
    ("PB", 1),
];

/// Offered sizes of whose life nothing is known: the table does not name them, and they are of no
/// young series.
fn lives_unknown(catalogue: &EmbeddedCatalogue) -> BTreeSet<String> {
    let named: BTreeSet<&str> = Lifecycle::built_in().names().collect();
    let is_young = |size: &str| {
        let size = size.trim_start_matches("Standard_");
        let letters: String = size.chars().take_while(char::is_ascii_uppercase).collect();
        let generation = size.rsplit_once("_v").and_then(|(_, text)| text.parse().ok());
        let generation: u32 = generation.unwrap_or(1);
        generation >= 5 || YOUNG_SERIES.contains(&(&*letters, generation))
    };
    let offered = catalogue.regions().flat_map(|region| catalogue.skus_in(&region.name));
    let unknown = offered.filter(|sku| !named.contains(&*sku.name) && !is_young(&sku.name));
    unknown.map(|sku| sku.name.clone()).collect()
}

#[test]
fn the_life_of_every_offered_size_is_known() {
    assert_eq!(lives_unknown(EmbeddedCatalogue::embedded()), BTreeSet::new());
    // An old size that the table does not have.
    let [(_, skus), (_, prices), (_, regions)] = EmbeddedCatalogue::embedded().to_files();
    let renamed = |text: String| text.replace("\nStandard_D2as_v5,", "\nStandard_D3as_v4,");
    let other = EmbeddedCatalogue::parse(&renamed(skus), &renamed(prices), &regions).unwrap();
    assert_eq!(lives_unknown(&other), BTreeSet::from(["Standard_D3as_v4".to_owned()]));
}

/// The catalogue with one replacement in one of its files.
fn broken(file: &str, from: &str, to: &str) -> EmbeddedCatalogue {
    let mut files = EmbeddedCatalogue::embedded().to_files();
    let (_, text) = files.iter_mut().find(|(name, _)| *name == file).unwrap();
    assert_eq!(text.matches(from).count(), 1, "`{from}` in {file}");
    *text = text.replace(from, to);
    let [(_, skus), (_, prices), (_, regions)] = files;
    EmbeddedCatalogue::parse(&skus, &prices, &regions).unwrap()
}

/// Replaces the price of a size in a region.
fn repriced(size: &str, region: &str, price: &str) -> EmbeddedCatalogue {
    let [_, (file, prices), _] = EmbeddedCatalogue::embedded().to_files();
    let column = prices.lines().next().unwrap().split(',').position(|name| name == region).unwrap();
    let row = prices.lines().find(|line| line.starts_with(&format!("{size},"))).unwrap();
    let mut cells: Vec<&str> = row.split(',').collect();
    cells[column] = price;
    broken(file, &format!("\n{row}\n"), &format!("\n{}\n", cells.join(",")))
}

#[test]
fn a_broken_cell_is_noticed() {
    let found = problems(&repriced("Standard_D2as_v5", "eastus", "0.178"));
    assert_eq!(found, ["Standard_D2as_v5 in eastus: price per vCPU is off its series"]);
    let found = problems(&repriced("Standard_NC24ads_A100_v4", "eastus", "0.3"));
    assert!(
        found.contains(
            &"Standard_NC24ads_A100_v4 in eastus: far from its price elsewhere".to_owned()
        ),
        "{found:?}"
    );
    let found = problems(&repriced("Standard_D2as_v5", "eastus", "0.086/0.086"));
    assert_eq!(found, ["Standard_D2as_v5 in eastus: spot is not below the list price"]);
    let [(_, skus), ..] = EmbeddedCatalogue::embedded().to_files();
    let row = skus.lines().find(|line| line.starts_with("Standard_D2as_v5,")).unwrap();
    let unlisted = row.strip_suffix("known").unwrap();
    let found = problems(&broken("skus.csv", &format!("\n{row}\n"), &format!("\n{unlisted}\n")));
    assert_eq!(found, ["Standard_D2as_v5: in no list of sizes, and not retired"]);
}

#[test]
fn nothing_offered_is_gone_and_the_known_errors_are_repaired() {
    let catalogue = EmbeddedCatalogue::embedded();
    let table = Lifecycle::built_in();
    for region in catalogue.regions() {
        for sku in catalogue.skus_in(&region.name) {
            let gone = table.gone(&sku.name, &region.name, CATALOGUE_DAY);
            assert_eq!(gone, None, "{} in {}", sku.name, region.name);
            assert!(!sku.name.ends_with("as_v5_Promo"), "{}", sku.name);
        }
    }
    let price = |size: &str, region: &str| catalogue.sale(size, region).map(|sale| sale.on_demand);
    assert_eq!(price("Standard_D2as_v5", "eastus"), UsdPerHour::parse("0.086"));
    assert_eq!(price("Standard_E4as_v5", "eastus"), UsdPerHour::parse("0.226"));
    assert_eq!(price("Standard_D2as_v5", "malaysiawest"), None);
    assert_eq!(price("Standard_F16ams_v6", "newzealandnorth"), None);
    for sku in catalogue.skus().filter(|sku| sku.name.ends_with("_v5")) {
        let general = ["Standard_D", "Standard_E"].iter().any(|front| sku.name.starts_with(front));
        let confidential = sku.name.contains("_DC") || sku.name.contains("_EC");
        assert!(!general || confidential || sku.accelerated_networking, "{}", sku.name);
    }
    let sku = |name: &str| catalogue.sku(name).unwrap();
    assert!(sku("Standard_D4lds_v5").ephemeral_os_disk && sku("Standard_D4lds_v5").temp_mib > 0);
    assert!(!sku("Standard_D11_v2").ephemeral_os_disk);
}
