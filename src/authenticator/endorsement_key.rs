//! The endorsement key that a machine enrolled with, kept for its renewals.
//!
//! A TPM has an endorsement key for each template, and which one a provider prefers depends on what
//! is in the TPM now. A machine that showed another key at its renewal would be another machine.

use kubelet_attestation::csr::envelope::Envelope;

use super::attempt::{Attempt, Locked};
use crate::failure::Failure;
use crate::pending::OpenRequest;
use crate::store::{Store, StoreFile};
use crate::store_contents::StoreContents;

impl Attempt {
    /// Uses the endorsement key of the stored enrolment, where the settings leave the choice.
    ///
    /// Without an origin nothing says that the file is this machine's.
    pub(super) fn recall_endorsement_key(&mut self, store: &Store, stored: &StoreContents) {
        if stored.origin.is_some() {
            self.endorsement_key = remembered(store);
        }
    }

    /// Forgets an endorsement key that nothing says to be this machine's, before an origin does.
    pub(super) fn forget_foreign_endorsement_key(locked: &Locked<'_>, stored: &StoreContents) {
        if stored.origin.is_none() {
            // What cannot be removed is not read either in this run.
            drop(locked.store.remove(StoreFile::EndorsementKey, locked.lock));
        }
    }

    /// Writes down the endorsement key of `request`, which was issued.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub(super) fn remember_endorsement_key(
        &self,
        locked: &Locked<'_>,
        request: Option<&OpenRequest>,
    ) -> Result<(), Failure> {
        let evidence = request
            .and_then(|open| Envelope::parse(&open.bytes).ok())
            .and_then(|envelope| envelope.evidence);
        let key = evidence.and_then(|evidence| self.attester.endorsement_key(&evidence));
        match key {
            Some(key) if remembered(locked.store).as_deref() != Some(key) => {
                locked.write(StoreFile::EndorsementKey, key.as_bytes())
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn remembered(store: &Store) -> Option<String> {
    let text = store.read(StoreFile::EndorsementKey).ok().flatten()?;
    Some(text.to_string())
}
