//! Converts records to `NodeIdentity` objects, and back.

use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{Error as TimeError, Timestamp};
use kube::ResourceExt as _;
use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, Provider, ProviderId, is_dns_subdomain};
use node_attestation_core::crd::{
    self, CLUSTER_NAME_LABEL, LastTpmBoot, NodeIdentity, NodeIdentitySpec, RESET_ANNOTATION,
};
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{
    Opening, Record, RecordHolder, RequestRef, SeenBoot, Stored, Version,
};

/// The maximum length of a request name in a record.
const MAX_NAME: usize = 253;

/// The maximum length of a UID in a record.
const MAX_UID: usize = 64;

/// The largest generation that a record can have. An object can also contain the next generation, if the revocation
/// list contains it.
const MAX_GENERATION: u64 = i64::MAX.unsigned_abs() - 1;

/// The object is not a valid record, for example because a user edited it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("NodeIdentity {object} has an invalid {field}")]
pub(super) struct BrokenRecord {
    pub(super) object: String,
    pub(super) field: &'static str,
}

/// The record in an object that belongs to `cluster`.
pub(super) fn stored(object: &NodeIdentity, cluster: &str) -> Result<Stored, BrokenRecord> {
    read(object, cluster).map_err(|field| BrokenRecord {
        object: object.name_any(),
        field,
    })
}

/// Decodes the record. The error contains the name of the invalid field.
fn read(object: &NodeIdentity, cluster: &str) -> Result<Stored, &'static str> {
    let NodeIdentity { spec, status, .. } = object;
    let label = object.labels().get(CLUSTER_NAME_LABEL);
    ensure!(spec.cluster_name == cluster, "spec.clusterName");
    // The watch selects only objects with this label.
    ensure!(
        label.is_some_and(|label| label == cluster),
        "metadata.labels[cluster.x-k8s.io/cluster-name]"
    );
    let name = crd::object_name(cluster, &spec.node_name);
    ensure!(object.metadata.name == Some(name), "metadata.name");
    let generations = 1..=MAX_GENERATION;
    ensure!(generations.contains(&spec.generation), "spec.generation");
    let reset = object.annotations().get(RESET_ANNOTATION);
    // Earlier versions wrote the last certificate only to the status, which is lost in a move.
    let status_end = status.as_ref().and_then(|status| status.not_after.as_ref());
    let status_time = status
        .as_ref()
        .and_then(|status| status.last_renewal.as_ref());
    let status_boot = status
        .as_ref()
        .and_then(|status| status.last_tpm_boot.as_ref());
    let boots = [spec.last_tpm_boot.as_ref(), status_boot];
    let record = Record {
        node_name: NodeName::parse(&spec.node_name).map_err(|_| "spec.nodeName")?,
        uid: RecordUid::parse(&spec.uid).map_err(|_| "spec.uid")?,
        generation: spec.generation,
        holder: holder(spec)?,
        opened: opened(&spec.opened)?,
        not_after: time(&spec.not_after),
        renewed_until: spec.renewed_until.as_ref().or(status_end).map(time),
        renewed_boot: boots
            .into_iter()
            .flatten()
            .filter(|last| last.generation == spec.generation)
            .filter_map(|last| seen_boot(last, status_time))
            .max(),
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

/// The last boot. If the boot has no time, `issued` is used as its time.
fn seen_boot(last: &LastTpmBoot, issued: Option<&Time>) -> Option<SeenBoot> {
    Some(SeenBoot {
        boot: last.boot,
        at: time(last.time.as_ref().or(issued)?),
    })
}

/// The boot at which a certificate of this generation was issued.
pub(super) fn last_tpm_boot(generation: u64, seen: SeenBoot) -> Result<LastTpmBoot, TimeError> {
    Ok(LastTpmBoot {
        generation,
        time: Some(moment(seen.at)?),
        boot: seen.boot,
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

fn opened(opened: &crd::Opened) -> Result<Opening, &'static str> {
    Ok(Opening {
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

/// Creates the spec of the object for `record`.
///
/// # Errors
///
/// Returns an error if the record contains a time after the year 9999.
pub(super) fn spec(record: &Record, cluster: &str) -> Result<NodeIdentitySpec, TimeError> {
    let (holder, opened) = (&record.holder, &record.opened);
    let machine_name = holder.machine_name.as_deref();
    // For a pool member without a Machine, the machine name is its provider ID, which the object already contains.
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
        renewed_until: record.renewed_until.map(moment).transpose()?,
        last_tpm_boot: record
            .renewed_boot
            .map(|seen| last_tpm_boot(record.generation, seen))
            .transpose()?,
        superseded_generation: record.superseded,
        tombstone: record.tombstone,
        revoked: record.revoked,
    })
}

/// Converts the text to a form that the schema allows. A request can have a name that a record is not allowed to
/// contain, and the request must not fail for this reason.
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
    use node_attestation_core::crd::NodeIdentityStatus;
    use node_attestation_core::ledger::Claim;
    use node_attestation_core::testing::records::{at, claim};
    use node_attestation_core::verifier::TpmBoot;

    use super::*;

    fn written(claim: &Claim) -> NodeIdentitySpec {
        let record = Record::first(claim, RecordUid::new([7; 16]), None, at(0));
        spec(&record, "prod-1").unwrap()
    }

    /// The record's object after a move, which drops the status.
    fn moved(record: &Record) -> NodeIdentity {
        let name = crd::object_name("prod-1", record.node_name.as_str());
        let mut object = NodeIdentity::new(&name, spec(record, "prod-1").unwrap());
        object.metadata.resource_version = Some("7".to_owned());
        object
            .labels_mut()
            .insert(CLUSTER_NAME_LABEL.to_owned(), "prod-1".to_owned());
        object
    }

    fn seen(resets: u32, hour: u32) -> SeenBoot {
        SeenBoot {
            boot: TpmBoot {
                resets,
                restarts: 0,
                clock: 5,
            },
            at: at(hour),
        }
    }

    #[test]
    fn a_move_keeps_the_last_boot_and_the_last_expiry() {
        let mut record = Record::first(
            &claim("m1", "n1", 1, 0),
            RecordUid::new([7; 16]),
            None,
            at(0),
        );
        record.renewed_until = Some(at(12));
        record.renewed_boot = Some(seen(3, 4));

        let found = stored(&moved(&record), "prod-1").unwrap();

        assert_eq!(found.record, record);
    }

    #[test]
    fn the_last_boot_in_the_status_of_an_earlier_version_is_used() {
        let mut record = Record::first(
            &claim("m1", "n1", 1, 0),
            RecordUid::new([7; 16]),
            None,
            at(0),
        );
        let of = |record: &Record, resets, generation| {
            let mut object = moved(record);
            object.status = Some(NodeIdentityStatus {
                not_after: Some(moment(at(12)).unwrap()),
                last_renewal: Some(moment(at(4)).unwrap()),
                last_tpm_boot: Some(LastTpmBoot {
                    generation,
                    time: None,
                    boot: seen(resets, 4).boot,
                }),
                ..NodeIdentityStatus::default()
            });
            let found = stored(&object, "prod-1").unwrap().record;
            (found.renewed_until, found.renewed_boot)
        };
        assert_eq!(of(&record, 3, 1), (Some(at(12)), Some(seen(3, 4))));
        assert_eq!(of(&record, 3, 2), (Some(at(12)), None));

        record.renewed_until = Some(at(10));
        record.renewed_boot = Some(seen(2, 3));
        assert_eq!(of(&record, 3, 1), (Some(at(10)), Some(seen(3, 4))));
        assert_eq!(of(&record, 1, 1), (Some(at(10)), Some(seen(2, 3))));
    }

    #[test]
    fn a_record_whose_next_generation_cannot_be_written_is_invalid() {
        let mut record = Record::first(
            &claim("m1", "n1", 1, 0),
            RecordUid::new([7; 16]),
            None,
            at(0),
        );
        for (generation, invalid) in [
            (0, Some("spec.generation")),
            (1, None),
            (MAX_GENERATION, None),
            (MAX_GENERATION + 1, Some("spec.generation")),
        ] {
            record.generation = generation;

            let found = stored(&moved(&record), "prod-1");

            assert_eq!(found.err().map(|broken| broken.field), invalid);
        }
    }

    #[test]
    fn the_record_of_a_pool_member_has_no_machine() {
        let mut claim = claim("m1", "n1", 1, 0);
        assert_eq!(written(&claim).machine_name.as_deref(), Some("m1"));

        claim.machine_name = Some("generic:///pool/a".to_owned());
        assert_eq!(written(&claim).machine_name, None);
    }

    #[test]
    fn a_request_name_is_sanitized_in_the_record() {
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
