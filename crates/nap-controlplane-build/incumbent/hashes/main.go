// Prints the hashes that the incumbent's own code gives to objects: reads a JSON list of NodePools
// and AKSNodeClasses on standard input, and writes the same list with a field "hash" in each.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	azure "github.com/Azure/karpenter-provider-azure/pkg/apis/v1beta1"
	core "sigs.k8s.io/karpenter/pkg/apis/v1"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		return fmt.Errorf("standard input is no JSON list: %w", err)
	}
	out := make([]map[string]any, 0, len(objects))
	for index, raw := range objects {
		var object map[string]any
		if err := json.Unmarshal(raw, &object); err != nil {
			return fmt.Errorf("item %d: %w", index, err)
		}
		hash, err := hashOf(object["kind"], raw)
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

func hashOf(kind any, raw []byte) (string, error) {
	switch kind {
	case "NodePool":
		var pool core.NodePool
		if err := json.Unmarshal(raw, &pool); err != nil {
			return "", err
		}
		return pool.Hash(), nil
	case "AKSNodeClass":
		var class azure.AKSNodeClass
		if err := json.Unmarshal(raw, &class); err != nil {
			return "", err
		}
		return class.Hash(), nil
	default:
		return "", fmt.Errorf("kind %v has no hash", kind)
	}
}
