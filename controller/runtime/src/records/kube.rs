//! Records as objects in the management cluster.

use std::sync::Arc;

use k8s_openapi::jiff::Error as TimeError;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kubelet_attestation::names::NodeName;
use node_attestation_core::crd::{self, CLUSTER_NAME_LABEL, NodeIdentity, RESET_ANNOTATION};
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::ledger::{LastIssued, Record, Records, Stored, Version, WriteError};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::verifier::Identity;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::cache::{Cache, State};
use super::object;
use super::watch::RecordsWatch;
use crate::capi::ObjectKey;
use crate::client::{CONTROLLER, CallError, call, merge, post};
use crate::metrics::{Metrics, Written};

/// The `NodeIdentity` objects of one Cluster, beside it.
///
/// A watch keeps a copy of all.
#[derive(derive_more::Debug)]
#[debug("KubeRecords {{ cluster: {cluster:?}, .. }}")]
pub struct KubeRecords {
    api: Api<NodeIdentity>,
    cluster: String,
    cache: Arc<Cache>,
    metrics: Metrics,
    /// The watch, if these records have one of their own.
    watching: JoinSet<()>,
}

impl KubeRecords {
    /// Begins to watch the records of the Cluster of this name in `namespace`, as
    /// [`RecordsWatch::new`] does those of many.
    pub fn start(client: Client, namespace: &str, cluster: &str, metrics: &Metrics) -> Self {
        let label = format!("{CLUSTER_NAME_LABEL}={cluster}");
        let (records, watch) = RecordsWatch::selected(client, Some(namespace), &label, metrics);
        let mut records = records.of_cluster(&ObjectKey::new(namespace, cluster));
        records.watching.spawn(watch);
        records
    }

    pub(super) fn new(
        client: Client,
        cluster: &ObjectKey,
        cache: Arc<Cache>,
        metrics: Metrics,
    ) -> Self {
        Self {
            api: Api::namespaced(client, &cluster.namespace),
            cluster: cluster.name.clone(),
            cache,
            metrics,
            watching: JoinSet::new(),
        }
    }

    fn name(&self, node_name: &NodeName) -> String {
        crd::object_name(&self.cluster, node_name.as_str())
    }

    /// A merge patch (RFC 7386) that applies to this version only, and leaves alone what is not
    /// ours. A field that the record does not have is null in it, so that a former holder's goes.
    fn patch(&self, record: &Record, read: &Version) -> Result<Value, TimeError> {
        let spec = object::spec(record, &self.cluster)?;
        let reset = record.reset.map(|reset| reset.to_string());
        Ok(json!({
            "metadata": {
                "resourceVersion": read.as_str(),
                "annotations": {RESET_ANNOTATION: reset},
            },
            "spec": spec,
        }))
    }

    /// Counts a write that ended so.
    fn count<T>(&self, operation: &'static str, written: &Result<T, WriteError>) {
        let written = match written {
            Ok(_) => Written::Ok,
            Err(WriteError::Exists | WriteError::Conflict) => Written::Conflict,
            Err(_) => Written::Failed,
        };
        self.metrics.record_written(operation, written);
    }

    /// The record as it was written; `conflict` where the object exists, or is another version.
    fn written(
        &self,
        written: Result<NodeIdentity, CallError>,
        conflict: WriteError,
    ) -> Result<Stored, WriteError> {
        let object = match written {
            Ok(object) => object,
            Err(error) if error.is_conflict() => return Err(conflict),
            Err(error) => return Err(Unavailable::from(error).into()),
        };
        let stored = object::stored(&object, &self.cluster);
        Ok(stored.map_err(Unavailable::new)?)
    }
}

#[async_trait::async_trait]
impl Records for KubeRecords {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let object = self.name(name);
        self.cache.synced().await?;
        let state = self.cache.state();
        let known = state.get(&object).cloned();
        known.transpose().map_err(Unavailable::new)
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.cache.synced().await?;
        Ok(self.cache.state().of_machine(identity, key))
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        let object = self.name(name);
        let has = |state: &State| state.has(&object, version);
        self.cache.wait(has).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let object = self.name(name);
        let object = call(self.api.get_opt(&object)).await?;
        let stored = object.map(|object| object::stored(&object, &self.cluster));
        stored.transpose().map_err(Unavailable::new)
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        let spec = object::spec(record, &self.cluster).map_err(Unavailable::new)?;
        let mut object = NodeIdentity::new(&self.name(&record.node_name), spec);
        let label = (CLUSTER_NAME_LABEL.to_owned(), self.cluster.clone());
        object.metadata.labels = Some([label].into());
        let created = call(self.api.create(&post(CONTROLLER), &object)).await;
        let created = self.written(created, WriteError::Exists);
        self.count("create", &created);
        created
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        let name = self.name(&record.node_name);
        let patch = self.patch(record, read).map_err(Unavailable::new)?;
        let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
        let replaced = match call(self.api.patch(&name, &parameters, &patch)).await {
            Err(error) if error.is_not_found() => Err(WriteError::Conflict),
            replaced => self.written(replaced, WriteError::Conflict),
        };
        self.count("replace", &replaced);
        replaced
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        let object = self.name(name);
        let only = Preconditions {
            resource_version: Some(read.as_str().to_owned()),
            ..Preconditions::default()
        };
        let parameters = DeleteParams::default().preconditions(only);
        let deleted = match call(self.api.delete(&object, &parameters)).await {
            Err(error) if error.is_conflict() => Err(WriteError::Conflict),
            Err(error) if !error.is_not_found() => Err(Unavailable::from(error).into()),
            Ok(_) | Err(_) => Ok(()),
        };
        self.count("delete", &deleted);
        deleted
    }

    async fn all(&self) -> Result<Vec<Stored>, Unavailable> {
        self.cache.synced().await?;
        Ok(self.cache.state().records().cloned().collect())
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        let object = self.name(name);
        let moment = |time| object::moment(time).map_err(Unavailable::new);
        // What is not in it stays: a certificate that no TPM asked for says nothing of one.
        let status = crd::NodeIdentityStatus {
            serial: Some(issued.serial.clone()),
            not_after: Some(moment(issued.not_after)?),
            last_renewal: Some(moment(issued.time)?),
            last_tpm_boot: issued.boot.map(|boot| crd::LastTpmBoot {
                generation: issued.generation,
                boot,
            }),
            conditions: Vec::new(),
        };
        let (parameters, patch) = (PatchParams::default(), json!({ "status": status }));
        let patch = Patch::Merge(&patch);
        call(self.api.patch_status(&object, &parameters, &patch)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
