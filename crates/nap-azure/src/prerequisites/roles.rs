//! Rows about permissions: those of the cluster's identity on subnets, and those of the caller.

use super::facts::{Facts, Permission, Read, Unknown, known, known_of, last_segment};
use super::{Check, Document, Finding, NETWORKING, NODE_AUTOPROVISIONING, join};

const REQUIRED: Document = Document(NODE_AUTOPROVISIONING, "Prerequisites");

/// Actions that the cluster's identity needs on a subnet.
const SUBNET_ACTIONS: [&str; 2] = [
    "Microsoft.Network/virtualNetworks/subnets/read",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
];
/// Actions that `nap run` needs on the cluster.
const MACHINE_ACTIONS: [&str; 5] = [
    "Microsoft.ContainerService/managedClusters/read",
    "Microsoft.ContainerService/managedClusters/agentPools/read",
    "Microsoft.ContainerService/managedClusters/agentPools/machines/read",
    "Microsoft.ContainerService/managedClusters/agentPools/machines/write",
    "Microsoft.ContainerService/managedClusters/agentPools/deleteMachines/action",
];
/// Actions of the person who creates a cluster with node auto-provisioning.
const POLICY_ACTIONS: [&str; 2] = [
    "Microsoft.Authorization/policyAssignments/read",
    "Microsoft.Authorization/policyAssignments/write",
];
/// Action of the role Azure Kubernetes Service Cluster User Role.
const CREDENTIAL_ACTION: &str =
    "Microsoft.ContainerService/managedClusters/listClusterUserCredential/action";
/// A data action of the role Azure Kubernetes Service RBAC Writer.
const WRITER_ACTION: &str = "Microsoft.ContainerService/managedClusters/apps/deployments/write";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "role-node-subnets",
        title: "The cluster's identity may join nodes to their subnets",
        document: Document(NETWORKING, "RBAC setup for custom subnet configurations"),
        run: node_subnets,
    },
    Check {
        id: "role-api-server-subnet",
        title: "The cluster's identity may read and join the API server's subnet",
        document: REQUIRED,
        run: api_server_subnet,
    },
    Check {
        id: "role-machines",
        title: "The identity that runs this command may create and delete machines",
        document: Document(
            "Azure built-in roles for Containers",
            "Azure Kubernetes Service Contributor Role",
        ),
        run: machines,
    },
    Check {
        id: "role-region",
        title: "The identity that runs this command may read sizes, quota and images",
        document: Document("Azure built-in roles", "Reader"),
        run: region,
    },
    Check {
        id: "role-policy-assignments",
        title: "The person who creates the cluster may assign policies",
        document: REQUIRED,
        run: policy_assignments,
    },
    Check {
        id: "role-cluster-user",
        title: "Azure Kubernetes Service Cluster User Role",
        document: REQUIRED,
        run: cluster_user,
    },
    Check {
        id: "role-rbac-writer",
        title: "Azure Kubernetes Service RBAC Writer",
        document: REQUIRED,
        run: rbac_writer,
    },
];

/// Whether permissions allow an action.
pub(super) fn allows(permissions: &[Permission], action: &str) -> bool {
    let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, action));
    permissions.iter().any(|one| any(&one.actions) && !any(&one.not_actions))
}

fn allows_data(permissions: &[Permission], action: &str) -> bool {
    let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, action));
    permissions.iter().any(|one| any(&one.data_actions) && !any(&one.not_data_actions))
}

/// Whether a pattern with `*` matches an action. Actions ignore case.
fn matches(pattern: &str, action: &str) -> bool {
    let (pattern, action) = (pattern.to_lowercase(), action.to_lowercase());
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| action.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn node_subnets(facts: &Facts) -> Result<Finding, Unknown> {
    let ids = facts.node_subnets()?;
    if ids.is_empty() {
        return Ok(Finding::not_applicable("AKS manages the network"));
    }
    on_subnets(facts, &ids, &SUBNET_ACTIONS)
}

fn api_server_subnet(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(id) = facts.api_server_subnet() else {
        return Ok(Finding::not_applicable("the API server is not in a subnet of yours"));
    };
    on_subnets(facts, &[id], &SUBNET_ACTIONS)
}

/// Whether the roles of the cluster's identity allow actions on each subnet.
fn on_subnets(facts: &Facts, ids: &[String], actions: &[&str]) -> Result<Finding, Unknown> {
    let mut names: Vec<&str> = Vec::new();
    let mut missing = Vec::new();
    for id in ids {
        let roles = known_of(&facts.identity_roles, id)?;
        // Each action may come from another role.
        let lacks: Vec<&str> = actions
            .iter()
            .copied()
            .filter(|action| !roles.iter().any(|role| allows(&role.permissions, action)))
            .collect();
        if !lacks.is_empty() {
            missing.push((id, lacks));
        }
        let granting = roles
            .iter()
            .filter(|role| actions.iter().any(|action| allows(&role.permissions, action)));
        names.extend(granting.map(|role| role.name.as_str()));
    }
    let Some((first, _)) = missing.first() else {
        names.sort_unstable();
        names.dedup();
        return Ok(Finding::pass(format!("by {}", join(&names))));
    };
    let network = first.split("/subnets/").next().unwrap_or(first);
    let principals = facts.cluster.identity.principals();
    let principal = principals.first().copied().unwrap_or("PRINCIPAL");
    let lacks: Vec<String> = missing
        .iter()
        .map(|(id, lacks)| format!("{} on `{}`", join(lacks), last_segment(id)))
        .collect();
    Ok(Finding::fail(
        format!("the identity lacks {}", join(&lacks)),
        format!(
            "az role assignment create --assignee-object-id {principal} --assignee-principal-type \
             ServicePrincipal --role 'Network Contributor' --scope {network}"
        ),
    ))
}

/// Actions that the caller lacks.
fn lacking<'a>(permissions: &[Permission], actions: &[&'a str]) -> Vec<&'a str> {
    actions.iter().copied().filter(|action| !allows(permissions, action)).collect()
}

fn machines(facts: &Facts) -> Result<Finding, Unknown> {
    let lacks = lacking(known(&facts.caller_on_cluster)?, &MACHINE_ACTIONS);
    if lacks.is_empty() {
        return Ok(Finding::pass("it may; `nap run` must have the same role"));
    }
    Ok(Finding::fail(
        format!("it lacks {}", join(&lacks)),
        format!(
            "az role assignment create --assignee IDENTITY --role 'Azure Kubernetes Service \
             Contributor Role' --scope {}",
            facts.config.cluster_path()
        ),
    ))
}

fn region(facts: &Facts) -> Result<Finding, Unknown> {
    let with = |wanted: fn(&Read) -> bool| -> Vec<&str> {
        let reads = facts.region_reads.iter();
        reads.filter(|(_, read)| wanted(read)).map(|(name, _)| *name).collect()
    };
    let forbidden = with(|read| *read == Read::Forbidden);
    if !forbidden.is_empty() {
        return Ok(Finding::fail(
            format!("it may not list {}", join(&forbidden)),
            format!(
                "az role assignment create --assignee IDENTITY --role Reader --scope \
                 /subscriptions/{}",
                facts.config.subscription_id
            ),
        ));
    }
    for (name, read) in &facts.region_reads {
        if let Read::Failed(why) = read {
            return Err(Unknown(format!("{name}: {why}")));
        }
    }
    Ok(Finding::pass(format!("{}; `nap run` must too", join(&with(|read| *read == Read::Done)))))
}

fn policy_assignments(facts: &Facts) -> Result<Finding, Unknown> {
    let lacks = lacking(known(&facts.caller_on_group)?, &POLICY_ACTIONS);
    if lacks.is_empty() {
        return Ok(Finding::pass("the identity that runs this command may"));
    }
    Ok(Finding::warn(
        format!("the identity that runs this command lacks {}", join(&lacks)),
        "needed only to create a cluster with managed node auto-provisioning, not by nap: the role \
         Resource Policy Contributor on the resource group",
    ))
}

fn cluster_user(facts: &Facts) -> Result<Finding, Unknown> {
    if allows(known(&facts.caller_on_cluster)?, CREDENTIAL_ACTION) {
        return Ok(Finding::pass("the identity that runs this command may get a kubeconfig"));
    }
    Ok(Finding::warn(
        "the identity that runs this command may not get a kubeconfig",
        format!(
            "needed by people, not by nap in a pod: az role assignment create --assignee USER \
             --role 'Azure Kubernetes Service Cluster User Role' --scope {}",
            facts.config.cluster_path()
        ),
    ))
}

fn rbac_writer(facts: &Facts) -> Result<Finding, Unknown> {
    if !facts.cluster.properties.aad_profile.enable_azure_rbac {
        return Ok(Finding::not_applicable("the cluster does not use Azure RBAC for Kubernetes"));
    }
    if allows_data(known(&facts.caller_on_cluster)?, WRITER_ACTION) {
        return Ok(Finding::pass("the identity that runs this command may write to Kubernetes"));
    }
    Ok(Finding::warn(
        "the identity that runs this command may not write to Kubernetes",
        format!(
            "needed by people, not by nap in a pod: az role assignment create --assignee USER \
             --role 'Azure Kubernetes Service RBAC Writer' --scope {}",
            facts.config.cluster_path()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_actions() {
        for (pattern, expected) in [
            ("*", true),
            ("Microsoft.Network/*", true),
            ("microsoft.network/virtualnetworks/subnets/read", true),
            ("*/read", true),
            ("Microsoft.Network/*/read", true),
            ("Microsoft.Network/virtualNetworks/read", false),
            ("Microsoft.Compute/*", false),
            ("*/write", false),
        ] {
            let action = "Microsoft.Network/virtualNetworks/subnets/read";
            assert_eq!(matches(pattern, action), expected, "{pattern}");
        }
    }

    #[test]
    fn excluded_actions_are_not_allowed() {
        let role = Permission {
            actions: vec!["*".to_owned()],
            not_actions: vec!["Microsoft.Authorization/*/write".to_owned()],
            ..Permission::default()
        };
        assert!(allows(std::slice::from_ref(&role), POLICY_ACTIONS[0]));
        assert!(!allows(&[role], POLICY_ACTIONS[1]));
    }
}
