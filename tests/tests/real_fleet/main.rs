//! Tests of the controller in a management cluster, with only the permissions in its manifest: how it reads Cluster
//! API's objects, which messages it writes, and how nodes join. All API servers and kubelets are real.

mod authorities;
mod bed;
mod conditions;
mod filters;
mod identities;
mod join;
mod places;
mod requests;
mod silence;
