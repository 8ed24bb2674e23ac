//! A provider's text about the evidence with which a machine enrolled, for its renewals.
//!
//! A machine can have several ways to prove its identity. A renewal with different evidence would appear to be a
//! request from a different machine.

use kubelet_attestation::csr::envelope::Envelope;

use super::attempt::Attempt;
use crate::failure::Failure;
use crate::pending::OpenRequest;
use crate::store::{Store, StoreFile, StoreLock};
use crate::store_contents::{StoreContents, remembered};

impl Attempt {
    /// Loads the provider's text about the stored enrollment.
    ///
    /// Without an origin, the file is not tied to this machine.
    pub(super) fn recall(&self, store: &Store, stored: &StoreContents) {
        if stored.origin.is_some()
            && let Some(text) = remembered(store)
        {
            self.remembered.get_or_init(|| text);
        }
    }

    /// Removes the provider's text if no origin ties it to this machine. A run must call this function before it writes
    /// an origin.
    ///
    /// # Errors
    ///
    /// The file cannot be removed. If this run then wrote an origin, the next run would trust the file.
    pub(super) fn forget_foreign(store: &StoreLock, stored: &StoreContents) -> Result<(), Failure> {
        match stored.origin {
            Some(_) => Ok(()),
            None => store.remove(StoreFile::Remembered),
        }
    }

    /// Saves the provider's text about the evidence in `request`, for which a certificate was issued.
    ///
    /// # Errors
    ///
    /// The text cannot be written.
    pub(super) fn remember(
        &self,
        store: &StoreLock,
        request: Option<&OpenRequest>,
    ) -> Result<(), Failure> {
        let evidence = request
            .and_then(|open| Envelope::parse(&open.bytes).ok())
            .and_then(|envelope| envelope.evidence);
        match evidence.and_then(|evidence| self.attester.to_remember(&evidence)) {
            Some(text) if remembered(store).as_deref() != Some(text) => {
                store.replace(StoreFile::Remembered, text.as_bytes())
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{self, Deadline};
    use crate::failure::Code;

    #[test]
    fn an_undeletable_foreign_endorsement_key_file_ends_the_run() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(&root.path().join("state")).unwrap();
        let deadline = Deadline::after(Duration::from_secs(30));
        let store = store.lock(deadline, "test", clock::now()).unwrap();
        let forget = || Attempt::forget_foreign(&store, &StoreContents::default());
        assert!(forget().is_ok());
        std::fs::create_dir(store.path(StoreFile::Remembered)).unwrap();

        let failure = forget().unwrap_err();

        assert_eq!(failure.code(), Code::Store);
        assert!(failure.what().contains("endorsement-key"), "{failure}");
    }
}
