//! Tests in which Cluster API's own managers create Machines. Each Machine is a machine with systemd, cloud-init,
//! kubeadm, a kubelet and the plugin. Each machine joins and leaves its cluster as any node does.

// The tests start in the order of their names, a few at a time. The suite ends earlier if the tests with the longest
// waits start first: `adoption` and `cluster_move` wait for certificates to expire, `bootstrap_tokens` for tokens, and
// `conditions` for health checks.
mod adoption;
mod boots;
mod bootstrap_tokens;
mod cluster_move;
mod conditions;
mod deployments;
mod machine_pools;
mod metadata;
mod page;
mod rendered;
mod topology;
