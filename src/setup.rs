//! Makes the kubelet of this machine run the plugin for its credential, and undoes that.
//!
//! `kubeadm join` writes a bootstrap kubeconfig and starts the kubelet, which would then get a
//! certificate by TLS bootstrapping. `setup` runs before each start of the kubelet. It copies the
//! bootstrap credential, writes a kubeconfig that runs the plugin, and writes the kubelet's
//! arguments to an environment file. systemd reads that file for the start that follows
//! (systemd.exec(5), `EnvironmentFile=`).
//!
//! # Guarantees
//!
//! - Every file changes atomically, the environment file last. If `setup` is killed, the kubelet
//!   starts with kubeadm's own arguments, and its next start begins anew.
//! - If there is nothing to take over, there is no environment file, and the kubelet starts as
//!   kubeadm set it up.
//! - A kubelet with a credential of its own keeps that until the plugin has one.
//! - A kubelet that is set up stays set up, whatever fails, as long as its environment file exists.

mod kubeconfig;
mod systemd;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Args;

use crate::authenticator::{Authenticator, Cluster, Step};
use crate::clock::{self, Deadline};
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig};
use crate::kubelet;
use crate::process::program;
use crate::store::{Store, StoreFile, StoreLock, remove_file, replace_file, replace_link};

pub(crate) use kubeconfig::{check_length, exec_kubeconfig};
pub(crate) use systemd::{DROP_IN, drop_in, is_plain};

/// The bootstrap kubeconfig of kubeadm.
pub(crate) const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// The kubelet's kubeconfig on a node of kubeadm.
pub(crate) const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// The file that systemd reads the kubelet's arguments from.
const ENVIRONMENT_FILE: &str = "/etc/kubernetes/kubelet-authenticator/kubelet.env";

/// The directory of certificates that the kubelet gets by itself.
pub(crate) const CERT_DIR: &str = "/var/lib/kubelet/pki";

/// The prefix of our programs' names.
pub(crate) const PROGRAMS: &str = "kubelet-authenticator-";

/// The maximum wait for other runs: systemd gives the kubelet's whole start 90 seconds.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(5);

/// The files of a machine, and the program that is to provide its kubelet's credential.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct Setup {
    /// The kubeconfig whose credential is taken over; the kubelet's own for a node that has joined
    /// before.
    #[arg(long, value_name = "FILE", default_value = BOOTSTRAP_KUBECONFIG)]
    pub(crate) from: PathBuf,
    /// The kubelet's kubeconfig.
    #[arg(long, value_name = "FILE", default_value = KUBELET_KUBECONFIG)]
    pub(crate) kubelet_kubeconfig: PathBuf,
    /// The file that systemd reads the kubelet's arguments from.
    #[arg(long, value_name = "FILE", default_value = ENVIRONMENT_FILE)]
    pub(crate) environment_file: PathBuf,
    /// In the place of the file that kubeadm writes the kubelet's arguments to, for tests.
    #[arg(long, hide = true, default_value = kubelet::KUBEADM_FLAGS)]
    pub(crate) kubeadm_flags: PathBuf,
    /// The kubelet's folder of certificates.
    #[arg(long, value_name = "DIR", default_value = CERT_DIR)]
    pub(crate) cert_dir: PathBuf,
    /// Restore a kubeconfig with the stored certificate, and kubeadm's arguments.
    #[arg(long, conflicts_with = "from")]
    pub(crate) undo: bool,
    /// The absolute path of the program that client-go is to run.
    #[arg(skip)]
    pub(crate) program: PathBuf,
}

/// The source of a kubelet's credential.
enum Current {
    /// Its kubeconfig is missing or invalid.
    Unknown,
    /// One of our plugins.
    Ours(String),
    /// Another plugin.
    Plugin(String),
    /// The kubeconfig itself, as a rule with a certificate of its own.
    Own,
}

impl Setup {
    /// Takes over the kubelet whose bootstrap credential is at [`from`](Self::from), and enrols.
    /// Returns the result, as text.
    ///
    /// If [`from`](Self::from) is the kubelet's own kubeconfig, the kubelet has joined before. Then
    /// the machine must enrol before any file of the kubelet changes.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written, or a kubelet that has joined before cannot enrol. A
    /// kubelet that is not set up then has no environment file.
    pub(crate) fn take_over(&self, authenticator: Authenticator<'_>) -> Result<String, Failure> {
        let taken = self.taken_over(authenticator);
        if taken.is_err() {
            self.give_up();
        }
        taken
    }

    /// Leaves the kubelet with kubeadm's arguments, if it is not set up and the files can be
    /// written.
    pub(crate) fn give_up(&self) {
        if !matches!(self.current(), Current::Ours(_)) {
            // The cause of the failure may prevent this too, and is the error to report.
            drop(remove_file(&self.environment_file));
        }
    }

    fn taken_over(&self, authenticator: Authenticator<'_>) -> Result<String, Failure> {
        let (from, kubeconfig) = (self.from.display(), self.kubelet_kubeconfig.display());
        let adopts = self.from == self.kubelet_kubeconfig;
        match self.current() {
            Current::Ours(command) => return self.keep(authenticator, &command, adopts),
            Current::Plugin(command) => {
                return self.leave(&format!("the kubelet has another plugin: {command}"));
            }
            Current::Own if !adopts => {
                return self.leave(&format!(
                    "the kubelet has a credential of its own in {kubeconfig}; `setup --from \
                     {kubeconfig}` takes over from that"
                ));
            }
            Current::Unknown | Current::Own => {}
        }
        match Kubeconfig::read(&self.from) {
            Ok(given) => self.join(authenticator, given, adopts),
            Err(error) if error.is_absence_of(&self.from) => {
                self.leave(&format!("there is no {from} to take over"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Completes an earlier run. A bootstrap kubeconfig that stays on the machine is not taken over
    /// again, because the stored credential may be newer.
    fn keep(
        &self,
        mut authenticator: Authenticator<'_>,
        command: &str,
        adopts: bool,
    ) -> Result<String, Failure> {
        // The plugin was moved. A name without directories is for the kubelet itself to look up.
        let path = Path::new(command);
        if path.is_absolute() && !path.exists() {
            self.follow(command, &lock(&authenticator)?)?;
        }
        let environment = systemd::environment(&self.kubelet_kubeconfig);
        let present = fs::read(&self.environment_file).ok();
        if present.as_deref() != Some(environment.as_bytes()) {
            self.write_environment(&lock(&authenticator)?)?;
        }
        // kubeadm still waits for the node.
        if !adopts && self.from.exists() && self.kubeadm_flags.exists() {
            let endpoint = Kubeconfig::read_endpoint(&self.kubelet_kubeconfig)?;
            authenticator.cluster = Some(Cluster::Checked(endpoint.into()));
            let enrolled = authenticator.credential();
            return Ok(self.set_up(&authenticator, enrolled.err()));
        }
        Ok(format!(
            "nothing to do: the kubelet runs this plugin already: see {}\n",
            self.kubelet_kubeconfig.display()
        ))
    }

    /// Replaces the plugin's path in the kubelet's kubeconfig. The rest may be an administrator's.
    fn follow(&self, command: &str, lock: &StoreLock) -> Result<(), Failure> {
        let path = &self.kubelet_kubeconfig;
        let program = self.program.to_string_lossy();
        let text = Kubeconfig::with_exec_command(path, command, &program)?.ok_or_else(|| {
            Failure::new(
                Code::Configuration,
                format!(
                    "cannot replace the command {command:?} in {}",
                    path.display()
                ),
                format!("write {program} there"),
            )
        })?;
        replace_file(path, text.as_bytes(), lock)
    }

    fn join(
        &self,
        mut authenticator: Authenticator<'_>,
        given: Kubeconfig,
        adopts: bool,
    ) -> Result<String, Failure> {
        let endpoint = Arc::new(given.endpoint);
        check_length(&endpoint, &self.from)?;
        forget_other_cluster(&authenticator, &endpoint)?;
        authenticator.cluster = Some(Cluster::Checked(Arc::clone(&endpoint)));
        let told = |step| {
            if let Some(observer) = &authenticator.observer {
                observer(step);
            }
        };

        if !adopts {
            // May remain from an earlier life of the machine. With it, the kubelet would start
            // without its kubeconfig.
            remove_file(&self.environment_file)?;
        }
        let mut held = lock(&authenticator)?;
        let bootstrap = kubeconfig::bootstrap_kubeconfig(&endpoint, &given.login);
        let path = &authenticator.settings.bootstrap_kubeconfig;
        replace_file(path, bootstrap.as_bytes(), &held)?;
        // The recorded failure is about another credential.
        drop(held.remove(StoreFile::Failure));
        told(Step::BootstrapKubeconfigWritten);
        if adopts {
            drop(held);
            authenticator.renew(false)?;
            held = lock(&authenticator)?;
        }
        let kubeconfig = exec_kubeconfig(&endpoint, &self.program);
        replace_file(&self.kubelet_kubeconfig, kubeconfig.as_bytes(), &held)?;
        told(Step::KubeletKubeconfigWritten);
        self.write_environment(&held)?;
        told(Step::EnvironmentWritten);
        drop(held);
        if adopts {
            return Ok(self.set_up(&authenticator, None));
        }
        if !self.kubeadm_flags.exists() {
            // kubeadm has not given the kubelet its name yet, or never will. The kubelet's own call
            // of the plugin knows the name. The date makes that call try the stored certificate.
            if let (Some(store), _) = authenticator.stored()? {
                store.date_lock(SystemTime::UNIX_EPOCH);
            }
            return Ok(self.set_up(&authenticator, None));
        }
        // The stored credential may have been revoked in the meantime, so this tries it.
        let enrolled = authenticator.renew(false);
        Ok(self.set_up(&authenticator, enrolled.err()))
    }

    /// Returns the result, as text. `failure` is the reason for a missing credential.
    fn set_up(&self, authenticator: &Authenticator<'_>, failure: Option<Failure>) -> String {
        if let Some(failure) = failure {
            let what = "the kubelet is set up, and has no credential yet";
            authenticator.log.warn_of(what, &failure);
        }
        let (program, kubeconfig) = (self.program.display(), self.kubelet_kubeconfig.display());
        format!("kubelet set up: from its next start, {kubeconfig} runs {program}\n")
    }

    fn write_environment(&self, lock: &StoreLock) -> Result<(), Failure> {
        let text = systemd::environment(&self.kubelet_kubeconfig);
        replace_file(&self.environment_file, text.as_bytes(), lock)
    }

    /// Leaves the kubelet with kubeadm's arguments.
    fn leave(&self, why: &str) -> Result<String, Failure> {
        remove_file(&self.environment_file)?;
        Ok(format!("nothing to do: {why}\n"))
    }

    /// Gives the kubelet the stored certificate and kubeadm's arguments, from its next start on. The
    /// kubelet then renews the certificate by itself. Returns the result, as text.
    ///
    /// # Errors
    ///
    /// No valid certificate is stored, or a file cannot be written.
    pub(crate) fn undo(&self, authenticator: &Authenticator<'_>) -> Result<String, Failure> {
        let kubeconfig = self.kubelet_kubeconfig.display();
        if !matches!(self.current(), Current::Ours(_)) {
            return self.leave(&format!(
                "the kubelet does not run this plugin: see {kubeconfig}"
            ));
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
        // The kubelet renews only if the path is a link to a file whose name it could have chosen
        // itself (client-go, util/certificate/certificate_store.go).
        let now = humantime::format_rfc3339_seconds(clock::now()).to_string();
        let stamp = now.trim_end_matches('Z').replace(['T', ':'], "-");
        let pair = self.cert_dir.join(format!("kubelet-client-{stamp}.pem"));
        let current = self.cert_dir.join("kubelet-client-current.pem");
        let endpoint = Kubeconfig::read_endpoint(&self.kubelet_kubeconfig)?;
        let text = kubeconfig::kubelet_kubeconfig(&endpoint, &current);
        replace_file(&pair, credential.to_pem().as_bytes(), &lock)
            .and_then(|()| replace_link(&current, &pair, &lock))
            .and_then(|()| replace_file(&self.kubelet_kubeconfig, text.as_bytes(), &lock))?;
        drop(lock);
        remove_file(&self.environment_file)?;
        Ok(format!(
            "kubelet set back: from its next start, {kubeconfig} uses {}; remove the drop-in, and \
             restart the kubelet\n",
            current.display()
        ))
    }

    fn current(&self) -> Current {
        match Kubeconfig::read_exec_command(&self.kubelet_kubeconfig) {
            Ok(Some(command)) if self.is_ours(&command) => Current::Ours(command),
            Ok(Some(command)) => Current::Plugin(command),
            Ok(None) => Current::Own,
            Err(_) => Current::Unknown,
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
    let store = Store::create(&authenticator.settings.state_directory)?;
    let deadline = Deadline::after(WAIT_FOR_OTHERS);
    store.lock(deadline, &program(), clock::now())
}

/// Empties the store if the machine joins another cluster: a person has reset the machine, and
/// `kubeadm reset` does not know our store.
fn forget_other_cluster(
    authenticator: &Authenticator<'_>,
    endpoint: &ClusterEndpoint,
) -> Result<(), Failure> {
    let (_, stored) = authenticator.stored()?;
    let Some(origin) = stored.origin else {
        return Ok(());
    };
    let known = origin.cluster();
    if known.is_ok_and(|known| known.is_of_same_cluster(endpoint)) {
        return Ok(());
    }
    authenticator.log.warn(&format!(
        "{} is emptied: it is of another cluster than the one that this machine joins, at {}",
        authenticator.settings.state_directory.display(),
        endpoint.server()
    ));
    lock(authenticator)?.forget_all()
}

#[cfg(test)]
mod tests;
