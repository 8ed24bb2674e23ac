// Reads a provider's manifests as Kustomize prints them, and prints what of them an API server needs where the manager is a
// process beside it and not a Deployment: one List, in JSON, in the order in which it can be applied.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// variable is what clusterctl would replace: the default is what a user gets who sets none.
var variable = regexp.MustCompile(`\$\{[A-Z0-9_]+:=([^}]*)\}`)

// left is what the manager as a process has no use for: its certificates come from who starts it.
var left = []string{"Deployment", "Service", "Certificate", "Issuer"}

// turn says when a kind is applied: what others are in or of comes first, and what the API server would call comes last.
func turn(kind any) int {
	switch kind {
	case "Namespace":
		return 0
	case "CustomResourceDefinition":
		return 1
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		return 3
	default:
		return 2
	}
}

func main() {
	if err := convert(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func convert(in io.Reader, out io.Writer) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(in))
	var items []map[string]any
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var object map[string]any
		if err := sigsyaml.Unmarshal(variable.ReplaceAll(document, []byte("$1")), &object); err != nil {
			return err
		}
		if kind, _ := object["kind"].(string); object != nil && !slices.Contains(left, kind) {
			items = append(items, object)
		}
	}
	slices.SortStableFunc(items, func(a, b map[string]any) int { return turn(a["kind"]) - turn(b["kind"]) })
	return json.NewEncoder(out).Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}
