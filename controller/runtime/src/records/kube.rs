//! Records as objects in a management cluster.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Error as TimeError;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kubelet_attestation::names::NodeName;
use node_attestation_core::crd::{self, CLUSTER_NAME_LABEL, NodeIdentity, RESET_ANNOTATION};
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{
    AllRecords, LastIssued, Record, Records, Stored, Version, WriteError,
};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::unshared::Unshared;
use node_attestation_core::verifier::Identity;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::cache::Cache;
use super::object;
use crate::capi::{
    ObjectKey, has_former_version, is_cluster, renew_versions, required_cluster_resource,
};
use crate::client::{CONTROLLER, CallError, Pages, call, merge, post};
use crate::metrics::{Metrics, Written};
use crate::shared::Loan;
use crate::watch::{
    Lenient, MetadataOf, created, deleted, metadata_page_of, patched, patched_metadata,
    patched_status, readable_one_of,
};

/// The `NodeIdentity` objects of one Cluster, in the Cluster's namespace.
///
/// A watch keeps a copy of all of them.
#[derive(derive_more::Debug)]
#[debug("KubeRecords {{ cluster: {cluster:?}, .. }}")]
pub struct KubeRecords {
    api: Api<NodeIdentity>,
    cluster: String,
    cache: Loan<Cache>,
    metrics: Metrics,
    /// The Cluster, if it is known. New records are deleted with the Cluster. Not shared: each cluster has a separate
    /// lock.
    owner: Unshared<Option<OwnerReference>>,
    /// The task of the watch, if these records have a separate watch.
    watching: JoinSet<()>,
}

impl KubeRecords {
    pub(super) fn new(
        client: Client,
        cluster: &ObjectKey,
        cache: Loan<Cache>,
        metrics: Metrics,
    ) -> Self {
        Self {
            api: Api::namespaced(client, &cluster.namespace),
            cluster: cluster.name.clone(),
            cache,
            metrics,
            owner: Unshared::default(),
            watching: JoinSet::new(),
        }
    }

    /// Runs the watch of these records until they are dropped.
    pub(super) fn run(&mut self, watch: impl Future<Output = ()> + Send + 'static) {
        self.watching.spawn(watch);
    }

    /// Makes the Cluster with this UID the owner of the records, so that Kubernetes deletes the records with the
    /// Cluster. Records of a previous Cluster with the same name keep their owner, so that Kubernetes deletes them.
    /// `clusterctl move` updates the owner.
    ///
    /// Returns whether all records already had their owner. If not, the caller must repeat the call. A renewal might
    /// have changed a record concurrently, or a record might have been created before the owner was known.
    ///
    /// # Errors
    ///
    /// Returns an error if the management cluster is unavailable or rejects a write. Records that were processed before
    /// the failure have their owner. An invalid record, which an earlier version might have written, does not affect
    /// other records.
    pub(crate) async fn end_with(&self, cluster_uid: &str) -> Result<bool, CallError> {
        let client = self.api.clone().into_client();
        let resource = call(required_cluster_resource(&client)).await?;
        // `blockOwnerDeletion` is not set, because it requires a permission for the owner's finalizers.
        let owner = OwnerReference {
            api_version: resource.api_version,
            kind: resource.kind,
            name: self.cluster.clone(),
            uid: cluster_uid.to_owned(),
            ..OwnerReference::default()
        };
        *self.owner.lock() = Some(owner.clone());
        let (records, mut pages) = self.metadata();
        let list = |page| {
            let records = &records;
            async move { metadata_page_of(records, &page).await }
        };
        let (mut all_had_it, mut invalid) = (true, None);
        while let Some(page) = pages.next(list).await? {
            // A collected iterator would keep the page's memory.
            let mut unowned = Vec::new();
            // The owners of a record with too many values are unknown, and are not replaced.
            let readable = page.into_iter().filter(|record| record.object.is_ok());
            unowned.extend(readable.filter_map(|record| Unowned::of(record.metadata, &owner)));
            all_had_it &= unowned.is_empty();
            for record in unowned {
                match self.own(record, &owner).await {
                    Err(error) if error.is_invalid() => invalid = Some(error),
                    result => result?,
                }
            }
        }
        invalid.map_or(Ok(all_had_it), Err)
    }

    /// Whether a record exists. Excludes the records of a previous Cluster with the same name, because Kubernetes
    /// deletes them.
    ///
    /// # Errors
    ///
    /// Returns an error if the management cluster is unavailable or rejects the call.
    pub(crate) async fn has_any_of(&self, cluster_uid: &str) -> Result<bool, CallError> {
        let (records, mut pages) = self.metadata();
        let list = |page| {
            let records = &records;
            async move { metadata_page_of(records, &page).await }
        };
        while let Some(page) = pages.next(list).await? {
            let stays = |record: MetadataOf<NodeIdentity>| {
                let owners = record.metadata.owner_references.unwrap_or_default();
                let owner = owners.iter().find(|owner| is_cluster(owner));
                owner.is_none_or(|owner| owner.uid == cluster_uid)
            };
            if page.into_iter().any(stays) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The client for the records' metadata, and the parameters for paged lists. A tenant can create any number of
    /// records, so a caller must process each page before it reads the next page.
    fn metadata(&self) -> (Api<MetadataOf<NodeIdentity>>, Pages) {
        let label = format!("{CLUSTER_NAME_LABEL}={}", self.cluster);
        let namespace = self.api.namespace().unwrap_or_default();
        let records = Api::namespaced(self.api.clone().into_client(), namespace);
        (records, Pages::new(ListParams::default().labels(&label)))
    }

    /// Makes the Cluster the owner of a record that has no Cluster as its owner. If the record already has a Cluster as
    /// its owner, updates the owner reference to the served API version.
    async fn own(&self, record: Unowned, cluster: &OwnerReference) -> Result<(), CallError> {
        let Unowned {
            name,
            version,
            mut owners,
        } = record;
        if owners.iter().any(is_cluster) {
            renew_versions(&mut owners, cluster);
        } else {
            owners.push(cluster.clone());
        }
        let patch = json!({
            "metadata": {"resourceVersion": version, "ownerReferences": owners},
        });
        let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
        let answer = patched_metadata(&self.api, &name, &parameters, &patch);
        match call(answer).await {
            // The record was changed or deleted concurrently. If it still exists, the next list returns it.
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
            answer => answer,
        }
    }

    /// Writes the fields in `status`. The other fields do not change.
    async fn write_status(
        &self,
        object: &str,
        status: &crd::NodeIdentityStatus,
    ) -> Result<(), Unavailable> {
        let (parameters, patch) = (PatchParams::default(), json!({ "status": status }));
        let patch = Patch::Merge(&patch);
        call(patched_status(&self.api, object, &parameters, &patch)).await?;
        Ok(())
    }

    fn name(&self, node_name: &NodeName) -> String {
        crd::object_name(&self.cluster, node_name.as_str())
    }

    /// A merge patch (RFC 7386) that applies only to this version, and does not change other managers' fields. In the
    /// patch, fields that the record does not have are null, so that a previous holder's fields are removed.
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

    /// Counts a write that had this result.
    fn count<T>(&self, operation: &'static str, written: &Result<T, WriteError>) {
        let written = match written {
            Ok(_) => Written::Ok,
            Err(WriteError::Exists | WriteError::Conflict) => Written::Conflict,
            Err(_) => Written::Failed,
        };
        self.metrics.record_written(operation, written);
    }

    /// Returns the record as it was written. Returns `conflict` if the object already exists or has a different
    /// version.
    fn written(
        &self,
        written: Result<Lenient<NodeIdentity>, CallError>,
        conflict: WriteError,
    ) -> Result<Stored, WriteError> {
        let object = match written {
            Ok(answer) => answer.object.map_err(Unavailable::new)?,
            Err(error) if error.is_conflict() => return Err(conflict),
            Err(error) => return Err(Unavailable::from(error).into()),
        };
        let stored = object::stored(&object, &self.cluster);
        Ok(stored.map_err(Unavailable::new)?)
    }
}

/// A record whose owner must be written.
///
/// Only these fields are kept until the write, because after an upgrade, the writes to the records of all clusters wait
/// for each other.
#[derive(Debug)]
struct Unowned {
    name: String,
    version: Option<String>,
    owners: Vec<OwnerReference>,
}

impl Unowned {
    /// Returns `None` if the record already has a Cluster as its owner, in the served API version.
    fn of(record: ObjectMeta, cluster: &OwnerReference) -> Option<Self> {
        let owners = record.owner_references.unwrap_or_default();
        let owner = owners.iter().find(|owner| is_cluster(owner));
        let is_owned = owner.is_some_and(|owner| !has_former_version(owner, cluster));
        Some(Self {
            name: record.name.filter(|_| !is_owned)?,
            version: record.resource_version,
            owners,
        })
    }
}

#[async_trait::async_trait]
impl Records for KubeRecords {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let object = self.name(name);
        self.cache.synced().await?;
        let known = self.cache.look(|state| state.get(&object).cloned());
        self.cache.complete()?;
        let known = known.transpose().map_err(Unavailable::new)?;
        Ok(known.map(Arc::unwrap_or_clone))
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.cache.synced().await?;
        let found = self.cache.of_machine(identity, key)?;
        self.cache.complete()?;
        Ok(found)
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        self.cache.synced().await?;
        let found = self.cache.of_uid(uid)?;
        self.cache.complete()?;
        Ok(found)
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.cache.caught_up(&self.name(name), version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let object = self.name(name);
        let object = call(readable_one_of(&self.api, &object)).await?;
        let stored = object.map(|object| object::stored(&object, &self.cluster));
        stored.transpose().map_err(Unavailable::new)
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        let spec = object::spec(record, &self.cluster).map_err(Unavailable::new)?;
        let mut object = NodeIdentity::new(&self.name(&record.node_name), spec);
        let label = (CLUSTER_NAME_LABEL.to_owned(), self.cluster.clone());
        object.metadata.labels = Some([label].into());
        object.metadata.owner_references = self.owner.lock().clone().map(|owner| vec![owner]);
        let answer = call(created(&self.api, &post(CONTROLLER), &object)).await;
        let created = self.written(answer, WriteError::Exists);
        self.count("create", &created);
        created
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        let name = self.name(&record.node_name);
        let patch = self.patch(record, read).map_err(Unavailable::new)?;
        let (parameters, patch) = (merge(CONTROLLER), Patch::Merge(&patch));
        let replaced = match call(patched(&self.api, &name, &parameters, &patch)).await {
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
        let deleted = match call(deleted(&self.api, &object, &parameters)).await {
            Err(error) if error.is_conflict() => Err(WriteError::Conflict),
            Err(error) if !error.is_not_found() => Err(Unavailable::from(error).into()),
            Ok(()) | Err(_) => Ok(()),
        };
        self.count("delete", &deleted);
        deleted
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.cache.synced().await?;
        let all = self.cache.all().await;
        self.cache.complete()?;
        Ok(all)
    }

    fn invalid(&self) -> Option<String> {
        self.cache.invalid()
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        let object = self.name(name);
        let moment = |time| object::moment(time).map_err(Unavailable::new);
        let boot = issued
            .seen_boot()
            .map(|seen| object::last_tpm_boot(issued.generation, seen));
        // If the boot is missing, the stored boot is not cleared, because a certificate that was issued without a TPM
        // has no information about boots.
        let renewed_until = moment(issued.not_after)?;
        let spec = match boot.transpose().map_err(Unavailable::new)? {
            Some(boot) => json!({"renewedUntil": renewed_until, "lastTpmBoot": boot}),
            None => json!({"renewedUntil": renewed_until}),
        };
        let patch = Patch::Merge(json!({ "spec": spec }));
        let parameters = merge(CONTROLLER);
        call(patched_metadata(&self.api, &object, &parameters, &patch)).await?;
        let status = json!({
            "serial": issued.serial,
            "notAfter": moment(issued.not_after)?,
            "lastRenewal": moment(issued.time)?,
            // Earlier versions wrote this field.
            "lastTpmBoot": null,
        });
        let (parameters, patch) = (PatchParams::default(), json!({ "status": status }));
        let patch = Patch::Merge(&patch);
        call(patched_status(&self.api, &object, &parameters, &patch)).await?;
        Ok(())
    }

    async fn note_later(&self, name: &NodeName, generation: u64) -> Result<(), Unavailable> {
        let status = crd::NodeIdentityStatus {
            presented_generation: Some(generation),
            ..crd::NodeIdentityStatus::default()
        };
        self.write_status(&self.name(name), &status).await
    }
}

#[cfg(test)]
mod tests;
