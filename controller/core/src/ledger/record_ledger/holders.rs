//! Looks up the holder of a name.

use kubelet_attestation::names::{NodeName, ProviderId};

use super::{RecordLedger, unavailable};
use crate::identifiers::CertificateUid;
use crate::ledger::records::Stored;
use crate::ledger::{Holder, Record, rules};
use crate::refusal::{Deferral, Refusal};
use crate::verifier::Assurance;

impl RecordLedger {
    /// Returns the holder of the name, for a request with a certificate that has this `uid`. `None` means that
    /// certificates in this cluster contain no UID, so only the name is checked. A request with a certificate of the
    /// current generation also ends the validity of the previous generation.
    ///
    /// # Errors
    ///
    /// Denies a certificate that has no record, or that belongs to another record or a previous generation. Also denies
    /// a record that is no longer allowed to get certificates.
    pub async fn holder(
        &self,
        node_name: &NodeName,
        uid: Option<CertificateUid>,
    ) -> Result<Holder, Refusal> {
        let revoked = self.revocations.known().map_err(unavailable)?;
        let holder = |record: Option<&Record>| rules::holder(record, &revoked, node_name, uid);
        let holder = self.known_to(node_name, holder).await?;
        if uid == Some(holder.uid) {
            self.settle(node_name, |record| record.superseded = None)
                .await;
        }
        Ok(holder)
    }

    /// Returns the holder of the name from the store. `None` if the name has no record, or a retired record.
    ///
    /// # Errors
    ///
    /// Denies a revoked record.
    pub async fn stored_holder(&self, node_name: &NodeName) -> Result<Option<Holder>, Refusal> {
        let revoked = self.revocations.known().map_err(unavailable)?;
        let stored = self.read(node_name).await?;
        let record = stored.map(|stored| stored.record).filter(Record::is_live);
        let holder = record.map(|record| rules::holder(Some(&record), &revoked, node_name, None));
        Ok(holder.transpose()?)
    }

    /// Checks that the revocation list does not contain the machine with this provider ID. The check does not need a
    /// record, which can be missing, or can come from a backup that is older than the revocation.
    ///
    /// # Errors
    ///
    /// Denies a request from a revoked machine.
    pub fn is_not_revoked(
        &self,
        machine: &ProviderId,
        node_name: &NodeName,
    ) -> Result<(), Refusal> {
        let revoked = self.revocations.known().map_err(unavailable)?;
        match revoked.stops_machine(machine) {
            Some(entry) => Err(rules::stopped(entry, node_name).into()),
            None => Ok(()),
        }
    }

    /// Whether the machine with this provider ID holds the name, and was attested when it claimed the name. `uid` is
    /// the UID in the requester's certificate, if the certificate contains one.
    ///
    /// # Errors
    ///
    /// Returns an error if the record cannot be read.
    pub async fn is_held_by(
        &self,
        provider_id: &ProviderId,
        node_name: &NodeName,
        uid: Option<CertificateUid>,
    ) -> Result<bool, Deferral> {
        let revoked = self.revocations.known().map_err(unavailable)?;
        let is_held = |stored: Option<Stored>| {
            let record = stored.map(|stored| stored.record);
            let holder = rules::holder(record.as_ref(), &revoked, node_name, uid);
            holder.is_ok_and(|holder| match holder.assurance {
                Assurance::Attested(identity) => identity.identity().provider_id == *provider_id,
                Assurance::None(_) => false,
            })
        };
        // If the machine does not hold the name, the caller denies the request. A denial must not be based only on the
        // cache.
        Ok(is_held(self.known(node_name).await?) || is_held(self.read(node_name).await?))
    }
}
