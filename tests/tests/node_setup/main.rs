//! `setup` and `render`: the files that have a kubelet run the plugin. `real_setup` has the same on
//! systemd, with kubeadm and a kubelet.

mod again;
mod bed;
mod first;
mod render;
mod undo;
