package fakecri

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (*runtimeService) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       "fakecri",
		RuntimeVersion:    "1.0.0",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status reports the two conditions that a kubelet requires for a Ready Node.
func (*runtimeService) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	ready := func(kind string) *cri.RuntimeCondition {
		return &cri.RuntimeCondition{Type: kind, Status: true}
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{
		Conditions: []*cri.RuntimeCondition{ready(cri.RuntimeReady), ready(cri.NetworkReady)},
	}}, nil
}

func (*runtimeService) RuntimeConfig(
	context.Context, *cri.RuntimeConfigRequest,
) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{
		Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS},
	}, nil
}

func (*runtimeService) UpdateRuntimeConfig(
	context.Context, *cri.UpdateRuntimeConfigRequest,
) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}
