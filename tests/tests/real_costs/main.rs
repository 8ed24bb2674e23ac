//! Tests of the controller's requests to the API servers of a management cluster and a workload cluster, according to
//! their audit logs: all writes and reads for a join and a renewal. Also tests the controller's connections to these
//! API servers.

mod audit;
mod connections;
mod joins;
