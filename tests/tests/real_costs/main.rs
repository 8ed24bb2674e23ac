//! The controller's requests to the API servers of a management and a workload cluster, by their own audit logs: all
//! writes and reads of a join and a renewal; and its connections to them.

mod audit;
mod connections;
mod joins;
