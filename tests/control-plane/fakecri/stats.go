package fakecri

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The unit of the times in /proc, which is 10 ms on Linux.
const tick = 10 * time.Millisecond

// The fields of /proc/PID/stat after the name, which ends with the last parenthesis (proc_pid_stat(5)).
const (
	sessionField = 3
	userField    = 11
	systemField  = 12
	pagesField   = 21
)

// usage contains the resources that the processes of a session use.
type usage struct {
	processor time.Duration
	memory    uint64
}

// usages returns the usage of each session.
func usages() map[int]usage {
	all := map[int]usage{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if last := strings.LastIndex(rest, ") "); last >= 0 {
			rest = rest[last+2:]
		}
		fields := strings.Fields(rest)
		if len(fields) <= pagesField {
			continue
		}
		number := func(field int) uint64 {
			value, _ := strconv.ParseUint(fields[field], 10, 64)
			return value
		}
		session := int(number(sessionField))
		sum := all[session]
		sum.processor += time.Duration(number(userField)+number(systemField)) * tick
		sum.memory += number(pagesField) * uint64(os.Getpagesize())
		all[session] = sum
	}
	return all
}

func (s *runtimeService) ContainerStats(
	_ context.Context, request *cri.ContainerStatsRequest,
) (*cri.ContainerStatsResponse, error) {
	stats := s.stats(&cri.ContainerStatsFilter{Id: request.GetContainerId()})
	if len(stats) == 0 {
		return nil, status.Errorf(codes.NotFound, "no container %s", request.GetContainerId())
	}
	return &cri.ContainerStatsResponse{Stats: stats[0]}, nil
}

func (s *runtimeService) ListContainerStats(
	_ context.Context, request *cri.ListContainerStatsRequest,
) (*cri.ListContainerStatsResponse, error) {
	return &cri.ListContainerStatsResponse{Stats: s.stats(request.GetFilter())}, nil
}

func (s *runtimeService) stats(filter *cri.ContainerStatsFilter) []*cri.ContainerStats {
	now := time.Now().UnixNano()
	used := usages()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var all []*cri.ContainerStats
	for _, one := range s.containers {
		if filter.GetId() != "" && filter.GetId() != one.id ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != one.sandbox ||
			!selects(filter.GetLabelSelector(), one.config.GetLabels()) {
			continue
		}
		stats := &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{
				Id:          one.id,
				Metadata:    one.config.GetMetadata(),
				Labels:      one.config.GetLabels(),
				Annotations: one.config.GetAnnotations(),
			},
		}
		if one.state() == cri.ContainerState_CONTAINER_RUNNING {
			usage := used[one.process.session]
			stats.Cpu = &cri.CpuUsage{
				Timestamp:            now,
				UsageCoreNanoSeconds: &cri.UInt64Value{Value: uint64(usage.processor)},
			}
			stats.Memory = &cri.MemoryUsage{
				Timestamp:       now,
				WorkingSetBytes: &cri.UInt64Value{Value: usage.memory},
				RssBytes:        &cri.UInt64Value{Value: usage.memory},
			}
		}
		all = append(all, stats)
	}
	return all
}
