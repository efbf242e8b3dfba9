use std::collections::BTreeMap;
use nap_engine::*;
fn show(name: &str, plan: &Plan) {
    let mut by: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for l in &plan.launches { *by.entry((l.pool.clone(), l.instance_type.clone(), l.zone.clone())).or_default() += 1; }
    println!("{name}: cost {} bound {:?} tier {:?} unplaced {} nodes {}", plan.cost, plan.lower_bound, plan.tier, plan.unplaced.len(), plan.launches.len());
    for (k, v) in by { println!("   {k:?} {v}"); }
}
fn main() {
    let file = std::env::args().nth(1).unwrap();
    let snapshot: Snapshot = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let t = std::time::Instant::now();
    let plan = solve(&snapshot, &Options::default());
    println!("{:?}", t.elapsed());
    show("whole", &plan);
    for pool in ["on-demand", "spot"] {
        let mut one = snapshot.clone();
        let keys: std::collections::BTreeSet<_> = plan.launches.iter().filter(|l| l.pool == pool).flat_map(|l| l.pods.clone()).collect();
        one.pods.retain(|p| keys.contains(&p.key));
        let plan = solve(&one, &Options::default());
        show(pool, &plan);
        show("  ff", &solve_first_fit(&one, &Options::default()));
        for p in &mut one.pods { p.spread.clear(); }
        show("  nospread", &solve(&one, &Options::default()));
    }
}
