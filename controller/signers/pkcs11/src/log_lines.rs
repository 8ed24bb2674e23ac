//! The log lines about calls without a signature. A tenant can repeat these calls, so the rate is limited for each
//! namespace.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use node_attestation_turns::shared::{Lock, Shared};
use tokio::time::Instant;

/// The initial and maximum number of lines that a namespace can log in a burst.
const BURST: u32 = 100;

/// The interval between two lines from a namespace after its burst.
const EVERY: Duration = Duration::from_secs(1);

/// The maximum number of namespaces with a separate rate. All further namespaces share one rate.
const MAX_NAMESPACES: usize = 10_000;

/// The log-line budget of each namespace.
#[derive(Debug)]
pub(crate) struct LogLines(Shared<BTreeMap<String, Lines>>);

#[derive(Debug)]
struct Lines {
    /// The time at which the whole burst will be available again.
    full_at: Instant,
    left_out: u64,
}

impl Default for LogLines {
    fn default() -> Self {
        Self(Shared::new(Lock::SignerLogLines, BTreeMap::new()))
    }
}

impl LogLines {
    /// Takes a line for this namespace. Returns the number of lines that were omitted before it, if any. Returns `Err`
    /// if this line is also omitted.
    pub(crate) fn take(&self, namespace: &str) -> Result<Option<u64>, LeftOut> {
        self.0.write(|all| taken(all, namespace))
    }
}

fn taken(all: &mut BTreeMap<String, Lines>, namespace: &str) -> Result<Option<u64>, LeftOut> {
    let has_own = all.contains_key(namespace) || all.len() < MAX_NAMESPACES;
    let key = if has_own { namespace } else { "" };
    let now = Instant::now();
    let lines = all.entry(key.to_owned()).or_insert_with(|| Lines {
        full_at: now,
        left_out: 0,
    });
    let full_at = lines.full_at.max(now) + EVERY;
    if full_at - now > EVERY * BURST {
        lines.left_out += 1;
        return Err(LeftOut);
    }
    lines.full_at = full_at;
    Ok(Some(mem::take(&mut lines.left_out)).filter(|left_out| *left_out > 0))
}

/// The budget of the namespace is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftOut;

#[cfg(test)]
mod tests {
    use node_attestation_turns::shared::testing::most_visited;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn log_lines_about_refused_calls_are_limited_by_namespace() {
        let lines = LogLines::default();
        let told = (0..10_000).filter(|_| lines.take("a").is_ok()).count();

        assert_eq!(told, 100);
        assert_eq!(lines.take("b"), Ok(None));
        tokio::time::advance(EVERY).await;
        assert_eq!(lines.take("a"), Ok(Some(9900)));
        assert_eq!(lines.take("a"), Err(LeftOut));
    }

    #[tokio::test(start_paused = true)]
    async fn log_budgets_of_any_number_of_namespaces_use_bounded_memory() {
        let lines = LogLines::default();
        let all = 0..MAX_NAMESPACES + 1000;
        let told = all.filter(|number| lines.take(&number.to_string()).is_ok());
        assert_eq!(told.count(), MAX_NAMESPACES + 100);

        assert_eq!(lines.0.read(BTreeMap::len), MAX_NAMESPACES + 1);
        let visited = most_visited(|| assert_eq!(lines.take("another"), Err(LeftOut)));
        assert_eq!(visited[&Lock::SignerLogLines], 0);
        assert_eq!(lines.take("1"), Ok(None));
    }
}
