//! An attempt to get a new credential, under the lock.

use std::time::Duration;

use super::allowed::Allowed;
use super::attempt::{Attempt, Demand, RenewalError, SOON};
use super::names::bound;
use super::negotiation::Negotiation;
use super::remedies::invalid_certificate;
use super::request::digest;
use super::step::Step;
use crate::backoff::FailureRecord;
use crate::clock::{self, CLOCK_LEEWAY};
use crate::credential::Credential;
use crate::failure::{Code, Failure, Invalid};
use crate::key::PrivateKey;
use crate::kube::ApiClient;
use crate::node_name::Bound;
use crate::origin::Origin;
use crate::pending::{Pending, Subject};
use crate::process::program;
use crate::rotation::Rotation;
use crate::secret::Secret;
use crate::store::{Store, StoreFile, StoreLock};
use crate::store_contents::StoreContents;

impl Attempt {
    /// Gets a new credential, or returns the credential that another run stored in the meantime.
    pub(super) fn run(&self) -> Result<Credential, RenewalError> {
        let store = Store::create(&self.settings.state_directory)?;
        let store = store
            .lock(self.lock_deadline, &program(), clock::now())
            .map_err(|failure| Self::lock_failure(&store, failure))?;
        let store = self.steps.lock.get_or_init(|| store);
        self.steps.done(Step::Locked);
        let mut stored = self.load(store)?;
        self.finish(store, &mut stored)?;
        Self::forget_foreign(store, &stored)?;
        self.recall(store, &stored);
        let ca_pem = self.endpoint.as_ref().map(|it| it.ca_pem().as_bytes());
        let rotation = stored.rotation(self.attester.renewal(), ca_pem, clock::now());
        if rotation == Rotation::Keep
            && let Some(credential) = stored.credential.take_if(|it| self.demand.is_met_by(it))
        {
            return Ok(credential);
        }
        if !self.ignore_backoff
            && let Some(record) = FailureRecord::read(store)
            && let Some(active) = RenewalError::of_memory(&record, &self.scope, clock::now())
        {
            return Err(active);
        }
        match self.enrol(store, &stored) {
            Ok(credential) => {
                drop(store.remove(StoreFile::Failure));
                self.steps.done(Step::Cleared);
                Ok(credential)
            }
            Err(failure) => Err(self.record(store, failure)),
        }
    }

    /// Records `failure` in three cases: the failure starts a back-off; the request is pending, which `status` shows;
    /// or the run had the full time limit, because the rate of such runs is limited.
    pub(super) fn record(&self, store: &StoreLock, failure: Failure) -> RenewalError {
        let is_written = failure.code().is_remembered() || failure.code() == Code::Pending;
        let in_full = matches!(self.allowed, Allowed::InFull(_));
        if !is_written && !in_full {
            return failure.into();
        }
        let now = clock::now();
        let previous = FailureRecord::read(store);
        let mut record = FailureRecord::after(previous.as_ref(), &failure, &self.scope, now);
        if matches!(store.read(StoreFile::Credential), Ok(None)) {
            record = record.before_first_certificate();
        }
        if in_full {
            record.in_full = record.at;
        }
        // If this record cannot be written, the back-off does not apply. The caller needs `failure`, not the write
        // error.
        drop(store.replace(StoreFile::Failure, &record.to_json()));
        let next_attempt = record.holds(&self.scope, now).unwrap_or(now + SOON);
        RenewalError {
            failure,
            next_attempt,
        }
    }

    fn lock_failure(store: &Store, failure: Failure) -> Failure {
        match FailureRecord::read(store) {
            Some(record) => Failure::new(
                failure.code(),
                format!(
                    "{failure}; the last failure of a run was: {}",
                    record.message
                ),
                failure.remedy(),
            ),
            None => failure,
        }
    }

    fn load(&self, store: &StoreLock) -> Result<StoreContents, Failure> {
        let stored = StoreContents::load(store, &self.machine)?;
        for (file, why) in &stored.rejected {
            self.set_aside(store, *file, why)?;
        }
        Ok(stored)
    }

    /// Quarantines a file.
    pub(super) fn set_aside(
        &self,
        store: &StoreLock,
        file: StoreFile,
        why: &str,
    ) -> Result<(), Failure> {
        if let Some(kept) = store.quarantine(file)? {
            let (name, kept) = (file.name(), kept.display());
            self.log.warn(&format!("set {name} aside as {kept}: {why}"));
        }
        Ok(())
    }

    fn enrol(&self, store: &StoreLock, stored: &StoreContents) -> Result<Credential, Failure> {
        let saved = self.saved_pending(store, stored)?;
        let open = saved.as_ref().and_then(|saved| saved.request.as_ref());
        let known = open.and_then(|open| open.known_provider_id(&self.scope, clock::now()));
        // Read the bootstrap credential on this thread, which the run can abandon, because the file system might not
        // respond.
        let bound = bound(&self.settings, stored);
        self.steps.done(Step::Loaded);
        let names = self.names(bound.as_ref(), known)?;
        self.steps.done(Step::Named);
        let (login, bootstrap) = self.login(stored)?;
        let is_bootstrap = bootstrap.is_some();
        let endpoint = self.endpoint(stored, bootstrap)?;
        let environment = |name: &str| std::env::var_os(name);
        let client = ApiClient::connect(&endpoint, &login, &environment)?;
        let audience = self.settings.audience.clone();
        let mut subject = self.subject(names, audience.unwrap_or_else(|| endpoint.audience()));
        // No certificate binds the node to its name yet.
        if stored.credential.is_none()
            && let Some(approved) = self.approved_under_another_name(open, &subject, &client)?
        {
            subject = approved;
        }
        let machine = stored.machine.clone();
        let origin = Origin {
            node_name: subject.node_name.clone(),
            endpoint: endpoint.to_fields(),
            machine: machine.unwrap_or_else(|| self.machine.digest()),
            boot_id: self.scope.boot_id.clone(),
            refused_again: stored
                .origin
                .as_ref()
                .and_then(|origin| origin.refused_again),
        };
        // Save the origin first, because it ties the other files to this machine. A stored credential keeps its own
        // origin until a new credential replaces it.
        if stored.credential.is_none() && stored.origin.as_ref() != Some(&origin) {
            if stored.origin.is_none() && origin.machine.is_empty() {
                self.log.warn(
                    "this machine has no identity in its firmware or in /etc/machine-id: the \
                     plugin cannot detect a copy of its disk",
                );
            }
            origin.save(store)?;
        }
        self.steps.done(Step::OriginSaved);

        let mut pending = self.pending(store, stored, saved)?;
        // `finish` needs this digest if the run is killed after it writes the credential and before it writes the
        // origin.
        let ca = Some(digest(endpoint.ca_pem()));
        if pending.ca != ca {
            pending.ca = ca;
            if pending.request.is_some() {
                pending.save(store)?;
            }
        }
        let refiled = self.refiled(stored).map(Credential::public_bits);
        let negotiation = Negotiation {
            attempt: self,
            store,
            has_stored_key: refiled == Some(pending.key.public_bits()),
            pending: &mut pending,
            subject: &subject,
            lifetime: self.lifetime(stored),
            version: self.preferred_version(),
            endpoint: &endpoint,
            client,
            is_bootstrap,
        };
        let issued = negotiation.run()?;
        let credential = self.accept(store, pending, &subject, &origin, &issued)?;
        if stored.credential.is_none() {
            // The kubelet might have a name that differs from the name in the approved request.
            self.decided(Some(&Bound::Stored(subject.node_name)))?;
        }
        Ok(credential)
    }

    /// The lifetime of the stored certificate, if the run can use the certificate while a renewal is pending.
    fn lifetime(&self, stored: &StoreContents) -> Option<Duration> {
        let valid = stored.valid(clock::now());
        let valid = valid.filter(|_| self.demand == Demand::IfDue)?;
        Some(valid.validity().lifetime())
    }

    fn accept(
        &self,
        store: &StoreLock,
        mut pending: Pending,
        subject: &Subject,
        origin: &Origin,
        issued: &str,
    ) -> Result<Credential, Failure> {
        let key = PrivateKey::from_pem(Secret::new(pending.key.pem().expose().clone()))
            .map_err(|error| Failure::bug(&error))?;
        let now = clock::now();
        let credential = match Credential::from_issued(issued.as_bytes(), key, subject, now) {
            Ok(credential) => credential,
            Err(error) => {
                pending.drop_request(store)?;
                return Err(invalid_certificate(&error));
            }
        };
        let not_before = credential.validity().not_before;
        if now + CLOCK_LEEWAY < not_before {
            // The certificate is not valid yet. The next run fetches the certificate again.
            return Err(invalid_certificate(&Invalid::new(format!(
                "the issued certificate is not valid before {}",
                humantime::format_rfc3339_seconds(not_before)
            ))));
        }
        // Write the provider's text before the certificate. Otherwise, a renewal could appear to be a request from a
        // different machine.
        self.remember(store, pending.request.as_ref())?;
        store.replace(StoreFile::Credential, credential.to_pem().as_bytes())?;
        // The API server has just issued this certificate. If the write fails, the next run checks it.
        drop(store.note_check(now));
        self.steps.done(Step::CredentialStored);
        if Origin::read(store).as_ref() != Some(origin)
            && let Err(failure) = origin.save(store)
        {
            // The next run finds the request with this key, and updates the origin.
            let what = "stored the new credential, but cannot write origin.json";
            self.log.warn_of(what, &failure);
            return Ok(credential);
        }
        // If the removal fails, the next run recognizes the file by its key.
        drop(store.remove(StoreFile::Pending));
        Ok(credential)
    }
}
