//! The rules for renewals, and for other requests from the holder of a name.

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;

use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::CertificateUid;
use crate::ledger::record::Record;
use crate::ledger::{Grant, GrantReason, Holder, Renewal};
use crate::refusal::{Denial, Refusal};

/// The result of a renewal.
#[derive(Debug)]
pub(in crate::ledger) enum Renewed {
    /// Grant the certificate. The record does not change.
    Grant(Grant),
    /// The machine has stronger evidence than the record, so it opens a new generation.
    Strengthen,
}

/// Returns the next step of a renewal with this record.
pub(in crate::ledger) fn renewed(
    own: Option<&Record>,
    revoked: &RevokedNodeCredentialsSpec,
    renewal: &Renewal,
) -> Result<Renewed, Refusal> {
    let record = held(own, &renewal.node_name)?;
    let is_present = record.certificate_uid() == renewal.uid;
    let is_former = !record.is_live() || !is_present && !record.supersedes(renewal.uid);
    if is_former || revoked.refuses(renewal.uid) {
        return Err(Denial::FormerCertificate(renewal.node_name.clone(), renewal.uid).into());
    }
    let identity = renewal.identity.identity();
    if record.holder.provider_id != identity.provider_id {
        return Err(record.refused(Denial::NameTaken).into());
    }
    if !record.holder.is(identity) {
        return Err(record.refused(Denial::AnotherInstance).into());
    }
    record.allows_boot(identity, renewal.asked)?;
    ensure!(!record.is_revoked(), identity_revoked(record).into());
    if is_present && record.holder.is_weaker_than(identity) {
        return Ok(Renewed::Strengthen);
    }
    Ok(Renewed::Grant(Grant {
        uid: record.certificate_uid(),
        not_after: renewal.not_after,
        reason: GrantReason::Renewed,
    }))
}

/// Whether the record comes from a backup. In this case, the holder renews with a certificate of a later generation,
/// which is not revoked.
pub(in crate::ledger) fn is_from_backup(
    record: &Record,
    revoked: &RevokedNodeCredentialsSpec,
    renewal: &Renewal,
) -> bool {
    let Renewal { uid, identity, .. } = renewal;
    let identity = identity.identity();
    record.is_live()
        && uid.record == record.uid
        && uid.generation > record.generation
        && !revoked.refuses(*uid)
        && record.holder.provider_id == identity.provider_id
        && record.holder.is(identity)
}

/// Returns the holder of a name, for a requester whose certificate has this `uid`. `None` if the certificate contains
/// no UID.
pub(in crate::ledger) fn holder(
    own: Option<&Record>,
    revoked: &RevokedNodeCredentialsSpec,
    node_name: &NodeName,
    uid: Option<CertificateUid>,
) -> Result<Holder, Denial> {
    let record = held(own, node_name)?;
    let is_revoked = record.is_revoked() || revoked.refuses(record.certificate_uid());
    match uid {
        Some(presented) if presented != record.certificate_uid() || !record.is_live() => {
            Err(Denial::FormerCertificate(node_name.clone(), presented))
        }
        None if !record.is_live() => Err(record_missing(node_name)),
        Some(_) | None if is_revoked => Err(identity_revoked(record)),
        Some(_) | None => Ok(Holder {
            uid: record.certificate_uid(),
            assurance: record.holder.assurance(),
            attestor: record.holder.attestor.clone(),
        }),
    }
}

/// Returns the record for this name. Denies the request if the record is missing.
fn held<'a>(own: Option<&'a Record>, node_name: &NodeName) -> Result<&'a Record, Denial> {
    own.ok_or_else(|| record_missing(node_name))
}

fn record_missing(node_name: &NodeName) -> Denial {
    Denial::RecordMissing(node_name.clone())
}

pub(super) fn identity_revoked(record: &Record) -> Denial {
    Denial::IdentityRevoked(record.node_name.clone(), record.generation)
}
