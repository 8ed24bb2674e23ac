//! Stock kubelets on a real control plane, with our plugin in their kubeconfig and our controller
//! beside them.

mod insecure;
mod node;
mod null;
mod recovery;
mod refused;
mod versions;
