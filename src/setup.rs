//! Sets the kubelet of this machine up to run the plugin for its credential, and takes that back.
//!
//! `kubeadm join` leaves a bootstrap kubeconfig and starts the kubelet, which would get a
//! certificate by TLS bootstrapping. `setup` runs before each start of the kubelet: it copies the
//! bootstrap credential, writes a kubeconfig that runs the plugin, and the kubelet's arguments into
//! an environment file, which systemd reads for the start that follows (systemd.exec(5),
//! `EnvironmentFile=`).
//!
//! # Guarantees
//!
//! - Every file changes all at once, the environment file last: a kubelet that starts after `setup`
//!   was killed has kubeadm's own arguments, and the next start begins anew.
//! - Where there is nothing to take over, the environment file is not there either, and the kubelet
//!   starts as kubeadm wants it to.
//! - A kubelet that has a credential of its own keeps it until there is one of ours.
//! - A kubelet that is set up stays so, whatever fails, as long as its environment file is there.

mod wiring;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::authenticator::{self, Authenticator, Step, kubeconfig_failure, store_failure};
use crate::clock::{self, Deadline};
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, EndpointFields, Kubeconfig};
use crate::store::{Store, StoreFile, StoreLock, remove_file, replace_file, replace_link};

pub use wiring::{DropIn, exec_kubeconfig, is_plain};

/// The bootstrap kubeconfig of kubeadm.
pub const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// The kubelet's kubeconfig on a node of kubeadm's.
pub const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// The file that systemd reads the kubelet's arguments from.
pub const ENVIRONMENT_FILE: &str = "/etc/kubernetes/kubelet-authenticator/kubelet.env";

/// The directory of certificates that the kubelet gets by itself.
pub const CERT_DIR: &str = "/var/lib/kubelet/pki";

/// The beginning of our programs' names.
const PROGRAMS: &str = "kubelet-authenticator-";

/// The time that other runs are waited for: systemd gives the kubelet's whole start 90 seconds.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(5);

/// The files of a machine, and the program that is to give its kubelet a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The kubeconfig whose credential is taken over.
    pub from: PathBuf,
    /// The kubelet's kubeconfig.
    pub kubelet_kubeconfig: PathBuf,
    /// The file with the kubelet's arguments.
    pub environment_file: PathBuf,
    /// The kubelet's folder of certificates.
    pub cert_dir: PathBuf,
    /// The file with the arguments that kubeadm gives the kubelet: without it, the node's name is not
    /// known yet.
    pub kubeadm_flags: PathBuf,
    /// The program that client-go is to run, as an absolute path.
    pub program: PathBuf,
}

/// A kubelet's state after a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Done {
    /// It stays as it is, for this reason.
    LeftAlone(String),
    /// It runs the plugin from its next start on. The failure is why there is no credential yet.
    SetUp(Option<Failure>),
    /// It has this file for its certificate from its next start on.
    Undone(PathBuf),
}

/// The source of a kubelet's credential.
enum Current {
    /// It has no kubeconfig.
    Missing,
    /// Its kubeconfig cannot be used.
    Unusable,
    /// From one of our plugins.
    Ours { command: String },
    /// From another plugin.
    Plugin(String),
    /// From the kubeconfig: a certificate of its own, as a rule.
    Own,
}

impl Setup {
    /// Takes over the kubelet whose bootstrap credential is at [`from`](Self::from), and enrols.
    ///
    /// With the kubelet's own kubeconfig there, a kubelet is taken over that has joined before: then
    /// the machine has to have enrolled before anything of the kubelet's changes.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written, or a kubelet that has joined before could not enrol. A
    /// kubelet that is not set up then has no environment file.
    pub fn take_over(&self, authenticator: Authenticator<'_>) -> Result<Done, Failure> {
        let taken = self.taken_over(authenticator);
        if taken.is_err() {
            self.give_up();
        }
        taken
    }

    /// Leaves a kubelet that is not set up to kubeadm's arguments, as far as that can be done.
    pub fn give_up(&self) {
        if !matches!(self.current(), Current::Ours { .. }) {
            // What failed may be in the way of this too, and is what a person has to know.
            drop(remove_file(&self.environment_file));
        }
    }

    fn taken_over(&self, authenticator: Authenticator<'_>) -> Result<Done, Failure> {
        let (from, kubeconfig) = (self.from.display(), self.kubelet_kubeconfig.display());
        let adopts = self.from == self.kubelet_kubeconfig;
        match self.current() {
            Current::Ours { command } => return self.keep(authenticator, &command, adopts),
            Current::Plugin(command) => {
                return self.leave(format!("the kubelet has another plugin: {command}"));
            }
            Current::Own if !adopts => {
                return self.leave(format!(
                    "the kubelet has a credential of its own in {kubeconfig}; `setup --from \
                     {kubeconfig}` takes over from that"
                ));
            }
            Current::Missing | Current::Unusable | Current::Own => {}
        }
        match Kubeconfig::read(&self.from) {
            Ok(given) => self.join(authenticator, &given, adopts),
            Err(error) if error.is_not_found() => {
                self.leave(format!("there is no {from} to take over"))
            }
            Err(error) => Err(kubeconfig_failure(&error)),
        }
    }

    /// Completes what a run before this one began. A bootstrap kubeconfig that stays on the machine
    /// is not taken over again: what is here may be newer.
    fn keep(
        &self,
        authenticator: Authenticator<'_>,
        command: &str,
        adopts: bool,
    ) -> Result<Done, Failure> {
        // A plugin that was moved. A name without directories is looked up by the kubelet itself.
        let command = Path::new(command);
        if command.is_absolute() && !command.exists() {
            let endpoint = Kubeconfig::read_endpoint(&self.kubelet_kubeconfig);
            let endpoint = endpoint.map_err(|error| kubeconfig_failure(&error))?;
            let kubeconfig = exec_kubeconfig(&endpoint.to_fields(), &self.program);
            let held = lock(&authenticator)?;
            replace_file(&self.kubelet_kubeconfig, kubeconfig.as_bytes(), &held)
                .map_err(|error| store_failure(&error))?;
        }
        let environment = wiring::environment(&self.kubelet_kubeconfig);
        let present = fs::read(&self.environment_file).ok();
        if present.as_deref() != Some(environment.as_bytes()) {
            self.write_environment(&lock(&authenticator)?)?;
        }
        // kubeadm still waits for the node.
        if !adopts && self.from.exists() && self.kubeadm_flags.exists() {
            let endpoint = Kubeconfig::read_endpoint(&self.kubelet_kubeconfig);
            let endpoint = endpoint
                .map_err(|error| kubeconfig_failure(&error))?
                .to_fields();
            let cluster = endpoint.exec_cluster();
            let authenticator = Authenticator {
                cluster: Some(&cluster),
                ..authenticator
            };
            return Ok(Done::SetUp(authenticator.credential().err()));
        }
        Ok(Done::LeftAlone(format!(
            "the kubelet runs this plugin already: see {}",
            self.kubelet_kubeconfig.display()
        )))
    }

    fn join(
        &self,
        authenticator: Authenticator<'_>,
        given: &Kubeconfig,
        adopts: bool,
    ) -> Result<Done, Failure> {
        forget_other_cluster(&authenticator, &given.endpoint)?;
        let endpoint = given.endpoint.to_fields();
        let cluster = endpoint.exec_cluster();
        let authenticator = Authenticator {
            cluster: Some(&cluster),
            ..authenticator
        };
        let told = |step| {
            if let Some(observer) = &authenticator.observer {
                observer.tell(step);
            }
        };

        if !adopts {
            // Left by an earlier life of the machine: the kubelet would start without its kubeconfig.
            remove_file(&self.environment_file).map_err(|error| store_failure(&error))?;
        }
        let held = lock(&authenticator)?;
        let bootstrap = wiring::bootstrap_kubeconfig(&endpoint, &given.login);
        let path = &authenticator.settings.bootstrap_kubeconfig;
        replace_file(path, bootstrap.as_bytes(), &held).map_err(|error| store_failure(&error))?;
        // It was a failure with another credential.
        if let (Some(store), _) = authenticator.stored()? {
            drop(store.remove(StoreFile::Failure, &held));
        }
        told(Step::BootstrapKubeconfigWritten);
        if adopts {
            drop(held);
            authenticator.renew(false)?;
            self.wire(&endpoint, &lock(&authenticator)?, &told)?;
            return Ok(Done::SetUp(None));
        }
        self.wire(&endpoint, &held, &told)?;
        drop(held);
        if !self.kubeadm_flags.exists() {
            // kubeadm has not told the kubelet its name yet, or never will: the kubelet's own call
            // of the plugin knows it. Whoever comes next tries what is stored.
            if let (Some(store), _) = authenticator.stored()? {
                store.date_lock(SystemTime::UNIX_EPOCH);
            }
            return Ok(Done::SetUp(None));
        }
        // What is stored may have been revoked since it was of use: it is tried.
        Ok(Done::SetUp(authenticator.renew(false).err()))
    }

    fn wire(
        &self,
        endpoint: &EndpointFields,
        lock: &StoreLock,
        told: &impl Fn(Step),
    ) -> Result<(), Failure> {
        let kubeconfig = exec_kubeconfig(endpoint, &self.program);
        replace_file(&self.kubelet_kubeconfig, kubeconfig.as_bytes(), lock)
            .map_err(|error| store_failure(&error))?;
        told(Step::KubeletKubeconfigWritten);
        self.write_environment(lock)?;
        told(Step::EnvironmentWritten);
        Ok(())
    }

    fn write_environment(&self, lock: &StoreLock) -> Result<(), Failure> {
        let text = wiring::environment(&self.kubelet_kubeconfig);
        replace_file(&self.environment_file, text.as_bytes(), lock)
            .map_err(|error| store_failure(&error))
    }

    /// Leaves the kubelet to kubeadm's arguments.
    fn leave(&self, why: String) -> Result<Done, Failure> {
        remove_file(&self.environment_file).map_err(|error| store_failure(&error))?;
        Ok(Done::LeftAlone(why))
    }

    /// Gives the kubelet the stored certificate for its own, to be renewed by itself, and kubeadm's
    /// arguments, from its next start on.
    ///
    /// # Errors
    ///
    /// No valid certificate is stored, or a file cannot be written.
    pub fn undo(&self, authenticator: &Authenticator<'_>) -> Result<Done, Failure> {
        let kubeconfig = self.kubelet_kubeconfig.display();
        match self.current() {
            Current::Ours { .. } => {}
            Current::Missing | Current::Unusable | Current::Plugin(_) | Current::Own => {
                return self.leave(format!(
                    "the kubelet does not run this plugin: see {kubeconfig}"
                ));
            }
        }
        let (_, stored) = authenticator.stored()?;
        let Some(credential) = stored.valid(clock::now()) else {
            return Err(Failure::new(
                Code::Store,
                format!(
                    "there is no valid certificate in {} that the kubelet could go on with",
                    authenticator.settings.state_directory.display()
                ),
                "run `renew`; or take the node out of the cluster with `kubeadm reset` and join it again",
            ));
        };
        let lock = lock(authenticator)?;
        // The kubelet renews only where the name that it reads is a link to a file that it could have
        // written (client-go, util/certificate/certificate_store.go).
        let now = humantime::format_rfc3339_seconds(clock::now()).to_string();
        let stamp = now.trim_end_matches('Z').replace(['T', ':'], "-");
        let pair = self.cert_dir.join(format!("kubelet-client-{stamp}.pem"));
        let current = self.cert_dir.join("kubelet-client-current.pem");
        let endpoint = Kubeconfig::read_endpoint(&self.kubelet_kubeconfig);
        let endpoint = endpoint.map_err(|error| kubeconfig_failure(&error))?;
        let text = wiring::kubelet_kubeconfig(&endpoint.to_fields(), &current);
        replace_file(&pair, credential.to_pem().as_bytes(), &lock)
            .and_then(|()| replace_link(&current, &pair, &lock))
            .and_then(|()| replace_file(&self.kubelet_kubeconfig, text.as_bytes(), &lock))
            .map_err(|error| store_failure(&error))?;
        drop(lock);
        remove_file(&self.environment_file).map_err(|error| store_failure(&error))?;
        Ok(Done::Undone(current))
    }

    fn current(&self) -> Current {
        match Kubeconfig::read_exec_command(&self.kubelet_kubeconfig) {
            Ok(Some(command)) if self.is_ours(&command) => Current::Ours { command },
            Ok(Some(command)) => Current::Plugin(command),
            Ok(None) => Current::Own,
            Err(error) if error.is_not_found() => Current::Missing,
            Err(_) => Current::Unusable,
        }
    }

    /// Whether this is the path of one of our plugins.
    fn is_ours(&self, command: &str) -> bool {
        let command = Path::new(command);
        let name = command.file_name().unwrap_or_default().to_string_lossy();
        command == self.program || name.starts_with(PROGRAMS)
    }
}

fn lock(authenticator: &Authenticator<'_>) -> Result<StoreLock, Failure> {
    Store::create(&authenticator.settings.state_directory)
        .and_then(|store| {
            let deadline = Deadline::after(WAIT_FOR_OTHERS);
            store.lock(deadline, &authenticator::program(), clock::now())
        })
        .map_err(|error| store_failure(&error))
}

/// A machine that joins another cluster has been reset by a person, who left our store: kubeadm does
/// not know of it.
fn forget_other_cluster(
    authenticator: &Authenticator<'_>,
    endpoint: &ClusterEndpoint,
) -> Result<(), Failure> {
    let (store, stored) = authenticator.stored()?;
    let (Some(store), Some(origin)) = (store, stored.origin) else {
        return Ok(());
    };
    let known = ClusterEndpoint::from_fields(origin.endpoint, StoreFile::Origin.name());
    let is_same = known.is_ok_and(|known| known.is_of_same_cluster(endpoint));
    if is_same {
        return Ok(());
    }
    authenticator.log.warn(&format!(
        "{} is emptied: it is of another cluster than the one that this machine joins, at {}",
        authenticator.settings.state_directory.display(),
        endpoint.server()
    ));
    let held = lock(authenticator)?;
    let mut files = StoreFile::ALL.into_iter();
    files
        .try_for_each(|file| store.forget(file, &held))
        .map_err(|error| store_failure(&error))
}

#[cfg(test)]
mod tests;
