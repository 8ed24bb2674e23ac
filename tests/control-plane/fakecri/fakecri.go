// Package fakecri is a container runtime without containers.
//
// A container is its command: a process in the runtime's own namespaces, with the runtime's files,
// network and user. So a path of the host that a pod mounts where it is, as kubeadm's static pods do,
// is there; no other mount is, no image is (the first word of the command is a program of the host, and
// without a command the image's name is), and no security context is in force. A pod has the host's
// network, whether it asks for that or not. A terminal is a pair of pipes.
//
// What a container runs ends with its container, with its pod, and with the runtime.
//
// Calls that no kubelet or kubeadm makes for that end with Unimplemented.
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

// Main serves on the unix socket that the flag --socket names, which must not exist, until the
// process is killed. It returns the exit code.
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

// serveStreams serves what the kubelet connects its clients with, on a port of loopback: its address
// is in the answer to a call of Exec or PortForward.
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
