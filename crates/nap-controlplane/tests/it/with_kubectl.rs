//! kubectl on both servers: apply, diff, get, explain, warnings.

use nap_api::NodePool;
use nap_api::nodepool::ConsolidationPolicy;
use serde_json::Value;

use crate::manifests::MANIFESTS;
use crate::support::{Cluster, api, on_both_servers};

on_both_servers!(
    manifests_apply_verbatim_and_stay_as_they_were_written,
    pools_mean_what_their_authors_meant,
    old_versions_and_old_spellings_warn,
    columns_and_names,
    explanations,
);

/// Every accepted manifest is stored as written, so a second apply and a diff find no change.
async fn manifests_apply_verbatim_and_stay_as_they_were_written(cluster: &Cluster) {
    for manifest in MANIFESTS {
        let (title, yaml) = (manifest.title, manifest.yaml);
        let written: Value = serde_saphyr::from_str(yaml).unwrap();
        let applied = cluster.kubectl("apply -f -", yaml).await;
        let errors = String::from_utf8_lossy(&applied.stderr);
        if !manifest.taken {
            assert!(!applied.status.success(), "{title} was accepted");
            continue;
        }
        assert!(applied.status.success(), "{title}: {errors}");
        let stored = api(&cluster.client, &written)
            .get(written["metadata"]["name"].as_str().unwrap())
            .await
            .unwrap();
        assert_holds(title, &stored.data["spec"], &written["spec"]);
        let again = cluster.prints("apply -f -", yaml).await;
        assert!(again.ends_with(" unchanged\n"), "{title}: {again}");
        let difference = cluster.kubectl("diff -f -", yaml).await;
        assert!(
            difference.status.success(),
            "{title}: {}",
            String::from_utf8_lossy(&difference.stdout)
        );
        let server_side = cluster.kubectl("apply --server-side --force-conflicts -f -", yaml).await;
        assert!(
            server_side.status.success(),
            "{title}: {}",
            String::from_utf8_lossy(&server_side.stderr)
        );
    }
}

/// Asserts that `stored` contains everything in `written`; the server may add defaults.
fn assert_holds(title: &str, stored: &Value, written: &Value) {
    match (stored, written) {
        (Value::Object(stored), Value::Object(written)) => {
            for (key, value) in written {
                assert_holds(title, stored.get(key).unwrap_or(&Value::Null), value);
            }
        }
        (Value::Array(stored), Value::Array(written)) => {
            assert_eq!(stored.len(), written.len(), "{title}");
            stored
                .iter()
                .zip(written)
                .for_each(|(stored, written)| assert_holds(title, stored, written));
        }
        (stored, written) => assert_eq!(stored, written, "{title}"),
    }
}

async fn pools_mean_what_their_authors_meant(cluster: &Cluster) {
    for (yaml, policy, expires, limits, weight) in [
        (MANIFESTS[0].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "Never", false, None),
        (MANIFESTS[1].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, None),
        (MANIFESTS[2].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, Some(10)),
        (MANIFESTS[3].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, None),
        (MANIFESTS[4].yaml, ConsolidationPolicy::WhenEmpty, "48h", false, None),
        (MANIFESTS[8].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, Some(10)),
    ] {
        let written: Value = serde_saphyr::from_str(yaml).unwrap();
        cluster.prints("apply -f -", yaml).await;
        let name = written["metadata"]["name"].as_str().unwrap();
        let pool: NodePool = kube::Api::all(cluster.client.clone()).get(name).await.unwrap();
        let template = &pool.spec.template.spec;
        assert_eq!(pool.spec.disruption.consolidation_policy, policy, "{name}");
        assert_eq!(template.expire_after.as_str(), expires, "{name}");
        assert_eq!((pool.spec.limits.is_some(), pool.spec.weight), (limits, weight), "{name}");
        let reference =
            (template.node_class_ref.group.as_str(), template.node_class_ref.kind.as_str());
        assert_eq!(reference, ("karpenter.azure.com", "AKSNodeClass"), "{name}");
        assert_eq!(nap_api::validation::validate_nodepool(&pool), Vec::<String>::new(), "{name}");
    }
}

/// kubectl prints the servers' warnings, also those of the policy about fields in old spellings.
async fn old_versions_and_old_spellings_warn(cluster: &Cluster) {
    let warnings = async |yaml: &str| {
        let output = cluster.kubectl("apply -f -", yaml).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let text = warnings(MANIFESTS[1].yaml).await;
    assert!(
        text.contains(
            "Warning: karpenter.sh/v1alpha5 NodePool is deprecated; use karpenter.sh/v1 NodePool"
        ),
        "{text}"
    );
    let text = warnings(MANIFESTS[4].yaml).await;
    assert!(text.contains("Warning: karpenter.sh/v1beta1 NodePool is deprecated"), "{text}");
    let text = warnings(MANIFESTS[6].yaml).await;
    assert!(text.contains("Warning: use v1beta1.AKSNodeClass instead"), "{text}");
    // A policy takes effect with a delay.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut text = String::new();
    while tokio::time::Instant::now() < deadline && !text.contains("Warning") {
        cluster.prints("delete nodepool default --ignore-not-found", "").await;
        text = warnings(MANIFESTS[0].yaml).await;
    }
    for field in [
        "spec.disruption.consolidationPolicy",
        "spec.disruption.expireAfter",
        "spec.template.spec.nodeClassRef",
    ] {
        assert!(text.contains(field), "{field}: {text}");
    }
    let current = MANIFESTS[0]
        .yaml
        .replace("WhenUnderutilized", "WhenEmpty")
        .replace("    expireAfter: Never\n", "")
        .replace(
            "        name: default\n",
            "        name: default\n        group: karpenter.azure.com\n        kind: AKSNodeClass\n",
        );
    assert_eq!(warnings(&current).await, "");
}

async fn columns_and_names(cluster: &Cluster) {
    cluster.prints("apply -f -", MANIFESTS[1].yaml).await;
    cluster.prints("apply -f -", MANIFESTS[6].yaml).await;
    let claim = crate::cases::claim().to_string();
    cluster.prints("apply -f -", &claim).await;
    let header = async |words: &str| {
        let text = cluster.prints(words, "").await;
        text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(header("get nodepools").await, "NAME NODECLASS NODES READY AGE");
    assert_eq!(
        header("get nodepools -o wide").await,
        "NAME NODECLASS NODES READY AGE WEIGHT CPU MEMORY"
    );
    assert_eq!(header("get nodeclaims").await, "NAME TYPE CAPACITY ZONE NODE READY AGE");
    assert_eq!(
        header("get nodeclaims -o wide").await,
        "NAME TYPE CAPACITY ZONE NODE READY AGE IMAGEID ID NODEPOOL NODECLASS DRIFTED PRICE"
    );
    assert_eq!(header("get aksnodeclasses").await, "NAME READY AGE");
    let row = cluster.prints("get nodepool general-purpose --no-headers", "").await;
    assert!(row.starts_with("general-purpose   default"), "{row}");
    for name in ["aksnc", "aksncs", "overlays", "cb"] {
        cluster.prints(&format!("get {name}"), "").await;
    }
    let category = cluster.prints("get karpenter -o name", "").await;
    for object in [
        "nodepool.karpenter.sh/general-purpose",
        "nodeclaim.karpenter.sh/claim",
        "aksnodeclass.karpenter.azure.com/default",
    ] {
        assert!(category.contains(object), "{object}: {category}");
    }
}

/// `kubectl explain` describes fields.
async fn explanations(cluster: &Cluster) {
    for (path, words) in [
        ("nodepool.spec.disruption.consolidationPolicy", "Which nodes are consolidated"),
        ("nodepool.spec.template.spec.expireAfter", "After this long a node is replaced"),
        ("nodepool.spec.limits", ""),
        ("nodeclaim.spec.requirements", ""),
        ("aksnodeclass.spec.vnetSubnetID", ""),
        ("nodeoverlay.spec.priceAdjustment", ""),
        ("capacitybuffer.spec.podTemplateRef", ""),
    ] {
        let text = cluster.prints(&format!("explain {path}"), "").await;
        assert!(text.contains(words) && text.contains("DESCRIPTION:"), "{path}: {text}");
        assert!(!text.contains("<empty>"), "{path}: {text}");
    }
}
