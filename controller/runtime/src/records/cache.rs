//! What the watch of the records has shown.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::Resource as _;
use kube::runtime::watcher;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_core::ledger::{Stored, Version};
use node_attestation_core::refusal::Unavailable;
use tokio::sync::watch;
use tokio::time::Instant;

use super::object::{self, BrokenRecord};
use crate::watch::{Lenient, Skipped};

/// For the watch to show what was written. It takes milliseconds where the watch stands; where it
/// does not, the claim waits its turn like any other outage.
const ECHO_DEADLINE: Duration = Duration::from_secs(5);

/// A store that was not heard of for so long may have changed in any way: whoever was revoked in it
/// would get certificates that outlive the revocation.
pub(super) const HEARD_WITHIN: Duration = Duration::from_mins(1);

/// What the watch has shown.
pub(super) struct Cache {
    pub(super) cluster: String,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

pub(super) struct State {
    /// By their names; `Err` where somebody broke one.
    pub(super) objects: HashMap<String, Result<Stored, BrokenRecord>>,
    /// What a list has shown so far that is under way.
    listed: HashMap<String, Result<Stored, BrokenRecord>>,
    is_synced: bool,
    heard: Option<Instant>,
    skipped: Skipped,
}

impl Default for State {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            listed: HashMap::new(),
            is_synced: false,
            heard: None,
            skipped: Skipped::new("NodeIdentity"),
        }
    }
}

impl Cache {
    pub(super) fn new(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            state: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one step, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn synced(&self) -> Result<(), Unavailable> {
        self.wait(|state| state.is_synced && state.is_heard_of())
            .await
    }

    /// Takes note that the API server answers.
    pub(super) fn heard(&self) {
        self.state().heard = Some(Instant::now());
        self.changes.send_replace(());
    }

    pub(super) async fn wait(&self, holds: impl Fn(&State) -> bool) -> Result<(), Unavailable> {
        let mut changes = self.changes.subscribe();
        let waiting = async {
            while !holds(&self.state()) {
                changes.changed().await.map_err(Unavailable::new)?;
            }
            Ok(())
        };
        let waited = tokio::time::timeout(ECHO_DEADLINE, waiting).await;
        waited.unwrap_or_else(|_| Err(Unavailable::new("the watch of the records lags behind")))
    }

    fn apply(&self, event: watcher::Event<Lenient<NodeIdentity>>) {
        let mut state = self.state();
        match event {
            watcher::Event::Apply(object) => {
                let (name, stored) = self.entry(&object, &mut state);
                state.objects.insert(name, stored);
            }
            watcher::Event::Delete(object) => {
                let name = object.meta().name.as_deref().unwrap_or_default();
                state.objects.remove(name);
            }
            watcher::Event::Init => state.listed.clear(),
            watcher::Event::InitApply(object) => {
                let (name, stored) = self.entry(&object, &mut state);
                state.listed.insert(name, stored);
            }
            watcher::Event::InitDone => {
                state.objects = std::mem::take(&mut state.listed);
                state.is_synced = true;
            }
        }
        drop(state);
        self.changes.send_replace(());
    }

    fn entry(
        &self,
        seen: &Lenient<NodeIdentity>,
        state: &mut State,
    ) -> (String, Result<Stored, BrokenRecord>) {
        let name = seen.meta().name.clone().unwrap_or_default();
        let stored = match &seen.object {
            Ok(object) => object::stored(object, &self.cluster),
            Err(error) => {
                state.skipped.note(seen.meta(), error);
                Err(BrokenRecord {
                    object: name.clone(),
                    field: "spec or status",
                })
            }
        };
        if let Err(broken) = &stored {
            tracing::error!(error = error_chain(broken), "a record is broken");
        }
        (name, stored)
    }
}

impl State {
    fn is_heard_of(&self) -> bool {
        self.heard
            .is_some_and(|heard| heard.elapsed() < HEARD_WITHIN)
    }

    /// Whether the object is known in this version, or in a later one.
    pub(super) fn has(&self, object: &str, version: &Version) -> bool {
        let Some(Ok(known)) = self.objects.get(object) else {
            return false;
        };
        // Resource versions are the numbers of writes (KEP-5504).
        let number = |version: &Version| version.as_str().parse::<u128>().ok();
        known.version == *version
            || number(&known.version)
                .zip(number(version))
                .is_some_and(|(known, wanted)| known >= wanted)
    }
}

pub(super) async fn follow(
    events: impl Stream<Item = Result<watcher::Event<Lenient<NodeIdentity>>, watcher::Error>>,
    cache: Arc<Cache>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => cache.apply(event),
            Err(error) => tracing::warn!(
                cluster = cache.cluster,
                error = error_chain(&error),
                "the watch of the records was cut"
            ),
        }
    }
}
