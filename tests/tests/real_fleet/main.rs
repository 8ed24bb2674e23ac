//! Tests of the controller in a management cluster, with only the permissions in its manifest: its use of Cluster API's
//! objects, its messages, and the joins of nodes. All API servers and kubelets are real.

mod authorities;
mod bed;
mod conditions;
mod filters;
mod identities;
mod join;
mod places;
mod requests;
mod silence;
