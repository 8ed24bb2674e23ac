//! The controller in a management cluster, with no more rights there than its manifest has: what it
//! finds of Cluster API's objects, what it says, and the nodes that join through it. All API
//! servers and kubelets are real.

mod authorities;
mod bed;
mod conditions;
mod identities;
mod join;
mod requests;
mod shards;
mod silence;
