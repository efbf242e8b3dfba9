//! Pods that AKS itself runs on every node. A cluster has their DaemonSets; manifests do not, so a
//! plan from manifests adds them.
//!
//! Requests are those that `kubectl describe node` shows. Sources: the article "Troubleshoot memory
//! saturation in AKS clusters" of Microsoft Learn (all but azure-cns), and descriptions of nodes
//! with Azure CNI that users have published since 2023 (azure-cns 40m and 250Mi; the others agree).

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt as _;
use serde_json::json;

use super::cluster::{Cluster, apply, count};
use super::format::size_text;
use crate::cli::SystemDaemons;
use crate::manifests::{check, read};

/// Namespace of the pods of AKS.
const NAMESPACE: &str = "kube-system";

/// Name, requested CPU in milli-units and memory in MiB on each Linux node.
const AKS: [(&str, u32, u32); 6] = [
    ("azure-cns", 40, 250),
    ("azure-ip-masq-agent", 100, 50),
    ("cloud-node-manager", 50, 50),
    ("csi-azuredisk-node", 30, 60),
    ("csi-azurefile-node", 30, 60),
    ("kube-proxy", 100, 0),
];
/// The same with the monitoring add-on (Container insights).
const MONITORING: (&str, u32, u32) = ("ama-logs", 150, 550);

/// Adds the daemons that were asked for, and says so. Those that the manifests have too are left to
/// them; manifests with nodes describe a cluster, which has its own.
pub fn add(cluster: &mut Cluster, which: &SystemDaemons) -> anyhow::Result<()> {
    let mut daemons = match which {
        SystemDaemons::None => return Ok(()),
        SystemDaemons::Aks if cluster.state.nodes().next().is_some() => return Ok(()),
        SystemDaemons::Aks => AKS.iter().map(daemon_set).collect::<Result<_, _>>()?,
        SystemDaemons::AksMonitoring => {
            AKS.iter().chain([&MONITORING]).map(daemon_set).collect::<Result<Vec<_>, _>>()?
        }
        SystemDaemons::File(file) => {
            let documents = read::read(std::slice::from_ref(file))?;
            check::refuse(&documents, &[])?;
            let mut daemons = Vec::new();
            for document in documents {
                if document.text("/kind") != "DaemonSet" {
                    let problem = "is no DaemonSet, as --system-daemons takes; give it with -f";
                    return Err(document.error("kind", problem));
                }
                daemons.push(document.read::<DaemonSet>()?);
            }
            daemons
        }
    };
    let mut given = Vec::new();
    if !matches!(which, SystemDaemons::File(_)) {
        let is_given = |name: &str| {
            let name = format!("{NAMESPACE}/{name}");
            cluster.state.daemon_sets().any(|(known, _)| *known == name)
        };
        daemons.retain(|daemon| {
            let name = daemon.name_any();
            let is_given = is_given(&name);
            given.extend(is_given.then_some(name));
            !is_given
        });
    }
    let mut requests = nap_units::Resources::new();
    for daemon in &daemons {
        let template = daemon.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let asked = template.map(nap_controllers::cluster::pods::requests);
        requests.add(&asked.and_then(Result::ok).unwrap_or_default());
    }
    let daemons_text = count(daemons.len(), "daemon");
    for mut daemon in daemons {
        daemon.metadata.namespace.get_or_insert_with(|| NAMESPACE.to_owned());
        apply(&mut cluster.state, daemon);
    }
    let (whose, hint) = match which {
        SystemDaemons::File(_) => ("", String::new()),
        SystemDaemons::AksMonitoring => (" of AKS", String::new()),
        _ => (
            " of AKS",
            "; with the monitoring add-on, add --system-daemons aks-monitoring".to_owned(),
        ),
    };
    let given = match given.as_slice() {
        [] => String::new(),
        [one] => format!("; {one} is that of the manifests"),
        many => format!("; {} are those of the manifests", many.join(", ")),
    };
    cluster.notes.push(format!(
        "{daemons_text}{whose} counted on every node: {}{given}{hint}",
        size_text(&requests)
    ));
    Ok(())
}

fn daemon_set((name, cpu, memory): &(&str, u32, u32)) -> Result<DaemonSet, serde_json::Error> {
    let requests = json!({ "cpu": format!("{cpu}m"), "memory": format!("{memory}Mi") });
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "k8s-app": name } },
            "template": {
                "metadata": { "labels": { "k8s-app": name } },
                "spec": {
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [
                        { "name": name, "image": name, "resources": { "requests": requests } },
                    ],
                },
            },
        },
    }))
}
