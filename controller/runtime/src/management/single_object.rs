//! A watch of a single Secret in the management cluster.

use std::future::ready;

use futures::stream::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::Resource as _;
use kube::api::Api;
use kube::runtime::watcher::Event;

use crate::capi::SecretValues;
use crate::log_lines::ClusterLines;
use crate::watch::{Lenient, Skipped, WatchLog, on_management, watch_config};

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
}

impl<K> Observed<K> {
    pub(super) fn present(&self) -> Option<&K> {
        match self {
            Self::Present(object) => Some(object),
            Self::Unknown | Self::Absent => None,
        }
    }
}

impl<K> From<Option<K>> for Observed<K> {
    fn from(object: Option<K>) -> Self {
        object.map_or(Self::Absent, Self::Present)
    }
}

/// Yields the Secret with this name, with the values of these keys, after each change, and `None` if it does not exist.
/// The stream never ends.
///
/// Unlike `kube::runtime::watch_object`, it skips a Secret that cannot be decoded, lists in pages, and logs like all
/// watches. The last known state stays valid while the API server is unavailable.
pub(super) fn follow(
    api: Api<Lenient<SecretValues, Secret>>,
    name: &str,
    keys: &'static [&'static str],
    lines: ClusterLines,
) -> impl Stream<Item = Option<Secret>> + Send + use<> {
    let mut skipped = Skipped::of_cluster("Secret", lines.clone());
    let config = watch_config().fields(&format!("metadata.name={name}"));
    let mut seen = false;
    let mut log = WatchLog::of_one("Secret", name).within(lines);
    on_management(api, config).filter_map(move |event| {
        log.observe(&event, || {});
        ready(match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                seen = true;
                match object.object {
                    Ok(read) => Some(Some(read.only(keys))),
                    Err(ref error) => {
                        skipped.note(object.meta(), error);
                        None
                    }
                }
            }
            Ok(Event::Delete(_)) => Some(None),
            Ok(Event::Init) => {
                seen = false;
                None
            }
            Ok(Event::InitDone) if !seen => Some(None),
            Ok(Event::InitDone) | Err(_) => None,
        })
    })
}
