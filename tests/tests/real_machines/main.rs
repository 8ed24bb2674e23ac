//! Cluster API's own managers create Machines. Each is a machine with systemd, cloud-init, kubeadm, a kubelet and the
//! plugin, and joins and leaves like a node.

mod boots;
mod deployments;
mod health;
mod metadata;
mod moved;
mod page;
mod pools;
mod rendered;
mod taken_over;
mod topology;
