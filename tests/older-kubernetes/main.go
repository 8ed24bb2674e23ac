// The programs of an older Kubernetes version that affect how nodes join and how they are upgraded.
//
// The program acts as the component that the name of its link selects. `build` creates one link for each component.
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

	// Register log formats and client metrics, as the main packages of Kubernetes do.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// applets maps each name to its function, which returns the exit code.
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

// command builds a command and registers its flags only when this command runs.
func command(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

// runKubeadm runs kubeadm, which parses the flags. The tests do not use kubeadm's exit codes.
func runKubeadm() int {
	if err := kubeadm.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
