#!/bin/sh
# From an empty cluster to nodes for pods, spot, consolidation and a GPU: the kubectl commands of a
# published tutorial for node auto-provisioning, with its manifests as they are written there.
#
#   nap try --speed 20 --retired-sizes     # the tutorial's GPU sizes are retired
#   export KUBECONFIG=…                     # as nap try prints it
#   sh examples/guides/first-steps.sh

. "$(dirname "$0")/library.sh"

step "A NodePool, in the old version that the tutorial has"
kubectl delete nodepool default --ignore-not-found
kubectl apply -f - <<'YAML'
apiVersion: karpenter.sh/v1alpha5
kind: NodePool
metadata:
  name: general-purpose
spec:
  template:
    spec:
      requirements:
        - key: kubernetes.io/arch
          operator: In
          values:
            - amd64
        - key: karpenter.sh/capacity-type
          operator: In
          values:
            - on-demand
            - spot
        - key: node.kubernetes.io/instance-type
          operator: In
          values:
            - Standard_D2s_v5
            - Standard_D4s_v5
            - Standard_D8s_v5
            - Standard_D16s_v5
            - Standard_D2as_v5
            - Standard_D4as_v5
            - Standard_D8as_v5
      nodeClassRef:
        name: default
  disruption:
    consolidationPolicy: WhenUnderutilized
    expireAfter: 720h
  limits:
    cpu: "100"
    memory: 400Gi
YAML

step "An AKSNodeClass; the tutorial's placeholder for the subscription is refused"
class() {
    cat <<YAML
apiVersion: karpenter.azure.com/v1alpha2
kind: AKSNodeClass
metadata:
  name: default
spec:
  vnetSubnetID: /subscriptions/$1/resourceGroups/nap-demo-rg/providers/Microsoft.Network/virtualNetworks/nap-vnet/subnets/aks-subnet
  osDiskSizeGB: 128
YAML
}
applied() {
    class "$1" | kubectl apply -f -
}
refused "vnetSubnetID still has a placeholder" applied '<sub-id>'
applied 12345678-1234-1234-1234-123456789012
eventually "the NodePool is ready" printed True kubectl get nodepool general-purpose

step "A deployment for which no node has room"
kubectl apply -f "$(dirname "$0")/../inflate.yaml"
eventually "10 pods run" counted 10 running
eventually "nodes have joined" printed Ready kubectl get nodes
kubectl get nodes -l karpenter.sh/nodepool -o wide

step "A NodePool of spot nodes with a weight"
kubectl apply -f - <<'YAML'
apiVersion: karpenter.sh/v1alpha5
kind: NodePool
metadata:
  name: spot-priority
spec:
  template:
    spec:
      requirements:
        - key: kubernetes.io/arch
          operator: In
          values:
            - amd64
        - key: karpenter.sh/capacity-type
          operator: In
          values:
            - spot
        - key: node.kubernetes.io/instance-type
          operator: In
          values:
            - Standard_D4s_v5
            - Standard_D8s_v5
            - Standard_D4as_v5
            - Standard_D8as_v5
      nodeClassRef:
        name: default
  disruption:
    consolidationPolicy: WhenUnderutilized
  limits:
    cpu: "50"
    memory: 200Gi
  weight: 10
YAML
eventually "it is ready" printed True kubectl get nodepool spot-priority
kubectl scale deployment inflate --replicas=16
eventually "16 pods run" counted 16 running
printed node/ kubectl get nodes -l karpenter.sh/nodepool=spot-priority,karpenter.sh/capacity-type=spot -o name

step "Consolidation: 2 of 16 pods need fewer nodes"
before=$(kubectl get nodes -o name | grep -c .)
kubectl scale deployment inflate --replicas=2
eventually "2 pods are left" counted 2 running
fewer() {
    [ "$(kubectl get nodeclaims -o name | grep -c .)" -le 1 ]
}
eventually "of $before node(s) one is left" fewer

step "A GPU workload gets a GPU node, and only while it runs"
kubectl apply -f - <<'YAML'
apiVersion: karpenter.sh/v1alpha5
kind: NodePool
metadata:
  name: gpu-workloads
spec:
  template:
    spec:
      requirements:
        - key: karpenter.sh/capacity-type
          operator: In
          values:
            - on-demand
        - key: node.kubernetes.io/instance-type
          operator: In
          values:
            - Standard_NC6s_v3
            - Standard_NC12s_v3
            - Standard_NC24s_v3
      nodeClassRef:
        name: default
      taints:
        - key: nvidia.com/gpu
          value: "true"
          effect: NoSchedule
  limits:
    cpu: "24"
    memory: 448Gi
YAML
kubectl apply -f - <<'YAML'
apiVersion: v1
kind: Pod
metadata:
  name: train
  labels: { app: train }
spec:
  tolerations:
    - key: nvidia.com/gpu
      operator: Exists
  containers:
    - name: train
      image: registry.example.com/train:1
      resources:
        limits: { nvidia.com/gpu: "1" }
YAML
kubectl wait --for=condition=Ready pod/train --timeout=120s
printed Standard_NC6s_v3 kubectl get nodes -L node.kubernetes.io/instance-type
kubectl delete pod train
gone() {
    [ -z "$(kubectl get nodeclaims -l karpenter.sh/nodepool=gpu-workloads -o name)" ]
}
eventually "the GPU node is gone" gone

step "What can be seen"
printed Provisioned kubectl get events --field-selector reason=Provisioned
kubectl get nodes -l karpenter.sh/nodepool -o wide
printed CPU kubectl top nodes
kubectl scale deployment inflate --replicas=0
none() {
    [ -z "$(kubectl get nodeclaims -o name)" ]
}
eventually "no pods, no nodes" none
echo "== done"
