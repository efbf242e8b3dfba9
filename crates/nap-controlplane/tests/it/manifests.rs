//! Manifests of published guides and their verdicts, as tests and as `docs/compatibility.md`.

use std::fmt::Write as _;
use std::path::Path;

use nap_api::normalise;
use serde_json::Value;

use crate::support::{How, Refusal, Verdict, embedded_client, send};

/// A manifest and the incumbent's verdict.
pub(crate) struct Manifest {
    pub(crate) title: &'static str,
    pub(crate) yaml: &'static str,
    /// Parts of the answer of a server with the incumbent's definitions.
    pub(crate) incumbent: &'static [&'static str],
    /// Whether nap's definitions accept it.
    pub(crate) taken: bool,
}

const UNKNOWN_VERSION: &[&str] = &["no such version"];

pub(crate) const MANIFESTS: &[Manifest] = &[
    Manifest {
        title: "The default pool of the product's documentation",
        yaml: include_str!("manifests/default-pool.yaml"),
        incumbent: &["unknown field \"spec.disruption.expireAfter\""],
        taken: true,
    },
    Manifest {
        title: "A general-purpose pool of a guide",
        yaml: include_str!("manifests/general-purpose-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
        taken: true,
    },
    Manifest {
        title: "A spot pool of a guide",
        yaml: include_str!("manifests/spot-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
        taken: true,
    },
    Manifest {
        title: "A GPU pool of a guide",
        yaml: include_str!("manifests/gpu-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
        taken: true,
    },
    Manifest {
        title: "A pool of version v1beta1",
        yaml: include_str!("manifests/beta-pool.yaml"),
        incumbent: UNKNOWN_VERSION,
        taken: true,
    },
    Manifest {
        title: "A node class with its placeholder",
        yaml: include_str!("manifests/node-class-placeholder.yaml"),
        incumbent: &["accepted"],
        taken: false,
    },
    Manifest {
        title: "The same node class, filled in",
        yaml: include_str!("manifests/node-class.yaml"),
        incumbent: &["accepted"],
        taken: true,
    },
    Manifest {
        title: "The workload of a guide",
        yaml: include_str!("manifests/inflate.yaml"),
        incumbent: &["accepted"],
        taken: true,
    },
    Manifest {
        title: "Limits, weight and a policy, merged into a pool",
        yaml: include_str!("manifests/limits-and-weight.yaml"),
        incumbent: &["unknown field \"spec.template.spec.nodeClassRef.apiVersion\""],
        taken: true,
    },
    Manifest {
        title: "Two policies in one, merged into a pool",
        yaml: include_str!("manifests/two-policies.yaml"),
        incumbent: &["unknown field \"spec.template.spec.nodeClassRef.apiVersion\""],
        taken: false,
    },
    Manifest {
        title: "Turning a pool off, with a comma too many",
        yaml: include_str!("manifests/comma-in-taint.yaml"),
        incumbent: &["unknown field \"spec.template.spec.nodeClassRef.apiVersion\""],
        taken: false,
    },
    Manifest {
        title: "Turning a pool off",
        yaml: include_str!("manifests/disabled-pool.yaml"),
        incumbent: &["unknown field \"spec.template.spec.nodeClassRef.apiVersion\""],
        taken: true,
    },
];

const INTRODUCTION: &str = "\
# Compatibility

<!-- Made by the tests of nap-controlplane; do not edit. `NAP_BLESS=1 cargo test -p nap-controlplane` refreshes it. -->

nap accepts every object that the incumbent's definitions accept, with the same meaning; two exceptions are
below. It also accepts old spellings that published guides still carry. The stored object stays as its author
wrote it; nap reads it in the current spelling, the NodePool's condition `Normalised` reports the reading, and
kubectl prints a warning (also within current versions, with `deploy/old-spellings-policy.yaml`).

| written | means |
|---|---|
| `karpenter.sh/v1beta1` and `karpenter.sh/v1alpha5` NodePool | `karpenter.sh/v1` |
| `karpenter.azure.com/v1alpha2` AKSNodeClass | `karpenter.azure.com/v1beta1` |
| `consolidationPolicy: WhenUnderutilized`, `WhenUnderUtilized`, `WhenEmptyOrUnderUtilized` | `WhenEmptyOrUnderutilized` |
| `spec.disruption.expireAfter` | `spec.template.spec.expireAfter`, unless that is written too and is not `720h`, which servers fill in |
| `nodeClassRef` with `apiVersion`, or with a name only | group `karpenter.azure.com` and kind `AKSNodeClass` |

Invalid objects are refused with a message that names the field and the remedy. `nap lint -f FILE` reports the
same without a cluster.

Every field of an AKSNodeClass reaches the machine; `docs/following-aks.md` says how, and which values are refused
in the condition `ValidationSucceeded`.

Deliberate differences from the incumbent: a `vnetSubnetID` with a placeholder in `<…>` is refused, and an
AKSNodeClass without a `spec` gets the defaults of an empty one. Tests compare both with the incumbent's own
definitions on a real kube-apiserver.

Each manifest below is followed by nap's reading of it; requirements, which are not changed, are left out.
";

#[tokio::test]
async fn the_document_is_up_to_date() {
    let client = embedded_client().await;
    let mut document = INTRODUCTION.to_owned();
    for Manifest { title, yaml, incumbent, taken } in MANIFESTS {
        let written: Value = serde_saphyr::from_str(yaml).unwrap();
        write!(
            document,
            "\n## {title}\n\n```yaml\n{yaml}```\n\n- incumbent: {}\n",
            incumbent.join("; ")
        )
        .unwrap();
        if let Verdict::Refused(Refusal { message, .. }) =
            send(&client, &written, How::CreateDry).await
        {
            assert!(!taken, "{title}: {message}");
            writeln!(document, "- nap: refused: {message}").unwrap();
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
        current.sort_all_objects();
        let yaml = serde_saphyr::to_string(&current).unwrap();
        write!(document, "\n```yaml\n{}\n```\n", yaml.trim_end()).unwrap();
    }
    document.push_str(&missing());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    if std::env::var_os("NAP_BLESS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &document).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == document,
        "docs/compatibility.md is stale; `NAP_BLESS=1 cargo test -p nap-controlplane` refreshes it"
    );
}

/// What operators of the incumbent will miss, each with its reason.
fn missing() -> String {
    use nap_controllers::events::catalogue as events;
    use nap_controllers::metrics::catalogue as metrics;
    let mut text = "\n## Metrics, events and conditions that nap does not have\n\n".to_owned();
    text.push_str(
        "Everything else has the incumbent's names ([metrics.md](metrics.md)). Feature gates ",
    );
    text.push_str("and options that nap cannot follow are in [running.md](running.md).\n\n");
    text.push_str("| missing | why |\n|---|---|\n");
    for (what, list) in [
        ("metric", metrics::MISSING),
        ("event", events::MISSING),
        ("condition", events::MISSING_CONDITIONS),
    ] {
        for (name, why) in list {
            let name = if name.contains('`') { (*name).to_owned() } else { format!("`{name}`") };
            writeln!(text, "| {what} {name} | {why} |").unwrap();
        }
    }
    text
}
