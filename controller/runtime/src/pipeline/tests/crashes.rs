//! Tests of a crash after each single write to the records and to the request, and of the recovery by a second
//! controller.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use node_attestation_core::identifiers::{CertificateUid, KeyDigest, RecordUid};
use node_attestation_core::ledger::{
    AllRecords, Claim, Claimant, LastIssued, MemoryRecords, Record, Records, RequestRef, Stored,
    Version, WriteError,
};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::testing::cluster::Parts;
use node_attestation_core::testing::{UID, now, renewal, valid};
use node_attestation_core::verifier::{Assurance, AttestedIdentity, Identity};

use crate::csr_writer::testing::{MemoryStore, UID as REQUEST_UID};
use crate::pipeline::*;

/// Counts writes, and stops after one of them.
#[derive(Debug)]
struct Writes {
    made: AtomicUsize,
    /// The number of the write after which the process stops. `None` if it does not stop.
    last: usize,
}

impl Writes {
    fn until(last: usize) -> Arc<Self> {
        Arc::new(Self {
            made: AtomicUsize::new(0),
            last,
        })
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    async fn count<T>(&self, write: BoxFuture<'_, T>) -> T {
        let written = write.await;
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(made != self.last, "dead");
        written
    }
}

#[derive(Debug)]
struct Mortal<T> {
    inner: Arc<T>,
    writes: Arc<Writes>,
}

#[async_trait::async_trait]
impl Records for Mortal<MemoryRecords> {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.inner.known(name).await
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.inner.known_of_machine(identity, key).await
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        self.inner.known_of_uid(uid).await
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.inner.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.inner.read(name).await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        self.writes.count(self.inner.create(record)).await
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        self.writes.count(self.inner.replace(record, read)).await
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        self.writes.count(self.inner.delete(name, read)).await
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.inner.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.writes.count(self.inner.note(name, issued)).await
    }
}

#[async_trait::async_trait]
impl RequestStore for Mortal<MemoryStore> {
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        self.inner.get(name).await
    }

    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        let write = self.inner.update(subresource, request);
        self.writes.count(write).await
    }
}

/// The state before the request.
struct Story {
    /// The previous holder of the name, together with the name.
    held: Option<(&'static str, &'static str)>,
    request: fn() -> CertificateSigningRequest,
    /// The number of writes, excluding the Event.
    writes: usize,
}

const JOIN: Story = Story {
    held: None,
    request: valid,
    writes: 3,
};

const REENROLMENT: Story = Story {
    held: Some(("m1", "n1")),
    ..JOIN
};

/// The holder of the name was deleted, and another machine claims the name.
const CHANGE_OF_HANDS: Story = Story {
    held: Some(("m9", "n1")),
    ..JOIN
};

const RENAME: Story = Story {
    held: Some(("m1", "n9")),
    writes: 4,
    ..JOIN
};

const RENEWAL: Story = Story {
    held: Some(("m1", "n1")),
    request: || renewal(UID),
    writes: 2,
};

async fn before(story: &Story) -> (Arc<MemoryRecords>, Arc<MemoryStore>) {
    let records = Arc::new(MemoryRecords::default());
    if let Some((machine, node)) = story.held {
        let provider_id = ProviderId::parse(&format!("metal:///rack/{machine}")).unwrap();
        let identity = AttestedIdentity::vouched(Identity::of(provider_id));
        let claim = Claim {
            node_name: NodeName::parse(node).unwrap(),
            claimant: Claimant::Token,
            assurance: Assurance::Attested(identity),
            provider: Provider::NULL,
            machine_name: None,
            key: KeyDigest::of(b"former"),
            request: RequestRef::default(),
            asked: now(),
            not_after: now() + Duration::from_hours(1),
        };
        let uid = CertificateUid::parse(UID).unwrap().record;
        let uid = if node == "n1" {
            uid
        } else {
            RecordUid::new([9; 16])
        };
        let record = Record::first(&claim, uid, None, now());
        records.create(&record).await.unwrap();
    }
    (records, Arc::new(MemoryStore::new((story.request)())))
}

/// Runs the turn of one controller.
async fn turn(
    records: &Arc<MemoryRecords>,
    store: &Arc<MemoryStore>,
    writes: &Arc<Writes>,
) -> Next {
    let parts = Parts {
        records: Arc::new(Mortal {
            inner: Arc::clone(records),
            writes: Arc::clone(writes),
        }),
        ..Parts::default()
    };
    let store = Arc::new(Mortal {
        inner: Arc::clone(store),
        writes: Arc::clone(writes),
    });
    let pipeline = Pipeline::new(parts.cluster(), store, Events::none(), now);
    let work = Work {
        name: "csr".to_owned(),
        uid: REQUEST_UID.to_owned(),
        object: None,
        max_len: usize::MAX,
        attempts: 1,
    };
    pipeline.process(work).await
}

async fn survives(story: Story) {
    let (records, requests) = before(&story).await;
    let all = Writes::until(usize::MAX);
    assert_eq!(turn(&records, &requests, &all).await, Next::Done);
    assert_eq!(all.made(), story.writes);

    for last in 1..=story.writes {
        let (records, requests) = before(&story).await;
        let mortal = Writes::until(last);
        let died = AssertUnwindSafe(turn(&records, &requests, &mortal)).catch_unwind();
        assert!(died.await.is_err(), "after write {last}");

        let next = turn(&records, &requests, &Writes::until(usize::MAX)).await;

        assert_eq!(next, Next::Done, "after write {last}");
        is_whole(&records, &requests).await;
    }
}

/// Asserts that the storage has one record for each name, and that the certificate belongs to the machine's only live
/// record.
async fn is_whole(records: &MemoryRecords, store: &MemoryStore) {
    let all = records.all().await.unwrap();
    let live: Vec<_> = all.iter().filter(|one| one.record.is_live()).collect();
    let [live] = live.as_slice() else {
        panic!("there is not exactly one live record: {all:?}")
    };
    let record = &live.record;
    assert_eq!(record.holder.provider_id.as_str(), "metal:///rack/m1");
    assert_eq!(record.node_name.as_str(), "n1");
    let request = store.request();
    let certificate = request.status.and_then(|status| status.certificate);
    let certificate = certificate.expect("a certificate");
    assert_eq!(uid_in(&certificate.0), record.certificate_uid().to_string());
}

/// The UID in the certificate.
fn uid_in(certificate: &[u8]) -> String {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let oid = x509_parser::oid_registry::Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).unwrap();
    let subject = certificate.subject().iter_by_oid(&oid);
    let mut subject = subject.map(|attribute| attribute.as_str().unwrap().to_owned());
    subject.next().expect("a UID")
}

#[tokio::test]
async fn a_join_takes_three_writes_and_survives_a_crash_after_each() {
    survives(JOIN).await;
}

#[tokio::test]
async fn a_reenrollment_survives_a_crash_after_each_write() {
    survives(REENROLMENT).await;
}

#[tokio::test]
async fn a_change_of_holder_survives_a_crash_after_each_write() {
    survives(CHANGE_OF_HANDS).await;
}

#[tokio::test]
async fn a_change_of_name_survives_a_crash_after_each_write() {
    survives(RENAME).await;
}

#[tokio::test]
async fn a_renewal_takes_two_writes_and_survives_a_crash_after_each() {
    survives(RENEWAL).await;
}
