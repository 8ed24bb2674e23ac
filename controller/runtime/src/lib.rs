//! The part of the controller that surrounds `node-attestation-core`. It watches clusters and Cluster API, lets the
//! core decide on each request, and writes the answer.
//!
//! An infrastructure provider embeds this crate as [`management::Controller`], for the clusters in a management
//! cluster, or as [`standalone::Standalone`], for one cluster.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `clock`: the source of time
//! - `object_key`: the namespace and the name of an object
//! - `shared`: locks that tenants share, and their measurement in tests and benchmarks
//! - `log_lines`: the log lines that a tenant can cause, with one budget for each namespace
//! - `turns`: turns and rates that Clusters share, by namespace, then by Cluster
//! - `metrics`: the metrics and the health of a controller
//! - `diagnostics`: `/metrics`, `/healthz` and `/readyz` over HTTP
//! - `memory`: the memory that clusters share
//! - `table`: an index of objects by name and by value
//! - `preflight`: checks of a workload cluster's version, and of the permissions in it
//! - `client`: clients for API servers: limited responses, no redirects, and an address policy for tenants' API servers
//! - `external_signer`: the client for a program that holds CA keys
//! - `watch`: all lists and watches, with pages and back-off; each object is decoded separately
//! - `capi`: Cluster API: an inventory of its objects, its kubeconfigs and CAs
//! - `file_inventory`: an inventory from a file
//! - `nodes`: the Nodes of a workload cluster, in its API server
//! - `records`: records as `NodeIdentity` objects, watched and written
//! - `config_maps`: `ConfigMaps` that many requests need
//! - `hardening`: the workload cluster: bindings, admission policies, revocation, bootstrap tokens, budgets
//! - `queue`: the order of requests
//! - `events`: Events
//! - `machine_conditions`: a condition on Machines that shows whether the machine is attested
//! - `identities`: the command `identities`: shows, resets and revokes records, also after a restore from a backup
//! - `cluster_states`: the command `clusters`: Clusters and the state of each
//! - `keyless_signing`: the signer for a Cluster whose CA Secret does not contain a key
//! - `logs`: the log lines of decisions
//! - `csr_writer`: writes an answer into a request
//! - `pipeline`: processes one request, from its turn to its answer
//! - `worker`: serves one workload cluster: its watches, and its requests in turn
//! - `settings_file`: a `KubeletAuthentication` in a file, validated as in an API server
//! - `management`: many clusters: one `KubeletAuthentication` for each, leader election, conditions, periodic work
//! - `standalone`: one cluster without a management cluster
//! - `explain`: the command `explain`: the checks of one request, without writes
//! - `machine_tokens`: the command `tokens`: recreates the bootstrap tokens of Machines
//! - `workload_access`: the command `render`: renders manifests for the controller's own access to a workload cluster
//! - `cluster_check`: the command `cluster check`: checks of a management cluster and its Clusters

#![cfg_attr(
    test,
    expect(clippy::disallowed_types, reason = "no tenant shares a lock of a test")
)]

pub mod capi;
pub mod client;
pub mod clock;
pub mod cluster_check;
pub mod cluster_states;
pub mod config_maps;
pub mod csr_writer;
pub mod diagnostics;
pub mod events;
pub mod explain;
pub mod external_signer;
pub mod file_inventory;
#[cfg(test)]
mod footprint;
pub mod hardening;
pub mod identities;
mod keyless_signing;
pub mod log_lines;
pub mod logs;
pub mod machine_conditions;
pub mod machine_tokens;
pub mod management;
mod memory;
pub mod metrics;
pub mod nodes;
mod object_key;
pub mod pipeline;
pub mod preflight;
mod queue;
pub mod records;
pub mod settings_file;
pub mod shared;
pub mod standalone;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod turns;
pub mod watch;
pub mod worker;
pub mod workload_access;
