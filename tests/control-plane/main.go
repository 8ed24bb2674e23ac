// The control plane for the tests. One program contains the components of one Kubernetes version, the etcd for this
// version, and a container runtime without containers. kubectl is a separate program.
//
// The program acts as the component that the name of its link selects. `build` creates one link for each component.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmerrors "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// Register log formats and client metrics, as the main packages of Kubernetes do.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"kubelet-authenticator.test/control-plane/fakecri"
)

// applets maps each name to its function, which returns the exit code.
var applets = map[string]func() int{
	"etcd":                    runEtcd,
	"fakecri":                 func() int { return fakecri.Main(os.Args[1:]) },
	"kube-apiserver":          command(kubeapiserver.NewAPIServerCommand),
	"kube-controller-manager": command(kubecontrollermanager.NewControllerManagerCommand),
	"kube-scheduler": command(func() *cobra.Command {
		return kubescheduler.NewSchedulerCommand()
	}),
	"kubeadm": runKubeadm,
	"kubelet": command(func() *cobra.Command {
		return kubelet.NewKubeletCommand(context.Background())
	}),
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

// runKubeadm runs kubeadm, which parses the flags and prints its errors, and returns kubeadm's own exit codes.
func runKubeadm() int {
	kubeadmerrors.HandleError(kubeadm.Run())
	return 0
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}
