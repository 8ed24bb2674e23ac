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
//! - `clock`: the clocks
//! - `object_key`: the namespace and the name of an object
//! - `shared`: locks that tenants share, and their measurement in tests and benchmarks
//! - `log_lines`: the log lines that a tenant can cause, with one budget for each namespace
//! - `turns`: turns and rates that alternate between namespaces, and then between Clusters
//! - `metrics`: the metrics and the health of a controller
//! - `diagnostics`: `/metrics`, `/healthz` and `/readyz` over HTTP
//! - `memory`: limits on the memory that clusters share
//! - `table`: a table of objects by name, with an index of their values
//! - `client`: clients for API servers: limited responses, no redirects, and an address policy for tenants' API servers
//! - `external_signer`: the client of an external signer, which holds CA keys
//! - `watch`: list and watch calls, with pagination and back-off. Each object is decoded separately.
//! - `preflight`: checks of a workload cluster's version, and of the controller's permissions in this cluster
//! - `capi`: Cluster API: an inventory of its objects, and its kubeconfigs and CAs
//! - `file_inventory`: an inventory that is read from a file
//! - `nodes`: access to the Nodes of a workload cluster through its API server
//! - `records`: watches and writes records, as `NodeIdentity` objects
//! - `config_maps`: `ConfigMaps` that many requests need at the same time
//! - `hardening`: hardening of a workload cluster: bindings, admission policies, revocation, bootstrap tokens, limits
//! - `queue`: the order in which the requests of one cluster are processed
//! - `events`: Events about requests and machines
//! - `machine_conditions`: the condition of a Machine that shows whether the machine is attested
//! - `identities`: the command `identities`: shows, resets, revokes and recovers records
//! - `cluster_states`: the command `clusters`: lists Clusters and their states
//! - `keyless_signing`: the signer for a Cluster whose CA Secret does not contain a key
//! - `logs`: the log lines about decisions
//! - `csr_writer`: writes a decision into its request
//! - `pipeline`: processes one request, from its turn to its answer
//! - `worker`: the worker for one workload cluster, which watches requests and processes them in turn
//! - `settings_file`: a `KubeletAuthentication` in a file, with the validation rules of the API server
//! - `management`: serves the Clusters in a management cluster: leader election, conditions, periodic work
//! - `standalone`: serves one cluster without a management cluster
//! - `explain`: the command `explain`: runs the controller's checks on one request, without writes
//! - `machine_tokens`: the command `tokens`: recreates the bootstrap tokens of Machines
//! - `workload_access`: the command `render`: renders manifests for the controller's own access to a workload cluster
//! - `cluster_check`: the command `cluster check`: checks a management cluster and its Clusters

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
pub mod memory;
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
