// kubectl by itself. Tests call it thousands of times, and a program initializes every package that
// it is linked with, each time that it starts.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"

	// Client metrics, as Kubernetes' own main registers them.
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
