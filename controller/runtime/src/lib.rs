//! The controller around `node-attestation-core`: it watches clusters and Cluster API, has each request
//! decided, and writes the answer.
//!
//! An infrastructure provider embeds it as [`fleet::Fleet`], for the clusters of a management cluster, or as
//! [`standalone::Standalone`], for one cluster.

pub mod capi;
pub mod client;
pub mod clock;
pub mod cluster_states;
pub mod config_maps;
pub mod events;
pub mod fleet;
pub mod hardening;
pub mod identities;
pub mod logs;
pub mod machine_list;
mod memory;
pub mod nodes;
pub mod pipeline;
pub mod preflight;
mod queue;
pub mod records;
pub mod standalone;
pub mod status;
pub mod watch;
pub mod worker;
