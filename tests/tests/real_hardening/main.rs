//! Tests, with a real API server and kube-controller-manager, of the paths to a kubelet certificate that bypass
//! attestation: each path is open on a stock cluster. A controller with only the permissions in its manifest then
//! closes the path.

mod bed;
mod bindings;
mod enrolments;

mod requests;
mod revocation;
mod rights;
mod tokens;
