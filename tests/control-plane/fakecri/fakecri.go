// Package fakecri is a container runtime without containers.
//
// A container is a process in the namespaces of the runtime, with the runtime's files, network and user:
//
//   - A host path is available only at the same path, as in the static pods of kubeadm. Other mounts do not exist.
//   - Images do not exist. The first word of the command, or the name of the image, is a program on the host.
//   - Security contexts have no effect, and each pod uses the host's network.
//   - A terminal is a pair of pipes.
//
// The processes of a container end with the container, with its pod, and with the runtime.
//
// Calls that neither a kubelet nor kubeadm makes fail with Unimplemented.
package fakecri

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

// Main serves on the unix socket of the flag --socket until the process is killed. The socket must not exist. Main returns the
// exit code.
func Main(arguments []string) int {
	flags := flag.NewFlagSet("fakecri", flag.ContinueOnError)
	socket := flags.String("socket", "", "path of the unix socket to create and serve on")
	if err := flags.Parse(arguments); err != nil {
		return 2
	}

	if err := serve(*socket); err != nil {
		fmt.Fprintf(os.Stderr, "fakecri: %v\n", err)
		return 1
	}
	return 0
}

func serve(socket string) error {
	service := newRuntimeService()
	if err := service.serveStreams(); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, service)
	cri.RegisterImageServiceServer(server, imageService{})
	return server.Serve(listener)
}

// serveStreams serves the streams of Exec and PortForward on a loopback port. The kubelet gets the address in the response to
// these calls, and connects its clients to this port.
func (s *runtimeService) serveStreams() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	s.streams, err = streaming.NewServer(config, streams{s})
	if err != nil {
		return err
	}
	go func() {
		fmt.Fprintf(os.Stderr, "fakecri: streams: %v\n", http.Serve(listener, s.streams))
	}()
	return nil
}
