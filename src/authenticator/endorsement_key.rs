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
    ///
    /// # Errors
    ///
    /// The file cannot be removed. With an origin, the next run would trust it.
    pub(super) fn forget_foreign_endorsement_key(
        locked: &Locked<'_>,
        stored: &StoreContents,
    ) -> Result<(), Failure> {
        if stored.origin.is_none() {
            locked
                .store
                .remove(StoreFile::EndorsementKey, locked.lock)?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{self, Deadline};
    use crate::failure::Code;

    #[test]
    fn a_foreign_key_that_cannot_be_removed_ends_the_run() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(&root.path().join("state")).unwrap();
        let deadline = Deadline::after(Duration::from_secs(30));
        let lock = store.lock(deadline, "test", clock::now()).unwrap();
        let locked = Locked {
            store: &store,
            lock: &lock,
        };
        let forget = || Attempt::forget_foreign_endorsement_key(&locked, &StoreContents::default());
        assert!(forget().is_ok());
        std::fs::create_dir(store.path(StoreFile::EndorsementKey)).unwrap();

        let failure = forget().unwrap_err();

        assert_eq!(failure.code(), Code::Store);
        assert!(failure.what().contains("endorsement-key"), "{failure}");
    }
}
