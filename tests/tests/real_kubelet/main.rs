//! Tests of stock kubelets on a real control plane, with the plugin in their kubeconfig and the controller next to
//! them.

mod insecure;
mod node;
mod null;
mod recovery;
mod refused;
mod versions;
