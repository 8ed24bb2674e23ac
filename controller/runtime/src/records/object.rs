//! A record as a `NodeIdentity`, and back.

use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{Error as TimeError, Timestamp};
use kube::ResourceExt as _;
use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, Provider, ProviderId, is_dns_subdomain};
use node_attestation_core::crd::{
    self, CLUSTER_NAME_LABEL, NodeIdentity, NodeIdentitySpec, RESET_ANNOTATION,
};
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{
    Opened, Record, RecordHolder, RequestRef, SeenBoot, Stored, Version,
};

/// The longest name of a request that is written down.
const MAX_NAME: usize = 253;

/// The longest UID that is.
const MAX_UID: usize = 64;

/// An object does not say what a record says: somebody changed it by hand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NodeIdentity {object} is no record: {field} cannot be read")]
pub(super) struct BrokenRecord {
    pub(super) object: String,
    pub(super) field: &'static str,
}

/// The record that an object of `cluster` is.
pub(super) fn stored(object: &NodeIdentity, cluster: &str) -> Result<Stored, BrokenRecord> {
    read(object, cluster).map_err(|field| BrokenRecord {
        object: object.name_any(),
        field,
    })
}

/// The error is the field that cannot be read.
fn read(object: &NodeIdentity, cluster: &str) -> Result<Stored, &'static str> {
    let NodeIdentity { spec, status, .. } = object;
    let label = object.labels().get(CLUSTER_NAME_LABEL);
    ensure!(spec.cluster_name == cluster, "spec.clusterName");
    // The watch has only what has it.
    ensure!(
        label.is_some_and(|label| label == cluster),
        "metadata.labels[cluster.x-k8s.io/cluster-name]"
    );
    let name = crd::object_name(cluster, &spec.node_name);
    ensure!(object.metadata.name == Some(name), "metadata.name");
    ensure!(spec.generation > 0, "spec.generation");
    let reset = object.annotations().get(RESET_ANNOTATION);
    let status_end = status.as_ref().and_then(|status| status.not_after.as_ref());
    let record = Record {
        node_name: NodeName::parse(&spec.node_name).map_err(|_| "spec.nodeName")?,
        uid: RecordUid::parse(&spec.uid).map_err(|_| "spec.uid")?,
        generation: spec.generation,
        holder: holder(spec)?,
        opened: opened(&spec.opened)?,
        not_after: time(&spec.not_after),
        renewed_until: status_end.map(time),
        renewed_boot: status.as_ref().and_then(|status| {
            let last = status.last_tpm_boot?;
            (last.generation == spec.generation).then_some(SeenBoot {
                boot: last.boot,
                at: time(status.last_renewal.as_ref()?),
            })
        }),
        former_until: spec.former_until.as_ref().map(time),
        superseded: spec.superseded_generation,
        tombstone: spec.tombstone,
        revoked: spec.revoked,
        reset: reset.and_then(|reset| reset.parse().ok()),
    };
    let version = object.resource_version();
    Ok(Stored {
        record,
        version: Version::new(version.ok_or("metadata.resourceVersion")?),
    })
}

fn holder(spec: &NodeIdentitySpec) -> Result<RecordHolder, &'static str> {
    let key = spec.endorsement_key_sha256.as_deref();
    Ok(RecordHolder {
        provider_id: ProviderId::parse(&spec.provider_id).map_err(|_| "spec.providerID")?,
        attestor: Provider::parse(&spec.attestor).map_err(|_| "spec.attestor")?,
        instance: spec.instance.clone(),
        machine_name: spec.machine_name.clone(),
        endorsement_key: key
            .map(KeyDigest::parse)
            .transpose()
            .map_err(|_| "spec.endorsementKeySHA256")?,
        boot: spec.tpm_boot,
    })
}

fn opened(opened: &crd::Opened) -> Result<Opened, &'static str> {
    Ok(Opened {
        key: KeyDigest::parse(&opened.key_sha256).map_err(|_| "spec.opened.keySHA256")?,
        request: RequestRef {
            name: opened.request_name.clone(),
            uid: opened.request_uid.clone(),
        },
        time: time(&opened.time),
        stale_node: opened.stale_node_uid.clone(),
    })
}

fn time(time: &Time) -> SystemTime {
    SystemTime::from(time.0)
}

/// The spec of the object of `record`.
///
/// # Errors
///
/// A time of it is after the year 9999.
pub(super) fn spec(record: &Record, cluster: &str) -> Result<NodeIdentitySpec, TimeError> {
    let (holder, opened) = (&record.holder, &record.opened);
    let machine_name = holder.machine_name.as_deref();
    // A member of a pool without a Machine is named by its provider ID, which is in the object anyway.
    let machine_name = machine_name.filter(|name| is_dns_subdomain(name));
    Ok(NodeIdentitySpec {
        cluster_name: cluster.to_owned(),
        node_name: record.node_name.as_str().to_owned(),
        uid: record.uid.to_string(),
        provider_id: holder.provider_id.as_str().to_owned(),
        attestor: holder.attestor.as_str().to_owned(),
        instance: holder.instance.clone(),
        machine_name: machine_name.map(str::to_owned),
        endorsement_key_sha256: holder.endorsement_key.map(|key| key.to_string()),
        tpm_boot: holder.boot,
        generation: record.generation,
        opened: crd::Opened {
            key_sha256: opened.key.to_string(),
            request_name: shown(&opened.request.name, MAX_NAME),
            request_uid: shown(&opened.request.uid, MAX_UID),
            time: moment(opened.time)?,
            stale_node_uid: opened.stale_node.clone(),
        },
        not_after: moment(record.not_after)?,
        former_until: record.former_until.map(moment).transpose()?,
        superseded_generation: record.superseded,
        tombstone: record.tombstone,
        revoked: record.revoked,
    })
}

/// The text as the schema has it: a request may be called what a record cannot say, and must not
/// fail for it.
fn shown(text: &str, max: usize) -> String {
    let visible = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    let shown: String = text.chars().take(max).map(visible).collect();
    if shown.is_empty() {
        "?".to_owned()
    } else {
        shown
    }
}

pub(super) fn moment(time: SystemTime) -> Result<Time, TimeError> {
    Timestamp::try_from(time).map(Time)
}

#[cfg(test)]
mod tests {
    use node_attestation_core::ledger::Claim;
    use node_attestation_core::testing::records::{at, claim};

    use super::*;

    fn written(claim: &Claim) -> NodeIdentitySpec {
        let record = Record::first(claim, RecordUid::new([7; 16]), None, at(0));
        spec(&record, "prod-1").unwrap()
    }

    #[test]
    fn a_pools_member_has_no_machine_in_its_record() {
        let mut claim = claim("m1", "n1", 1, 0);
        assert_eq!(written(&claim).machine_name.as_deref(), Some("m1"));

        claim.machine_name = Some("generic:///pool/a".to_owned());
        assert_eq!(written(&claim).machine_name, None);
    }

    #[test]
    fn a_request_of_any_name_is_written_down() {
        for (name, expected) in [
            ("kubelet-authenticator-AbC_1", "kubelet-authenticator-AbC_1"),
            ("with space and\u{e9}", "with?space?and?"),
            ("", "?"),
            (&*"x".repeat(300), &*"x".repeat(253)),
        ] {
            let mut claim = claim("m1", "n1", 1, 0);
            claim.request.name = name.to_owned();

            assert_eq!(written(&claim).opened.request_name, expected);
        }
    }
}
