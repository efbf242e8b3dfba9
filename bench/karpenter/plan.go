package main

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	provisioning "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
)

type plannedNode struct {
	NodePool        string         `json:"nodePool"`
	InstanceType    string         `json:"instanceType"`
	Zone            string         `json:"zone"`
	OpenZones       []string       `json:"openZones,omitempty"`
	CapacityType    string         `json:"capacityType"`
	PriceUsdPerHour float64        `json:"priceUsdPerHour"`
	Pods            map[string]int `json:"pods"`
}

// plan is one plan file.
type plan struct {
	Nodes    []plannedNode             `json:"nodes"`
	Existing map[string]map[string]int `json:"existing"`
	Unplaced map[string]int            `json:"unplaced"`
}

func keys(set map[string]bool) []string {
	var list []string
	for key := range set {
		list = append(list, key)
	}
	slices.Sort(list)
	return list
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

func (w *world) count(pods []*corev1.Pod) map[string]int {
	counts := map[string]int{}
	for _, pod := range pods {
		counts[w.classOf[pod.UID]]++
	}
	return counts
}

// chosen is what the provider would launch: the cheapest offering that the claim still admits.
func chosen(claim *provisioning.NodeClaim) (*cloudprovider.InstanceType, *cloudprovider.Offering) {
	var kind *cloudprovider.InstanceType
	var best *cloudprovider.Offering
	price := math.Inf(1)
	for _, candidate := range claim.InstanceTypeOptions {
		for _, offer := range candidate.Offerings.Available().Compatible(claim.Requirements) {
			if offer.Price < price {
				kind, best, price = candidate, offer, offer.Price
			}
		}
	}
	return kind, best
}

// newPlan turns results into the plan file's form.
func (w *world) newPlan(read *problem, results provisioning.Results) plan {
	made := plan{Nodes: []plannedNode{}, Existing: map[string]map[string]int{}, Unplaced: map[string]int{}}
	for _, class := range read.Pods {
		if class.Replicas > 0 {
			made.Unplaced[class.Name] = class.Replicas
		}
	}
	place := func(counts map[string]int) {
		for name, count := range counts {
			made.Unplaced[name] -= count
			if made.Unplaced[name] == 0 {
				delete(made.Unplaced, name)
			}
		}
	}
	for _, claim := range results.NewNodeClaims {
		kind, offer := chosen(claim)
		if kind == nil {
			continue
		}
		node := plannedNode{
			NodePool:        claim.NodePoolName,
			InstanceType:    kind.Name,
			Zone:            offer.Zone(),
			CapacityType:    offer.CapacityType(),
			PriceUsdPerHour: offer.Price,
			Pods:            w.count(claim.Pods),
		}
		open := map[string]bool{}
		for _, other := range kind.Offerings.Available().Compatible(claim.Requirements) {
			if other.CapacityType() == offer.CapacityType() {
				open[other.Zone()] = true
			}
		}
		if len(open) > 1 {
			node.OpenZones = keys(open)
		}
		place(node.Pods)
		made.Nodes = append(made.Nodes, node)
	}
	slices.SortStableFunc(made.Nodes, func(a, b plannedNode) int {
		return strings.Compare(a.InstanceType, b.InstanceType)
	})
	for _, node := range results.ExistingNodes {
		if counts := w.count(node.Pods); len(counts) != 0 {
			made.Existing[node.Name()] = counts
			place(counts)
		}
	}
	return made
}

func (p *plan) cost() float64 {
	total := 0.0
	for _, node := range p.Nodes {
		total += node.PriceUsdPerHour
	}
	return total
}

func (p *plan) unplaced() int {
	total := 0
	for _, count := range p.Unplaced {
		total += count
	}
	return total
}

func (p *plan) write(path string) error {
	content, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
