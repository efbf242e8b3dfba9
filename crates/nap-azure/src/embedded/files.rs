//! The catalogue as three CSV files.
//!
//! A cell of `prices.csv` is `LIST[/SPOT][@ZONES]`: the list price, the spot price, and the zones
//! that sell the size, such as `0.192/0.0384@1+2`. `0.192/` is not sold as spot, `0.192@` in no
//! zone, and an empty cell is not sold in the region at all. A price without spot price or zones
//! leaves them to be estimated.

use std::collections::BTreeMap;

use nap_units::UsdPerHour;

use super::{CatalogueSku, EmbeddedCatalogue, Region, Sale};
use crate::AzureError;

const SKUS: &str = "skus.csv";
const PRICES: &str = "prices.csv";
const REGIONS: &str = "regions.csv";
const SKU_HEADER: &str = "name,family,vcpus,memory_gib,arch,gpus,premium_io,accelerated_networking,hyperv_generations,\
                          ephemeral_os_disk,nvme_mib,cache_bytes,temp_mib,ephemeral_placement,encryption_at_host,spot_ratio,max_data_disks,\
                          listed_in";
const REGION_HEADER: &str = "name,display_name,zones,prices_of,source";

/// Source of a region whose data comes from the live APIs.
const LIVE: &str = "live";
/// Source of a region whose data comes from published tables.
const PUBLISHED: &str = "published";

impl EmbeddedCatalogue {
    /// Parses the three files.
    pub fn parse(skus: &str, prices: &str, regions: &str) -> Result<Self, AzureError> {
        let mut catalogue = Self::default();
        for (line, cells) in rows(regions) {
            let region = read_region(&cells).map_err(|why| bad(REGIONS, line, why))?;
            catalogue.regions.insert(region.name.clone(), region);
        }
        for (line, cells) in rows(skus) {
            let sku = read_sku(&cells).map_err(|why| bad(SKUS, line, why))?;
            catalogue.skus.insert(sku.name.clone(), sku);
        }
        let header = prices.lines().next().unwrap_or_default();
        let columns: Vec<&str> = header.split(',').skip(1).collect();
        for (line, cells) in rows(prices) {
            let Some((name, cells)) = cells.split_first() else { continue };
            if cells.len() != columns.len() {
                return Err(bad(PRICES, line, "the number of cells differs from the header's"));
            }
            let mut row = BTreeMap::new();
            for (region, cell) in columns.iter().zip(cells).filter(|(_, cell)| !cell.is_empty()) {
                let sale = read_sale(cell).ok_or_else(|| {
                    bad(PRICES, line, format!("`{cell}` is not a price such as `0.192/0.04@1+2`"))
                })?;
                row.insert((*region).to_owned(), sale);
            }
            catalogue.sales.insert((*name).to_owned(), row);
        }
        Ok(catalogue)
    }

    /// The three files as pairs of name and content.
    pub fn to_files(&self) -> [(&'static str, String); 3] {
        let mut skus = format!("{SKU_HEADER}\n");
        for sku in self.skus.values() {
            skus.push_str(&write_sku(sku));
        }
        let mut regions = format!("{REGION_HEADER}\n");
        for region in self.regions.values() {
            let source = if region.is_live { LIVE } else { PUBLISHED };
            let zones = region.zones.join("+");
            let cells = [&region.name, &region.display_name, &zones, &region.prices_of, source];
            regions.push_str(&cells.join(","));
            regions.push('\n');
        }
        let columns: Vec<&str> = self.regions.keys().map(String::as_str).collect();
        let mut prices = format!("name,{}\n", columns.join(","));
        for (name, row) in &self.sales {
            prices.push_str(name);
            for region in &columns {
                prices.push(',');
                prices.push_str(&row.get(*region).map(write_sale).unwrap_or_default());
            }
            prices.push('\n');
        }
        [(SKUS, skus), (PRICES, prices), (REGIONS, regions)]
    }
}

/// Lines below the header, with their numbers and cells.
pub(super) fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines()
        .enumerate()
        .skip(1)
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| (index + 1, line.split(',').collect()))
}

pub(super) fn bad(file: &'static str, line: usize, why: impl Into<String>) -> AzureError {
    AzureError::Catalogue { file, line, why: why.into() }
}

fn read_region(cells: &[&str]) -> Result<Region, String> {
    let [name, display_name, zones, prices_of, source] = cells else {
        return Err("a region has five cells".to_owned());
    };
    if ![LIVE, PUBLISHED].contains(source) {
        return Err(format!("`{source}` is not `{LIVE}` or `{PUBLISHED}`"));
    }
    Ok(Region {
        name: (*name).to_owned(),
        display_name: (*display_name).to_owned(),
        zones: numbers(zones),
        prices_of: (*prices_of).to_owned(),
        is_live: *source == LIVE,
    })
}

fn numbers(zones: &str) -> Vec<String> {
    zones.split('+').filter(|zone| !zone.is_empty()).map(str::to_owned).collect()
}

fn read_sale(cell: &str) -> Option<Sale> {
    let (prices, zones) = match cell.split_once('@') {
        Some((prices, zones)) => (prices, Some(numbers(zones))),
        None => (cell, None),
    };
    let (list, spot) = match prices.split_once('/') {
        Some((list, "")) => (list, Some(None)),
        Some((list, spot)) => (list, Some(Some(UsdPerHour::parse(spot)?))),
        None => (prices, None),
    };
    Some(Sale { on_demand: UsdPerHour::parse(list)?, spot, zones })
}

fn write_sale(sale: &Sale) -> String {
    let mut cell = dollars(sale.on_demand);
    if let Some(spot) = sale.spot {
        cell.push('/');
        cell.push_str(&spot.map(dollars).unwrap_or_default());
    }
    if let Some(zones) = &sale.zones {
        cell.push('@');
        cell.push_str(&zones.join("+"));
    }
    cell
}

fn read_sku(cells: &[&str]) -> Result<CatalogueSku, String> {
    let [name, family, vcpus, memory, arch, gpus, premium, network, hyperv, rest @ ..] = cells
    else {
        return Err("a size has eighteen cells".to_owned());
    };
    let [ephemeral, nvme, cache, temp, placement, encryption, spot, disks, listed_in] = rest else {
        return Err("a size has eighteen cells".to_owned());
    };
    let number = |cell: &str| {
        if cell.is_empty() {
            Ok(0)
        } else {
            cell.parse::<i64>().map_err(|_| format!("`{cell}` is not a number"))
        }
    };
    let memory_gib = memory.parse().map_err(|_| format!("`{memory}` is not a number"))?;
    let ratio = UsdPerHour::parse(spot).map(|ratio| ratio.micros() / 1000);
    Ok(CatalogueSku {
        name: (*name).to_owned(),
        family: (*family).to_owned(),
        vcpus: number(vcpus)?,
        memory_gib,
        arch: (*arch).to_owned(),
        gpus: number(gpus)?,
        premium_io: *premium == "1",
        accelerated_networking: *network == "1",
        hyperv_generations: (*hyperv).to_owned(),
        ephemeral_os_disk: *ephemeral == "1",
        nvme_mib: number(nvme)?,
        cache_bytes: number(cache)?,
        temp_mib: number(temp)?,
        nvme_placement: *placement == "nvme",
        encryption_at_host: (!encryption.is_empty()).then_some(*encryption == "1"),
        spot_ratio_milli: ratio,
        max_data_disks: Some(number(disks)?).filter(|disks| *disks > 0),
        listed_in: (*listed_in).to_owned(),
    })
}

fn write_sku(sku: &CatalogueSku) -> String {
    let number = |value: i64| if value == 0 { String::new() } else { value.to_string() };
    let flag = |value: bool| if value { "1" } else { "" }.to_owned();
    let cells = [
        sku.name.clone(),
        sku.family.clone(),
        sku.vcpus.to_string(),
        sku.memory_gib.to_string(),
        sku.arch.clone(),
        number(sku.gpus),
        flag(sku.premium_io),
        flag(sku.accelerated_networking),
        sku.hyperv_generations.clone(),
        flag(sku.ephemeral_os_disk),
        number(sku.nvme_mib),
        number(sku.cache_bytes),
        number(sku.temp_mib),
        if sku.nvme_placement { "nvme" } else { "" }.to_owned(),
        sku.encryption_at_host.map_or("", |stated| if stated { "1" } else { "0" }).to_owned(),
        sku.spot_ratio_milli
            .map(|ratio| format!("{}.{:03}", ratio / 1000, ratio % 1000))
            .unwrap_or_default(),
        number(sku.max_data_disks.unwrap_or(0)),
        sku.listed_in.clone(),
    ];
    format!("{}\n", cells.join(","))
}

fn dollars(price: UsdPerHour) -> String {
    let micros = price.micros().max(0);
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_files_survive_a_round_trip() {
        let catalogue = EmbeddedCatalogue::embedded();
        let [skus, prices, regions] = catalogue.to_files().map(|(_, text)| text);
        assert!(EmbeddedCatalogue::parse(&skus, &prices, &regions).unwrap() == *catalogue);
        assert_eq!(skus, include_str!("../../catalogue/skus.csv"));
        assert_eq!(prices, include_str!("../../catalogue/prices.csv"));
        assert_eq!(regions, include_str!("../../catalogue/regions.csv"));
    }

    #[test]
    fn a_price_may_state_spot_and_zones() {
        for cell in ["0.192", "0.192/0.0384", "0.192/", "0.192@1+2", "0.192/0.0384@", "0.192/@3"] {
            assert_eq!(write_sale(&read_sale(cell).unwrap()), cell);
        }
        for cell in ["x", "0.192/x", "/0.1", "@1"] {
            assert_eq!(read_sale(cell), None, "{cell}");
        }
    }

    #[test]
    fn a_malformed_file_is_refused_with_its_line() {
        let sku = format!("{SKU_HEADER}\nx,y\n");
        let cases = [
            ((sku.as_str(), "name\n", "name\n"), "`skus.csv`, line 2: a size has eighteen cells"),
            (("h\n", "name,a\nx,cheap\n", "h\n"), "`prices.csv`, line 2: `cheap` is not a price"),
            (("h\n", "name,a\nx,1,2\n", "h\n"), "`prices.csv`, line 2: the number of cells"),
            (("h\n", "name\n", "h\na,A,1\n"), "`regions.csv`, line 2: a region has five cells"),
            (("h\n", "name\n", "h\na,A,1,2026,guess\n"), "`guess` is not `live` or `published`"),
        ];
        for ((skus, prices, regions), says) in cases {
            let error = EmbeddedCatalogue::parse(skus, prices, regions).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
