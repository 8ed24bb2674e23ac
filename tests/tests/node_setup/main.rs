//! `setup` and `render`: the files that make a kubelet run the plugin. `real_setup` tests the same on systemd, with
//! kubeadm and a kubelet.

mod again;
mod bed;
mod first;
mod render;
mod undo;
