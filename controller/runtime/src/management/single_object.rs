//! A watch of a single Secret in the management cluster.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::watcher::Event;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::capi::SecretValues;
use crate::client::MANAGEMENT_PAGE_SIZE;
use crate::clock::jittered;
use crate::log_lines::ClusterLines;
use crate::memory::Share;
use crate::metrics::WatchMetrics;
use crate::watch::{Lenient, Skipped, Unreadable, WatchLog, in_smaller_pages, watch_config};

/// The number of copies of a Secret's values: one in the Secret, and one in its parsed form.
const COPIES: usize = 2;

/// The reason why a Secret is not used.
const TOO_MUCH_MEMORY: &str = "the Secrets of the Clusters in the namespace exceed the available memory; make some of \
                               them smaller";

/// The time after which a Secret that is not used is read again, because other Secrets might have released memory.
const READ_AGAIN: Duration = Duration::from_mins(5);

/// The last known state of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Observed<K> {
    /// The object has not been read yet.
    #[default]
    Unknown,
    /// The object does not exist.
    Absent,
    /// The object.
    Present(K),
    /// The object exists, but none of its versions could be read.
    Unreadable(Unreadable),
}

impl<K> Observed<K> {
    pub(super) fn present(&self) -> Option<&K> {
        match self {
            Self::Present(object) => Some(object),
            Self::Unknown | Self::Absent | Self::Unreadable(_) => None,
        }
    }

    pub(super) fn map<T>(self, map: impl FnOnce(K) -> T) -> Observed<T> {
        match self {
            Self::Unknown => Observed::Unknown,
            Self::Absent => Observed::Absent,
            Self::Present(object) => Observed::Present(map(object)),
            Self::Unreadable(error) => Observed::Unreadable(error),
        }
    }
}

/// A change to a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change<K> {
    /// The state of the Secret.
    State(Observed<K>),
    /// The last version cannot be read. The previous version remains in use.
    Outdated(Unreadable),
}

impl<K> From<Option<K>> for Observed<K> {
    fn from(object: Option<K>) -> Self {
        object.map_or(Self::Absent, Self::Present)
    }
}

/// Returns each change to the Secret with this name, including its version and the values of these keys. The stream
/// never ends. Other events are `None`, because a stream that skips them would reserve space for a Secret.
///
/// Unlike `kube::runtime::watch_object`, the stream decodes a Secret leniently, lists in pages, and logs like all other
/// watches. The last readable version remains in use while later versions cannot be read, and while the API server is
/// unavailable. A Secret for which there is no memory is read again after [`READ_AGAIN`].
pub(super) fn follow(
    api: Api<Lenient<SecretValues, Secret>>,
    name: &str,
    keys: &'static [&'static str],
    lines: ClusterLines,
) -> impl Stream<Item = Option<Change<Secret>>> + Send + use<> {
    let share = Share::of_secret(lines.namespace());
    follow_within(api, name, keys, (lines, &share))
}

/// Like [`follow`], but the values count toward this share as long as the stream exists.
fn follow_within(
    api: Api<Lenient<SecretValues, Secret>>,
    name: &str,
    keys: &'static [&'static str],
    (lines, share): (ClusterLines, &Share),
) -> impl Stream<Item = Option<Change<Secret>>> + Send + use<> {
    let mut memory = share.holding();
    let mut skipped = Skipped::of_cluster("Secret", lines.clone());
    let config = watch_config().fields(&format!("metadata.name={name}"));
    let mut seen = false;
    let mut is_known = false;
    let mut log = WatchLog::of_one("Secret", name).within(lines);
    let relist = Arc::new(Notify::new());
    let mut again = JoinSet::new();
    let (size, heard) = (MANAGEMENT_PAGE_SIZE, WatchMetrics::default());
    in_smaller_pages(api, config, size, relist.clone(), heard).map(move |event| {
        log.observe(&event, || {});
        let state = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                seen = true;
                let Lenient {
                    metadata, object, ..
                } = object;
                let read = object.map(|read| read.only(keys)).and_then(|secret| {
                    let has_room = memory.resize(COPIES * len(&secret));
                    if !has_room {
                        let relist = relist.clone();
                        // Replaces the task of an earlier version.
                        again = JoinSet::new();
                        again.spawn(async move {
                            sleep(jittered(READ_AGAIN)).await;
                            relist.notify_one();
                        });
                    }
                    let error = || Unreadable::because(TOO_MUCH_MEMORY);
                    has_room.then_some(secret).ok_or_else(error)
                });
                match read {
                    Ok(mut secret) => {
                        is_known = true;
                        secret.metadata.resource_version = metadata.resource_version;
                        Some(Observed::Present(secret))
                    }
                    Err(error) => {
                        skipped.note(&metadata, &error);
                        if is_known {
                            return Some(Change::Outdated(error));
                        }
                        Some(Observed::Unreadable(error))
                    }
                }
            }
            Ok(Event::Delete(_)) => {
                is_known = false;
                memory.resize(0);
                Some(Observed::Absent)
            }
            Ok(Event::Init) => {
                seen = false;
                None
            }
            Ok(Event::InitDone) if !seen => {
                is_known = false;
                memory.resize(0);
                Some(Observed::Absent)
            }
            Ok(Event::InitDone) | Err(_) => None,
        };
        state.map(Change::State)
    })
}

/// The length of all values.
fn len(secret: &Secret) -> usize {
    let values = secret.data.iter().flat_map(|data| data.values());
    values.map(|value| value.0.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;
    use std::pin::pin;

    use data_encoding::BASE64;
    use futures::stream;
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use hyper::body::{Bytes, Frame};
    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::time::timeout;

    use super::*;
    use crate::capi::{CA_KEYS, ObjectKey};
    use crate::client::ClusterAccess;
    use crate::footprint::{any, assert_limits, size};

    fn secret(version: u32, certificate: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "prod-1-ca", "namespace": "a", "uid": "u", "resourceVersion": version.to_string(),
            },
            "data": {"tls.crt": certificate},
        })
    }

    fn answer(
        request: &Request<Body>,
        listed: &[Value],
        events: &[(&str, Value)],
    ) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let query = request.uri().query().unwrap_or_default();
        if !query.contains("watch=") {
            let list = json!({
                "apiVersion": "v1", "kind": "SecretList",
                "metadata": {"resourceVersion": "1"}, "items": listed,
            });
            return Response::new(Full::new(Bytes::from(list.to_string())).boxed_unsync());
        }
        let lines = events.iter().map(|(kind, object)| {
            let event = json!({"type": kind, "object": object});
            Ok(Frame::data(Bytes::from(format!("{event}\n"))))
        });
        let lines: Vec<Result<_, Infallible>> = lines.collect();
        let lines = stream::iter(lines).chain(stream::pending());
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    /// The certificates of a Secret that is first listed, and then changed by these events.
    async fn states(listed: Vec<Value>, events: Vec<(&'static str, Value)>) -> Vec<Change<String>> {
        states_within(&Share::alone(1 << 20), listed, events).await
    }

    /// A number of states that exceeds the number in each test.
    const MAX_STATES: usize = 20;

    /// Like [`states`], but with memory from this share.
    async fn states_within(
        share: &Share,
        listed: Vec<Value>,
        events: Vec<(&'static str, Value)>,
    ) -> Vec<Change<String>> {
        let access = ClusterAccess::in_memory(move |request| {
            let answer = answer(&request, &listed, &events);
            async move { answer }
        });
        let api = Api::namespaced(access.client().clone(), "a");
        let lines = ClusterLines::of(&ObjectKey::new("a", "prod-1"));
        let followed = follow_within(api, "prod-1-ca", &CA_KEYS, (lines, share));
        let mut followed = pin!(followed.filter_map(ready));
        let mut states = Vec::new();
        // A fault can cause a list every second, so the sequence of states would never end.
        while states.len() < MAX_STATES
            && let Ok(Some(state)) = timeout(Duration::from_secs(1), followed.next()).await
        {
            let certificate = |secret: Secret| {
                let certificate = secret.data.unwrap()["tls.crt"].0.clone();
                String::from_utf8(certificate).unwrap()
            };
            states.push(match state {
                Change::State(state) => Change::State(state.map(certificate)),
                Change::Outdated(why) => Change::Outdated(why),
            });
        }
        states
    }

    #[test]
    fn the_watch_of_a_secret_has_a_size_limit() {
        let watch = size(|| follow(any(), any(), any(), any()));
        assert_limits(&[("watch", watch, 800)]);
    }

    fn cause() -> Unreadable {
        Unreadable::because("tls.crt is not base64")
    }

    fn unreadable() -> Change<String> {
        Change::State(Observed::Unreadable(cause()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_secret_is_reported_and_a_known_version_stays() {
        let (invalid, valid) = (json!("-"), json!("YQ=="));
        let known = Change::State(Observed::Present("a".to_owned()));
        let absent = || Change::State(Observed::Absent);

        let listed = states(
            vec![secret(2, &invalid)],
            vec![
                ("MODIFIED", secret(3, &valid)),
                ("MODIFIED", secret(4, &invalid)),
                ("DELETED", secret(5, &invalid)),
                ("ADDED", secret(6, &invalid)),
            ],
        );
        let created = states(Vec::new(), vec![("ADDED", secret(2, &invalid))]);

        let listed_and_changed = [
            unreadable(),
            known,
            Change::Outdated(cause()),
            absent(),
            unreadable(),
        ];
        assert_eq!(listed.await, listed_and_changed);
        assert_eq!(created.await, [absent(), unreadable()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_without_memory_is_read_again_after_others_release_it() {
        let share = Share::alone(32 * 1024);
        let mut others = share.holding();
        assert!(others.resize(32 * 1024));
        let access = ClusterAccess::in_memory(|request| {
            let answer = answer(&request, &[secret(2, &json!("YQ=="))], &[]);
            async move { answer }
        });
        let api = Api::namespaced(access.client().clone(), "a");
        let lines = ClusterLines::of(&ObjectKey::new("a", "prod-1"));
        let followed = follow_within(api, "prod-1-ca", &CA_KEYS, (lines, &share));
        let mut followed = pin!(followed.filter_map(ready));
        let unreadable = Change::State(Observed::Unreadable(Unreadable::because(TOO_MUCH_MEMORY)));
        assert_eq!(followed.next().await, Some(unreadable.clone()));
        // This time is before the end of the watch, because a silent watch also causes a new list.
        let longest = READ_AGAIN + READ_AGAIN / 5;

        let without_memory = timeout(longest, followed.next()).await;
        drop(others);
        let with_memory = timeout(longest, followed.next()).await;

        assert_eq!(without_memory, Ok(Some(unreadable)));
        let with_memory = with_memory.expect("the Secret is read again").unwrap();
        assert!(matches!(with_memory, Change::State(Observed::Present(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_beyond_the_memory_of_its_namespace_is_not_used() {
        let share = Share::alone(32 * 1024);
        let (small, large) = (10_000, 20_000);
        let secret = |version: u32, len: usize| {
            let certificate = BASE64.encode(&vec![b'a'; len]);
            secret(version, &json!(certificate))
        };
        let known = || Change::State(Observed::Present("a".repeat(small)));
        let too_large = || Unreadable::because(TOO_MUCH_MEMORY);

        let events = vec![
            ("MODIFIED", secret(3, small)),
            ("MODIFIED", secret(4, large)),
            ("DELETED", secret(5, large)),
            ("ADDED", secret(6, small)),
        ];
        let states = states_within(&share, vec![secret(2, large)], events).await;

        let expected = [
            Change::State(Observed::Unreadable(too_large())),
            known(),
            Change::Outdated(too_large()),
            Change::State(Observed::Absent),
            known(),
        ];
        assert_eq!(states, expected);
        assert!(share.holding().resize(32 * 1024), "the memory is released");
    }
}
