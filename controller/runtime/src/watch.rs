//! Watches that hold little at once, come back by themselves, and read what others wrote.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::{Excess, LONGEST_WATCH, MANAGEMENT_PAGE_SIZE, cause};

mod lenient;
mod listening;
mod log;
#[cfg(feature = "testing")]
pub mod testing;

pub(crate) use lenient::{Lenient, Skipped, Unreadable};
pub(crate) use listening::{listening, measured};
pub(crate) use log::WatchLog;

/// The first wait before a watch that failed is begun again.
const FIRST_WATCH_RETRY: Duration = Duration::from_millis(250);

/// The longest such wait.
const LAST_WATCH_RETRY: Duration = Duration::from_secs(15);

/// A watch that did not fail for so long has held.
const WATCH_HELD: Duration = Duration::from_mins(1);

/// A watch that lists fewer objects at once where a page was too long to be read, at last one: an
/// API server stores requests that are far larger than honest ones. `relist` begins it anew.
pub(crate) fn in_smaller_pages<K>(
    api: Api<K>,
    config: watcher::Config,
    first_page: u32,
    relist: Arc<Notify>,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType: Clone + Debug> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let begin = move |page: u32, backoff: ExponentialBackoff| {
        let config = config.clone().page_size(page);
        watcher(api.clone(), config).backoff(backoff).boxed()
    };
    let first = begin(first_page, ExponentialBackoff::default());
    stream::unfold((first, first_page), move |(mut events, mut page)| {
        let (begin, relist) = (begin.clone(), relist.clone());
        async move {
            let event = loop {
                tokio::select! {
                    event = events.next() => break event?,
                    () = relist.notified() => events = begin(page, ExponentialBackoff::default()),
                }
            };
            if page > 1 && event.as_ref().is_err_and(is_too_large) {
                page = (page / 4).max(1);
                // No wait has followed this failure.
                let backoff = ExponentialBackoff {
                    failures: 1,
                    last: None,
                };
                events = begin(page, backoff);
            }
            Some((event, (events, page)))
        }
    })
}

/// Whether a page of a list was too long to be read. The watch goes on by itself with a list in smaller pages.
pub fn is_too_large(error: &watcher::Error) -> bool {
    cause::<Excess>(error).is_some_and(|excess| excess.is_of_size())
}

/// The configuration of a watch of five minutes and a random time more, so that many watches do not end
/// together. Pings and TCP keepalive find a connection that has died long before.
pub fn watch_config() -> watcher::Config {
    let mut random = [0];
    // Without random bytes watches end together.
    let _ = aws_lc_rs::rand::fill(&mut random);
    let half = LONGEST_WATCH / 2;
    let timeout = half + half * u32::from(random[0]) / 256;
    watcher::Config::default().timeout(timeout.as_secs().try_into().unwrap_or(u32::MAX))
}

/// A watch of objects of the management cluster.
pub fn on_management<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType: Clone + Debug> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    in_smaller_pages(api, config, MANAGEMENT_PAGE_SIZE, Arc::default())
}

/// Waits that double up to a limit, and begin anew once a watch has held.
#[derive(Debug, Default)]
pub(crate) struct ExponentialBackoff {
    failures: u32,
    last: Option<Instant>,
}

impl Iterator for ExponentialBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last > WATCH_HELD) {
            self.failures = 0;
        }
        let wait = FIRST_WATCH_RETRY.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        Some(wait.min(LAST_WATCH_RETRY))
    }
}

impl Backoff for ExponentialBackoff {
    /// Does nothing: a watch also says that it begins, which is no success, before every list that
    /// fails.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_an_api_server_double_until_a_watch_has_held() {
        let mut waits = ExponentialBackoff::default();
        let mut millis = Vec::new();
        for _ in 0..8 {
            let wait = waits.next().unwrap();
            millis.push(wait.as_millis());
            tokio::time::advance(wait).await;
            waits.reset();
        }
        assert_eq!(millis, [250, 500, 1000, 2000, 4000, 8000, 15000, 15000]);

        tokio::time::advance(WATCH_HELD).await;

        assert_eq!(waits.next(), Some(FIRST_WATCH_RETRY));
    }
}
