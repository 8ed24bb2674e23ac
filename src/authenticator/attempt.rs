//! One attempt to get a new credential, under the lock.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::errors::error_chain;

use super::negotiation::{Connection, Requester};
use super::request::digest;
use super::step::{Step, Steps};
use crate::attester::Attester;
use crate::backoff::{FailureRecord, FailureScope};
use crate::clock::{self, Deadline};
use crate::credential::{Credential, Expected, IssuedError};
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::ClusterEndpoint;
use crate::log::Log;
use crate::machine::Machine;
use crate::origin::Origin;
use crate::pending::Pending;
use crate::rotation::Rotation;
use crate::secret::Secret;
use crate::settings::Settings;
use crate::store::{Store, StoreError, StoreFile, StoreLock};
use crate::store_contents::StoreContents;

/// The delay before the next attempt, after a failure without a back-off.
const SOON: Duration = Duration::from_secs(30);

/// The run got no new credential.
#[derive(Debug)]
pub(super) struct RenewalError {
    pub(super) failure: Failure,
    pub(super) next_attempt: SystemTime,
}

impl From<Failure> for RenewalError {
    /// A failure without a back-off.
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            next_attempt: clock::now() + SOON,
        }
    }
}

impl From<RenewalError> for Failure {
    fn from(error: RenewalError) -> Self {
        error.failure
    }
}

impl RenewalError {
    /// The recorded failure, while its back-off lasts.
    pub(super) fn of_memory(
        record: &FailureRecord,
        scope: &FailureScope,
        now: SystemTime,
    ) -> Option<Self> {
        let until = record.holds(scope, now)?;
        let what = format!(
            "nothing is tried before {}, after {} failures like this (exit code {}): {}",
            humantime::format_rfc3339_seconds(until),
            record.count,
            record.code,
            record.message
        );
        let remedy = format!("{}; then run `renew`", record.remedy);
        Some(Self {
            failure: Failure::new(Code::BackOff, what, remedy),
            next_attempt: until,
        })
    }
}

/// When a run gets another credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    IfDue,
    /// If one is due, or if the stored credential still has this public key: the API server refuses
    /// it.
    Unless(Vec<u8>),
    Always,
}

impl Demand {
    /// If a renewal is due, or if `refused` is still stored.
    pub(super) fn unless_replaced(refused: &Credential) -> Self {
        Self::Unless(refused.public_bits().to_vec())
    }

    /// Whether `stored` is enough. Its renewal is not due.
    fn is_met_by(&self, stored: &Credential) -> bool {
        match self {
            Self::IfDue => true,
            Self::Unless(refused) => refused != stored.public_bits(),
            Self::Always => false,
        }
    }
}

/// How a run records its failure.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub(super) scope: FailureScope,
    /// Whether the run has the full time although a valid credential is stored.
    pub(super) in_full: bool,
}

impl Memory {
    /// Records `failure` if it starts a back-off, if the request is pending (for `status`), or if
    /// the run had the full time (to limit such runs).
    pub(super) fn write(&self, locked: &Locked<'_>, failure: Failure) -> RenewalError {
        let is_written = failure.code().is_remembered() || failure.code() == Code::Pending;
        if !is_written && !self.in_full {
            return failure.into();
        }
        let now = clock::now();
        let previous = locked.failure_record();
        let mut record = FailureRecord::after(previous.as_ref(), &failure, &self.scope, now);
        if self.in_full {
            record.in_full = record.at;
        }
        // If the write fails, there is no back-off. The caller needs `failure`, not the write
        // error.
        drop(
            locked
                .store
                .replace(StoreFile::Failure, &record.to_json(), locked.lock),
        );
        let next_attempt = record.holds(&self.scope, now).unwrap_or(now + SOON);
        RenewalError {
            failure,
            next_attempt,
        }
    }
}

/// One attempt to get a new credential. It owns its data, because its thread may be abandoned.
pub(super) struct Attempt {
    pub(super) attester: Arc<dyn Attester>,
    pub(super) settings: Settings,
    /// The name of the endorsement key that the machine enrolled with.
    pub(super) endorsement_key: Option<String>,
    pub(super) endpoint: Option<ClusterEndpoint>,
    pub(super) machine: Machine,
    pub(super) memory: Memory,
    pub(super) log: Log,
    pub(super) ignore_backoff: bool,
    pub(super) demand: Demand,
    pub(super) deadline: Deadline,
    pub(super) lock_deadline: Deadline,
    pub(super) steps: Steps,
}

/// The store with its lock, which allows writes.
pub(super) struct Locked<'a> {
    pub(super) store: &'a Store,
    pub(super) lock: &'a StoreLock,
}

impl Attempt {
    /// Gets a new credential, or returns the one that another run stored in the meantime.
    pub(super) fn run(mut self) -> Result<Credential, RenewalError> {
        let store = Store::create(&self.settings.state_directory).map_err(Failure::from)?;
        let lock = store
            .lock(self.lock_deadline, &super::program(), clock::now())
            .map_err(|error| Self::lock_failure(&store, error))?;
        let lock = Arc::new(lock);
        self.steps.locked(&lock);
        let locked = Locked {
            store: &store,
            lock: &lock,
        };
        let mut stored = self.load(&locked)?;
        self.finish(&locked, &mut stored)?;
        Self::forget_foreign_endorsement_key(&locked, &stored)?;
        self.recall_endorsement_key(&store, &stored);
        let rotation = self.rotation(&stored);
        let stored = match stored.credential {
            Some(credential)
                if rotation == Rotation::Keep && self.demand.is_met_by(&credential) =>
            {
                return Ok(credential);
            }
            credential => StoreContents {
                credential,
                ..stored
            },
        };
        let record = locked.failure_record();
        if let (Some(record), false) = (&record, self.ignore_backoff)
            && let Some(active) = RenewalError::of_memory(record, self.scope(), clock::now())
        {
            return Err(active);
        }
        self.steps.done(Step::Loaded);
        match self.enrol(&locked, &stored) {
            Ok(credential) => {
                drop(store.remove(StoreFile::Failure, &lock));
                self.steps.done(Step::Cleared);
                Ok(credential)
            }
            Err(failure) => Err(self.memory.write(&locked, failure)),
        }
    }

    pub(super) fn scope(&self) -> &FailureScope {
        &self.memory.scope
    }

    fn rotation(&self, stored: &StoreContents) -> Rotation {
        let changed = match (&self.endpoint, &stored.origin) {
            (Some(endpoint), Some(origin)) => endpoint.ca_pem() != origin.endpoint.ca_pem,
            _ => false,
        };
        stored.rotation(self.attester.renewal(), changed, clock::now())
    }

    fn lock_failure(store: &Store, error: StoreError) -> Failure {
        let failure = Failure::from(error);
        let record = store.read(StoreFile::Failure).ok().flatten();
        match record.and_then(|text| FailureRecord::parse(&text)) {
            Some(record) => Failure::new(
                failure.code(),
                format!("{failure}, whose last failure was: {}", record.message),
                failure.remedy(),
            ),
            None => failure,
        }
    }

    fn load(&self, locked: &Locked<'_>) -> Result<StoreContents, Failure> {
        let mut stored = StoreContents::load(locked.store, &self.machine)?;
        if let Some(origin) = &stored.origin
            && let Err(error) =
                ClusterEndpoint::from_fields(origin.endpoint.clone(), StoreFile::Origin.name())
        {
            stored.distrust_origin(&error_chain(&error));
        }
        let in_order = StoreFile::ALL.into_iter();
        let rejected = in_order.flat_map(|file| {
            let rejected = stored.rejected.iter();
            rejected.filter(move |rejected| rejected.file == file)
        });
        for rejected in rejected {
            let kept = locked.store.quarantine(rejected.file, locked.lock)?;
            if let Some(kept) = kept {
                self.log.warn(&format!(
                    "{} is set aside as {}: {}",
                    rejected.file.name(),
                    kept.display(),
                    rejected.why
                ));
            }
        }
        Ok(stored)
    }

    fn enrol(&self, locked: &Locked<'_>, stored: &StoreContents) -> Result<Credential, Failure> {
        let saved = self.saved_pending(locked, stored)?;
        let names = self.names(stored, self.known_provider_id(saved.as_ref()))?;
        self.steps.done(Step::Named);
        let (login, bootstrap) = self.login(stored)?;
        let requester = match bootstrap {
            Some(_) => Requester::Bootstrap,
            None => Requester::Certificate,
        };
        let endpoint = self.endpoint(stored, bootstrap)?;
        let machine = stored.machine.clone();
        let origin = Origin {
            node_name: names.node_name.clone(),
            endpoint: endpoint.to_fields(),
            machine: machine.unwrap_or_else(|| self.machine.digest()),
            boot_id: self.scope().boot_id.clone(),
        };
        // The origin comes first: it ties the files beside it to this machine. A stored credential
        // keeps its own origin until a new credential replaces it.
        if stored.credential.is_none() && stored.origin.as_ref() != Some(&origin) {
            if stored.origin.is_none() && origin.machine.is_empty() {
                self.log.warn(
                    "nothing tells this machine from another: neither its firmware nor \
                     /etc/machine-id; a copy of its disk would be taken for it",
                );
            }
            locked.write(StoreFile::Origin, &origin.to_json())?;
        }
        self.steps.done(Step::OriginSaved);

        let audience = self.settings.audience.clone();
        let subject = self.subject(names, audience.unwrap_or_else(|| endpoint.audience()));
        let mut pending = self.pending(locked, saved)?;
        // `finish` needs this digest if the run is killed between the writes of credential and
        // origin.
        let ca = Some(digest(endpoint.ca_pem()));
        if pending.ca != ca {
            pending.ca = ca;
            if pending.request.is_some() {
                locked.write(StoreFile::Pending, &pending.to_json())?;
            }
        }
        let mut server = Connection::new(endpoint, login, requester);
        let issued = self.negotiate(locked, &mut server, &mut pending, &subject)?;
        self.accept(locked, pending, &subject, &origin, &issued)
    }

    fn accept(
        &self,
        locked: &Locked<'_>,
        mut pending: Pending,
        subject: &crate::pending::Subject,
        origin: &Origin,
        issued: &str,
    ) -> Result<Credential, Failure> {
        let expected = Expected {
            node_name: &subject.node_name,
            provider_id: &subject.provider_id,
        };
        let key = crate::key::PrivateKey::from_pem(Secret::new(pending.key.pem().expose().clone()))
            .map_err(|error| Failure::of(Code::Internal, &error, "report this as a bug"))?;
        let credential = Credential::from_issued(issued.as_bytes(), key, &expected, clock::now());
        let credential = match credential {
            Ok(credential) => credential,
            // The certificate becomes valid with time, and the next run fetches it again.
            Err(error @ IssuedError::NotYetValid { .. }) => return Err(error.into()),
            Err(error) => {
                locked.drop_request(&mut pending)?;
                return Err(error.into());
            }
        };
        // Before the certificate: a renewal with another endorsement key would look like another
        // machine.
        self.remember_endorsement_key(locked, pending.request.as_ref())?;
        locked.write(StoreFile::Credential, credential.to_pem().as_bytes())?;
        self.steps.done(Step::CredentialStored);
        if locked.origin().as_ref() != Some(origin)
            && let Err(failure) = locked.write(StoreFile::Origin, &origin.to_json())
        {
            // The next run finds the request with this key, and updates the origin.
            let what = "the new credential is stored, and origin.json cannot be written";
            self.log.warn_of(what, &failure);
            return Ok(credential);
        }
        // If this fails, the next run recognises the leftover by its key.
        drop(locked.store.remove(StoreFile::Pending, locked.lock));
        Ok(credential)
    }
}

impl Locked<'_> {
    pub(super) fn write(&self, file: StoreFile, content: &[u8]) -> Result<(), Failure> {
        self.store
            .replace(file, content, self.lock)
            .map_err(Failure::from)
    }

    /// Removes the request and keeps its key.
    pub(super) fn drop_request(&self, pending: &mut Pending) -> Result<(), Failure> {
        pending.request = None;
        self.write(StoreFile::Pending, &pending.to_json())
    }

    fn origin(&self) -> Option<Origin> {
        let text = self.store.read(StoreFile::Origin).ok().flatten()?;
        Origin::parse(&text).ok()
    }

    pub(super) fn failure_record(&self) -> Option<FailureRecord> {
        let text = self.store.read(StoreFile::Failure).ok().flatten()?;
        FailureRecord::parse(&text)
    }
}
