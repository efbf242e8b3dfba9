//go:build tools

// Package karpenter names Karpenter's end-to-end suites, so that go.sum covers what they import.
package karpenter

import (
	_ "sigs.k8s.io/karpenter/test/pkg/environment/common"
)
