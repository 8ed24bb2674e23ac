//! The records of one cluster, from a watch.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource as _;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::ledger::{Stored, Version};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::verifier::Identity;
use tokio::sync::watch;

use super::object::{self, BrokenRecord};
use crate::table::{Indexed, Table};
use crate::watch::{Heard, Lenient, Skipped};

/// The time for the watch to show a write. This takes milliseconds while the watch works. Otherwise, the claim waits
/// for its next turn, as in any other outage.
const ECHO_DEADLINE: Duration = Duration::from_secs(5);

/// The record of an object; `Err` if it is invalid.
pub(super) type Entry = Result<Stored, BrokenRecord>;

/// The cached records of one cluster.
pub(super) struct Cache {
    state: watch::Sender<State>,
    heard: Arc<Heard>,
}

/// The records by object name.
pub(super) type State = Table<Entry>;

/// An index value of a record.
#[derive(Hash)]
enum Value<'a> {
    ProviderId(&'a ProviderId),
    /// The key of a TPM, or the key that opened the record.
    Key(KeyDigest),
}

fn values(
    provider_id: &ProviderId,
    endorsement_key: Option<KeyDigest>,
    key: KeyDigest,
) -> impl Iterator<Item = Value<'_>> {
    let keys = [Some(key), endorsement_key].into_iter().flatten();
    [Value::ProviderId(provider_id)]
        .into_iter()
        .chain(keys.map(Value::Key))
}

impl Indexed for Entry {
    fn values<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = impl Hash> {
        self.iter().flat_map(|Stored { record, .. }| {
            let holder = &record.holder;
            values(
                &holder.provider_id,
                holder.endorsement_key,
                record.opened.key,
            )
        })
    }
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

    /// Waits until the records are listed, and the API server has responded recently.
    pub(super) async fn synced(&self) -> Result<(), Unavailable> {
        self.wait(|_| self.heard.is_recent()).await
    }

    pub(super) async fn wait(&self, holds: impl Fn(&State) -> bool) -> Result<(), Unavailable> {
        let mut changes = self.state.subscribe();
        let mut heard = self.heard.changes();
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

    /// Replaces all records.
    pub(super) fn replace(&self, objects: State) {
        self.state.send_replace(objects);
    }

    pub(super) fn put(&self, name: &str, entry: Entry) {
        self.state.send_modify(|state| drop(state.put(name, entry)));
    }

    pub(super) fn remove(&self, name: &str) {
        self.state.send_modify(|state| drop(state.remove(name)));
    }
}

/// The name of an object of `cluster`, and its record.
pub(super) fn entry(
    seen: &Lenient<NodeIdentity>,
    cluster: &str,
    skipped: &mut Skipped,
) -> (String, Entry) {
    let name = seen.meta().name.clone().unwrap_or_default();
    let stored = match &seen.object {
        Ok(object) => {
            let stored = object::stored(object, cluster);
            if let Err(broken) = &stored {
                skipped.note(seen.meta(), broken);
            }
            stored
        }
        Err(error) => {
            skipped.note(seen.meta(), error);
            Err(BrokenRecord {
                object: name.clone(),
                field: "spec or status",
            })
        }
    };
    (name, stored)
}

impl State {
    /// The valid records.
    pub(super) fn records(&self) -> impl Iterator<Item = &Stored> {
        self.iter().filter_map(|(_, entry)| entry.as_ref().ok())
    }

    /// The records of this machine, of its TPM or of this key. The cost does not grow with the number of records.
    pub(super) fn of_machine(&self, identity: &Identity, key: KeyDigest) -> Vec<Stored> {
        let values = values(&identity.provider_id, identity.endorsement_key, key);
        let found: BTreeMap<_, _> = values.flat_map(|value| self.with(value)).collect();
        let found = found.into_values().flatten();
        let concerned = found.filter(|stored| stored.record.concerns(identity, key));
        concerned.cloned().collect()
    }

    /// Whether the object is known in this version or a later one.
    pub(super) fn has(&self, object: &str, version: &Version) -> bool {
        let Some(Ok(known)) = self.get(object) else {
            return false;
        };
        // Resource versions are increasing write counters (KEP-5504).
        let number = |version: &Version| version.as_str().parse::<u128>().ok();
        let numbers = number(&known.version).zip(number(version));
        known.version == *version || numbers.is_some_and(|(known, wanted)| known >= wanted)
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_core::identifiers::RecordUid;
    use node_attestation_core::ledger::Record;
    use node_attestation_core::testing::records::{at, claim, provider_id};
    use serde_json::json;
    use tracing::Level;

    use super::*;
    use crate::testing::ThreadLog;

    fn stored(machine: &str, key: u8, endorsement_key: Option<&str>) -> Stored {
        let claim = claim(machine, "n1", key, 0);
        let mut record = Record::first(&claim, RecordUid::new([7; 16]), None, at(0));
        record.holder.endorsement_key = endorsement_key.map(|key| KeyDigest::of(key.as_bytes()));
        Stored {
            record,
            version: Version::new("1"),
        }
    }

    fn broken() -> BrokenRecord {
        BrokenRecord {
            object: String::new(),
            field: "spec",
        }
    }

    /// Asserts that the index finds the records that a search of all records finds.
    #[track_caller]
    fn assert_found(cache: &Cache) {
        let state = cache.state();
        for (machine, key, endorsement_key) in [
            ("m1", 1, None),
            ("m1", 9, Some("a")),
            ("m2", 2, Some("b")),
            ("m3", 1, Some("b")),
            ("m9", 9, Some("z")),
        ] {
            let mut identity = Identity::of(provider_id(machine));
            identity.endorsement_key = endorsement_key.map(|key| KeyDigest::of(key.as_bytes()));
            let key = stored(machine, key, None).record.opened.key;
            let concerned = |stored: &&Stored| stored.record.concerns(&identity, key);
            let expected: Vec<_> = state.records().filter(concerned).collect();
            let found = state.of_machine(&identity, key);
            assert_eq!(found.len(), expected.len(), "{machine}");
            assert!(
                expected.into_iter().all(|one| found.contains(one)),
                "{machine}"
            );
        }
    }

    #[test]
    fn the_records_of_a_machine_its_tpm_or_a_key_are_found_after_every_change() {
        let cache = Cache::new(Arc::default());
        let put = |name: &str, stored| {
            cache.put(name, stored);
            assert_found(&cache);
        };
        put("a", Ok(stored("m1", 1, Some("a"))));
        put("b", Ok(stored("m2", 2, Some("b"))));
        put("c", Ok(stored("m1", 3, None)));
        put("d", Ok(stored("m4", 1, Some("b"))));
        // Another machine has the name now, with another TPM and another key.
        put("a", Ok(stored("m3", 2, None)));
        put("b", Err(broken()));
        cache.remove("d");
        assert_found(&cache);
        let mut all = State::default();
        all.put("e", Ok(stored("m2", 1, Some("a"))));
        cache.replace(all);
        assert_found(&cache);

        let found = cache.state().of_machine(
            &Identity::of(provider_id("m2")),
            stored("m2", 9, None).record.opened.key,
        );
        assert_eq!(found, [stored("m2", 1, Some("a"))]);
    }

    /// An object of the cluster `prod-1` that says it is of another one.
    fn of_another(version: usize) -> Lenient<NodeIdentity> {
        let record = stored("m1", 1, None).record;
        let spec = object::spec(&record, "other").unwrap();
        let object = json!({
            "metadata": {
                "namespace": "broken-records", "name": "r", "uid": "u",
                "resourceVersion": version.to_string(),
            },
            "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_versions_of_a_broken_record_have_100_lines() {
        let log = ThreadLog::start(Level::INFO);
        let mut skipped = Skipped::new("NodeIdentity");
        for version in 0..10_000 {
            for _ in 0..2 {
                let (_, entry) = entry(&of_another(version), "prod-1", &mut skipped);
                assert_eq!(entry.unwrap_err().field, "spec.clusterName");
            }
        }
        assert_eq!(log.count(&["spec.clusterName cannot be read"]), 100);

        tokio::time::advance(Duration::from_mins(1)).await;
        drop(entry(&of_another(10_000), "prod-1", &mut skipped));
        // The versions with a line had one each. The others were seen twice.
        assert_eq!(log.count(&["left_out=19800"]), 1);
    }
}
