//! Log lines that the tenant of a cluster can cause.
//!
//! A tenant can repeat almost every event: it writes the objects of its namespace, and operates its API server. So each
//! such line uses a part of a budget. Only [`cluster_line`](crate::cluster_line) writes such a line.
//! `tests/tests/layering` lists the other lines, with the reason why no tenant causes them.

use std::fmt::Debug;

/// The budget of one cluster's log lines.
pub trait LogLines: Debug + Send + Sync {
    /// The cluster, if the controller serves several.
    fn cluster(&self) -> Option<&str>;

    /// Takes a line from the budget. Returns the number of omitted lines before it, or `None` if this line is also
    /// omitted, because the budget is exhausted.
    fn take(&self) -> Option<u64>;
}

/// An unlimited budget, for a cluster that does not share the log with others.
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

/// Logs a line of a cluster within its budget, with the cluster and the number of omitted lines before it. If the
/// budget is exhausted, the line has the level `DEBUG`.
///
/// The first argument is a reference to [`LogLines`]. The second is the level, and the rest are the arguments of
/// [`tracing::event!`].
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
