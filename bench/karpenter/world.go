package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"
)

// world holds the objects of one run: the scheduler changes them, so every run has its own.
type world struct {
	client        client.Client
	cluster       *state.Cluster
	nodePools     []*v1.NodePool
	types         []*cloudprovider.InstanceType
	instanceTypes map[string][]*cloudprovider.InstanceType
	pending       []*corev1.Pod
	daemons       []*corev1.Pod
	// classOf says which class a pod belongs to.
	classOf map[types.UID]string
}

func (a amounts) list() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(a.CPUMilli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(a.MemoryBytes, resource.BinarySI),
	}
	if a.Pods != 0 {
		list[corev1.ResourcePods] = *resource.NewQuantity(a.Pods, resource.DecimalSI)
	}
	for name, amount := range a.Extended {
		list[corev1.ResourceName(name)] = *resource.NewQuantity(amount, resource.DecimalSI)
	}
	return list
}

// registerLabels makes every label that some type has a well-known one, as providers do when they
// start, and no other.
func registerLabels(read *problem) {
	v1.WellKnownLabels.Delete(corev1.LabelTopologyRegion, corev1.LabelWindowsBuild)
	for _, kind := range read.InstanceTypes {
		for key := range kind.Labels {
			v1.WellKnownLabels.Insert(key)
		}
	}
}

func newInstanceTypes(read *problem) []*cloudprovider.InstanceType {
	var made []*cloudprovider.InstanceType
	for i := range read.InstanceTypes {
		kind := &read.InstanceTypes[i]
		systems := kind.OS
		if len(systems) == 0 {
			systems = []string{"linux"}
		}
		requirements := scheduling.NewRequirements(
			scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, kind.Name),
			scheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, kind.Arch),
			scheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, systems...),
		)
		zones, capacityTypes := map[string]bool{}, map[string]bool{}
		var offerings cloudprovider.Offerings
		for _, offer := range kind.Offerings {
			available := offer.Available == nil || *offer.Available
			offerings = append(offerings, &cloudprovider.Offering{
				Available: available,
				Price:     offer.PriceUsdPerHour,
				Requirements: scheduling.NewRequirements(
					scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, offer.Zone),
					scheduling.NewRequirement(v1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, offer.CapacityType),
				),
			})
			if available {
				zones[offer.Zone], capacityTypes[offer.CapacityType] = true, true
			}
		}
		requirements.Add(
			scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, keys(zones)...),
			scheduling.NewRequirement(v1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, keys(capacityTypes)...),
		)
		for key, values := range kind.Labels {
			requirements.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...))
		}
		for key := range v1.WellKnownLabels {
			if !requirements.Has(key) && key != v1.NodePoolLabelKey {
				requirements.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist))
			}
		}
		made = append(made, &cloudprovider.InstanceType{
			Name:         kind.Name,
			Requirements: requirements,
			Offerings:    offerings,
			Capacity:     kind.Capacity.list(),
			Overhead:     &cloudprovider.InstanceTypeOverhead{KubeReserved: kind.Overhead.list()},
		})
	}
	return made
}

func newNodePool(pool *nodePool) *v1.NodePool {
	made := &v1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool.Name, UID: uuid.NewUUID()}}
	if pool.Weight != 0 {
		weight := pool.Weight
		made.Spec.Weight = &weight
	}
	made.Spec.Limits = v1.Limits(pool.Limits.DeepCopy())
	made.Spec.Template.Labels = map[string]string{}
	for key, value := range pool.Labels {
		made.Spec.Template.Labels[key] = value
	}
	for _, requirement := range pool.Requirements {
		made.Spec.Template.Spec.Requirements = append(made.Spec.Template.Spec.Requirements, v1.NodeSelectorRequirementWithMinValues{
			Key: requirement.Key, Operator: requirement.Operator, Values: requirement.Values,
		})
	}
	made.Spec.Template.Spec.Taints = append(made.Spec.Template.Spec.Taints, pool.Taints...)
	made.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{Group: v1alpha1.Group, Kind: "TestNodeClass", Name: "bench"}
	made.Spec.Disruption.ConsolidationPolicy = v1.ConsolidationPolicyWhenEmptyOrUnderutilized
	made.Spec.Disruption.ConsolidateAfter = v1.MustParseNillableDuration("0s")
	for _, condition := range []string{v1.ConditionTypeValidationSucceeded, v1.ConditionTypeNodeClassReady} {
		made.StatusConditions().SetTrue(condition)
	}
	return made
}

func newPod(class *podClass, number int, node string) *corev1.Pod {
	namespace := class.Namespace
	if namespace == "" {
		namespace = "default"
	}
	requests := class.Requests.list()
	delete(requests, corev1.ResourcePods)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", class.Name, number), Namespace: namespace, UID: uuid.NewUUID(), Labels: map[string]string{},
		},
		Spec: corev1.PodSpec{
			NodeName:     node,
			NodeSelector: class.NodeSelector,
			Tolerations:  class.Tolerations,
			Containers: []corev1.Container{{
				Name: "main", Image: "main", Resources: corev1.ResourceRequirements{Requests: requests},
			}},
			TopologySpreadConstraints: class.TopologySpread,
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for key, value := range class.Labels {
		pod.Labels[key] = value
	}
	if class.DoNotDisrupt {
		pod.Annotations = map[string]string{v1.DoNotDisruptAnnotationKey: "true"}
	}
	if node != "" {
		pod.Status.Phase = corev1.PodRunning
	}
	affinity := &corev1.Affinity{}
	if len(class.NodeAffinity) != 0 {
		affinity.NodeAffinity = &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: class.NodeAffinity},
		}
	}
	if len(class.PodAffinity) != 0 {
		affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: class.PodAffinity}
	}
	if len(class.PodAntiAffinity) != 0 {
		affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: class.PodAntiAffinity}
	}
	pod.Spec.Affinity = affinity
	// The objects share nothing with the problem, so that no run sees what another one changed.
	return pod.DeepCopy()
}

// newNode makes an existing node the way it looks once it is up, and its claim.
func newNode(node *existingNode, pool *v1.NodePool, kind *cloudprovider.InstanceType) (*corev1.Node, *v1.NodeClaim) {
	labels := map[string]string{
		corev1.LabelHostname:       node.Name,
		corev1.LabelTopologyZone:   node.Zone,
		v1.CapacityTypeLabelKey:    node.CapacityType,
		v1.NodePoolLabelKey:        pool.Name,
		v1.NodeRegisteredLabelKey:  "true",
		v1.NodeInitializedLabelKey: "true",
	}
	wanted := scheduling.NewNodeSelectorRequirementsWithMinValues(pool.Spec.Template.Spec.Requirements...)
	for key, requirement := range kind.Requirements {
		if requirement.Operator() != corev1.NodeSelectorOpIn || labels[key] != "" {
			continue
		}
		for _, value := range sorted(requirement.Values()) {
			if (!wanted.Has(key) || wanted.Get(key).Has(value)) && (labels[key] == "" || value == "linux") {
				labels[key] = value
			}
		}
	}
	for key, value := range pool.Spec.Template.Labels {
		labels[key] = value
	}
	provider := "bench://" + node.Name
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: provider, Taints: pool.Spec.Template.Spec.Taints},
		Status: corev1.NodeStatus{
			Capacity:    kind.Capacity.DeepCopy(),
			Allocatable: kind.Allocatable().DeepCopy(),
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	claim := &v1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: labels},
		Status: v1.NodeClaimStatus{
			ProviderID: provider, NodeName: node.Name, Capacity: made.Status.Capacity, Allocatable: made.Status.Allocatable,
		},
	}
	claim.Spec.NodeClassRef = pool.Spec.Template.Spec.NodeClassRef
	for _, condition := range []string{
		v1.ConditionTypeLaunched, v1.ConditionTypeRegistered, v1.ConditionTypeInitialized, v1.ConditionTypeConsolidatable,
	} {
		claim.StatusConditions().SetTrue(condition)
	}
	return made, claim
}

func newDaemonSet(pod *corev1.Pod) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: uuid.NewUUID()},
		Spec: appsv1.DaemonSetSpec{
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}
}

// newWorld makes fresh objects. None of this is timed.
func newWorld(ctx context.Context, read *problem) (*world, error) {
	made := &world{instanceTypes: map[string][]*cloudprovider.InstanceType{}, classOf: map[types.UID]string{}}
	types := newInstanceTypes(read)
	made.types = types
	pools := map[string]*v1.NodePool{}
	for i := range read.NodePools {
		pool := newNodePool(&read.NodePools[i])
		made.nodePools = append(made.nodePools, pool)
		made.instanceTypes[pool.Name] = types
		pools[pool.Name] = pool
	}
	nodepoolutils.OrderByWeight(made.nodePools)

	classes := map[string]*podClass{}
	for i := range read.Pods {
		class := &read.Pods[i]
		classes[class.Name] = class
		for number := range class.Replicas {
			pod := newPod(class, number, "")
			made.pending = append(made.pending, pod)
			made.classOf[pod.UID] = class.Name
		}
	}
	for i := range read.Daemons {
		made.daemons = append(made.daemons, newPod(&read.Daemons[i], 0, ""))
	}

	builder := fake.NewClientBuilder().WithScheme(clientscheme.Scheme)
	reader := &cacheReader{pods: map[string][]*corev1.Pod{}, nodes: map[string]*corev1.Node{}, pools: made.nodePools}
	namespaces := map[string]bool{}
	for _, class := range classes {
		name := class.Namespace
		if name == "" {
			name = "default"
		}
		namespaces[name] = true
	}
	for name := range namespaces {
		labels := map[string]string{corev1.LabelMetadataName: name}
		builder = builder.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	var nodes []*corev1.Node
	var claims []*v1.NodeClaim
	var running []*corev1.Pod
	for i := range read.Nodes {
		node := &read.Nodes[i]
		var kind *cloudprovider.InstanceType
		for _, candidate := range types {
			if candidate.Name == node.InstanceType {
				kind = candidate
			}
		}
		pool := pools[node.NodePool]
		if kind == nil || pool == nil {
			return nil, fmt.Errorf("node %s: its type or its pool does not exist", node.Name)
		}
		object, claim := newNode(node, pool, kind)
		nodes, claims = append(nodes, object), append(claims, claim)
		reader.nodes[object.Name] = object
		for name, count := range node.Pods {
			class := classes[name]
			if class == nil {
				return nil, fmt.Errorf("node %s: class %s does not exist", node.Name, name)
			}
			for number := range count {
				pod := newPod(class, number, node.Name)
				pod.Name = fmt.Sprintf("%s-on-%s-%d", class.Name, node.Name, number)
				running = append(running, pod)
				made.classOf[pod.UID] = class.Name
				reader.pods[node.Name] = append(reader.pods[node.Name], pod)
			}
		}
	}
	for _, daemon := range made.daemons {
		reader.daemonSets = append(reader.daemonSets, newDaemonSet(daemon))
	}
	reader.Client = builder.Build()
	made.client = reader
	made.cluster = state.NewCluster(clock.RealClock{}, made.client, &provider{types: types})
	for i, node := range nodes {
		made.cluster.UpdateNodeClaim(claims[i])
		if err := made.cluster.UpdateNode(ctx, node); err != nil {
			return nil, err
		}
	}
	for _, pod := range running {
		if err := made.cluster.UpdatePod(ctx, pod); err != nil {
			return nil, err
		}
	}
	return made, nil
}
