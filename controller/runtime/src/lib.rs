//! The controller around `node-attestation-core`. It watches clusters and Cluster API, lets the core decide on each
//! request, and writes the answer.
//!
//! An infrastructure provider embeds it as [`management::Controller`], for the clusters of a management cluster, or as
//! [`standalone::Standalone`], for one cluster.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `clock`: the source of time
//! - `object_key`: the place of a namespaced object
//! - `shared`: locks that tenants share, and their measurement in tests and benchmarks
//! - `log_lines`: the log lines that a tenant can cause, with one budget for each namespace
//! - `turns`: turns and rates that Clusters share, by namespace, then by Cluster
//! - `metrics`: the metrics of a controller, and its health
//! - `diagnostics`: `/metrics`, `/healthz` and `/readyz` over HTTP
//! - `memory`: the memory that clusters share
//! - `table`: an index of objects by name and by value
//! - `preflight`: checks of the version of a workload cluster, and of the permissions there
//! - `client`: clients for API servers: limited responses, no redirects, and a policy for the addresses of tenants
//! - `external_signer`: the client of a program that holds CA keys
//! - `watch`: all lists and watches, in pages and with back-off; each object is decoded separately
//! - `capi`: Cluster API: its objects as an inventory, its kubeconfigs and CAs
//! - `file_inventory`: an inventory from a file
//! - `nodes`: the Nodes of a workload cluster, in its API server
//! - `records`: records as `NodeIdentity` objects, watched and written
//! - `config_maps`: config maps that many requests need
//! - `hardening`: the workload cluster: bindings, admission policies, revocation, bootstrap tokens, budgets
//! - `queue`: the order of requests
//! - `events`: Events
//! - `machine_conditions`: a condition of Machines: whether the machine is attested
//! - `identities`: the command `identities`: shows, resets and revokes records, also after the restore of a backup
//! - `cluster_states`: the command `clusters`: Clusters and the state of each
//! - `keyless_signing`: the signer of a Cluster whose CA Secret has no key
//! - `logs`: the log lines of decisions
//! - `csr_writer`: writes an answer into a request
//! - `pipeline`: one request from its turn to its answer
//! - `worker`: one workload cluster: its watches, and its requests in turn
//! - `settings_file`: a `KubeletAuthentication` in a file, with the checks of an API server
//! - `management`: many clusters: a `KubeletAuthentication` each, leader election, conditions, periodic work
//! - `standalone`: one cluster without a management cluster
//! - `explain`: the command `explain`: the checks of one request, without any writes
//! - `machine_tokens`: the command `tokens`: recreates the bootstrap tokens of Machines
//! - `workload_access`: the command `render`: the controller's own access to a workload cluster, as manifests
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
