//! The nodes of a cluster and what they cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kube::ResourceExt as _;
use nap_api::labels;
use nap_engine::CapacityType;
use nap_units::UsdPerHour;
use serde::Serialize;

use super::Problem;
use super::cluster::{Cluster, count};
use super::format::{cents, columns};

/// Text for a node without a NodePool.
const NO_POOL: &str = "–";

/// A node, or a NodeClaim that is to become one.
pub struct FleetNode {
    /// Name of the Node, or of the NodeClaim while there is no Node.
    pub name: String,
    /// Name of the NodePool; empty for nodes that nap has not made.
    pub pool: String,
    /// VM size; empty if unknown.
    pub instance_type: String,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Price; `None` if the size has none.
    pub price: Option<UsdPerHour>,
}

/// Every node of a cluster, in the order of their names.
pub fn nodes(cluster: &Cluster, problem: &Problem) -> Vec<FleetNode> {
    let mut nodes: Vec<FleetNode> = cluster
        .state
        .views()
        .map(|view| {
            let label = |key: &str| {
                let node = view.node.as_ref().and_then(|node| node.labels().get(key));
                let claim = || view.claim.as_ref().and_then(|claim| claim.labels().get(key));
                node.or_else(claim).cloned().unwrap_or_default()
            };
            let instance_type = label(labels::INSTANCE_TYPE);
            let capacity_type = if label(labels::CAPACITY_TYPE) == "spot" {
                CapacityType::Spot
            } else {
                CapacityType::OnDemand
            };
            let price = price(problem, &instance_type, &label(labels::ZONE), capacity_type);
            let pool = label(labels::NODEPOOL);
            FleetNode { name: view.name(), pool, instance_type, capacity_type, price }
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

fn price(
    problem: &Problem,
    size: &str,
    zone: &str,
    capacity_type: CapacityType,
) -> Option<UsdPerHour> {
    let types = problem.of_classes.values().flat_map(|catalogue| catalogue.types());
    let kind = types.into_iter().find(|kind| kind.name == size)?;
    let offered = kind.offerings.iter().filter(|one| one.capacity_type == capacity_type);
    let found = offered.clone().find(|one| one.zone == zone).or_else(|| offered.clone().next())?;
    Some(found.price)
}

/// Cost of the nodes with a known price.
pub fn cost(nodes: &[FleetNode]) -> UsdPerHour {
    nodes.iter().filter_map(|node| node.price).sum()
}

/// `~` if the price of a node is an estimate.
pub fn mark(nodes: &[FleetNode], problem: &Problem) -> &'static str {
    let priced = nodes.iter().filter(|node| node.price.is_some());
    problem.origin.price_estimates().mark_sum(priced.map(|node| node.capacity_type))
}

/// The fleet as a table: one row for equal nodes.
pub fn table(nodes: &[FleetNode], problem: &Problem) -> String {
    if nodes.is_empty() {
        return "No nodes.\n".to_owned();
    }
    let (total, mark) = (cost(nodes), mark(nodes, problem));
    let mut text = format!(
        "{} for {mark}{total}/h, {mark}{}/month\n\n",
        count(nodes.len(), "node"),
        cents(total.per_month())
    );
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&FleetNode>> = BTreeMap::new();
    for node in nodes {
        let key = (node.pool.as_str(), node.instance_type.as_str(), node.capacity_type.as_str());
        groups.entry(key).or_default().push(node);
    }
    let head = ["NODES", "SIZE", "CAPACITY", "NODEPOOL", "PER HOUR", "PER MONTH"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ((pool, size, capacity_type), alike) in groups {
        let known: Vec<UsdPerHour> = alike.iter().filter_map(|node| node.price).collect();
        let price: UsdPerHour = known.iter().copied().sum();
        let (hour, month) = if known.len() == alike.len() {
            let mark = problem.origin.mark(alike[0].capacity_type);
            (format!("{mark}{price}"), format!("{mark}{}", cents(price.per_month())))
        } else {
            ("unknown".to_owned(), "unknown".to_owned())
        };
        let or_dash = |text: &str| if text.is_empty() { NO_POOL } else { text }.to_owned();
        rows.push(vec![
            alike.len().to_string(),
            or_dash(size),
            capacity_type.to_owned(),
            or_dash(pool),
            hour,
            month,
        ]);
    }
    text.push_str(&columns(&rows));
    let unknown = nodes.iter().filter(|node| node.price.is_none()).count();
    if unknown > 0 {
        let nodes = count(unknown, "node");
        let _ = writeln!(text, "The price of {nodes} is not known and counts as nothing.");
    }
    text
}

/// The fleet in the document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetDocument {
    nodes: usize,
    cost_usd_per_hour: f64,
    cost_is_estimate: bool,
    nodes_without_price: usize,
}

impl FleetDocument {
    /// Renders a fleet.
    pub fn new(nodes: &[FleetNode], problem: &Problem) -> Self {
        Self {
            nodes: nodes.len(),
            cost_usd_per_hour: super::document::dollars(cost(nodes)),
            cost_is_estimate: !mark(nodes, problem).is_empty(),
            nodes_without_price: nodes.iter().filter(|node| node.price.is_none()).count(),
        }
    }
}
