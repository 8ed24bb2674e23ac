//! The time on an API server.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::header::{DATE, HeaderMap};
use k8s_openapi::jiff::fmt::rfc2822;

use node_attestation_core::time::age;

use crate::clock::elapsed;
use crate::shared::{Lock, Shared};

/// The tolerated clock difference. Synchronized clocks differ by at most seconds.
const TOLERATED: Duration = Duration::from_mins(5);

/// The resolution of a `Date` header.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The time on an API server, from the `Date` header in its responses. Clones share their state.
#[derive(Debug, Clone)]
pub struct ServerTime(Arc<Shared<Option<Heard>>>);

#[derive(Debug, Clone, Copy)]
struct Heard {
    date: SystemTime,
    /// The monotonic time of the response.
    at: Duration,
}

impl Default for ServerTime {
    fn default() -> Self {
        Self(Arc::new(Shared::new(Lock::ServerTime, None)))
    }
}

impl ServerTime {
    /// Creates a value as if the API server had responded with this time.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn at(date: SystemTime) -> Self {
        let at = elapsed();
        Self(Arc::new(Shared::new(
            Lock::ServerTime,
            Some(Heard { date, at }),
        )))
    }

    /// Records a response. If the response has no date, the previous date remains valid.
    pub(super) fn heard(&self, headers: &HeaderMap) {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        // HTTP's date format is a subset of the e-mail format.
        let date = date.and_then(|date| rfc2822::parse(date).ok());
        if let Some(date) = date {
            let new = Heard {
                date: date.timestamp().into(),
                at: elapsed(),
            };
            self.0.write(|heard| *heard = Some(new));
        }
    }

    /// The time on the API server. `None` before the first response with a date.
    fn now(&self) -> Option<SystemTime> {
        let heard = self.0.read(|heard| *heard)?;
        heard.date.checked_add(elapsed().saturating_sub(heard.at))
    }

    /// The message about the work that [`earlier`](Self::earlier) delays. `None` unless `now` is more than a few
    /// minutes ahead of the API server's time.
    pub fn ahead(&self, now: SystemTime) -> Option<String> {
        let ahead = age(self.now()?, now)?;
        (ahead > TOLERATED).then(|| {
            let minutes = ahead.as_secs() / 60;
            format!(
                "the removal of expired revocations: the controller's clock is {minutes} minutes ahead of the clock of \
                 the management API server"
            )
        })
    }

    /// The API server's time, for computing the age of objects. A change to this machine's clock does not affect it.
    /// Before the first response with a date, the result is `now`, which comes from this machine's clock.
    pub fn now_or(&self, now: SystemTime) -> SystemTime {
        self.now().unwrap_or(now)
    }

    /// The latest possible time on the API server. A `Date` header has whole seconds, so the exact time can be up to a
    /// second later than [`now_or`](Self::now_or). Before the first response with a date, the result is `now`, which
    /// comes from this machine's clock.
    pub fn latest_or(&self, now: SystemTime) -> SystemTime {
        let server = self.now();
        let latest = server.and_then(|server| server.checked_add(RESOLUTION));
        latest.unwrap_or(now)
    }

    /// The later of the API server's time and `now`, which comes from this machine's clock.
    pub fn later(&self, now: SystemTime) -> SystemTime {
        self.now().map_or(now, |server| server.max(now))
    }

    /// The earlier of the API server's time and `now`, which comes from this machine's clock. An object that has
    /// expired at this time has expired according to both clocks.
    pub fn earlier(&self, now: SystemTime) -> SystemTime {
        self.now().map_or(now, |server| server.min(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use hyper::header::HeaderValue;

    use super::*;
    use crate::shared::testing::most_visited;

    /// 6 November 1994, 08:49:37.
    const EXAMPLE: u64 = 784_111_777;

    fn heard(date: &'static str) -> ServerTime {
        let time = ServerTime::default();
        let mut headers = HeaderMap::new();
        headers.insert(DATE, HeaderValue::from_static(date));
        time.heard(&headers);
        time
    }

    fn second(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn a_clock_ahead_of_the_api_server_is_ignored() {
        let time = heard("Sun, 06 Nov 1994 08:49:37 GMT");

        let ahead = time.earlier(second(EXAMPLE + 7 * 24 * 3600));

        assert!(
            ahead >= second(EXAMPLE) && ahead < second(EXAMPLE + 600),
            "{ahead:?}"
        );
        let behind = second(EXAMPLE - 60);
        assert_eq!(time.earlier(behind), behind);
        assert_eq!(time.later(second(EXAMPLE + 7200)), second(EXAMPLE + 7200));
        assert!(time.later(behind) >= second(EXAMPLE));
        assert_eq!(time.ahead(second(EXAMPLE)), None);
        let warned = time.ahead(second(EXAMPLE + 7 * 24 * 3600)).unwrap();
        assert!(warned.contains(" minutes ahead of"), "{warned}");
    }

    #[test]
    fn a_set_wall_clock_does_not_change_computed_ages() {
        let time = heard("Sun, 06 Nov 1994 08:49:37 GMT");
        let year = Duration::from_hours(24 * 365);

        for clock in [second(EXAMPLE) + year, second(EXAMPLE) - year] {
            let now = time.now_or(clock);
            assert!(
                now >= second(EXAMPLE) && now < second(EXAMPLE + 600),
                "{now:?}"
            );
            assert_eq!(ServerTime::default().now_or(clock), clock);
            let latest = time.latest_or(clock);
            let expected = second(EXAMPLE + 1)..second(EXAMPLE + 600);
            assert!(expected.contains(&latest), "{latest:?}");
            assert_eq!(ServerTime::default().latest_or(clock), clock);
        }
    }

    #[test]
    fn without_a_date_header_the_local_clock_is_used() {
        let now = second(EXAMPLE);
        for time in [ServerTime::default(), heard("yesterday")] {
            assert_eq!(time.earlier(now), now);
            assert_eq!(time.latest_or(now), now);
        }
        let time = heard("Sun, 06 Nov 1994 08:49:37 GMT");
        time.heard(&HeaderMap::new());
        assert!(time.earlier(second(EXAMPLE + 3600)) < second(EXAMPLE + 600));
    }

    #[test]
    fn all_callers_get_the_same_time() {
        let visited = most_visited(|| {
            let time = heard("Sun, 06 Nov 1994 08:49:37 GMT");
            time.later(second(EXAMPLE));
        });

        assert_eq!(visited[&Lock::ServerTime], 0);
    }
}
