// The fake container runtime as a separate program, for use with existing Kubernetes components.
package main

import (
	"os"

	"kubelet-authenticator.test/control-plane/fakecri"
)

func main() {
	os.Exit(fakecri.Main(os.Args[1:]))
}
