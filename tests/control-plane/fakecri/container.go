package fakecri

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type container struct {
	id        string
	sandbox   string
	config    *cri.ContainerConfig
	log       *logFile
	createdAt int64
	// Nil before the container starts.
	process *process
}

func (c *container) state() cri.ContainerState {
	switch {
	case c.process == nil:
		return cri.ContainerState_CONTAINER_CREATED
	case c.process.hasEnded():
		return cri.ContainerState_CONTAINER_EXITED
	default:
		return cri.ContainerState_CONTAINER_RUNNING
	}
}

// words returns the container's command with its arguments. The default command of an image is the name of the image.
func words(config *cri.ContainerConfig) []string {
	all := slices.Clone(config.GetCommand())
	if len(all) == 0 {
		name, _, _ := strings.Cut(path.Base(config.GetImage().GetImage()), ":")
		all = []string{name}
	}
	return append(all, config.GetArgs()...)
}

// command returns a process of this container, which is not started yet, with these words as its arguments.
func (c *container) command(words []string) *exec.Cmd {
	command := exec.Command(words[0], words[1:]...)
	command.Dir = c.config.GetWorkingDir()
	command.Env = os.Environ()
	for _, variable := range c.config.GetEnvs() {
		command.Env = append(command.Env, variable.GetKey()+"="+string(variable.GetValue()))
	}
	return command
}

func (s *runtimeService) find(id string) (*container, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found, ok := s.containers[id]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no container %s", id)
	}
	return found, nil
}

func (s *runtimeService) CreateContainer(
	_ context.Context, request *cri.CreateContainerRequest,
) (*cri.CreateContainerResponse, error) {
	config := request.GetConfig()
	made := &container{
		id:        newID(),
		sandbox:   request.GetPodSandboxId(),
		config:    config,
		createdAt: time.Now().UnixNano(),
		log: &logFile{path: filepath.Join(
			request.GetSandboxConfig().GetLogDirectory(), config.GetLogPath())},
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, ok := s.sandboxes[made.sandbox]; !ok {
		return nil, status.Errorf(codes.NotFound, "no sandbox %s", made.sandbox)
	}
	s.containers[made.id] = made
	return &cri.CreateContainerResponse{ContainerId: made.id}, nil
}

func (s *runtimeService) StartContainer(
	_ context.Context, request *cri.StartContainerRequest,
) (*cri.StartContainerResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found, ok := s.containers[request.GetContainerId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no container %s", request.GetContainerId())
	}
	if found.process != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s was started", found.id)
	}
	home := s.sandboxes[found.sandbox]
	if home == nil || home.state != cri.PodSandboxState_SANDBOX_READY {
		return nil, status.Errorf(codes.FailedPrecondition, "the sandbox of %s has ended", found.id)
	}
	if err := found.log.open(); err != nil {
		return nil, err
	}
	command := found.command(words(found.config))
	stdout, stderr := found.log.stream("stdout"), found.log.stream("stderr")
	command.Stdout, command.Stderr = stdout, stderr
	started, err := s.starter.start(command, func() {
		stdout.flush()
		stderr.flush()
		found.log.close()
	})
	if err != nil {
		found.log.close()
		return nil, err
	}
	found.process = started
	return &cri.StartContainerResponse{}, nil
}

func (s *runtimeService) StopContainer(
	_ context.Context, request *cri.StopContainerRequest,
) (*cri.StopContainerResponse, error) {
	if found, err := s.find(request.GetContainerId()); err == nil {
		s.stop(found, time.Duration(request.GetTimeout())*time.Second)
	}
	return &cri.StopContainerResponse{}, nil
}

func (s *runtimeService) RemoveContainer(
	_ context.Context, request *cri.RemoveContainerRequest,
) (*cri.RemoveContainerResponse, error) {
	if found, err := s.find(request.GetContainerId()); err == nil {
		s.stop(found, 0)
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.containers, found.id)
	}
	return &cri.RemoveContainerResponse{}, nil
}

// stop ends the container's process, if it is running, and waits until it has ended.
func (s *runtimeService) stop(one *container, grace time.Duration) {
	s.mutex.Lock()
	running := one.process
	s.mutex.Unlock()
	if running != nil {
		running.stop(grace)
	}
}

func (s *runtimeService) ListContainers(
	_ context.Context, request *cri.ListContainersRequest,
) (*cri.ListContainersResponse, error) {
	filter := request.GetFilter()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	response := &cri.ListContainersResponse{}
	for _, one := range s.containers {
		if filter.GetId() != "" && filter.GetId() != one.id ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != one.sandbox ||
			filter.GetState() != nil && filter.GetState().GetState() != one.state() ||
			!selects(filter.GetLabelSelector(), one.config.GetLabels()) {
			continue
		}
		response.Containers = append(response.Containers, &cri.Container{
			Id:           one.id,
			PodSandboxId: one.sandbox,
			Metadata:     one.config.GetMetadata(),
			Image:        one.config.GetImage(),
			ImageRef:     one.config.GetImage().GetImage(),
			ImageId:      one.config.GetImage().GetImage(),
			State:        one.state(),
			CreatedAt:    one.createdAt,
			Labels:       one.config.GetLabels(),
			Annotations:  one.config.GetAnnotations(),
		})
	}
	return response, nil
}

func (s *runtimeService) ContainerStatus(
	_ context.Context, request *cri.ContainerStatusRequest,
) (*cri.ContainerStatusResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found, ok := s.containers[request.GetContainerId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no container %s", request.GetContainerId())
	}
	answer := &cri.ContainerStatus{
		Id:          found.id,
		Metadata:    found.config.GetMetadata(),
		State:       found.state(),
		CreatedAt:   found.createdAt,
		Image:       found.config.GetImage(),
		ImageRef:    found.config.GetImage().GetImage(),
		ImageId:     found.config.GetImage().GetImage(),
		Labels:      found.config.GetLabels(),
		Annotations: found.config.GetAnnotations(),
		LogPath:     found.log.path,
	}
	if found.process != nil {
		answer.StartedAt = found.process.startedAt.UnixNano()
	}
	if answer.State == cri.ContainerState_CONTAINER_EXITED {
		answer.FinishedAt = found.process.endedAt.UnixNano()
		answer.ExitCode = found.process.exitCode
		answer.Reason = "Completed"
		if answer.ExitCode != 0 {
			answer.Reason = "Error"
		}
	}
	return &cri.ContainerStatusResponse{Status: answer}, nil
}

// UpdateContainerResources has no effect, because containers do not have separate resources.
func (*runtimeService) UpdateContainerResources(
	context.Context, *cri.UpdateContainerResourcesRequest,
) (*cri.UpdateContainerResourcesResponse, error) {
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (s *runtimeService) ReopenContainerLog(
	_ context.Context, request *cri.ReopenContainerLogRequest,
) (*cri.ReopenContainerLogResponse, error) {
	found, err := s.find(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &cri.ReopenContainerLogResponse{}, found.log.open()
}
