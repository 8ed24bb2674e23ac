// kubectl as a separate program. Tests call kubectl thousands of times, and each start of a program initializes all packages
// that are linked to the program.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"

	// Register client metrics, as the main package of Kubernetes does.
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
