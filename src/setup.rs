//! Makes the kubelet of this machine run the plugin for its credential, and undoes this change.
//!
//! `kubeadm join` writes a bootstrap kubeconfig and starts the kubelet, which would then get a certificate with TLS
//! bootstrapping. `setup` runs before each start of the kubelet. It copies the bootstrap credential, writes a
//! kubeconfig that runs the plugin, and writes the kubelet's arguments to an environment file. systemd reads that file
//! when it starts the kubelet (systemd.exec(5), `EnvironmentFile=`).
//!
//! # Guarantees
//!
//! - Every file is replaced atomically, and the environment file is replaced last. If `setup` is killed, the kubelet
//!   starts with kubeadm's own arguments, and its next start runs `setup` again.
//! - If no bootstrap credential exists to copy, the environment file does not exist, and the kubelet starts as kubeadm
//!   configured it.
//! - A kubelet with its own credential keeps it until the plugin has a credential.
//! - A kubelet that uses the plugin continues to use it, even if `setup` fails. If the kubeconfig is lost, `setup`
//!   restores it from the store, except after `kubeadm reset`.

mod copy;
mod current;
mod kubeconfig;
mod restore;
mod systemd;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kubelet_attestation::names::NodeName;

use crate::authenticator::{Authenticator, Cluster, Step, node_of};
use crate::clock::{self, Deadline};
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig, Login};
use crate::kubelet;
use crate::process::program;
use crate::store::{Store, StoreLock, remove_file, replace_file, replace_link};

use copy::Again;
use current::Current;
pub(crate) use current::PROGRAMS;
pub(crate) use kubeconfig::{check_length, exec_kubeconfig};
pub(crate) use systemd::{DROP_IN, PHASES, drop_in, is_plain};

/// The bootstrap kubeconfig of kubeadm.
pub(crate) const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// The kubelet's kubeconfig on a kubeadm node.
pub(crate) const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// The file with the kubelet's arguments, which systemd reads.
const ENVIRONMENT_FILE: &str = "/etc/kubernetes/kubelet-authenticator/kubelet.env";

/// The directory of the certificates that the kubelet requests by itself.
pub(crate) const CERT_DIR: &str = "/var/lib/kubelet/pki";

/// The maximum wait for other runs. The drop-in allows 90 seconds for all of `setup`.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(5);

/// The files of a machine, and the program that provides the kubelet's credential.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct Setup {
    /// Kubeconfig with the bootstrap credential. For a node that has already joined, the kubelet's
    /// kubeconfig.
    #[arg(long, value_name = "FILE", default_value = BOOTSTRAP_KUBECONFIG)]
    pub(crate) from: PathBuf,
    /// Kubeconfig of the kubelet.
    #[arg(long, value_name = "FILE", default_value = KUBELET_KUBECONFIG)]
    pub(crate) kubelet_kubeconfig: PathBuf,
    /// File with the kubelet's arguments, which systemd reads.
    #[arg(long, value_name = "FILE", default_value = ENVIRONMENT_FILE)]
    pub(crate) environment_file: PathBuf,
    /// File with kubeadm's arguments for the kubelet, for tests.
    #[arg(long, hide = true, default_value = kubelet::KUBEADM_FLAGS)]
    pub(crate) kubeadm_flags: PathBuf,
    /// Directory of the kubelet's certificates.
    #[arg(long, value_name = "DIR", default_value = CERT_DIR)]
    pub(crate) cert_dir: PathBuf,
    /// Configure the kubelet to use the stored certificate without the plugin, with kubeadm's arguments.
    #[arg(long, conflicts_with = "from")]
    pub(crate) undo: bool,
    /// Replace the plugin of a different provider, after this plugin has obtained a certificate.
    #[arg(long, conflicts_with_all = ["from", "undo"])]
    pub(crate) replace: bool,
    /// The absolute path of the program that client-go runs.
    #[arg(skip)]
    pub(crate) program: PathBuf,
    /// The provider of that program.
    #[arg(skip)]
    pub(crate) provider: String,
}

impl Setup {
    /// Configures the kubelet whose bootstrap credential is at [`from`](Self::from) to use the plugin, and enrolls.
    /// Returns the result as text.
    ///
    /// If [`from`](Self::from) is the kubelet's own kubeconfig, the kubelet has joined before. In this case, the
    /// machine must enroll before any file of the kubelet changes.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written, or a kubelet that has joined before cannot enroll. After an error, a kubelet
    /// that does not use the plugin yet has no environment file.
    pub(crate) fn take_over(&self, authenticator: Authenticator<'_>) -> Result<String, Failure> {
        let taken = self.taken_over(authenticator);
        if taken.is_err() {
            self.give_up();
        }
        taken
    }

    /// Makes the kubelet start with kubeadm's arguments, if the kubelet does not use the plugin yet, and if the files
    /// can be written.
    pub(crate) fn give_up(&self) {
        let is_set_up = match self.current() {
            Current::Own | Current::Plugin(_) => false,
            // kubeadm is joining the machine. The environment file comes from an earlier enrollment of the machine.
            Current::Missing => !self.from.exists(),
            Current::Ours(_)
            | Current::OfAnotherProvider(_)
            | Current::Empty
            | Current::Unreadable(_)
            | Current::Invalid(_) => true,
        };
        if !is_set_up {
            // Ignore an error of the removal, which can have the same cause as the failure that the caller reports.
            drop(remove_file(&self.environment_file));
        }
    }

    fn taken_over(&self, authenticator: Authenticator<'_>) -> Result<String, Failure> {
        let kubeconfig = self.kubelet_kubeconfig.display();
        let adopts = self.from == self.kubelet_kubeconfig;
        let current = self.current();
        match &current {
            Current::Ours(command) => return self.keep(authenticator, command, adopts),
            Current::OfAnotherProvider(command) if self.replace => {
                return self.replaced(authenticator, command);
            }
            Current::OfAnotherProvider(command) => {
                let what = format!("{kubeconfig} runs {command} instead of this plugin");
                let program = self.program.display();
                let cure =
                    format!("to change the provider of this node, run: {program} setup --replace");
                return Err(Failure::new(Code::Configuration, what, cure));
            }
            Current::Plugin(command) => {
                return self.leave(&format!("the kubelet runs a different plugin: {command}"));
            }
            Current::Own if !adopts => {
                let program = self.program.display();
                return self.leave(&format!(
                    "{kubeconfig} contains a credential instead of the plugin; to replace the credential, run: \
                     {program} setup --from {kubeconfig}"
                ));
            }
            Current::Missing
            | Current::Empty
            | Current::Unreadable(_)
            | Current::Invalid(_)
            | Current::Own => {}
        }
        if let Current::Unreadable(error) = current {
            return Err(error.into());
        }
        match Kubeconfig::read(&self.from) {
            Ok(given) => self.join(authenticator, given, adopts),
            Err(error) => self.restore(&authenticator, current, error),
        }
    }

    /// Completes an earlier run. If a bootstrap kubeconfig is still on the machine, `setup` copies it again only if it
    /// has changed and the stored certificate is not usable.
    fn keep(
        &self,
        mut authenticator: Authenticator<'_>,
        command: &str,
        adopts: bool,
    ) -> Result<String, Failure> {
        // The plugin was moved. A name without directories is excluded, because the kubelet searches for it on PATH.
        let path = Path::new(command);
        if path.is_absolute() && !path.exists() {
            self.follow(command, &lock(&authenticator)?)?;
        }
        let environment = systemd::environment(&self.kubelet_kubeconfig);
        let present = fs::read(&self.environment_file).ok();
        if present.as_deref() != Some(environment.as_bytes()) {
            self.write_environment(&lock(&authenticator)?)?;
        }
        if !adopts && self.from.exists() {
            let endpoint = Arc::new(Kubeconfig::read_endpoint(&self.kubelet_kubeconfig)?);
            authenticator.cluster = Some(Cluster::Checked(Arc::clone(&endpoint)));
            let again = match Kubeconfig::read(&self.from) {
                Ok(given) => self.take_over_again(&authenticator, given, &endpoint)?,
                Err(error) => {
                    let what = "cannot use the bootstrap kubeconfig";
                    authenticator.log.warn_of(what, &error.into());
                    Again::Keeps
                }
            };
            authenticator.warn_of_host_name();
            let enrolled = match again {
                Again::Joins(given) => return self.join(authenticator, *given, adopts),
                Again::Refused => authenticator.renew(false).map(drop),
                // If kubeadm's file exists, `kubeadm join` might still be waiting for the node.
                Again::Keeps if self.kubeadm_flags.exists() => authenticator.credential().map(drop),
                Again::Keeps => Ok(()),
            };
            return Ok(self.set_up(&authenticator, enrolled.err()));
        }
        authenticator.warn_of_host_name();
        Ok(format!(
            "nothing to do: {} already runs this plugin\n",
            self.kubelet_kubeconfig.display()
        ))
    }

    /// Makes the kubelet run this plugin instead of another provider's plugin. Before any file of the kubelet changes,
    /// the machine must get a certificate with this plugin's evidence.
    fn replaced(
        &self,
        mut authenticator: Authenticator<'_>,
        command: &str,
    ) -> Result<String, Failure> {
        let endpoint = Kubeconfig::read_endpoint(&self.kubelet_kubeconfig)?;
        authenticator.cluster = Some(Cluster::Checked(endpoint.into()));
        authenticator.renew(true)?;
        let held = lock(&authenticator)?;
        self.follow(command, &held)?;
        self.write_environment(&held)?;
        drop(held);
        Ok(self.set_up(&authenticator, None))
    }

    /// Replaces the plugin's path in the kubelet's kubeconfig. Does not change other text, because an administrator can
    /// have written it.
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
                format!("set the plugin command in this file to {program}"),
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
        let replaced = if adopts {
            self.replaced_copy(&authenticator, &given)?
        } else {
            None
        };
        let keeps_copy = replaced.is_some();
        let Kubeconfig { endpoint, login } = given;
        let login = replaced.unwrap_or(login);
        let endpoint = Arc::new(endpoint);
        check_length(&endpoint, &self.from)?;
        forget_other_cluster(&authenticator, &endpoint)?;
        if adopts || self.kubeadm_flags.exists() {
            Self::forget_another_name(&authenticator, &login)?;
        }
        authenticator.cluster = Some(Cluster::Checked(Arc::clone(&endpoint)));
        let told = |step| {
            if let Some(observer) = &authenticator.observer {
                observer(step);
            }
        };

        if !adopts {
            // The file might remain from an earlier enrollment of the machine. With this file, the kubelet would start
            // without its kubeconfig.
            remove_file(&self.environment_file)?;
        }
        let mut held = lock(&authenticator)?;
        if !keeps_copy {
            self.write_copy(&authenticator, &endpoint, &login, &held)?;
        }
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
            // kubeadm has not written the node name yet, or will not write it. Only the plugin run that the
            // kubelet itself starts can determine the name. That run must check the stored certificate.
            if let (Some(store), _) = authenticator.stored()? {
                store.forget_last_check();
            }
            return Ok(self.set_up(&authenticator, None));
        }
        // The stored credential might have been revoked in the meantime, so check it.
        let enrolled = authenticator.renew(false);
        Ok(self.set_up(&authenticator, enrolled.err()))
    }

    /// Returns the result as text. `failure` is the reason why the node has no credential.
    fn set_up(&self, authenticator: &Authenticator<'_>, failure: Option<Failure>) -> String {
        if let Some(failure) = failure {
            let what = "the kubelet is set up, but has no credential yet";
            authenticator.log.warn_of(what, &failure);
        }
        let (program, kubeconfig) = (self.program.display(), self.kubelet_kubeconfig.display());
        format!("kubelet set up: from its next start, {kubeconfig} runs {program}\n")
    }

    fn write_environment(&self, lock: &StoreLock) -> Result<(), Failure> {
        let text = systemd::environment(&self.kubelet_kubeconfig);
        replace_file(&self.environment_file, text.as_bytes(), lock)
    }

    /// Keeps kubeadm's arguments for the kubelet.
    fn leave(&self, why: &str) -> Result<String, Failure> {
        remove_file(&self.environment_file)?;
        Ok(format!("nothing to do: {why}\n"))
    }

    /// Does the same as [`leave`](Self::leave), but the result has the text for [`undo`](Self::undo).
    fn leave_to_undo(&self, why: &str) -> Result<String, Failure> {
        remove_file(&self.environment_file)?;
        Ok(format!("nothing to undo: {why}\n"))
    }

    /// Configures the kubelet to use the stored certificate and kubeadm's arguments from its next start on. The kubelet
    /// then renews the certificate without the plugin. Returns the result, as text.
    ///
    /// # Errors
    ///
    /// Returns an error if no valid certificate is stored, or if a file cannot be written.
    pub(crate) fn undo(&self, authenticator: &Authenticator<'_>) -> Result<String, Failure> {
        let kubeconfig = self.kubelet_kubeconfig.display();
        match self.current() {
            Current::Ours(_) | Current::OfAnotherProvider(_) => {}
            Current::Unreadable(error) | Current::Invalid(error) => return Err(error.into()),
            Current::Missing => {
                return self.leave_to_undo(&format!("{kubeconfig} does not exist"));
            }
            Current::Empty | Current::Plugin(_) | Current::Own => {
                return self.leave_to_undo(&format!("{kubeconfig} does not run this plugin"));
            }
        }
        let (_, stored) = authenticator.stored()?;
        let Some(credential) = stored.valid(clock::now()) else {
            return Err(Failure::new(
                Code::Store,
                format!(
                    "{} contains no valid certificate for the kubelet",
                    authenticator.settings.state_directory.display()
                ),
                format!(
                    "run `{} renew`; if this fails, run `kubeadm reset` and join the node again",
                    self.program.display()
                ),
            ));
        };
        let lock = lock(authenticator)?;
        // The kubelet renews only if the path is a link to a file whose name has the kubelet's own format (client-go,
        // util/certificate/certificate_store.go).
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
            "restored the kubelet's configuration: from its next start, {kubeconfig} uses {}; remove the \
             drop-in, and restart the kubelet\n",
            current.display()
        ))
    }

    /// Empties the store if its certificate does not match the node that joins now. In this case, the machine was
    /// reset, and `kubeadm reset` does not remove the plugin's store.
    fn forget_another_name(
        authenticator: &Authenticator<'_>,
        login: &Login,
    ) -> Result<(), Failure> {
        let (_, stored) = authenticator.stored()?;
        let (Some(_), Some(origin)) = (&stored.credential, &stored.origin) else {
            return Ok(());
        };
        // If the name is unknown, this function does not compare the names, and the enrollment reports the reason.
        let joins: Option<NodeName> = node_of(login).or_else(|| authenticator.unbound().ok());
        let Some(joins) = joins.filter(|name| *name != origin.node_name) else {
            return Ok(());
        };
        authenticator.log.warn(&format!(
            "emptied {}: its certificate is for node {}, but this machine joins as {joins}",
            authenticator.settings.state_directory.display(),
            origin.node_name
        ));
        lock(authenticator)?.forget_all()
    }
}

fn lock(authenticator: &Authenticator<'_>) -> Result<StoreLock, Failure> {
    let store = Store::create(&authenticator.settings.state_directory)?;
    let deadline = Deadline::after(WAIT_FOR_OTHERS);
    store.lock(deadline, &program(), clock::now())
}

/// Empties the store if the machine joins a different cluster. In this case, an administrator has reset the machine,
/// and `kubeadm reset` does not remove the plugin's store.
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
        "emptied {}: it belongs to a different cluster, but this machine joins the cluster at {}",
        authenticator.settings.state_directory.display(),
        endpoint.server()
    ));
    lock(authenticator)?.forget_all()
}

#[cfg(test)]
mod tests;
