//! Tests of outages of the management cluster that last hours, and of refusals that last minutes. A request waits
//! during an outage, and its certificate is issued afterwards.

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use kube::core::Status;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::{KeyDigest, RecordUid, TokenId};
use node_attestation_core::inventory::{Inventory, Machine, TokenOwner};
use node_attestation_core::ledger::{
    AllRecords, LastIssued, MemoryRecords, Record, Records, Stored, Version, WriteError,
};
use node_attestation_core::nodes::{Node, Nodes};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::testing::cluster::Parts;
use node_attestation_core::testing::nodes::MemoryNodes;
use node_attestation_core::testing::{now, valid};
use node_attestation_core::verifier::Identity;

use crate::csr_writer::testing::{MemoryStore, UID};
use crate::pipeline::*;

/// A component that is unavailable until this time.
#[derive(Debug)]
struct Away<T: ?Sized> {
    inner: Arc<T>,
    until: Instant,
}

impl<T: ?Sized> Away<T> {
    fn here(&self) -> Result<&T, Unavailable> {
        if Instant::now() < self.until {
            Err(Unavailable::new("429 Too Many Requests"))
        } else {
            Ok(&self.inner)
        }
    }

    fn ask<'a, A: Send + 'a, E: From<Unavailable> + Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a T) -> BoxFuture<'a, Result<A, E>>,
    ) -> BoxFuture<'a, Result<A, E>> {
        match self.here() {
            Ok(inner) => call(inner),
            Err(error) => ready(Err(error.into())).boxed(),
        }
    }
}

#[async_trait::async_trait]
impl Records for Away<MemoryRecords> {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        // If a watch has failed, the controller uses the last known objects.
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
        self.ask(|inner| inner.caught_up(name, version)).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.ask(|inner| inner.read(name)).await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        self.ask(|inner| inner.create(record)).await
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        self.ask(|inner| inner.replace(record, read)).await
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        self.ask(|inner| inner.delete(name, read)).await
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.inner.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.ask(|inner| inner.note(name, issued)).await
    }
}

#[async_trait::async_trait]
impl Nodes for Away<MemoryNodes> {
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
        self.ask(|inner| inner.state(name)).await
    }

    async fn delete(&self, name: &NodeName, uid: &str) -> Result<(), Unavailable> {
        self.ask(|inner| inner.delete(name, uid)).await
    }
}

#[async_trait::async_trait]
impl Inventory for Away<dyn Inventory> {
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        self.ask(|inner| inner.by_provider_id(provider_id)).await
    }

    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        self.ask(|inner| inner.by_token(token)).await
    }

    async fn by_address(&self, address: std::net::IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.ask(|inner| inner.by_address(address)).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.ask(|inner| inner.by_name(name)).await
    }
}

#[async_trait::async_trait]
impl RequestStore for Away<MemoryStore> {
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        self.inner.get(name).await
    }

    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        match self.here() {
            Ok(inner) => inner.update(subresource, request).await,
            Err(_) => Err(too_many_requests()),
        }
    }
}

fn too_many_requests() -> CallError {
    let status = Status::failure("slow down", "TooManyRequests");
    CallError::Refused(status.with_code(429).boxed())
}

/// The duration of each component's outage.
#[derive(Default)]
struct Outage {
    records: Duration,
    inventory: Duration,
    nodes: Duration,
    store: Duration,
}

/// Tries once per minute, and returns the number of minutes until an attempt succeeds. Failed attempts must not write
/// anything.
async fn minutes_until_issued(outage: Outage) -> u32 {
    let begun = Instant::now();
    let parts = Parts::default();
    let parts = Parts {
        records: Arc::new(Away {
            inner: Arc::new(MemoryRecords::default()),
            until: begun + outage.records,
        }),
        inventory: Arc::new(Away {
            inner: parts.inventory.clone(),
            until: begun + outage.inventory,
        }),
        nodes: Arc::new(Away {
            inner: Arc::new(MemoryNodes::default()),
            until: begun + outage.nodes,
        }),
        ..parts
    };
    let requests = Arc::new(MemoryStore::new(valid()));
    let store = Arc::new(Away {
        inner: requests.clone(),
        until: begun + outage.store,
    });
    let pipeline = Pipeline::new(parts.cluster(), store, Events::none(), now);
    for minutes in 0..120 {
        let work = Work {
            name: "csr".to_owned(),
            uid: UID.to_owned(),
            object: None,
            max_len: usize::MAX,
            attempts: minutes,
        };
        if pipeline.process(work).await == Next::Done {
            let status = requests.request().status.unwrap();
            assert!(status.certificate.is_some(), "{:?}", status.conditions);
            return minutes;
        }
        assert_eq!(requests.writes(), 0);
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    panic!("never issued")
}

const HOUR: Duration = Duration::from_hours(1);
const MINUTES: Duration = Duration::from_mins(7);

#[tokio::test(start_paused = true)]
async fn a_management_outage_of_an_hour_only_delays_a_join() {
    let outage = Outage {
        records: HOUR,
        inventory: HOUR,
        ..Outage::default()
    };

    assert_eq!(minutes_until_issued(outage).await, 60);
}

#[tokio::test(start_paused = true)]
async fn failing_record_writes_for_an_hour_only_delay_a_join() {
    let outage = Outage {
        records: HOUR,
        ..Outage::default()
    };

    assert_eq!(minutes_until_issued(outage).await, 60);
}

#[tokio::test(start_paused = true)]
async fn api_server_refusals_for_several_minutes_only_delay_a_join() {
    for outage in [
        Outage {
            nodes: MINUTES,
            ..Outage::default()
        },
        Outage {
            store: MINUTES,
            ..Outage::default()
        },
    ] {
        assert_eq!(minutes_until_issued(outage).await, 7);
    }
}
