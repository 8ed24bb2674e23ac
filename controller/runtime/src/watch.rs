//! Watches that use little memory, restart after failures, and tolerate invalid objects.
//!
//! Only this module reads, lists, watches and writes with kube, and handles objects whose kind is known only at run
//! time. kube decodes a page or an event as a whole, so an object that cannot be decoded hides all other objects. This
//! module decodes each object as a [`Lenient`]. `controller/clippy.toml` forbids kube's own functions in other
//! modules.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use kube::Resource;
use kube::api::Api;
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use kubelet_attestation::backoff::Backoff;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::client::{LONGEST_WATCH, MANAGEMENT_PAGE_SIZE, cause};
use crate::metrics::WatchMetrics;

mod events;
mod heard;
mod kinds;
mod lenient;
mod list;
mod listening;
mod log;
mod one;
#[cfg(test)]
pub(crate) mod oversized;
mod recovery;
mod steps;
#[cfg(feature = "testing")]
pub mod testing;
mod written;

pub(crate) use heard::{Heard, heard_config};
#[cfg(test)]
pub(crate) use kinds::KindTable;
pub use kinds::ReadAlone;
pub(crate) use kinds::read_alone;
pub use lenient::{Lenient, Skipped, Unreadable};
pub use list::{MetadataOf, NoFields, page_of};
pub(crate) use list::{all_metadata_of, all_of, each_metadata_of, each_of, metadata_page_of};
pub use listening::listening;
pub use log::WatchLog;
pub(crate) use one::{
    document, one_on_behalf_of, required_one_of, text_of_one, with_short_version,
};
pub use one::{metadata_of_one, one_of, readable_one_of, token_text};
pub(crate) use recovery::{Recovery, RecoveryStep, pages_of};
pub(crate) use steps::is_short_version;
use steps::{Source, steps};
pub use written::patched_metadata;
pub(crate) use written::{
    created, created_metadata, deleted, patched, patched_status, replaced, replaced_part_metadata,
    reviewed,
};

/// An object whose kind is known only at run time, decoded as `K`.
#[expect(clippy::disallowed_types, reason = "this is the door")]
pub type Custom<K> = Lenient<K, kube::core::DynamicObject>;

/// The delays before a failed watch restarts.
const WATCH_RETRY: Backoff = Backoff {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(15),
};

/// The time without a failure after which the delay is reset.
const WATCH_HELD: Duration = Duration::from_mins(1);

/// A watch that reads a part of its list in smaller pages if a page is too long, with a minimum of one object. This is
/// necessary because an API server can store requests that are far larger than normal requests. `relist` restarts the
/// watch. `heard` receives each event and each bookmark.
///
/// A watch also lists again after it has failed or was silent (see [`steps()`]), because etcd could have been restored
/// from a backup during an outage.
pub(crate) fn in_smaller_pages<K, R>(
    api: Api<Lenient<K, R>>,
    config: watcher::Config,
    first_page: u32,
    relist: Arc<Notify>,
    heard: WatchMetrics,
) -> impl Stream<Item = watcher::Result<Event<Lenient<K, R>>>> + Send
where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    let source = Arc::new(Source {
        api,
        config,
        most: first_page,
        heard,
    });
    let watching = Watching {
        events: steps(source.clone()),
        began: Instant::now(),
        waits: ExponentialBackoff::default(),
        next: Instant::now(),
    };
    stream::unfold(watching, move |mut watching| {
        let (source, relist) = (source.clone(), relist.clone());
        async move {
            let event = loop {
                tokio::select! {
                    event = watching.next() => match event {
                        Some(event) => break event,
                        None => watching.wait_if_short(),
                    },
                    () = relist.notified() => {}
                }
                watching.restart(steps(source.clone()));
            };
            if event.is_err() {
                watching.wait();
                watching.restart(steps(source.clone()));
            }
            Some((event, watching))
        }
    })
}

/// A watch, and the time of its next call after a failure.
struct Watching<K> {
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    /// The time at which `events` started.
    began: Instant,
    waits: ExponentialBackoff,
    next: Instant,
}

impl<K> Watching<K> {
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        sleep_until(self.next).await;
        self.events.next().await
    }

    fn wait(&mut self) {
        self.next = Instant::now() + self.waits.next_wait();
    }

    /// Waits after a silent watch that the API server ended early. After a longer watch, no additional wait is
    /// necessary.
    fn wait_if_short(&mut self) {
        if self.began.elapsed() < WATCH_RETRY.longest {
            self.wait();
        }
    }

    fn restart(&mut self, events: BoxStream<'static, watcher::Result<Event<K>>>) {
        self.events = events;
        self.began = Instant::now();
    }
}

/// A random part of `whole`. If no random bytes are available, the result is 0, and watches end and start at the same
/// time.
fn random_part(whole: Duration) -> Duration {
    let mut random = [0];
    let _ = aws_lc_rs::rand::fill(&mut random);
    whole * u32::from(random[0]) / 256
}

/// Whether the API server no longer serves this version of a kind.
pub fn is_gone(error: &watcher::Error) -> bool {
    cause::<Box<Status>>(error).is_some_and(|status| status.code == 404)
}

/// The configuration of a watch, with a timeout of 8 to 10 minutes. The timeout is random, so that many watches do not
/// end together.
///
/// A dead connection is detected much earlier, with pings and TCP keepalive.
pub fn watch_config() -> watcher::Config {
    let timeout = LONGEST_WATCH.saturating_sub(random_part(LONGEST_WATCH / 5));
    watcher::Config::default().timeout(timeout.as_secs().try_into().unwrap_or(u32::MAX))
}

/// A watch of objects in the management cluster.
pub fn on_management<K, R>(
    api: Api<Lenient<K, R>>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<Lenient<K, R>>>> + Send
where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    measured(api, config, WatchMetrics::default())
}

/// A watch of objects in the management cluster, with its metrics.
pub(crate) fn measured<K, R>(
    api: Api<Lenient<K, R>>,
    config: watcher::Config,
    heard: WatchMetrics,
) -> impl Stream<Item = watcher::Result<Event<Lenient<K, R>>>> + Send
where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    in_smaller_pages(api, config, MANAGEMENT_PAGE_SIZE, Arc::default(), heard)
}

/// Delays that double up to a limit, and start again after a watch has worked for some time.
///
/// Up to half of each delay is random, so watches that failed together do not restart together.
#[derive(Debug, Default)]
pub struct ExponentialBackoff {
    failures: u32,
    last: Option<Instant>,
}

impl ExponentialBackoff {
    /// The delay after a failure at the current time.
    pub fn next_wait(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last > WATCH_HELD) {
            self.failures = 0;
        }
        let half = WATCH_RETRY.after(self.failures) / 2;
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        half + random_part(half)
    }
}

#[cfg(test)]
mod tests;
