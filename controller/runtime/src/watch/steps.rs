//! A list, and the watches that continue after it.
//!
//! kube's watcher is not used. kube's watcher does not expose bookmarks, and it continues each watch at its last
//! `resourceVersion`. After etcd is restored from a backup, the API server accepts a version that it has not reached.
//! It then sends no events until it has passed this version, which can take as long as the age of the backup.

use std::fmt::Debug;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::Resource;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event};
use tokio::time::timeout;

use super::events::events_of;
use super::{Lenient, ReadAlone, page_of};
use crate::client::{Decoding, PageSize};
use crate::metrics::WatchMetrics;

/// The time by which a watch can exceed its timeout, as in kube's watcher. After this time, the connection counts as
/// dead.
const MARGIN: Duration = Duration::from_secs(5);

/// The maximum length of a `resourceVersion`, which is usually a number. A watch keeps it as long as it is open, and a
/// tenant's API server can send megabytes.
pub(super) const MAX_VERSION_LEN: usize = 16 * 1024;

/// Whether a `resourceVersion` is short enough to be kept during a call.
pub(crate) const fn is_short_version(version: &str) -> bool {
    version.len() <= MAX_VERSION_LEN
}

/// The timeout for a watch without a configured timeout, as in kube.
const DEFAULT_TIMEOUT: u32 = 290;

/// The events from a list, and from the watches that continue after it. The stream ends when the objects must be listed
/// again:
///
/// - after every error;
/// - after a watch without an event or a bookmark. An API server sends a bookmark every minute, and before a watch
///   ends. Without a bookmark, the API server might not have reached the version of the watch;
/// - if the first version of a continued watch is lower than the last known version.
///
/// If a page is too long, only its objects are read in smaller pages, and then the list continues. Therefore one
/// tenant's large objects do not slow down the lists of all tenants.
pub(super) fn steps<K, R>(
    source: Arc<Source<K, R>>,
) -> BoxStream<'static, watcher::Result<Event<Lenient<K, R>>>>
where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    let steps = Steps {
        size: PageSize::new(source.most),
        source,
        state: State::Begin,
    };
    let events = stream::unfold(steps, |mut steps| async move {
        loop {
            match steps.step().await {
                Step::Event(event) => return Some((event, steps)),
                Step::Next => {}
                Step::End => return None,
            }
        }
    });
    events.boxed()
}

/// The objects to watch.
pub(super) struct Source<K, R> {
    pub(super) api: Api<Lenient<K, R>>,
    pub(super) config: watcher::Config,
    /// The maximum number of objects on a page of the list.
    pub(super) most: u32,
    /// The metrics that receive the events and bookmarks. The stream does not contain the bookmarks.
    pub(super) heard: WatchMetrics,
}

struct Steps<K, R> {
    source: Arc<Source<K, R>>,
    size: PageSize,
    state: State<Lenient<K, R>>,
}

/// The result of a step.
enum Step<T> {
    Event(watcher::Result<Event<T>>),
    /// The next step follows.
    Next,
    /// The objects must be listed again.
    End,
}

enum State<T> {
    Begin,
    /// A page of the list.
    Page {
        objects: std::vec::IntoIter<T>,
        /// The token for the next page.
        next: Option<String>,
        version: Option<String>,
    },
    /// A watch that must start at this version.
    Due {
        version: String,
        is_continued: bool,
    },
    Open(Watch<T>),
    End,
}

/// An open watch.
struct Watch<T> {
    events: Decoding<BoxStream<'static, kube::Result<WatchEvent<T>>>>,
    /// The last known version.
    version: String,
    /// Whether the watch continues another watch.
    is_continued: bool,
    /// Whether the watch has received an event or a bookmark.
    is_heard: bool,
}

impl<K, R> Steps<K, R>
where
    K: ReadAlone,
    R: Resource<DynamicType: Clone + Debug> + Clone + Debug + 'static,
{
    async fn step(&mut self) -> Step<Lenient<K, R>> {
        // A failed step leaves the state `End`.
        match mem::replace(&mut self.state, State::End) {
            State::Begin => {
                self.state = State::Page {
                    objects: Vec::new().into_iter(),
                    next: None,
                    version: None,
                };
                Step::Event(Ok(Event::Init))
            }
            State::Page {
                mut objects,
                next,
                version,
            } => {
                if let Some(object) = objects.next() {
                    self.state = State::Page {
                        objects,
                        next,
                        version,
                    };
                    return Step::Event(Ok(Event::InitApply(object)));
                }
                match version {
                    Some(version) if next.is_none() => {
                        self.state = State::Due {
                            version,
                            is_continued: false,
                        };
                        Step::Event(Ok(Event::InitDone))
                    }
                    _ => self.list(next).await,
                }
            }
            State::Due {
                version,
                is_continued,
            } => self.open(version, is_continued).await,
            State::Open(watch) => self.follow(watch).await,
            State::End => Step::End,
        }
    }

    /// Reads the page with this token. If no token is given, reads the first page.
    async fn list(&mut self, token: Option<String>) -> Step<Lenient<K, R>> {
        let Source { api, config, .. } = &*self.source;
        let wanted = ListParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            continue_token: token,
            ..ListParams::default()
        };
        let page = loop {
            let wanted = wanted.clone().limit(self.size.limit());
            match page_of(api, &wanted).await {
                Ok(page) => break page,
                Err(error) if self.size.shrink(&error) => {}
                Err(error) => return failed(watcher::Error::InitialListFailed(error)),
            }
        };
        self.size.read();
        let is_given = |text: &String| !text.is_empty();
        let version = page.metadata.resource_version.filter(is_given);
        let next = page.metadata.continue_.filter(is_given);
        let is_too_long = |text: &String| !is_short_version(text);
        let has_none = version.is_none() && next.is_none();
        if has_none || version.as_ref().is_some_and(is_too_long) {
            return failed(watcher::Error::NoResourceVersion);
        }
        self.state = State::Page {
            objects: page.items.into_iter(),
            next,
            version,
        };
        Step::Next
    }

    async fn open(&mut self, version: String, is_continued: bool) -> Step<Lenient<K, R>> {
        let Source { api, config, .. } = &*self.source;
        let params = WatchParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            timeout: config.timeout,
            bookmarks: true,
            send_initial_events: false,
        };
        let opened = Decoding::new(Box::pin(events_of(api, &params, &version))).await;
        match opened {
            Ok(events) => {
                self.state = State::Open(Watch {
                    events: Decoding::new(events),
                    version,
                    is_continued,
                    is_heard: false,
                });
                Step::Next
            }
            Err(error) => failed(watcher::Error::WatchStartFailed(error)),
        }
    }

    async fn follow(&mut self, mut watch: Watch<Lenient<K, R>>) -> Step<Lenient<K, R>> {
        let seconds = self.source.config.timeout.unwrap_or(DEFAULT_TIMEOUT);
        let longest = Duration::from_secs(seconds.into()) + MARGIN;
        let next = timeout(longest, watch.events.next()).await;
        let next = next.ok().flatten();
        if matches!(&next, Some(Ok(event)) if !matches!(event, WatchEvent::Error(_))) {
            self.source.heard.heard();
        }
        let (version, event) = match next {
            None => return self.ended(watch),
            Some(Err(error)) => return failed(watcher::Error::WatchFailed(error)),
            Some(Ok(WatchEvent::Error(status))) => {
                return failed(watcher::Error::WatchError(status));
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => (bookmark.metadata.resource_version, None),
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                (version_of(&object), Some(Event::Apply(object)))
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                (version_of(&object), Some(Event::Delete(object)))
            }
        };
        if version.is_empty() || !is_short_version(&version) {
            return failed(watcher::Error::NoResourceVersion);
        }
        let is_first = watch.is_continued && !watch.is_heard;
        if is_first && is_lower(&version, &watch.version) {
            return Step::End;
        }
        watch.version = version;
        watch.is_heard = true;
        self.state = State::Open(watch);
        event.map_or(Step::Next, |event| Step::Event(Ok(event)))
    }

    /// Continues after the end of a watch, if the API server had reached the watch's version.
    fn ended(&mut self, watch: Watch<Lenient<K, R>>) -> Step<Lenient<K, R>> {
        if !watch.is_heard {
            return Step::End;
        }
        self.state = State::Due {
            version: watch.version,
            is_continued: true,
        };
        Step::Next
    }
}

fn failed<T>(error: watcher::Error) -> Step<T> {
    Step::Event(Err(error))
}

fn version_of<K, R>(object: &Lenient<K, R>) -> String {
    object.metadata.resource_version.clone().unwrap_or_default()
}

/// Whether this version is lower than the other. Versions are numbers. Texts that are not numbers are not compared.
fn is_lower(version: &str, than: &str) -> bool {
    let number = |text: &str| text.parse::<u128>().ok();
    number(version)
        .zip(number(than))
        .is_some_and(|(version, than)| version < than)
}
