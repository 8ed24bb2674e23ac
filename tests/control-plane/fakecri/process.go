package fakecri

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// The time to wait for the output of a process after its end, because a child process can still have the pipe.
const outputGrace = time.Second

// starter starts processes on one thread that lives as long as this process. The kernel kills a child when the thread that
// started it ends (PR_SET_PDEATHSIG(2const)).
type starter chan func()

func newStarter() starter {
	calls := make(starter)
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
}

// process is a command in a separate session, which also contains its child processes.
type process struct {
	session   int
	startedAt time.Time
	ended     chan struct{}
	// Valid only after the process has ended.
	exitCode int32
	endedAt  time.Time
}

// start starts the command. start calls atEnd after the command has ended, before it reports the end.
func (s starter) start(command *exec.Cmd, atEnd func()) (*process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	command.WaitDelay = outputGrace
	result := make(chan error)
	s <- func() { result <- command.Start() }
	if err := <-result; err != nil {
		return nil, err
	}
	started := &process{
		session:   command.Process.Pid,
		startedAt: time.Now(),
		ended:     make(chan struct{}),
	}
	go func() {
		command.Wait()
		// Ends the child processes.
		started.signal(syscall.SIGKILL)
		atEnd()
		started.exitCode = exitCode(command)
		started.endedAt = time.Now()
		close(started.ended)
	}()
	return started, nil
}

func exitCode(command *exec.Cmd) int32 {
	if status, ok := command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(command.ProcessState.ExitCode())
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) signal(signal syscall.Signal) {
	syscall.Kill(-p.session, signal)
}

// stop signals the process to end, kills it after the grace period, and returns when it has ended.
func (p *process) stop(grace time.Duration) {
	if p.hasEnded() {
		return
	}
	if grace > 0 {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.ended:
			return
		case <-time.After(grace):
		}
	}
	p.signal(syscall.SIGKILL)
	<-p.ended
}
