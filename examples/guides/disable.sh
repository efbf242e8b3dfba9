#!/bin/sh
# Turning node auto-provisioning off, as the AKS documentation describes it: limits of zero, a taint
# on the NodePools, room on fixed nodes, and in the end no node that nap manages.
#
#   nap try --speed 20 --system-nodes 3
#   export KUBECONFIG=…                     # as nap try prints it
#   sh examples/guides/disable.sh

. "$(dirname "$0")/library.sh"

managed() {
    kubectl get nodes -l karpenter.sh/nodepool -o name
}

fixed() {
    kubectl get nodes -l '!karpenter.sh/nodepool' --no-headers | grep ' Ready '
}

step "A cluster with fixed nodes, and a workload that needs more than they have"
eventually "3 fixed nodes are ready" counted 3 kubectl get nodes -l kubernetes.azure.com/agentpool=system --no-headers
kubectl apply -f "$(dirname "$0")/../inflate.yaml"
kubectl scale deployment inflate --replicas=14
eventually "14 pods run" counted 14 running
some() {
    [ -n "$(managed)" ]
}
eventually "some of them on nodes that nap manages" some
printed Launching kubectl get events -A --field-selector source=karpenter

step "1. Limits of zero: no new nodes, the others stay"
kubectl patch nodepool default --type merge -p '{"spec":{"limits":{"cpu":"0"}}}'
held=$(managed | grep -c .)
kubectl scale deployment inflate --replicas=30
waiting() {
    [ -n "$(kubectl get pods --field-selector=status.phase=Pending -o name)" ]
}
eventually "pods wait" waiting
counted "$held" managed
kubectl scale deployment inflate --replicas=14

step "2. The taint; with the comma of the documentation it is refused, and the reason is said"
taint() {
    kubectl patch nodepool default --type merge -p \
        "{\"spec\":{\"template\":{\"spec\":{\"taints\":[{\"key\":\"$1\",\"effect\":\"NoSchedule\"}]}}}}"
}
refused taints taint "karpenter.azure.com/disable,"
taint karpenter.azure.com/disable

step "3. Room on fixed nodes: two more of them, as a larger fixed pool would have"
for number in 1 2; do
    kubectl apply -f - <<YAML
apiVersion: v1
kind: Node
metadata:
  name: fixed-$number
status:
  capacity: { cpu: "8", memory: 32Gi, pods: "110" }
YAML
done
eventually "5 fixed nodes are ready" counted 5 fixed
empty() {
    [ -z "$(managed)" ]
}
eventually "4. no node that nap manages is left" empty
eventually "14 pods run on the fixed nodes" counted 14 running
counted 5 kubectl get nodes -o name
echo "== done; 5. is \`az aks update --node-provisioning-mode Manual\`"
