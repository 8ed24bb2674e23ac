//! The state that two replicas share, and the view of each replica.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use futures::future::{BoxFuture, FutureExt as _, poll_fn};
use kubelet_attestation::names::NodeName;

use crate::identifiers::{CertificateUid, KeyDigest, RecordUid};
use crate::inventory::{MachineState, StaticInventory};
use crate::ledger::*;
use crate::nodes::{Node, Nodes};
use crate::refusal::{Refusal, Unavailable};
use crate::scope::Enforcement;
use crate::testing::Uids;
use crate::testing::records::{at, machine, policy};
use crate::verifier::{Assurance, Identity};

/// The UID in the certificate for the previous holder of the name.
pub(super) fn before() -> CertificateUid {
    CertificateUid {
        record: RecordUid::new([9; 16]),
        generation: 1,
    }
}

/// Two requests, one at each replica, and the previous state.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) claims: [Claim; 2],
    pub(super) before: Option<Claim>,
    pub(super) adoption: Adoption,
    pub(super) flaw: Option<Flaw>,
}

/// A rule that the test breaks, so that the search must find the violation of an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    CreateOverwrites,
    ReplaceIgnoresVersion,
    CacheIsBelieved,
    GenerationStays,
    FormerEnds,
}

impl Scenario {
    pub(super) fn new(claims: [Claim; 2]) -> Self {
        Self {
            claims,
            before: None,
            adoption: Adoption::Refuse,
            flaw: None,
        }
    }

    /// Adds an earlier claim by a machine that was deleted.
    pub(super) fn held_by(self, claim: Claim) -> Self {
        Self {
            before: Some(claim),
            ..self
        }
    }

    /// Allows the recovery of lost records.
    pub(super) fn recovering(self) -> Self {
        Self {
            adoption: Adoption::Recover,
            ..self
        }
    }

    pub(super) fn with(self, flaw: Flaw) -> Self {
        Self {
            flaw: Some(flaw),
            ..self
        }
    }
}

/// A published certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) uid: CertificateUid,
    pub(super) claim: Claim,
}

/// The API servers.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// All writes, in order. The version is the position of the write, starting from 1.
    pub(super) log: Vec<Record>,
    pub(super) published: Vec<Published>,
    adoption: Adoption,
    flaw: Option<Flaw>,
    /// Counts completed calls.
    pub(super) calls: u64,
    /// The digest of all writes.
    pub(super) digest: u64,
}

impl Shared {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let claim = scenario.before.as_ref();
        let held = claim.map(|claim| Record::first(claim, before().record, None, at(0)));
        Self {
            log: held.into_iter().collect(),
            adoption: scenario.adoption,
            flaw: scenario.flaw,
            ..Self::default()
        }
    }

    /// The records after the first writes, up to this number.
    pub(super) fn after(&self, writes: usize) -> BTreeMap<&NodeName, Stored> {
        let writes = self.log.iter().take(writes).enumerate();
        writes
            .map(|(index, record)| {
                let stored = Stored {
                    record: record.clone(),
                    version: Version::new((index + 1).to_string()),
                };
                (&record.node_name, stored)
            })
            .collect()
    }

    pub(super) fn now(&self) -> BTreeMap<&NodeName, Stored> {
        self.after(self.log.len())
    }

    fn put(&mut self, record: &Record) -> Stored {
        let mut record = record.clone();
        if self.flaw == Some(Flaw::GenerationStays) {
            record.generation = 1;
        }
        if self.flaw == Some(Flaw::FormerEnds) {
            record.superseded = None;
        }
        self.log.push(record.clone());
        let Record {
            node_name,
            uid,
            generation,
            holder,
            opened,
            ..
        } = &record;
        let written = (node_name.as_str(), uid, generation, opened.key);
        let by = (
            holder.provider_id.as_str(),
            record.is_live(),
            record.superseded,
        );
        self.digest = digest((self.digest, written, by));
        Stored {
            record,
            version: Version::new(self.log.len().to_string()),
        }
    }
}

/// The progress of one request in one replica, for the search.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The number of writes that have reached the replica's cache.
    pub(super) cached: usize,
    /// A digest of the results of all calls so far.
    pub(super) history: u64,
}

/// The view of one replica.
#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) seen: Arc<Mutex<Seen>>,
}

impl Replica {
    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Stops before the call. `act` returns `None` while the call is not possible.
    pub(super) fn call<'a, T: Answer + Send + 'a>(
        &'a self,
        mut act: impl FnMut(&mut Shared, usize) -> Option<T> + Send + 'a,
    ) -> BoxFuture<'a, T> {
        let mut stopped = false;
        poll_fn(move |_| {
            if !std::mem::replace(&mut stopped, true) {
                return Poll::Pending;
            }
            let cached = self.seen().cached;
            let mut shared = self.shared();
            let Some(answer) = act(&mut shared, cached) else {
                return Poll::Pending;
            };
            shared.calls += 1;
            let mut seen = self.seen();
            seen.history = digest((seen.history, answer.told()));
            Poll::Ready(answer)
        })
        .boxed()
    }

    /// Claims the name, and publishes a certificate.
    pub(super) async fn serve(self, claim: Claim, random: u8) -> Result<(), Refusal> {
        let machines = ["m1", "m2"].map(|name| machine(name, MachineState::Ready));
        let inventory = StaticInventory::new(machines.to_vec()).unwrap();
        let policy = LedgerPolicy {
            adoption: self.shared().adoption,
            ..policy()
        };
        let ledger = RecordLedger::new(
            Arc::new(self.clone()),
            Arc::new(inventory),
            Arc::new(self.clone()),
            policy,
            Enforcement::default(),
        )
        .with_uids(&Uids::from([random; 16]));
        let grant = match renewal(&claim) {
            Some(renewal) => Box::pin(ledger.renew(&renewal, at(1))).await?,
            None => Box::pin(ledger.claim(&claim, at(1))).await?,
        };
        let published = Published {
            uid: grant.uid,
            claim,
        };
        self.call(|shared, _| {
            shared.published.push(published.clone());
            shared.digest = digest((shared.digest, published.uid, published.claim.key));
            Some(Ok(()))
        })
        .await
    }
}

/// The renewal that this claim represents, if any.
fn renewal(claim: &Claim) -> Option<Renewal> {
    let (Claimant::Renewal(uid), Assurance::Attested(identity)) =
        (claim.claimant, &claim.assurance)
    else {
        return None;
    };
    Some(Renewal {
        node_name: claim.node_name.clone(),
        identity: identity.clone(),
        uid,
        asked: claim.asked,
        not_after: claim.not_after,
        provider: claim.provider.clone(),
        machine_name: claim.machine_name.clone(),
        key: claim.key,
        request: claim.request.clone(),
    })
}

/// The part of a call's result that can affect the caller's next call.
pub(super) trait Answer {
    /// A number that represents a record: its version identifies its content. 0 means that there is no record.
    fn told(&self) -> Vec<usize>;
}

fn number(stored: &Stored) -> usize {
    stored.version.as_str().parse().unwrap()
}

impl<E> Answer for Result<Option<Stored>, E> {
    fn told(&self) -> Vec<usize> {
        self.iter().flatten().map(number).collect()
    }
}

impl<E> Answer for Result<Vec<Stored>, E> {
    fn told(&self) -> Vec<usize> {
        self.iter().flatten().map(number).collect()
    }
}

impl<E> Answer for Result<AllRecords, E> {
    fn told(&self) -> Vec<usize> {
        let known = self.iter().flat_map(|all| all.iter());
        known.map(|stored| number(stored)).collect()
    }
}

impl Answer for Result<Stored, WriteError> {
    fn told(&self) -> Vec<usize> {
        self.iter().map(number).collect()
    }
}

impl<E> Answer for Result<(), E> {
    fn told(&self) -> Vec<usize> {
        vec![usize::from(self.is_ok())]
    }
}

impl<E> Answer for Result<Option<Node>, E> {
    fn told(&self) -> Vec<usize> {
        vec![usize::from(self.is_ok())]
    }
}

pub(super) fn digest(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[async_trait::async_trait]
impl Nodes for Replica {
    async fn state(&self, _: &NodeName) -> Result<Option<Node>, Unavailable> {
        self.call(|_, _| Some(Ok(None))).await
    }

    async fn delete(&self, _: &NodeName, _: &str) -> Result<(), Unavailable> {
        self.call(|_, _| Some(Ok(()))).await
    }
}

#[async_trait::async_trait]
impl Records for Replica {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.call(move |shared, cached| Some(Ok(shared.after(cached).remove(name))))
            .await
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.call(move |shared, cached| {
            let known = shared.after(cached).into_values();
            let concerned = |stored: &Stored| stored.record.concerns(identity, key);
            Some(Ok(known.filter(concerned).collect()))
        })
        .await
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        self.call(move |shared, cached| {
            let known = shared.after(cached).into_values();
            Some(Ok(known
                .filter(|stored| stored.record.uid == uid)
                .collect()))
        })
        .await
    }

    async fn caught_up(&self, _: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.call(move |shared, cached| {
            let has = cached >= version.as_str().parse().unwrap();
            (has || shared.flaw == Some(Flaw::CacheIsBelieved)).then_some(Ok(()))
        })
        .await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.call(move |shared, _| Some(Ok(shared.now().remove(name))))
            .await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        self.call(move |shared, _| {
            let exists = shared.now().contains_key(&record.node_name);
            Some(if exists && shared.flaw != Some(Flaw::CreateOverwrites) {
                Err(WriteError::Exists)
            } else {
                Ok(shared.put(record))
            })
        })
        .await
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        self.call(move |shared, _| {
            let now = shared.now().remove(&record.node_name);
            let same = now.is_some_and(|now| now.version == *read);
            Some(
                if same || shared.flaw == Some(Flaw::ReplaceIgnoresVersion) {
                    Ok(shared.put(record))
                } else {
                    Err(WriteError::Conflict)
                },
            )
        })
        .await
    }

    async fn delete(&self, _: &NodeName, _: &Version) -> Result<(), WriteError> {
        unreachable!("a claim does not delete a record")
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.call(|shared, cached| {
            let known = shared.after(cached).into_values().map(Arc::new);
            Some(Ok(known.collect::<AllRecords>()))
        })
        .await
    }

    async fn note(&self, _: &NodeName, _: &LastIssued) -> Result<(), Unavailable> {
        unreachable!("a claim notes nothing")
    }
}
