package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
)

// amounts are whole numbers of resources, as the problem format writes them.
type amounts struct {
	CPUMilli    int64            `json:"cpuMilli"`
	MemoryBytes int64            `json:"memoryBytes"`
	Pods        int64            `json:"pods"`
	Extended    map[string]int64 `json:"extended"`
}

type offering struct {
	Zone            string  `json:"zone"`
	CapacityType    string  `json:"capacityType"`
	PriceUsdPerHour float64 `json:"priceUsdPerHour"`
	Available       *bool   `json:"available"`
}

type instanceType struct {
	Name      string              `json:"name"`
	Arch      string              `json:"arch"`
	OS        []string            `json:"os"`
	Capacity  amounts             `json:"capacity"`
	Overhead  amounts             `json:"overhead"`
	Labels    map[string][]string `json:"labels"`
	Offerings []offering          `json:"offerings"`
}

type nodePool struct {
	Name         string                           `json:"name"`
	Weight       int32                            `json:"weight"`
	Labels       map[string]string                `json:"labels"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
	Taints       []corev1.Taint                   `json:"taints"`
	Limits       corev1.ResourceList              `json:"limits"`
}

// podClass is a number of equal pods.
type podClass struct {
	Name            string                            `json:"name"`
	Replicas        int                               `json:"replicas"`
	Namespace       string                            `json:"namespace"`
	Labels          map[string]string                 `json:"labels"`
	Requests        amounts                           `json:"requests"`
	NodeSelector    map[string]string                 `json:"nodeSelector"`
	NodeAffinity    []corev1.NodeSelectorTerm         `json:"nodeAffinity"`
	Tolerations     []corev1.Toleration               `json:"tolerations"`
	TopologySpread  []corev1.TopologySpreadConstraint `json:"topologySpread"`
	PodAffinity     []corev1.PodAffinityTerm          `json:"podAffinity"`
	PodAntiAffinity []corev1.PodAffinityTerm          `json:"podAntiAffinity"`
	DoNotDisrupt    bool                              `json:"doNotDisrupt"`
}

type existingNode struct {
	Name         string         `json:"name"`
	NodePool     string         `json:"nodePool"`
	InstanceType string         `json:"instanceType"`
	Zone         string         `json:"zone"`
	CapacityType string         `json:"capacityType"`
	Pods         map[string]int `json:"pods"`
}

// problem is one problem file. docs/problem-format.md says what the fields mean.
type problem struct {
	Version       int             `json:"version"`
	Name          string          `json:"name"`
	Recipe        json.RawMessage `json:"recipe"`
	InstanceTypes []instanceType  `json:"instanceTypes"`
	NodePools     []nodePool      `json:"nodePools"`
	Pods          []podClass      `json:"pods"`
	Daemons       []podClass      `json:"daemons"`
	Nodes         []existingNode  `json:"nodes"`
}

func readProblem(path string) (*problem, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var read problem
	if err := decoder.Decode(&read); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: something follows the problem", path)
	}
	if read.Version != 1 {
		return nil, fmt.Errorf("%s: version %d is not known, only 1 is", path, read.Version)
	}
	for _, kind := range read.InstanceTypes {
		for _, offer := range kind.Offerings {
			if offer.CapacityType == "reserved" {
				return nil, fmt.Errorf("%s: %s: reserved offerings need a reservation, which the format does not have", path, kind.Name)
			}
		}
	}
	return &read, nil
}
