//! The main flow: returns the cached credential, or gets a new credential in a run with a deadline.

mod acceptance;
pub(crate) mod allowed;
mod attempt;
mod cluster;
mod enrollment;
mod local;
mod names;
mod negotiation;
mod outcome;
mod remedies;
mod remembered;
mod request;
mod step;

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::attester::{Attester, Identity, Renewal};
use crate::backoff::FailureRecord;
use crate::clock::{self, Deadline};
use crate::credential::{Credential, ExecResult};
use crate::failure::{Code, Failure};
use crate::kube::ApiError;
use crate::log::Log;
use crate::machine::Machine;
use crate::origin::Origin;
use crate::pending::OpenRequest;
use crate::process::program;
use crate::rescue::Rescue;
use crate::rotation::Rotation;
use crate::settings::{Fault, Settings};
use crate::store::Store;
use crate::store_contents::StoreContents;

use acceptance::CHECK_LEASE;
pub(crate) use allowed::Caller;
use allowed::{Allowed, Start};
use attempt::{Attempt, Demand, RenewalError};
pub(crate) use cluster::{Cluster, refuse_other_cluster};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;
pub(crate) use local::Local;
pub(crate) use names::{bound, node_of};
pub(crate) use remedies::{bootstrap_failure, bootstrap_refused, unaccepted_certificate};
use step::Steps;
pub use step::{Observer, Step};

/// The time for which a run with a valid credential waits for another run to renew that credential.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(1);

/// The time for which `renew` waits for the API server to accept or refuse the stored certificate.
const FOR_A_PERSON: Duration = Duration::from_secs(15);

/// The inputs of the flow.
pub(crate) struct Authenticator<'a> {
    /// The provider's attester.
    pub(crate) attester: Arc<dyn Attester>,
    /// The effective settings.
    pub(crate) settings: Settings,
    /// An error in the settings. The plugin still uses the stored certificate.
    pub(crate) fault: Option<Fault>,
    /// The cluster for which the caller requests a credential, if the caller specifies a cluster.
    pub(crate) cluster: Option<Cluster<'a>>,
    /// This machine.
    pub(crate) machine: Machine,
    /// The caller of the plugin.
    pub(crate) caller: Caller,
    /// The credential to print after a panic.
    pub(crate) rescue: Rescue,
    /// The log.
    pub(crate) log: Log,
    /// The callback that the run calls after each step.
    pub(crate) observer: Option<Observer>,
}

impl Authenticator<'_> {
    /// Returns the stored credential until it is due for renewal, then a new credential. If no new credential is
    /// available in time, returns the stored credential while it is valid.
    ///
    /// # Guarantees
    ///
    /// While the stored credential is not due for renewal, this function does not open connections, set up TLS or start
    /// threads. The only exception is a call, at most once per 100 seconds, that checks whether the API server still
    /// accepts the certificate. This call takes at most two seconds.
    ///
    /// A run for client-go takes at most 25 seconds, or 5 seconds with a valid stored credential, even if a dependency
    /// hangs. The exception is a device that proves the machine's identity, and that did not respond in time. If less
    /// than a fifth of the certificate's lifetime is left, the limit of one run per hour is then 25 seconds, in
    /// addition to the check above.
    ///
    /// The read of the state directory has no deadline, because a deadline would need a thread. A pipe or device
    /// instead of a file does not block the read, but a file system that does not respond blocks it.
    pub(crate) fn credential(&self) -> Result<ExecResult, Failure> {
        let (now, start) = (clock::now(), Start::now(self.settings.timeout));
        let (store, mut stored) = self.stored()?;
        self.check_name(&stored)?;
        let rotation = self.rotation(&stored, now);
        match (rotation, &store, stored.credential.take(), &stored.origin) {
            (Rotation::Keep, Some(store), Some(credential), Some(origin)) => {
                if let Some(fault) = &self.fault {
                    self.warn_of_fault(fault);
                }
                // Check the certificate before the origin is updated, because the origin records whether the API server
                // accepts the certificate again.
                let tried = self.tried(store, origin, &credential, now);
                self.update_origin(
                    store,
                    &stored,
                    tried.as_ref().is_some_and(Result::is_ok),
                    now,
                );
                let Some(Err(refused)) = tried else {
                    return Ok(self.kept(credential, now));
                };
                self.warn_of_refusal(&refused);
                if let Some(why) = self.no_use_of_renewal(origin, &refused, now) {
                    self.log.warn_with_remedy(&why, CHECK_LEASE);
                    return Ok(self.kept(credential, now));
                }
                let refused = Demand::unless_replaced(&credential, &refused);
                Ok(self.renewed_or_old(store, credential, refused, start))
            }
            (Rotation::Renew, Some(store), Some(credential), _) => {
                // With an invalid setting, the renewal fails and logs a warning, so only removed settings are logged
                // here.
                if let Some(fault @ Fault::Removed(_)) = &self.fault {
                    self.warn_of_fault(fault);
                }
                Ok(self.renewed_or_old(store, credential, Demand::IfDue, start))
            }
            (_, store, ..) => self
                .replace(store.as_ref(), self.without(), Demand::IfDue)
                .map(|fresh| self.kept(fresh, clock::now()))
                .map_err(Failure::from),
        }
    }

    fn warn_of_fault(&self, fault: &Fault) {
        let what = "the settings are invalid; using the stored certificate";
        let (Fault::Removed(failure) | Fault::Invalid(failure)) = fault;
        self.log.warn_of(what, failure);
    }

    fn warn_of_refusal(&self, refused: &ApiError) {
        self.log.warn(&format!(
            "the API server refuses the stored certificate before its renewal is due: {}",
            error_chain(refused)
        ));
    }

    fn renewed_or_old(
        &self,
        store: &Store,
        old: Credential,
        demand: Demand,
        start: Start,
    ) -> ExecResult {
        let now = clock::now();
        self.prepare_rescue(&old, now);
        // A slow TPM might never produce evidence within five seconds. Near the end of the certificate's lifetime, one
        // run per hour is allowed to delay the kubelet's heartbeats, so that the certificate does not expire.
        let in_full = old.validity().runs_out(now)
            && FailureRecord::read(store).is_some_and(|record| record.needs_full_time(now));
        let allowed = start.renewal(in_full);
        let refused = demand != Demand::IfDue;
        let is_forbidden = demand.is_forbidden();
        match self.replace(Some(store), allowed, demand) {
            Ok(fresh) => {
                if is_forbidden {
                    self.note_another_refusal(store, &fresh, start.remaining());
                }
                self.kept(fresh, clock::now())
            }
            Err(error) => {
                if refused {
                    // The next run checks the certificate again. If the API server still refuses the certificate, that
                    // run renews the certificate.
                    store.forget_last_check();
                }
                self.fall_back(old, &error)
            }
        }
    }

    /// Gets a new credential if the stored credential is due for renewal, if the API server refuses the stored
    /// credential, or if `force` is set. Returns whether the credential is new.
    pub(crate) fn renew(&self, force: bool) -> Result<(ExecResult, bool), Failure> {
        let now = clock::now();
        let (store, mut stored) = self.stored()?;
        self.check_name(&stored)?;
        let rotation = self.rotation(&stored, now);
        let mut demand = if force { Demand::Always } else { Demand::IfDue };
        if let (Rotation::Keep, false, Some(store), Some(credential), Some(origin)) = (
            rotation,
            force,
            &store,
            stored.credential.take(),
            &stored.origin,
        ) {
            let deadline = Deadline::after(self.settings.timeout.min(FOR_A_PERSON));
            let tried = self.try_certificate(origin, &credential, deadline);
            let is_accepted = tried.as_ref().is_some_and(Result::is_ok);
            match tried.and_then(Result::err) {
                Some(refused) if refused.is_about_the_requester() => {
                    self.warn_of_refusal(&refused);
                    demand = Demand::unless_replaced(&credential, &refused);
                }
                failed => {
                    if let Some(error) = failed {
                        self.log.warn(&format!(
                            "cannot check whether the API server accepts the certificate: {}",
                            error_chain(&error)
                        ));
                    }
                    self.update_origin(store, &stored, is_accepted, now);
                    return Ok((self.kept(credential, now), false));
                }
            }
        }
        let fresh = self.replace(store.as_ref(), self.without(), demand)?;
        Ok((self.kept(fresh, clock::now()), true))
    }

    /// Returns the request that a run would send now, with a throwaway key. Does not send or write anything.
    pub(crate) fn dry_run(&self) -> Result<OpenRequest, Failure> {
        let (store, stored) = self.stored()?;
        let attempt = self.attempt(self.without(), Demand::IfDue)?;
        if let Some(store) = &store {
            attempt.recall(store, &stored);
        }
        attempt.dry_run(&stored)
    }

    /// Returns the node's name and the machine's identity that a run would claim. Does not call the API server.
    pub(crate) fn identify(&self) -> Result<(NodeName, Identity), Failure> {
        let (store, stored) = self.stored()?;
        let attempt = self.attempt(self.without(), Demand::IfDue)?;
        if let Some(store) = &store {
            attempt.recall(store, &stored);
        }
        let bound = bound(&attempt.settings, &stored);
        attempt.named(bound.as_ref(), None, |sources| {
            attempt.attester.identify(sources)
        })
    }

    /// Removes every file of the store, including quarantined files. Returns the number of files.
    pub(crate) fn reset(&self) -> Result<usize, Failure> {
        let Some(store) = Store::open(&self.settings.state_directory)? else {
            return Ok(0);
        };
        let deadline = Deadline::after(self.settings.timeout);
        let lock = store.lock(deadline, &program(), clock::now())?;
        let count = lock.removable().len();
        lock.forget_all()?;
        Ok(count)
    }

    /// Lists the files that [`reset`](Self::reset) removes.
    pub(crate) fn resettable(&self) -> Result<Vec<PathBuf>, Failure> {
        let store = Store::open(&self.settings.state_directory)?;
        Ok(store.map(|store| store.removable()).unwrap_or_default())
    }

    /// Reads the contents of the store. Does not change them.
    pub(crate) fn stored(&self) -> Result<(Option<Store>, StoreContents), Failure> {
        let Some(store) = Store::open(&self.settings.state_directory)? else {
            return Ok((None, StoreContents::default()));
        };
        let stored = StoreContents::load(&store, &self.machine)?;
        if let Some(readable_by_others) = &stored.readable_by_others {
            self.log.warn(readable_by_others);
        }
        Ok((Some(store), stored))
    }

    /// Returns the next action of the plugin for the stored credential.
    pub(crate) fn rotation(&self, stored: &StoreContents, now: SystemTime) -> Rotation {
        let ca_pem = self.cluster.as_ref().and_then(Cluster::ca_pem);
        stored.rotation(self.attester.renewal(), ca_pem.as_deref(), now)
    }

    fn kept(&self, credential: Credential, now: SystemTime) -> ExecResult {
        let validity = credential.validity();
        let until = match self.attester.renewal() {
            Renewal::Attested => credential.renew_at(),
            Renewal::Impossible => {
                if validity.runs_out(now) {
                    let end = humantime::format_rfc3339_seconds(validity.not_after);
                    self.log.warn(&format!(
                        "the credential expires at {end} and cannot be renewed; keep a bootstrap credential at {}",
                        self.settings.bootstrap_kubeconfig.display()
                    ));
                }
                validity.not_after
            }
        };
        ExecResult {
            expiration: validity.expiry_kept(now, until),
            credential,
        }
    }

    /// Returns the old credential after a failed renewal. The node keeps its credential even if the provider rejects
    /// the node name, because `check_name` has already compared this name with the kubelet's node name.
    fn fall_back(&self, old: Credential, error: &RenewalError) -> ExecResult {
        let now = clock::now();
        if matches!(error.failure.code(), Code::Pending | Code::BackOff) {
            self.log.step(error.failure.what());
        } else {
            self.log.warn_of(
                "cannot renew the credential; using the old credential, which is still valid",
                &error.failure,
            );
        }
        let validity = old.validity();
        ExecResult {
            expiration: validity.expiry_awaiting_renewal(now, error.next_attempt),
            credential: old,
        }
    }

    /// Updates three facts in the origin, unless another run holds the lock:
    ///
    /// - the boot in which the firmware was compared, because each boot needs only one comparison
    /// - the new endpoint if the cluster has moved, for runs whose caller does not specify an endpoint
    /// - that the API server accepts the certificate again
    fn update_origin(
        &self,
        store: &Store,
        stored: &StoreContents,
        is_accepted: bool,
        now: SystemTime,
    ) {
        let Some(origin) = &stored.origin else {
            return;
        };
        let cluster = self.cluster.as_ref();
        let moved = cluster.and_then(|cluster| cluster.moved_from(origin));
        let is_healed = is_accepted && origin.refused_again.is_some();
        if stored.machine.is_none() && moved.is_none() && !is_healed {
            return;
        }
        let Ok(store) = store.lock(Deadline::after(Duration::ZERO), &program(), now) else {
            return;
        };
        // Update only the origin that this run has read, because another run might have replaced it.
        if Origin::read(&store).as_ref() == Some(origin) {
            let mut origin = origin.clone();
            origin.boot_id.clone_from(&stored.boot_id);
            origin.endpoint = moved.unwrap_or(origin.endpoint);
            origin.refused_again = origin.refused_again.filter(|_| !is_accepted);
            drop(origin.save(&store));
        }
    }

    fn prepare_rescue(&self, credential: &Credential, now: SystemTime) {
        let soon = credential.validity().expiry_awaiting_renewal(now, now);
        self.rescue.prepare(credential, soon);
    }

    /// Gets a new credential on a separate thread, within the allowed time. If the thread hangs, this function abandons
    /// it.
    ///
    /// An abandoned thread is as harmless as a killed process, because later runs can repeat every step.
    fn replace(
        &self,
        store: Option<&Store>,
        allowed: Allowed,
        demand: Demand,
    ) -> Result<Credential, RenewalError> {
        let now = clock::now();
        match (&self.fault, allowed) {
            // A node without a certificate is not working yet, so report the error.
            (Some(Fault::Invalid(failure)), _)
            | (Some(Fault::Removed(failure)), Allowed::Without(_)) => {
                return Err(failure.clone().into());
            }
            (Some(Fault::Removed(_)) | None, _) => {}
        }
        if let Some(active) = store.and_then(|store| self.remembered(store, now)) {
            return Err(active);
        }
        let attempt = Arc::new(self.attempt(allowed, demand)?);
        let worker = Arc::clone(&attempt);
        let (sender, receiver) = mpsc::sync_channel(1);
        let run = move || {
            let result = worker.run();
            // Drop the worker before the function returns, so that the lock is free when the waiting thread continues.
            drop(worker);
            drop(sender.send(result));
        };
        if let Err(error) = thread::Builder::new().spawn(run) {
            let failure = Failure::of(Code::Internal, &error, "free some memory");
            return Err(failure.into());
        }
        match receiver.recv_timeout(allowed.total().saturating_sub(allowed.margin())) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(Self::remember(attempt, allowed.margin())),
            Err(RecvTimeoutError::Disconnected) => Err(RenewalError::from(Failure::new(
                Code::Internal,
                "the run ended without a result",
                "report this as a bug",
            ))),
        }
    }

    /// Records the failure of an abandoned run, under the lock that the run holds. Waits at most for `patience`,
    /// because the disk might be the cause of the hang.
    fn remember(attempt: Arc<Attempt>, patience: Duration) -> RenewalError {
        let failure = attempt.steps.stuck(&attempt.settings.state_directory);
        let error = RenewalError::from(failure.clone());
        let (sender, receiver) = mpsc::sync_channel(1);
        let write = move || {
            if let Some(lock) = attempt.steps.lock.get() {
                drop(sender.send(attempt.record(lock, failure)));
            }
        };
        match thread::Builder::new().spawn(write) {
            Ok(_) => receiver.recv_timeout(patience).unwrap_or(error),
            Err(_) => error,
        }
    }

    fn remembered(&self, store: &Store, now: SystemTime) -> Option<RenewalError> {
        if self.caller == Caller::Person {
            return None;
        }
        let record = FailureRecord::read(store)?;
        let scope = self.local().scope(&self.settings, &self.machine);
        RenewalError::of_memory(&record, &scope, now)
    }

    /// Returns the time limit for a run without a valid credential.
    fn without(&self) -> Allowed {
        Allowed::without(self.caller, self.settings.timeout)
    }

    fn attempt(&self, allowed: Allowed, demand: Demand) -> Result<Attempt, RenewalError> {
        let endpoint = self
            .cluster
            .as_ref()
            .map(Cluster::endpoint)
            .transpose()
            .map_err(|error| {
                let remedy = "correct the cluster in the kubeconfig that starts this plugin";
                Failure::of(Code::Configuration, &error, remedy)
            })?;
        // The attempt uses the first margin to record its own failure. The waiting thread uses the second margin.
        let deadline = Deadline::after(allowed.total().saturating_sub(2 * allowed.margin()));
        let others = match allowed {
            Allowed::Without(_) => deadline,
            Allowed::Briefly(_) | Allowed::InFull(_) => deadline.within(WAIT_FOR_OTHERS),
        };
        let local = self.local();
        Ok(Attempt {
            attester: Arc::clone(&self.attester),
            settings: self.settings.clone(),
            remembered: OnceLock::new(),
            endpoint,
            machine: self.machine.clone(),
            scope: local.scope(&self.settings, &self.machine),
            local,
            allowed,
            log: self.log,
            ignore_backoff: self.caller == Caller::Person,
            demand,
            deadline,
            lock_deadline: others,
            steps: Steps::new(self.log, self.observer.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
