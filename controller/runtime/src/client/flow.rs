//! The rate limit of watches of tenants' API servers: reading them takes processor time that other clusters need.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The share of each API server: 50 joins a second, and 200 at once.
const OWN: Rate = Rate {
    bytes_a_second: 1024 * 1024,
    burst: Duration::from_secs(4),
};

/// The common share of all API servers beyond their own: 400 joins a second, and 2,000 at once.
const COMMON: Rate = Rate {
    bytes_a_second: 8 * 1024 * 1024,
    burst: Duration::from_secs(4),
};

/// A piece counts for as many bytes at least.
const MIN_PIECE: usize = 256;

/// The time at which the common share is whole again.
static PROCESS: Mutex<Option<Instant>> = Mutex::new(None);

#[derive(Debug, Clone, Copy)]
struct Rate {
    bytes_a_second: u32,
    burst: Duration,
}

impl Rate {
    /// Takes so many bytes of what is whole again at `whole_at`; not if it would take longer than the burst. Where it
    /// `must`, it says how long to wait then.
    fn take(self, whole_at: &mut Option<Instant>, bytes: u32, must: bool) -> Result<(), Duration> {
        let now = Instant::now();
        let missing = whole_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let missing = missing + Duration::from_secs(1) * bytes / self.bytes_a_second;
        let wait = missing.saturating_sub(self.burst);
        if must || wait.is_zero() {
            *whole_at = Some(now + missing);
        }
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }
}

/// The traffic of the watches of one API server.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    own: Arc<Mutex<Option<Instant>>>,
    common: &'static Mutex<Option<Instant>>,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self {
            own: Arc::default(),
            common: &PROCESS,
        }
    }

    /// Counts a piece that was read.
    ///
    /// # Errors
    ///
    /// The time until the next piece may be read.
    pub(super) fn count(&self, bytes: usize) -> Result<(), Duration> {
        let bytes = u32::try_from(bytes.max(MIN_PIECE)).unwrap_or(u32::MAX);
        let take = |whole_at: &Mutex<_>, rate: Rate, must| {
            // A time is whole whatever panicked.
            let mut whole_at = whole_at.lock();
            rate.take(&mut whole_at, bytes, must)
        };
        take(&self.own, OWN, false)
            .or_else(|_| take(self.common, COMMON, false))
            .or_else(|_| take(&self.own, OWN, true))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn flow(common: &'static Mutex<Option<Instant>>) -> Flow {
        Flow {
            common,
            ..Flow::new()
        }
    }

    /// Reads as long as it may, for so long; how much it was.
    async fn flood(flow: &Flow, time: Duration) -> usize {
        let end = Instant::now() + time;
        let mut read = 0;
        while Instant::now() < end {
            read += 1;
            if let Err(wait) = flow.count(MIB) {
                sleep(wait).await;
            }
        }
        read
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_floods_leaves_the_others_their_own() {
        static ALL: Mutex<Option<Instant>> = Mutex::new(None);
        let (greedy, other) = (flow(&ALL), flow(&ALL));

        let minute = Duration::from_mins(1);
        let read = flood(&greedy, minute).await;
        // The bursts, its own, and all that is common while nobody else wants it.
        let most = 4 + 32 + 60 * (1 + 8) + 1;
        assert!((most * 9 / 10..=most).contains(&read), "{read}");

        while greedy.count(MIB).is_ok() {}
        for _ in 0..4 {
            assert_eq!(other.count(MIB), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_flood_read_no_more_than_is_common_and_their_own() {
        static ALL: Mutex<Option<Instant>> = Mutex::new(None);
        let all: Vec<Flow> = (0..50).map(|_| flow(&ALL)).collect();
        for one in &all {
            while one.count(MIB).is_ok() {}
        }
        let begun = Instant::now();
        let minute = Duration::from_mins(1);
        let read = futures::future::join_all(all.iter().map(|one| flood(one, minute))).await;

        assert!(begun.elapsed() >= minute);
        let read: usize = read.iter().sum();
        assert!(read <= 60 * (50 + 8) + 2 * 50, "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_of_a_byte_count_for_more() {
        static ALL: Mutex<Option<Instant>> = Mutex::new(None);
        let flow = flow(&ALL);
        let most = 37 * MIB / MIN_PIECE;
        let pieces = (0..=most).take_while(|_| flow.count(1).is_ok()).count();
        assert!(pieces <= most, "{pieces}");
    }
}
