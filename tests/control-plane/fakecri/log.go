package fakecri

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

// The maximum length of a line in a log. Longer lines are split.
const longestPiece = 16 << 10

// logFile is a container's log in the format of the container runtime interface. Each line has a time, the stream, F (the end of a
// line of output) or P (a part of a line), and the text.
type logFile struct {
	path  string
	mutex sync.Mutex
	file  *os.File
}

// open opens the file. If the file is already open, open opens it again, because the kubelet has renamed it.
func (l *logFile) open() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

func (l *logFile) close() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

func (l *logFile) write(stream, tag string, text []byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file == nil {
		return
	}
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
	fmt.Fprintf(l.file, "%s %s %s %s\n", now, stream, tag, text)
}

func (l *logFile) stream(name string) *logStream {
	return &logStream{name: name, log: l}
}

// logStream is an output stream of a process. Only one goroutine at a time writes to it.
type logStream struct {
	name string
	log  *logFile
	rest []byte
}

func (s *logStream) Write(output []byte) (int, error) {
	s.rest = append(s.rest, output...)
	for {
		line, rest, found := bytes.Cut(s.rest, []byte("\n"))
		for len(line) > longestPiece {
			s.log.write(s.name, "P", line[:longestPiece])
			line = line[longestPiece:]
		}
		if !found {
			s.rest = append([]byte(nil), line...)
			return len(output), nil
		}
		s.log.write(s.name, "F", line)
		s.rest = rest
	}
}

// flush writes the last line, which does not have a line end.
func (s *logStream) flush() {
	if len(s.rest) > 0 {
		s.log.write(s.name, "F", s.rest)
		s.rest = nil
	}
}
