//! The controller around `node-attestation-core`: it watches clusters and Cluster API, has each request
//! decided, and writes the answer.
//!
//! An infrastructure provider embeds it as [`management::Controller`], for the clusters of a management cluster, or as
//! [`standalone::Standalone`], for one cluster.

pub mod admin;
pub mod capi;
pub mod client;
pub mod clock;
pub mod cluster_states;
pub mod config_maps;
pub mod csr_writer;
pub mod events;
pub mod file_inventory;
pub mod hardening;
pub mod logs;
pub mod management;
mod memory;
pub mod nodes;
pub mod pipeline;
pub mod preflight;
mod queue;
pub mod records;
pub mod standalone;
mod table;
pub mod watch;
pub mod worker;
