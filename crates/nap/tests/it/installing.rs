//! `nap crds install` on a cluster that has the definitions already.

use crate::process::{Cluster, nap, text};

#[test]
fn second_install_changes_nothing() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let install =
        || nap(&["crds", "install", "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    // The definitions are there already, but this is the first time that they are applied.
    let first = text(&install().stdout);
    assert!(first.contains("ValidatingAdmissionPolicy nap-old-spellings: created"), "{first}");
    let output = install();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    for kind in [
        "nodepools.karpenter.sh",
        "aksnodeclasses.karpenter.azure.com",
        "capacitybuffers.autoscaling.x-k8s.io",
    ] {
        assert!(said.contains(&format!("CustomResourceDefinition {kind}: unchanged")), "{said}");
    }
    assert!(said.contains("ValidatingAdmissionPolicy nap-old-spellings: unchanged"), "{said}");
}
