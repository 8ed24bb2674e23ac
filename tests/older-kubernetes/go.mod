module kubelet-authenticator.test/older-kubernetes

go 1.26.0
