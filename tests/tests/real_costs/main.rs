//! What the controller asks of the API servers of a management and a workload cluster, by their own
//! audit logs: all it writes and reads for a join and a renewal; and its connections to them.

mod audit;
mod connections;
mod joins;
