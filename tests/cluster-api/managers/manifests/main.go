// Reads a provider's manifests from Kustomize, and prints the objects that an API server needs if the manager is a local
// process instead of a Deployment. The output is one List in JSON. The objects are in the order in which they can be applied.
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

// variable is a variable that clusterctl would replace. Its default applies if a user does not set the variable.
var variable = regexp.MustCompile(`\$\{[A-Z0-9_]+:=([^}]*)\}`)

// left lists the kinds that a local process does not need. The tests give the process its certificates.
var left = []string{"Deployment", "Service", "Certificate", "Issuer"}

// turn returns the position of a kind in the order: namespaces and definitions are first, and webhooks are last.
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
