//! The flow on one page: cache, and where that does not do, a bounded run that gets a new
//! credential.

mod acceptance;
mod allowed;
mod attempt;
mod cluster;
mod endorsement_key;
mod exit_code;
mod negotiation;
mod outcome;
mod request;
mod step;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::attester::{Attester, Renewal};
use crate::backoff::{FailureRecord, FailureScope};
use crate::clock::{self, Deadline};
use crate::credential::{Credential, ExecResult};
use crate::exec::ExecCluster;
use crate::failure::{Code, Failure};
use crate::kube::ApiError;
use crate::kube::kubeconfig::ClusterEndpoint;
use crate::kubelet::KubeletArguments;
use crate::log::Log;
use crate::machine::Machine;
use crate::node_name::NameSources;
use crate::origin::Origin;
use crate::pending::Subject;
use crate::rescue::Rescue;
use crate::rotation::Rotation;
use crate::settings::Settings;
use crate::store::{Store, StoreFile, StoreLock};
use crate::store_contents::StoreContents;

use acceptance::is_refusal;
use allowed::Allowed;
use attempt::{Attempt, Demand, Locked, Memory, RenewalError};
use cluster::ca_changed;
pub(crate) use exit_code::{kubeconfig_failure, store_failure};
use kubelet_attestation::errors::error_chain;
pub use step::{Observer, Step};

/// In all, where a valid credential is there: the kubelet's heartbeat gives up after ten seconds,
/// and meanwhile client-go holds back every request.
const WITH_CREDENTIAL: Duration = Duration::from_secs(5);

/// How long a run with a valid credential waits for another that renews it.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(1);

/// How long a person waits to learn whether the present certificate is accepted.
const FOR_A_PERSON: Duration = Duration::from_secs(15);

/// For whom a credential is got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caller {
    /// client-go, which asks again at every request: a remembered failure answers for it.
    ClientGo,
    /// A person, who has perhaps just mended what was broken: it is tried again, whatever is
    /// remembered.
    Person,
}

/// All that the flow needs to know.
#[derive(Debug)]
pub struct Authenticator<'a> {
    /// How this machine proves what it is.
    pub attester: Arc<dyn Attester>,
    /// What was set.
    pub settings: Settings,
    /// The cluster that client-go is about to talk to, where it says.
    pub cluster: Option<&'a ExecCluster<'a>>,
    /// This machine.
    pub machine: Machine,
    /// The caller of the plugin.
    pub caller: Caller,
    /// The most that a run may take, whatever the settings say.
    pub limit: Duration,
    /// What a panic has printed.
    pub rescue: Rescue,
    /// Where to say what happens.
    pub log: Log,
    /// Whom to tell each step that is done.
    pub observer: Option<Observer>,
}

impl Authenticator<'_> {
    /// Gives the credential: the stored one while it is good, otherwise a new one, and the stored
    /// one again where a new one is not to be had in time and the stored one still holds.
    ///
    /// # Guarantees
    ///
    /// While the stored credential is good, no thread, connection or TLS is set up, but for one call
    /// an hour that takes two seconds at most and learns whether the API server still accepts it.
    /// Getting another ends within the time of the settings, and within five seconds if a valid
    /// credential is stored, whatever hangs meanwhile. But below a fifth of the credential's lifetime
    /// one run an hour has the time of the settings: what proves the machine may be that slow.
    ///
    /// Only what comes first has no deadline, for that would take a thread: reading the state
    /// directory. Nothing that stands in the place of its files can hold it up, but a file system
    /// that hangs under it does, for as long as it hangs.
    pub fn credential(&self) -> Result<ExecResult, Failure> {
        let now = clock::now();
        let store = self.open_store()?;
        let mut stored = self.load(store.as_ref())?;
        self.check_name(&stored)?;
        let rotation = self.rotation(&stored, now);
        match (rotation, &store, stored.credential.take(), &stored.origin) {
            (Rotation::Keep, Some(store), Some(credential), Some(origin)) => {
                Self::note_boot(store, &stored, now);
                let Some(refused) = self.refusal(store, origin, &credential, now) else {
                    return Ok(self.kept(credential, now));
                };
                self.warn_of_refusal(&refused);
                let refused = Demand::unless_replaced(&credential);
                Ok(self.renewed_or_old(store, credential, refused))
            }
            (Rotation::Renew, Some(store), Some(credential), _) => {
                Ok(self.renewed_or_old(store, credential, Demand::IfDue))
            }
            (_, store, ..) => self
                .replace(
                    store.as_ref(),
                    Allowed::Without(self.timeout()),
                    Demand::IfDue,
                )
                .map(|fresh| self.kept(fresh, clock::now()))
                .map_err(|error| error.failure),
        }
    }

    fn warn_of_refusal(&self, refused: &ApiError) {
        self.log.warn(&format!(
            "the certificate is not due for renewal, and is not accepted: {}",
            error_chain(refused)
        ));
    }

    fn renewed_or_old(&self, store: &Store, old: Credential, demand: Demand) -> ExecResult {
        let now = clock::now();
        self.prepare_rescue(&old, now);
        let in_full = old.validity().runs_out(now)
            && self.attester.renewal() == Renewal::Attested
            && !failure_record(store).is_some_and(|record| record.had_full_time(now));
        let allowed = if in_full {
            Allowed::InFull(self.timeout())
        } else {
            Allowed::Briefly(WITH_CREDENTIAL.min(self.timeout()))
        };
        let refused = demand != Demand::IfDue;
        match self.replace(Some(store), allowed, demand) {
            Ok(fresh) => self.kept(fresh, clock::now()),
            Err(error) => {
                if refused {
                    // The next run goes on, though nothing is due.
                    store.date_lock(SystemTime::UNIX_EPOCH);
                }
                self.fall_back(old, &error)
            }
        }
    }

    /// Gets a new credential if one is due or the API server refuses the stored one, or in any case
    /// if `force`. Returns whether it did.
    pub fn renew(&self, force: bool) -> Result<(ExecResult, bool), Failure> {
        let now = clock::now();
        let store = self.open_store()?;
        let stored = self.load(store.as_ref())?;
        self.check_name(&stored)?;
        let rotation = self.rotation(&stored, now);
        let mut demand = if force { Demand::Always } else { Demand::IfDue };
        if let (Rotation::Keep, false, Some(credential), Some(origin)) =
            (rotation, force, stored.credential, &stored.origin)
        {
            let deadline = Deadline::after(self.timeout().min(FOR_A_PERSON));
            match self.try_certificate(origin, &credential, deadline) {
                Some(refused) if is_refusal(&refused) => self.warn_of_refusal(&refused),
                failed => {
                    if let Some(error) = failed {
                        self.log.warn(&format!(
                            "whether the API server accepts the certificate is not known: {}",
                            error_chain(&error)
                        ));
                    }
                    return Ok((self.kept(credential, now), false));
                }
            }
            demand = Demand::unless_replaced(&credential);
        }
        let fresh = self
            .replace(store.as_ref(), Allowed::Without(self.timeout()), demand)
            .map_err(|error| error.failure)?;
        Ok((self.kept(fresh, clock::now()), true))
    }

    /// The request that would be sent now, with a key that is thrown away; nothing is sent or
    /// written.
    pub fn dry_run(&self) -> Result<(Subject, Vec<u8>), Failure> {
        let (store, stored) = self.stored()?;
        let mut attempt = self
            .attempt(Allowed::Without(self.timeout()), Demand::IfDue)
            .map_err(|error| error.failure)?;
        if let Some(store) = &store {
            attempt.recall_endorsement_key(store, &stored);
        }
        attempt.dry_run(&stored)
    }

    /// Forgets all that is stored or was set aside.
    pub fn reset(&self) -> Result<(), Failure> {
        let Some(store) = self.open_store()? else {
            return Ok(());
        };
        let deadline = Deadline::after(self.timeout());
        store
            .lock(deadline, &program(), clock::now())
            .and_then(|lock| {
                StoreFile::ALL
                    .into_iter()
                    .try_for_each(|file| store.forget(file, &lock))
            })
            .map_err(|error| store_failure(&error))
    }

    /// What the store holds, without changing it.
    pub fn stored(&self) -> Result<(Option<Store>, StoreContents), Failure> {
        let store = self.open_store()?;
        let stored = self.load(store.as_ref())?;
        Ok((store, stored))
    }

    fn timeout(&self) -> Duration {
        self.settings.timeout.min(self.limit)
    }

    /// Decides what to do with the stored credential.
    pub fn rotation(&self, stored: &StoreContents, now: SystemTime) -> Rotation {
        let changed = ca_changed(self.cluster, stored.origin.as_ref());
        stored.rotation(self.attester.renewal(), changed, now)
    }

    fn open_store(&self) -> Result<Option<Store>, Failure> {
        Store::open(&self.settings.state_directory).map_err(|error| store_failure(&error))
    }

    fn load(&self, store: Option<&Store>) -> Result<StoreContents, Failure> {
        let Some(store) = store else {
            return Ok(StoreContents::default());
        };
        let stored =
            StoreContents::load(store, &self.machine).map_err(|error| store_failure(&error))?;
        if let Some(readable_by_others) = &stored.readable_by_others {
            self.log.warn(&readable_by_others.to_string());
        }
        Ok(stored)
    }

    /// A certificate under another name than the kubelet uses would be worse than none.
    fn check_name(&self, stored: &StoreContents) -> Result<(), Failure> {
        let Some(origin) = &stored.origin else {
            return Ok(());
        };
        // Who cannot be read is not a kubelet that asks for another name.
        let kubelet = KubeletArguments::of_parent().ok().flatten();
        let sources = NameSources {
            settings: self.settings.node_name.as_ref(),
            stored: Some(&origin.node_name),
            kubelet: kubelet.as_ref(),
            ..NameSources::of_host("")
        };
        sources
            .decide()
            .map(drop)
            .map_err(|error| exit_code::node_name_failure(&error))
    }

    fn kept(&self, credential: Credential, now: SystemTime) -> ExecResult {
        let validity = credential.validity();
        let until = match self.attester.renewal() {
            Renewal::Attested => credential.renew_at(),
            Renewal::Impossible => {
                if validity.runs_out(now) {
                    let end = humantime::format_rfc3339_seconds(validity.not_after);
                    self.log.warn(&format!(
                        "the credential ends at {end} and cannot be renewed; keep a bootstrap credential at {}",
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

    /// The name that the kubelet asks for is the old credential's: that was checked before. One that
    /// only the machine's provider does not like any more is no reason to take the node down.
    fn fall_back(&self, old: Credential, error: &RenewalError) -> ExecResult {
        let now = clock::now();
        if matches!(error.failure.code(), Code::Pending | Code::BackOff) {
            self.log.step(error.failure.what());
        } else {
            self.log.warn_of(
                "the credential could not be renewed, and the old one still holds",
                &error.failure,
            );
        }
        let validity = old.validity();
        ExecResult {
            expiration: validity.expiry_awaiting_renewal(now, error.next_attempt),
            credential: old,
        }
    }

    /// The firmware is compared once a boot: writes down that it was. Without the lock nothing is
    /// written.
    fn note_boot(store: &Store, stored: &StoreContents, now: SystemTime) {
        let (Some(_), Some(origin)) = (&stored.machine, &stored.origin) else {
            return;
        };
        let Ok(lock) = store.lock(Deadline::after(Duration::ZERO), &program(), now) else {
            return;
        };
        // Another run may have written another since.
        let text = store.read(StoreFile::Origin).ok().flatten();
        if text.and_then(|text| Origin::parse(&text).ok()).as_ref() == Some(origin) {
            let mut origin = origin.clone();
            origin.boot_id.clone_from(&stored.boot_id);
            drop(store.replace(StoreFile::Origin, &origin.to_json(), &lock));
        }
    }

    fn prepare_rescue(&self, credential: &Credential, now: SystemTime) {
        let soon = credential.validity().expiry_awaiting_renewal(now, now);
        self.rescue.prepare(credential, soon);
    }

    /// Gets a new credential in the time that is allowed, on a thread of its own: what hangs there is
    /// left behind.
    ///
    /// A run that is left behind does no more harm than one that is killed, because every step can
    /// be repeated.
    fn replace(
        &self,
        store: Option<&Store>,
        allowed: Allowed,
        demand: Demand,
    ) -> Result<Credential, RenewalError> {
        let now = clock::now();
        if let Some(active) = store.and_then(|store| self.remembered(store, now)) {
            return Err(active);
        }
        let attempt = self.attempt(allowed, demand)?;
        let (steps, memory) = (attempt.steps.clone(), attempt.memory.clone());
        let (sender, receiver) = mpsc::sync_channel(1);
        let worker = thread::Builder::new().spawn(move || {
            let result = attempt.run();
            drop(sender.send(result));
        });
        if let Err(error) = worker {
            let failure = Failure::of(Code::Internal, &error, "free some memory");
            return Err(RenewalError::at_once(failure));
        }
        match receiver.recv_timeout(allowed.total().saturating_sub(allowed.margin())) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                let failure = steps.stuck(&self.settings.state_directory);
                let lock = steps.lock();
                Err(self.remember(lock, memory, failure, allowed.margin()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(RenewalError::at_once(Failure::new(
                Code::Internal,
                "the run ended without a result",
                "report this as a bug",
            ))),
        }
    }

    /// Writes down the failure of a run that is left behind, under the lock that it has. The disk may
    /// be what hangs, so this is waited for only so long.
    fn remember(
        &self,
        lock: Option<Arc<StoreLock>>,
        memory: Memory,
        failure: Failure,
        patience: Duration,
    ) -> RenewalError {
        let error = RenewalError::at_once(failure.clone());
        let Some(lock) = lock else {
            return error;
        };
        let directory = self.settings.state_directory.clone();
        let (sender, receiver) = mpsc::sync_channel(1);
        let write = move || {
            let Ok(Some(store)) = Store::open(&directory) else {
                return;
            };
            let locked = Locked {
                store: &store,
                lock: &lock,
            };
            drop(sender.send(memory.write(&locked, failure)));
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
        RenewalError::of_memory(&failure_record(store)?, &self.scope(), now)
    }

    fn scope(&self) -> FailureScope {
        FailureScope::new(self.machine.boot_id(), self.settings.digest())
    }

    fn attempt(&self, allowed: Allowed, demand: Demand) -> Result<Attempt, RenewalError> {
        let endpoint = self
            .cluster
            .map(ClusterEndpoint::from_exec_info)
            .transpose()
            .map_err(|error| {
                let remedy = "correct the cluster in the kubeconfig that runs this plugin";
                RenewalError::at_once(Failure::of(Code::Configuration, &error, remedy))
            })?;
        let deadline = Deadline::after(allowed.total().saturating_sub(2 * allowed.margin()));
        let others = match allowed {
            Allowed::Without(_) => deadline,
            Allowed::Briefly(_) | Allowed::InFull(_) => deadline.within(WAIT_FOR_OTHERS),
        };
        Ok(Attempt {
            attester: Arc::clone(&self.attester),
            settings: self.settings.clone(),
            endorsement_key: None,
            endpoint,
            machine: self.machine.clone(),
            memory: Memory {
                scope: self.scope(),
                in_full: matches!(allowed, Allowed::InFull(_)),
            },
            log: self.log,
            ignore_backoff: self.caller == Caller::Person,
            demand,
            deadline,
            lock_deadline: others,
            steps: step::Steps::new(self.observer.clone()),
        })
    }
}

fn failure_record(store: &Store) -> Option<FailureRecord> {
    let text = store.read(StoreFile::Failure).ok().flatten()?;
    FailureRecord::parse(&text)
}

/// What this process was started as.
pub(crate) fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
