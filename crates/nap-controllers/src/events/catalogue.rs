//! The table of events. Reasons, types and objects are the incumbent's where it has them.

use super::Severity::{self, Normal, Warning};

/// An event that nap publishes.
#[derive(Debug)]
pub struct EventKind {
    /// Reason.
    pub reason: &'static str,
    /// Type.
    pub severity: Severity,
    /// Kinds of the objects that it is about.
    pub objects: &'static [&'static str],
}

const fn event(
    reason: &'static str,
    severity: Severity,
    objects: &'static [&'static str],
) -> EventKind {
    EventKind { reason, severity, objects }
}

const CLAIM: &[&str] = &["NodeClaim"];
const NODE: &[&str] = &["Node"];
const BOTH: &[&str] = &["Node", "NodeClaim"];
const POOL: &[&str] = &["NodePool"];
const POD: &[&str] = &["Pod"];

/// Reason of the event about a finalizer that nap has removed.
pub const FINALIZED: &str = "Finalized";

/// Every event, besides those of conditions, whose reason is the type of the condition.
pub const EVENTS: &[EventKind] = &[
    event("Nominated", Normal, POD),
    event("FailedScheduling", Warning, POD),
    event("NoCompatibleInstanceTypes", Warning, POOL),
    event("DisruptionLaunching", Normal, CLAIM),
    event("DisruptionWaitingReadiness", Normal, CLAIM),
    event("DisruptionTerminating", Normal, BOTH),
    event("DisruptionBlocked", Normal, &["Node", "NodeClaim", "NodePool"]),
    event("Unconsolidatable", Normal, BOTH),
    event("Evicted", Normal, POD),
    event("Disrupted", Normal, POD),
    event("FailedDraining", Warning, NODE),
    event("AwaitingVolumeDetachment", Normal, NODE),
    event("TerminationGracePeriodExpiring", Warning, BOTH),
    event("NodeRepairBlocked", Warning, &["Node", "NodeClaim", "NodePool"]),
    event("FailedConsistencyCheck", Warning, CLAIM),
    event("InsufficientCapacityError", Warning, &["NodeClaim", "Pod"]),
    event("NodeClassNotReady", Warning, CLAIM),
    event("UnregisteredTaintMissing", Warning, CLAIM),
    event("InvalidDoNotDisruptAnnotation", Warning, POD),
    event("DoNotDisruptUntil", Normal, POD),
    event("DoNotDisruptGracePeriodElapsed", Normal, POD),
    event(FINALIZED, Normal, &["Node", "NodeClaim", "AKSNodeClass"]),
    // Those of nap and of the Azure provider.
    event("Launching", Normal, CLAIM),
    event("Provisioned", Normal, CLAIM),
    event("AsyncProvisioningError", Warning, &["NodeClaim", "Pod"]),
    event("InitializationTimeout", Warning, CLAIM),
    event("InstanceNotFound", Warning, CLAIM),
    event("InstanceTerminating", Warning, CLAIM),
    event("UnmanagedInstance", Warning, CLAIM),
    event("SpotInterrupted", Warning, CLAIM),
    event("DriftHalted", Warning, POOL),
    event("DriftWave", Normal, POOL),
    event("InvalidAnnotation", Warning, POOL),
    event("ExtremePriceReachable", Warning, POOL),
    event("DryRunInvalid", Warning, POOL),
    event("ProvisioningDryRun", Normal, POOL),
    event("DisruptionDryRun", Normal, BOTH),
    event("WaitingOnNodeClaimTermination", Normal, &["AKSNodeClass"]),
];

/// Events of the incumbent that nap does not publish, and why. `docs/compatibility.md` lists them.
pub const MISSING: &[(&str, &str)] = &[
    (
        "ConsolidationCandidate",
        "nap decides about the whole fleet; `DisruptionTerminating` has the command and its saving",
    ),
    (
        "ConsolidationRejected",
        "a command that no longer stands is counted in \
         `karpenter_voluntary_disruption_failed_validations_total`",
    ),
    ("ConsolidationApproved", "`DisruptionTerminating` has the command and its saving"),
    ("RebootObserved", "nap does not reboot nodes"),
    ("RebootFailed", "nap does not reboot nodes"),
];

/// Conditions of the incumbent that nap does not set, and why. `docs/compatibility.md` lists them.
pub const MISSING_CONDITIONS: &[(&str, &str)] = &[
    ("NodeClaim `Rebooting`", "nap does not reboot nodes"),
    (
        "CapacityBuffer `ReadyForProvisioning`, `Provisioning`, `LimitedByQuotas`",
        "nap does not act on CapacityBuffers",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use nap_api::nodeclaim::condition as claim;
    use nap_api::{conditions, nodepool};

    /// Reasons of Karpenter v1.15.0 and its Azure provider: reason, type, kinds of the objects.
    const INCUMBENT: &str = "
        Nominated Normal Pod
        FailedScheduling Warning Pod
        NoCompatibleInstanceTypes Warning NodePool
        DisruptionLaunching Normal NodeClaim
        DisruptionWaitingReadiness Normal NodeClaim
        DisruptionTerminating Normal Node,NodeClaim
        DisruptionBlocked Normal Node,NodeClaim,NodePool
        Unconsolidatable Normal Node,NodeClaim
        ConsolidationCandidate Normal Node,NodeClaim
        ConsolidationRejected Normal Node,NodeClaim
        ConsolidationApproved Normal Node,NodeClaim,NodePool
        Evicted Normal Pod
        Disrupted Normal Pod
        FailedDraining Warning Node
        AwaitingVolumeDetachment Normal Node
        TerminationGracePeriodExpiring Warning Node,NodeClaim
        NodeRepairBlocked Warning Node,NodeClaim,NodePool
        FailedConsistencyCheck Warning NodeClaim
        InsufficientCapacityError Warning NodeClaim,Pod
        NodeClassNotReady Warning NodeClaim
        UnregisteredTaintMissing Warning NodeClaim
        InvalidDoNotDisruptAnnotation Warning Pod
        DoNotDisruptUntil Normal Pod
        DoNotDisruptGracePeriodElapsed Normal Pod
        RebootObserved Normal NodeClaim
        RebootFailed Warning NodeClaim
        Finalized Normal Node,NodeClaim,AKSNodeClass";

    #[test]
    fn every_event_of_the_incumbent_is_there_or_has_its_reason() {
        for line in INCUMBENT.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let [reason, severity, objects] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let excused = MISSING.iter().any(|(missing, _)| *missing == reason);
            let Some(own) = EVENTS.iter().find(|one| one.reason == reason) else {
                assert!(excused, "{reason} is neither there nor excused");
                continue;
            };
            assert!(!excused, "{reason} is there and excused");
            assert_eq!(own.severity.as_str(), severity, "{reason}");
            assert_eq!(own.objects, objects.split(',').collect::<Vec<_>>(), "{reason}");
        }
    }

    #[test]
    fn every_condition_of_the_incumbent_has_its_name() {
        let of_claims = [
            claim::LAUNCHED,
            claim::REGISTERED,
            claim::INITIALIZED,
            claim::CONSOLIDATABLE,
            claim::DRIFTED,
            claim::DISRUPTION_REASON,
            claim::DRAINED,
            claim::VOLUMES_DETACHED,
            claim::CONSISTENT_STATE_FOUND,
            claim::INSTANCE_TERMINATING,
            conditions::READY,
        ];
        let expected = "Launched Registered Initialized Consolidatable Drifted DisruptionReason \
                        Drained VolumesDetached ConsistentStateFound InstanceTerminating Ready";
        assert_eq!(of_claims.join(" "), expected);
        let of_pools = [
            nodepool::VALIDATION_SUCCEEDED,
            nodepool::NODE_CLASS_READY,
            nodepool::NODE_REGISTRATION_HEALTHY,
        ];
        assert_eq!(
            of_pools.join(" "),
            "ValidationSucceeded NodeClassReady NodeRegistrationHealthy"
        );
    }
}
