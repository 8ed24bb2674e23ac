//! The endorsement key that a machine enrolled with, kept for its renewals.
//!
//! A TPM has an endorsement key for each template, and a provider's preference depends on the TPM's
//! current content. A renewal with another key would look like another machine.

use kubelet_attestation::csr::envelope::Envelope;

use super::attempt::{Attempt, Locked};
use crate::failure::Failure;
use crate::pending::OpenRequest;
use crate::store::{Store, StoreFile};
use crate::store_contents::StoreContents;

impl Attempt {
    /// Uses the endorsement key of the stored enrolment, unless the settings select one.
    ///
    /// Without an origin, nothing ties the file to this machine.
    pub(super) fn recall_endorsement_key(&mut self, store: &Store, stored: &StoreContents) {
        if stored.origin.is_some() {
            self.endorsement_key = remembered(store);
        }
    }

    /// Removes an endorsement key that no origin ties to this machine, before this run writes an
    /// origin.
    pub(super) fn forget_foreign_endorsement_key(locked: &Locked<'_>, stored: &StoreContents) {
        if stored.origin.is_none() {
            // If the removal fails, this run does not read the file either.
            drop(locked.store.remove(StoreFile::EndorsementKey, locked.lock));
        }
    }

    /// Saves the endorsement key of `request`, which was issued.
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
