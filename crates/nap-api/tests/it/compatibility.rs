//! Manifests that published guides carry: what becomes of each, as tests and as `docs/compatibility.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use nap_api::nodepool::ConsolidationPolicy;
use nap_api::{NodePool, normalise};
use serde_json::Value;

use crate::support::{apply, cluster};

/// A manifest, and what the incumbent says to it.
struct Manifest {
    title: &'static str,
    yaml: &'static str,
    incumbent: &'static str,
}

const UNKNOWN_VERSION: &str =
    "refused: no matches for kind \"NodePool\" in version \"karpenter.sh/v1alpha5\"";

const MANIFESTS: &[Manifest] = &[
    Manifest {
        title: "The default pool of the product's documentation",
        yaml: include_str!("manifests/default-pool.yaml"),
        incumbent: "refused: `spec.disruption.expireAfter` is unknown, `WhenUnderutilized` is no policy, and `group` and `kind` of `nodeClassRef` are missing",
    },
    Manifest {
        title: "A general-purpose pool of a guide",
        yaml: include_str!("manifests/general-purpose-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
    },
    Manifest {
        title: "A spot pool of a guide",
        yaml: include_str!("manifests/spot-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
    },
    Manifest {
        title: "A GPU pool of a guide",
        yaml: include_str!("manifests/gpu-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
    },
    Manifest {
        title: "A pool of version v1beta1",
        yaml: include_str!("manifests/beta-pool.yaml"),
        incumbent: "refused since the version is no longer served",
    },
    Manifest {
        title: "A node class with its placeholder",
        yaml: include_str!("manifests/node-class-placeholder.yaml"),
        incumbent: "accepted with the warning `use v1beta1.AKSNodeClass instead`; the class never becomes ready",
    },
    Manifest {
        title: "The same node class, filled in",
        yaml: include_str!("manifests/node-class.yaml"),
        incumbent: "accepted with the warning `use v1beta1.AKSNodeClass instead`",
    },
    Manifest {
        title: "The workload of a guide",
        yaml: include_str!("manifests/inflate.yaml"),
        incumbent: "accepted",
    },
    Manifest {
        title: "Limits, weight and a policy, merged into a pool",
        yaml: include_str!("manifests/limits-and-weight.yaml"),
        incumbent: "refused: `WhenEmptyOrUnderUtilized` is no policy, `apiVersion` of `nodeClassRef` is unknown and its `group` is missing",
    },
    Manifest {
        title: "Two policies in one, merged into a pool",
        yaml: include_str!("manifests/two-policies.yaml"),
        incumbent: "refused: no such policy",
    },
    Manifest {
        title: "Turning a pool off, with a comma too many",
        yaml: include_str!("manifests/comma-in-taint.yaml"),
        incumbent: "refused: the key does not match a pattern",
    },
    Manifest {
        title: "Turning a pool off",
        yaml: include_str!("manifests/disabled-pool.yaml"),
        incumbent: "refused: `apiVersion` of `nodeClassRef` is unknown and its `group` is missing",
    },
];

const INTRODUCTION: &str = "\
# Compatibility

<!-- Made by the tests of nap-api; do not edit. `NAP_BLESS=1 cargo test -p nap-api` writes it anew. -->

nap takes every object that the incumbent's definitions take, with the same meaning. Besides, it takes the spellings that were current once
and that published guides still carry. The stored object stays as its author wrote it; nap reads it in the current spelling, the NodePool's
condition `Normalised` says how it was understood, and kubectl prints a warning (`deploy/old-spellings-policy.yaml` makes it do so inside
current versions too).

| written | means |
|---|---|
| `karpenter.sh/v1beta1` and `karpenter.sh/v1alpha5` NodePool | `karpenter.sh/v1` |
| `karpenter.azure.com/v1alpha2` AKSNodeClass | `karpenter.azure.com/v1beta1` |
| `consolidationPolicy: WhenUnderutilized`, `WhenUnderUtilized`, `WhenEmptyOrUnderUtilized` | `WhenEmptyOrUnderutilized` |
| `spec.disruption.expireAfter` | `spec.template.spec.expireAfter`, unless that is written too and is not `720h`, which servers fill in |
| `nodeClassRef` with `apiVersion`, or with a name only | group `karpenter.azure.com` and kind `AKSNodeClass` |

What is really wrong is refused, with a message that names the field and what to do. `nap lint -f FILE` says all of this without a cluster.

Below, each manifest stands as it was found, and then as nap reads it, without its requirements, which stay as they are.
";

#[tokio::test]
async fn the_document_is_up_to_date() {
    let client = cluster().await;
    let mut document = INTRODUCTION.to_owned();
    for Manifest { title, yaml, incumbent } in MANIFESTS {
        let written: Value = serde_saphyr::from_str(yaml).unwrap();
        write!(document, "\n## {title}\n\n```yaml\n{yaml}```\n\n- incumbent: {incumbent}\n").unwrap();
        if let Err(refusal) = apply(&client, &written, true).await {
            writeln!(document, "- nap: refused: {refusal}").unwrap();
            continue;
        }
        let mut current = written.clone();
        let notes = normalise::manifest(&mut current);
        if notes.is_empty() {
            document.push_str("- nap: accepted as it is\n");
            continue;
        }
        document.push_str("- nap: accepted\n");
        for note in notes {
            writeln!(document, "  - {note}").unwrap();
        }
        if let Some(Value::Object(template)) = current.pointer_mut("/spec/template/spec") {
            template.remove("requirements");
        }
        let yaml = serde_saphyr::to_string(&sorted(current)).unwrap();
        write!(document, "\n```yaml\n{}\n```\n", yaml.trim_end()).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    if std::env::var_os("NAP_BLESS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &document).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == document,
        "docs/compatibility.md is stale; `NAP_BLESS=1 cargo test -p nap-api` writes it anew"
    );
}

/// Keys in order, whatever order the map type of this build keeps.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let entries: BTreeMap<String, Value> =
                entries.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// The stored object holds what its author wrote, and applying it again changes nothing: a GitOps tool has nothing to do.
#[tokio::test]
async fn manifests_stay_as_they_were_written() {
    let client = cluster().await;
    for Manifest { title, yaml, .. } in MANIFESTS {
        let written: Value = serde_saphyr::from_str(yaml).unwrap();
        let Ok(stored) = apply(&client, &written, false).await else { continue };
        assert_holds(title, &stored["spec"], &written["spec"]);
        let again = apply(&client, &written, false).await.unwrap();
        assert_eq!(again["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"], "{title}");
    }
}

/// Everything that was written is there; what is there besides, the server filled in.
fn assert_holds(title: &str, stored: &Value, written: &Value) {
    match (stored, written) {
        (Value::Object(stored), Value::Object(written)) => {
            for (key, value) in written {
                assert_holds(title, stored.get(key).unwrap_or(&Value::Null), value);
            }
        }
        (Value::Array(stored), Value::Array(written)) => {
            assert_eq!(stored.len(), written.len(), "{title}");
            stored.iter().zip(written).for_each(|(stored, written)| assert_holds(title, stored, written));
        }
        (stored, written) => assert_eq!(stored, written, "{title}"),
    }
}

#[tokio::test]
async fn pools_mean_what_their_authors_meant() {
    let client = cluster().await;
    for (yaml, policy, expires, limits, weight) in [
        (MANIFESTS[0].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "Never", false, None),
        (MANIFESTS[1].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, None),
        (MANIFESTS[2].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, Some(10)),
        (MANIFESTS[3].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, None),
        (MANIFESTS[4].yaml, ConsolidationPolicy::WhenEmpty, "48h", false, None),
        (MANIFESTS[8].yaml, ConsolidationPolicy::WhenEmptyOrUnderutilized, "720h", true, Some(10)),
    ] {
        let written: Value = serde_saphyr::from_str(yaml).unwrap();
        apply(&client, &written, false).await.unwrap();
        let name = written["metadata"]["name"].as_str().unwrap();
        let pool: NodePool = kube::Api::all(client.clone()).get(name).await.unwrap();
        let template = &pool.spec.template.spec;
        assert_eq!(pool.spec.disruption.consolidation_policy, policy, "{name}");
        assert_eq!(template.expire_after.as_str(), expires, "{name}");
        assert_eq!((pool.spec.limits.is_some(), pool.spec.weight), (limits, weight), "{name}");
        let reference = (template.node_class_ref.group.as_str(), template.node_class_ref.kind.as_str());
        assert_eq!(reference, ("karpenter.azure.com", "AKSNodeClass"), "{name}");
        assert_eq!(nap_api::validation::validate_nodepool(&pool), Vec::<String>::new(), "{name}");
    }
}
