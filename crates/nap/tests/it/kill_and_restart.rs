//! `nap run` is killed during a scale-up and finishes it after a restart.

use crate::process::Cluster;

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn kill_during_scale_up_launches_no_extra_vm() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let first = cluster.nap_run();
    cluster.apply(INFLATE);
    let names = ["get", "nodeclaims", "-o", "name"];
    cluster.until("claims appear", &names, |text| !text.trim().is_empty());
    first.kill();
    let running = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
    assert_eq!(cluster.ok(&running).trim(), "", "the kill came too late to be in the middle");
    let second = cluster.nap_run();
    cluster.until("10 pods run", &running, |text| text.lines().count() == 10);
    let claims = cluster.ok(&names).lines().count();
    assert_eq!(cluster.ok(&["get", "nodes", "-o", "name"]).lines().count(), claims);
    second.kill();
    let farewell = cluster.stop();
    assert!(
        farewell.contains(&format!("{claims} VM(s) created")),
        "{claims} claims, but: {farewell}"
    );
}
