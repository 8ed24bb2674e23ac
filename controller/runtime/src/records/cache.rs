//! The records of one cluster, as a watch has shown them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource as _;
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

/// Records by the names of their objects; `Err` where somebody broke one.
pub(super) type Entries = HashMap<String, Result<Stored, BrokenRecord>>;

/// When the API server was heard of last.
#[derive(Default)]
pub(super) struct Heard(watch::Sender<Option<Instant>>);

impl Heard {
    /// Takes note that the API server answers.
    pub(super) fn now(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Takes note that what is known is out of date, until the store is listed.
    pub(super) fn outdated(&self) {
        self.0.send_replace(None);
    }

    fn is_recent(&self) -> bool {
        let last = *self.0.borrow();
        last.is_some_and(|heard| heard.elapsed() < HEARD_WITHIN)
    }
}

/// The records of one cluster.
pub(super) struct Cache {
    state: watch::Sender<State>,
    heard: Arc<Heard>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) objects: Entries,
}

impl Cache {
    pub(super) fn new(heard: Arc<Heard>) -> Self {
        Self {
            state: watch::Sender::default(),
            heard,
        }
    }

    pub(super) fn state(&self) -> watch::Ref<'_, State> {
        self.state.borrow()
    }

    /// Waits until the records are those of a list, and the API server was heard of just now.
    pub(super) async fn synced(&self) -> Result<(), Unavailable> {
        self.wait(|_| self.heard.is_recent()).await
    }

    pub(super) async fn wait(&self, holds: impl Fn(&State) -> bool) -> Result<(), Unavailable> {
        let mut changes = self.state.subscribe();
        let mut heard = self.heard.0.subscribe();
        let waiting = async {
            while !holds(&self.state()) {
                tokio::select! {
                    told = changes.changed() => told,
                    told = heard.changed() => told,
                }
                .map_err(Unavailable::new)?;
            }
            Ok(())
        };
        let waited = tokio::time::timeout(ECHO_DEADLINE, waiting).await;
        waited.unwrap_or_else(|_| Err(Unavailable::new("the watch of the records lags behind")))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().objects.is_empty()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.state().objects.contains_key(name)
    }

    /// Takes these for all that there are.
    pub(super) fn replace(&self, objects: Entries) {
        self.state.send_replace(State { objects });
    }

    pub(super) fn put(&self, name: String, stored: Result<Stored, BrokenRecord>) {
        self.state.send_modify(|state| {
            state.objects.insert(name, stored);
        });
    }

    pub(super) fn remove(&self, name: &str) {
        self.state.send_modify(|state| {
            state.objects.remove(name);
        });
    }
}

/// The name of an object of `cluster`, and the record that it is.
pub(super) fn entry(
    seen: &Lenient<NodeIdentity>,
    cluster: &str,
    skipped: &mut Skipped,
) -> (String, Result<Stored, BrokenRecord>) {
    let name = seen.meta().name.clone().unwrap_or_default();
    let stored = match &seen.object {
        Ok(object) => object::stored(object, cluster),
        Err(error) => {
            skipped.note(seen.meta(), error);
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

impl State {
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
