//! `setup` and `render`: the files that make a kubelet run the plugin. `real_setup` tests the same on systemd, with
//! kubeadm and a kubelet.

mod again;
mod bed;
mod first;
mod lost;
mod names;
mod provider;
mod render;
mod reset;
mod sources;
mod token;
mod undo;
