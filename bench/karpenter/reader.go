package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"
)

// cacheReader answers the reads of Karpenter's controllers from memory the way controller-runtime's
// cache does: by index, filtered, and copied. The fake client encodes every object for every list,
// which would be most of the time that is measured. It has what is left: namespaces.
type cacheReader struct {
	client.Client
	// pods are the running pods by node; pending ones are given to the scheduler directly.
	pods       map[string][]*corev1.Pod
	nodes      map[string]*corev1.Node
	pools      []*v1.NodePool
	daemonSets []*appsv1.DaemonSet
}

func (c *cacheReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var asked client.ListOptions
	asked.ApplyOptions(opts)
	switch list := list.(type) {
	case *corev1.PodList:
		return c.listPods(list, &asked)
	case *v1.NodePoolList:
		for _, pool := range c.pools {
			list.Items = append(list.Items, *pool.DeepCopy())
		}
	case *appsv1.DaemonSetList:
		for _, set := range c.daemonSets {
			list.Items = append(list.Items, *set.DeepCopy())
		}
	case *policyv1.PodDisruptionBudgetList:
	default:
		return c.Client.List(ctx, list, opts...)
	}
	return nil
}

func (c *cacheReader) listPods(list *corev1.PodList, asked *client.ListOptions) error {
	var groups [][]*corev1.Pod
	if asked.FieldSelector != nil {
		name, exact := asked.FieldSelector.RequiresExactMatch("spec.nodeName")
		if !exact {
			return fmt.Errorf("pods have no index for %s", asked.FieldSelector)
		}
		groups = append(groups, c.pods[name])
	} else {
		for _, group := range c.pods {
			groups = append(groups, group)
		}
	}
	for _, pod := range slices.Concat(groups...) {
		if asked.Namespace != "" && pod.Namespace != asked.Namespace {
			continue
		}
		if asked.LabelSelector != nil && !asked.LabelSelector.Matches(labelSet(pod.Labels)) {
			continue
		}
		list.Items = append(list.Items, *pod.DeepCopy())
	}
	return nil
}

// labelSet reads labels for a selector.
type labelSet map[string]string

func (l labelSet) Has(key string) bool { _, has := l[key]; return has }

func (l labelSet) Get(key string) string { return l[key] }

func (l labelSet) Lookup(key string) (string, bool) { value, has := l[key]; return value, has }

func (c *cacheReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	switch object := object.(type) {
	case *corev1.Node:
		node := c.nodes[key.Name]
		if node == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
		}
		node.DeepCopyInto(object)
		return nil
	case *v1.NodePool:
		for _, pool := range c.pools {
			if pool.Name == key.Name {
				pool.DeepCopyInto(object)
				return nil
			}
		}
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodepools"}, key.Name)
	}
	return c.Client.Get(ctx, key, object, opts...)
}

// provider sells the types of the problem. Nothing is ever launched.
type provider struct{ types []*cloudprovider.InstanceType }

var errNotHere = fmt.Errorf("the benchmark launches nothing")

func (p *provider) Create(context.Context, *v1.NodeClaim) (*v1.NodeClaim, error) {
	return nil, errNotHere
}
func (p *provider) Delete(context.Context, *v1.NodeClaim) error { return errNotHere }
func (p *provider) Get(context.Context, string) (*v1.NodeClaim, error) {
	return nil, errNotHere
}
func (p *provider) List(context.Context) ([]*v1.NodeClaim, error) { return nil, errNotHere }

func (p *provider) GetInstanceTypes(context.Context, *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	return p.types, nil
}

func (p *provider) IsDrifted(context.Context, *v1.NodeClaim) (cloudprovider.DriftReason, error) {
	return "", nil
}
func (p *provider) Reboot(context.Context, *v1.NodeClaim, string) error { return errNotHere }
func (p *provider) RepairPolicies() []cloudprovider.RepairPolicy        { return nil }
func (p *provider) Name() string                                        { return "bench" }
func (p *provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.TestNodeClass{}}
}
