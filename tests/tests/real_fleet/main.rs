//! The controller in a management cluster, with no more rights there than its manifest has: its view of Cluster API's
//! objects, its messages, and the nodes that join through it. All API servers and kubelets are real.

mod authorities;
mod bed;
mod conditions;
mod filters;
mod identities;
mod join;
mod places;
mod requests;
mod silence;
