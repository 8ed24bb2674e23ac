// Package fakecri is a container runtime without containers.
//
// It answers the calls that a kubelet makes whether or not a pod is scheduled to it, so that the
// kubelet registers its Node, renews its Lease and reports itself ready. Every other call of the
// container runtime interface ends with Unimplemented.
package fakecri

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, runtimeService{})
	cri.RegisterImageServiceServer(server, imageService{})
	return server.Serve(listener)
}

type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
}

func (runtimeService) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       "fakecri",
		RuntimeVersion:    "1.0.0",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status reports the two conditions without which a kubelet calls its Node not ready.
func (runtimeService) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	ready := func(kind string) *cri.RuntimeCondition {
		return &cri.RuntimeCondition{Type: kind, Status: true}
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{
		Conditions: []*cri.RuntimeCondition{ready(cri.RuntimeReady), ready(cri.NetworkReady)},
	}}, nil
}

func (runtimeService) RuntimeConfig(
	context.Context, *cri.RuntimeConfigRequest,
) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{
		Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS},
	}, nil
}

func (runtimeService) UpdateRuntimeConfig(
	context.Context, *cri.UpdateRuntimeConfigRequest,
) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}

func (runtimeService) ListPodSandbox(
	context.Context, *cri.ListPodSandboxRequest,
) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{}, nil
}

func (runtimeService) ListContainers(
	context.Context, *cri.ListContainersRequest,
) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{}, nil
}

func (runtimeService) ListContainerStats(
	context.Context, *cri.ListContainerStatsRequest,
) (*cri.ListContainerStatsResponse, error) {
	return &cri.ListContainerStatsResponse{}, nil
}

func (runtimeService) ListPodSandboxStats(
	context.Context, *cri.ListPodSandboxStatsRequest,
) (*cri.ListPodSandboxStatsResponse, error) {
	return &cri.ListPodSandboxStatsResponse{}, nil
}

type imageService struct {
	cri.UnimplementedImageServiceServer
}

func (imageService) ListImages(
	context.Context, *cri.ListImagesRequest,
) (*cri.ListImagesResponse, error) {
	return &cri.ListImagesResponse{}, nil
}

// ImageFsInfo claims an all but empty image file system on the root mount: with none at all the
// kubelet reports its image garbage collector as broken.
func (imageService) ImageFsInfo(
	context.Context, *cri.ImageFsInfoRequest,
) (*cri.ImageFsInfoResponse, error) {
	root := []*cri.FilesystemUsage{{
		Timestamp:  1,
		FsId:       &cri.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes:  &cri.UInt64Value{Value: 1},
		InodesUsed: &cri.UInt64Value{Value: 1},
	}}
	return &cri.ImageFsInfoResponse{ImageFilesystems: root, ContainerFilesystems: root}, nil
}
