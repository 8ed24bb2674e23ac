// The fake container runtime alone, for use beside ready-made Kubernetes components.
package main

import (
	"os"

	"kubelet-authenticator.test/control-plane/fakecri"
)

func main() {
	os.Exit(fakecri.Main(os.Args[1:]))
}
