//! Tests of calls that hang: deleted records must not stay in memory.

use std::sync::Weak;

use futures::future::BoxFuture;
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{LastIssued, Record, Records, Stored, Version, WriteError};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::testing::cluster::Parts;
use node_attestation_core::testing::records::{at, claim};
use node_attestation_core::verifier::Identity;
use serde_json::Value;

use super::*;

/// Records that can only be listed.
#[derive(Debug)]
struct Listed(Mutex<AllRecords>);

#[async_trait::async_trait]
impl Records for Listed {
    async fn known(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        unreachable!()
    }

    async fn known_of_machine(
        &self,
        _: &Identity,
        _: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        unreachable!()
    }

    async fn known_of_uid(&self, _: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        unreachable!()
    }

    async fn caught_up(&self, _: &NodeName, _: &Version) -> Result<(), Unavailable> {
        unreachable!()
    }

    async fn read(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        unreachable!()
    }

    async fn create(&self, _: &Record) -> Result<Stored, WriteError> {
        unreachable!()
    }

    async fn replace(&self, _: &Record, _: &Version) -> Result<Stored, WriteError> {
        unreachable!()
    }

    async fn delete(&self, _: &NodeName, _: &Version) -> Result<(), WriteError> {
        unreachable!()
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn note(&self, _: &NodeName, _: &LastIssued) -> Result<(), Unavailable> {
        unreachable!()
    }
}

/// The only record, and the list that contains it.
struct OneRecord {
    listed: Arc<Listed>,
    record: Weak<Stored>,
}

impl OneRecord {
    /// The record, and periodic tasks for a cluster with it.
    fn new() -> (Self, PeriodicTasks) {
        let record = Record::first(
            &claim("m1", "n1", 1, 0),
            RecordUid::new([7; 16]),
            None,
            at(0),
        );
        let version = Version::new("1");
        let stored = Arc::new(Stored { record, version });
        let record = Arc::downgrade(&stored);
        let listed = Arc::new(Listed(Mutex::new(AllRecords::from([stored]))));
        let mut periodic = periodic();
        let parts = Parts {
            records: listed.clone(),
            ..Parts::default()
        };
        periodic.context = parts.cluster();
        periodic.context.enforcement = Enforcement::new(EnforcementState::Off);
        let key = ObjectKey::new("tenant-a", "prod-1");
        periodic.inventory = CapiInventory::new(objects_with_tokens(), key);
        (Self { listed, record }, periodic)
    }

    /// Asserts that the record leaves the memory as soon as it is deleted, while `reading` hangs in a call that sets
    /// `called`.
    async fn assert_dropped_by<T>(self, mut reading: BoxFuture<'_, T>, called: &AtomicBool) {
        let waited = timeout(Duration::from_secs(1), &mut reading).await;

        assert!(waited.is_err() && called.load(Ordering::Relaxed));
        *self.listed.0.lock().unwrap() = AllRecords::from([]);
        assert!(self.record.upgrade().is_none());
    }
}

/// An API server that never answers calls of `hanging`, and sets the flag. It does not have the objects of paths for
/// which `answer` returns nothing.
fn hanging_at(
    hanging: fn(&str, &str) -> bool,
    answer: fn(&str) -> Option<Value>,
) -> (ClusterAccess, Arc<AtomicBool>) {
    let called = Arc::<AtomicBool>::default();
    let is_called = called.clone();
    let access = ClusterAccess::in_memory(move |request| {
        let (path, query) = (request.uri().path(), request.uri().query());
        let hangs = hanging(path, query.unwrap_or_default());
        is_called.fetch_or(hangs, Ordering::Relaxed);
        let missing = json!({"kind": "Status", "metadata": {}, "code": 404, "reason": "NotFound"});
        let answer = answer(path).unwrap_or(missing);
        async move {
            if hangs {
                pending::<()>().await;
            }
            let code = answer["code"].as_u64().unwrap_or(200);
            let response = Response::builder().status(u16::try_from(code).unwrap());
            let body = Full::new(Bytes::from(answer.to_string()));
            response.body(body).unwrap()
        }
    });
    (access, called)
}

#[tokio::test(start_paused = true)]
async fn a_list_of_nodes_that_hangs_keeps_no_records() {
    let (one, mut periodic) = OneRecord::new();
    // The second page never arrives.
    let page = |_: &str| {
        Some(json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "1", "continue": "2"}, "items": [],
        }))
    };
    let (access, called) = hanging_at(|_, query| query.contains("continue="), page);
    periodic.access = access;

    one.assert_dropped_by(periodic.without_record(true).boxed(), &called)
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_inspection_that_hangs_at_the_list_of_nodes_keeps_no_records() {
    let (one, mut periodic) = OneRecord::new();
    let version = |path: &str| {
        (path == "/version").then(|| {
            json!({
                "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            })
        })
    };
    let (access, called) = hanging_at(|path, _| path == "/api/v1/nodes", version);
    periodic.access = access;
    periodic.rights = Some(Instant::now());

    one.assert_dropped_by(periodic.inspect(None).boxed(), &called)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_templates_that_hangs_keeps_no_records() {
    let (one, mut periodic) = OneRecord::new();
    periodic.spec.auto_approve_bindings = Some(AutoApproveBindings::Remove);
    let kinds = |path: &str| match path {
        "/apis" => Some(json!({
            "kind": "APIGroupList",
            "groups": [{"name": "controlplane.cluster.x-k8s.io", "versions": [
                {"groupVersion": "controlplane.cluster.x-k8s.io/v1beta2", "version": "v1beta2"},
            ]}],
        })),
        "/apis/controlplane.cluster.x-k8s.io/v1beta2" => Some(json!({
            "kind": "APIResourceList", "groupVersion": "controlplane.cluster.x-k8s.io/v1beta2",
            "resources": [{
                "name": "kubeadmcontrolplanes", "kind": "KubeadmControlPlane", "namespaced": true,
                "singularName": "", "verbs": ["get", "list"],
            }],
        })),
        _ => None,
    };
    let (management, called) = hanging_at(|path, _| path.ends_with("/kubeadmcontrolplanes"), kinds);
    let key = ObjectKey::new("tenant-a", "prod-1");
    periodic.inventory = CapiInventory::of_command(management.client().clone(), key);
    let (workload, _) = hanging_at(|_, _| false, |_| None);
    periodic.access = workload;

    one.assert_dropped_by(periodic.enforce(Ok(BTreeSet::new())).boxed(), &called)
        .await;
}
