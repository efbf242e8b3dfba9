// Prints the in-place update hashes that the incumbent's own code gives to NodeClaims: reads a JSON
// list of cases on standard input, and writes the same list with a field "hash" in each.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	azure "github.com/Azure/karpenter-provider-azure/pkg/apis/v1beta1"
	"github.com/Azure/karpenter-provider-azure/pkg/controllers/nodeclaim/inplaceupdate"
	"github.com/Azure/karpenter-provider-azure/pkg/operator/options"
	core "sigs.k8s.io/karpenter/pkg/apis/v1"
)

type testCase struct {
	Name           string             `json:"name"`
	ClusterName    string             `json:"clusterName"`
	AdditionalTags map[string]string  `json:"additionalTags"`
	NodeClass      azure.AKSNodeClass `json:"nodeClass"`
	NodeClaim      core.NodeClaim     `json:"nodeClaim"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	var cases []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		return fmt.Errorf("standard input is no JSON list: %w", err)
	}
	out := make([]map[string]any, 0, len(cases))
	for index, raw := range cases {
		var object map[string]any
		if err := json.Unmarshal(raw, &object); err != nil {
			return fmt.Errorf("item %d: %w", index, err)
		}
		var one testCase
		if err := json.Unmarshal(raw, &one); err != nil {
			return fmt.Errorf("item %d: %w", index, err)
		}
		settings := &options.Options{ClusterName: one.ClusterName, AdditionalTags: one.AdditionalTags}
		hash, err := inplaceupdate.HashFromNodeClaim(settings, &one.NodeClaim, &one.NodeClass)
		if err != nil {
			return fmt.Errorf("item %d: %w", index, err)
		}
		object["hash"] = hash
		out = append(out, object)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(out)
}
