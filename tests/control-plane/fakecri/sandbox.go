package fakecri

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

// The time after which the processes of a pod are killed if they have not ended.
const sandboxGrace = 10 * time.Second

type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	starter starter
	streams streaming.Server

	// Guards the following fields and their contents.
	mutex      sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

type sandbox struct {
	id        string
	config    *cri.PodSandboxConfig
	handler   string
	createdAt int64
	state     cri.PodSandboxState
}

func newRuntimeService() *runtimeService {
	return &runtimeService{
		starter:    newStarter(),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
	}
}

func newID() string {
	id := make([]byte, 32)
	rand.Read(id)
	return hex.EncodeToString(id)
}

func (s *runtimeService) RunPodSandbox(
	_ context.Context, request *cri.RunPodSandboxRequest,
) (*cri.RunPodSandboxResponse, error) {
	made := &sandbox{
		id:        newID(),
		config:    request.GetConfig(),
		handler:   request.GetRuntimeHandler(),
		createdAt: time.Now().UnixNano(),
		state:     cri.PodSandboxState_SANDBOX_READY,
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.sandboxes[made.id] = made
	return &cri.RunPodSandboxResponse{PodSandboxId: made.id}, nil
}

func (s *runtimeService) StopPodSandbox(
	_ context.Context, request *cri.StopPodSandboxRequest,
) (*cri.StopPodSandboxResponse, error) {
	s.stopSandbox(request.GetPodSandboxId())
	return &cri.StopPodSandboxResponse{}, nil
}

func (s *runtimeService) RemovePodSandbox(
	_ context.Context, request *cri.RemovePodSandboxRequest,
) (*cri.RemovePodSandboxResponse, error) {
	id := request.GetPodSandboxId()
	members := s.stopSandbox(id)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, member := range members {
		delete(s.containers, member.id)
	}
	delete(s.sandboxes, id)
	return &cri.RemovePodSandboxResponse{}, nil
}

// stopSandbox ends the processes of the sandbox, if it exists, and returns its containers.
func (s *runtimeService) stopSandbox(id string) []*container {
	s.mutex.Lock()
	if found, ok := s.sandboxes[id]; ok {
		found.state = cri.PodSandboxState_SANDBOX_NOTREADY
	}
	var members []*container
	for _, one := range s.containers {
		if one.sandbox == id {
			members = append(members, one)
		}
	}
	s.mutex.Unlock()

	var ended sync.WaitGroup
	for _, member := range members {
		ended.Go(func() { s.stop(member, sandboxGrace) })
	}
	ended.Wait()
	return members
}

func (s *runtimeService) PodSandboxStatus(
	_ context.Context, request *cri.PodSandboxStatusRequest,
) (*cri.PodSandboxStatusResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found, ok := s.sandboxes[request.GetPodSandboxId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no sandbox %s", request.GetPodSandboxId())
	}
	// The kubelet replaces a sandbox whose options differ from the requested options.
	options := found.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{
		Id:             found.id,
		Metadata:       found.config.GetMetadata(),
		State:          found.state,
		CreatedAt:      found.createdAt,
		Network:        &cri.PodSandboxNetworkStatus{Ip: hostAddress()},
		Linux:          &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: options}},
		Labels:         found.config.GetLabels(),
		Annotations:    found.config.GetAnnotations(),
		RuntimeHandler: found.handler,
	}}, nil
}

func (s *runtimeService) ListPodSandbox(
	_ context.Context, request *cri.ListPodSandboxRequest,
) (*cri.ListPodSandboxResponse, error) {
	filter := request.GetFilter()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	response := &cri.ListPodSandboxResponse{}
	for _, one := range s.sandboxes {
		if filter.GetId() != "" && filter.GetId() != one.id ||
			filter.GetState() != nil && filter.GetState().GetState() != one.state ||
			!selects(filter.GetLabelSelector(), one.config.GetLabels()) {
			continue
		}
		response.Items = append(response.Items, &cri.PodSandbox{
			Id:             one.id,
			Metadata:       one.config.GetMetadata(),
			State:          one.state,
			CreatedAt:      one.createdAt,
			Labels:         one.config.GetLabels(),
			Annotations:    one.config.GetAnnotations(),
			RuntimeHandler: one.handler,
		})
	}
	return response, nil
}

// ListPodSandboxStats returns an empty list, because a pod uses only the resources of its containers.
func (*runtimeService) ListPodSandboxStats(
	context.Context, *cri.ListPodSandboxStatsRequest,
) (*cri.ListPodSandboxStatsResponse, error) {
	return &cri.ListPodSandboxStatsResponse{}, nil
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if present, ok := labels[key]; !ok || present != value {
			return false
		}
	}
	return true
}

// hostAddress returns an address at which other machines reach the host, if it has one.
func hostAddress() string {
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	return "127.0.0.1"
}
