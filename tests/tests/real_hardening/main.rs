//! The ways to a kubelet's certificate that bypass attestation, on real Kubernetes with kube-controller-manager: each
//! is open on a stock cluster, and then closed, by a controller with no more rights than its manifest gives it.

mod bed;
mod bindings;
mod enrolments;

mod requests;
mod revocation;
mod rights;
mod tokens;
