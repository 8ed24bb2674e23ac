//! The limit on open files and connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard limit, as Go programs do by default.
///
/// The defaults of systemd and containerd are 1,024 (soft) and 524,288 (hard).
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        tracing::info!(
            limit = shown(maximum),
            "the open-file limit is already at its maximum"
        );
        return;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let before = shown(current);
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::info!(before, limit = shown(maximum), "raised the open-file limit"),
        Err(error) => tracing::warn!(
            limit = before,
            error = error.to_string(),
            "cannot raise the open-file limit"
        ),
    }
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}
