// The programs of an older Kubernetes: those whose version matters to nodes that join and are upgraded.
//
// The program acts as the component whose name it is called by; `build` puts a link of each name
// beside it.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"

	// What Kubernetes' own mains register by import: log formats and client metrics.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// applets maps a name to what runs under it; each returns the exit code.
var applets = map[string]func() int{
	"kube-apiserver":          command(kubeapiserver.NewAPIServerCommand),
	"kube-controller-manager": command(kubecontrollermanager.NewControllerManagerCommand),
	"kube-scheduler": command(func() *cobra.Command {
		return kubescheduler.NewSchedulerCommand()
	}),
	"kubeadm": runKubeadm,
	"kubelet": command(newKubelet),
}

func main() {
	run, found := applets[filepath.Base(os.Args[0])]
	if !found {
		names := slices.Sorted(maps.Keys(applets))
		fmt.Fprintf(os.Stderr, "call this through a link named as one of %v\n", names)
		os.Exit(2)
	}
	os.Exit(run())
}

// command defers building a command, and registering its flags, until it is the one that runs.
func command(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

// runKubeadm lets kubeadm parse the flags. Its exit codes tell errors apart, which nobody here asks for.
func runKubeadm() int {
	if err := kubeadm.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
