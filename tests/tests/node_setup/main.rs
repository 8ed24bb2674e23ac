//! Tests of `setup` and `render`, which write the files with which a kubelet runs the plugin. `real_setup` runs the
//! same tests with systemd, kubeadm and a kubelet.

mod again;
mod bed;
mod combinations;
mod first;
mod lost;
mod names;
mod provider;
mod render;
mod reset;
mod sources;
mod token;
mod undo;
