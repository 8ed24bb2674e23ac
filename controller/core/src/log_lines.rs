//! Log lines that a cluster's tenant can cause.
//!
//! A tenant can repeat almost every event, because it writes the objects in its namespace and operates its API server.
//! Therefore each log line that a tenant can cause uses a part of a budget. Only [`cluster_line`](crate::cluster_line)
//! writes these lines. `tests/tests/layering` lists the other lines, with the reason why a tenant cannot cause them.

use std::fmt::Debug;

/// The log-line budget of one cluster.
pub trait LogLines: Debug + Send + Sync {
    /// The name of the cluster, if the controller serves several clusters.
    fn cluster(&self) -> Option<&str>;

    /// Takes a line from the budget. Returns the number of lines that were omitted before this line. Returns `None` if
    /// the budget is exhausted, so that this line is also omitted.
    fn take(&self) -> Option<u64>;
}

/// An unlimited budget, for a cluster that does not share the log with other clusters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unlimited;

impl LogLines for Unlimited {
    fn cluster(&self) -> Option<&str> {
        None
    }

    fn take(&self) -> Option<u64> {
        Some(0)
    }
}

/// Logs a line about a cluster within the cluster's budget. The line contains the cluster and the number of lines that
/// were omitted before it. If the budget is exhausted, the line has the level `DEBUG`.
///
/// The first argument is a reference to [`LogLines`]. The second argument is the level, and the other arguments are the
/// arguments of [`tracing::event!`].
#[macro_export]
macro_rules! cluster_line {
    ($lines:expr, $level:ident, $($line:tt)+) => {{
        let lines: &dyn $crate::log_lines::LogLines = $lines;
        let (cluster, taken) = (lines.cluster(), lines.take());
        if let Some(left_out) = taken {
            let left_out = Some(left_out).filter(|left_out| *left_out > 0);
            ::tracing::event!(::tracing::Level::$level, cluster, left_out, $($line)+);
        } else {
            ::tracing::event!(::tracing::Level::DEBUG, cluster, $($line)+);
        }
    }};
}
