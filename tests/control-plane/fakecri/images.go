package fakecri

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageService reports that every image exists.
type imageService struct {
	cri.UnimplementedImageServiceServer
}

func (imageService) ListImages(
	context.Context, *cri.ListImagesRequest,
) (*cri.ListImagesResponse, error) {
	return &cri.ListImagesResponse{}, nil
}

func (imageService) ImageStatus(
	_ context.Context, request *cri.ImageStatusRequest,
) (*cri.ImageStatusResponse, error) {
	name := request.GetImage().GetImage()
	return &cri.ImageStatusResponse{Image: &cri.Image{
		Id: name, RepoTags: []string{name}, Size: 1, Spec: request.GetImage(), Pinned: true,
	}}, nil
}

func (imageService) PullImage(
	_ context.Context, request *cri.PullImageRequest,
) (*cri.PullImageResponse, error) {
	return &cri.PullImageResponse{ImageRef: request.GetImage().GetImage()}, nil
}

func (imageService) RemoveImage(
	context.Context, *cri.RemoveImageRequest,
) (*cri.RemoveImageResponse, error) {
	return &cri.RemoveImageResponse{}, nil
}

// ImageFsInfo reports an almost empty image file system on the root mount. Without an image file system, the kubelet would
// report that its image garbage collector does not work.
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
