package fakecri

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

func (s *runtimeService) Exec(
	_ context.Context, request *cri.ExecRequest,
) (*cri.ExecResponse, error) {
	if _, err := s.running(request.GetContainerId()); err != nil {
		return nil, err
	}
	return s.streams.GetExec(request)
}

func (s *runtimeService) PortForward(
	_ context.Context, request *cri.PortForwardRequest,
) (*cri.PortForwardResponse, error) {
	return s.streams.GetPortForward(request)
}

func (s *runtimeService) ExecSync(
	ctx context.Context, request *cri.ExecSyncRequest,
) (*cri.ExecSyncResponse, error) {
	found, err := s.running(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	if seconds := request.GetTimeout(); seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	var stdout, stderr bytes.Buffer
	command := found.command(request.GetCmd())
	command.Stdout, command.Stderr = &stdout, &stderr
	code, err := s.run(ctx, command)
	if err != nil {
		return nil, err
	}
	return &cri.ExecSyncResponse{
		Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: code,
	}, nil
}

func (s *runtimeService) running(id string) (*container, error) {
	found, err := s.find(id)
	if err != nil {
		return nil, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if found.state() != cri.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is not running", id)
	}
	return found, nil
}

// run waits until the command has ended, or kills it when the context ends.
func (s *runtimeService) run(ctx context.Context, command *exec.Cmd) (int32, error) {
	started, err := s.starter.start(command, func() {})
	if err != nil {
		return 0, err
	}
	select {
	case <-started.ended:
		return started.exitCode, nil
	case <-ctx.Done():
		started.stop(0)
		return 0, status.FromContextError(ctx.Err()).Err()
	}
}

// streams connects a kubelet's clients to processes and ports.
type streams struct{ service *runtimeService }

func (s streams) Exec(
	ctx context.Context, id string, words []string, in io.Reader, out, err io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize,
) error {
	found, failure := s.service.running(id)
	if failure != nil {
		return failure
	}
	command := found.command(words)
	// Does not copy the interfaces, because an interface with a nil value is not nil.
	if out != nil {
		command.Stdout = out
	}
	if err != nil {
		command.Stderr = err
	}
	if in != nil {
		// Does not use `in` directly, because Wait would then wait until `in` ends.
		stdin, failure := command.StdinPipe()
		if failure != nil {
			return failure
		}
		go func() {
			io.Copy(stdin, in)
			stdin.Close()
		}()
	}
	code, failure := s.service.run(ctx, command)
	if failure == nil && code != 0 {
		failure = utilexec.CodeExitError{
			Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code),
		}
	}
	return failure
}

func (streams) Attach(
	context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool,
	<-chan remotecommand.TerminalSize,
) error {
	return status.Error(codes.Unimplemented, "attach")
}

func (streams) PortForward(_ context.Context, _ string, port int32, client io.ReadWriteCloser) error {
	defer client.Close()
	address := net.JoinHostPort("localhost", strconv.Itoa(int(port)))
	server, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	join := func(to io.Writer, from io.Reader) {
		io.Copy(to, from)
		ended <- struct{}{}
	}
	go join(client, server)
	go join(server, client)
	<-ended
	return nil
}
