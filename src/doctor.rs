//! The checks for a node that does not join.
//!
//! # Guarantees
//!
//! - Every check runs, regardless of the other findings.
//! - All checks end within [`TOTAL`]. A check that has no finding at this time has failed.
//! - The checks do not create a request or write a file.

mod cluster;
mod kubelet;
mod local;
mod unit;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use rustix::fs::Access;
use rustix::io::Errno;

use crate::attester::ProviderIdSources;
use crate::authenticator::{Authenticator, Local};
use crate::clock::Deadline;
use crate::failure::{Code, Failure};
use crate::finding::{Finding, Report, State};
use crate::kubelet::KubeletArguments;
use crate::settings::Settings;
use crate::store::Store;
use crate::store_contents::{StoreContents, remembered};
pub(crate) use unit::{Unit, UnitUnknown};

/// The time limit for all checks together. An operator should not wait longer than ten seconds.
pub(crate) const TOTAL: Duration = Duration::from_secs(9);

/// The time limit for each step of a check. It is shorter than [`TOTAL`], so that the check can report the error of a
/// step in time.
const STEP: Duration = Duration::from_secs(6);

/// A check with one finding.
type Check = fn(&Doctor) -> Finding;

/// The name of the check for the machine's provider ID.
const MACHINE: &str = "machine";

/// The checks in the order of the output: causes before their effects. The provider's own checks come before
/// [`MACHINE`].
///
/// [`Doctor::reach`] and [`Doctor::provider`] report the checks that do not have a function in this list.
const CHECKS: [(&str, Option<Check>); 16] = [
    ("settings", Some(|doctor| doctor.settings.clone())),
    ("clock", None),
    ("api-server", None),
    ("kubelet-kubeconfig", Some(Doctor::kubelet_kubeconfig)),
    ("kubelet-unit", Some(Doctor::kubelet_unit)),
    ("disk", Some(Doctor::disk)),
    ("state-directory", Some(Doctor::store)),
    ("cluster", Some(Doctor::cluster)),
    ("lock", Some(Doctor::lock)),
    ("node-name", Some(Doctor::node_name)),
    (MACHINE, None),
    ("bootstrap-kubeconfig", Some(Doctor::bootstrap_kubeconfig)),
    ("request", Some(Doctor::request)),
    ("certificate", Some(Doctor::certificate)),
    ("certificate-accepted", Some(Doctor::certificate_accepted)),
    ("last-failure", Some(Doctor::last_failure)),
];

/// A check and its finding.
pub(crate) type Checked = (&'static str, Finding);

/// A task, which runs one or several checks.
type Task = Box<dyn FnOnce(&Doctor, Report<'_>) + Send>;

/// The inputs of the checks.
pub(crate) struct Doctor {
    /// The plugin, with the cluster of the kubelet's kubeconfig if that kubeconfig runs a plugin.
    pub(crate) authenticator: Authenticator<'static>,
    /// The finding about the settings. The other checks use all valid settings.
    pub(crate) settings: Finding,
    /// The kubelet's kubeconfig.
    pub(crate) kubelet_kubeconfig: PathBuf,
    /// The kubelet's unit, or the reason why it is unknown.
    pub(crate) unit: Result<Unit, UnitUnknown>,
}

impl Doctor {
    /// Runs every check until `total`. Returns the findings in the order of the output.
    pub(crate) fn examine(self, total: Deadline) -> Vec<Checked> {
        let doctor = Arc::new(self);
        let (sender, receiver) = mpsc::channel();
        let mut findings: Vec<(&'static str, Option<Finding>)> = Vec::new();
        for (name, check) in CHECKS {
            if name == MACHINE {
                let provider = doctor.authenticator.attester.checks();
                findings.extend(provider.iter().map(|name| (*name, None)));
            }
            findings.push((name, None));
            if let Some(check) = check {
                let task: Task = Box::new(move |doctor, report| report(name, check(doctor)));
                start(&doctor, task, sender.clone());
            }
        }
        start(&doctor, Box::new(Self::reach), sender.clone());
        start(&doctor, Box::new(Self::provider), sender);
        while let Ok((name, finding)) = receiver.recv_timeout(total.remaining()) {
            let listed = findings.iter_mut().find(|(listed, _)| *listed == name);
            debug_assert!(listed.is_some(), "the check {name} is not in the list");
            if let Some((_, found)) = listed {
                found.get_or_insert(finding);
            }
        }
        let unfinished = || {
            let what = format!(
                "the check did not complete within {}",
                humantime::format_duration(TOTAL)
            );
            fail(
                what,
                "check for a file system, a resolver or a device that does not respond",
            )
        };
        let findings = findings.into_iter();
        findings
            .map(|(name, finding)| (name, finding.unwrap_or_else(unfinished)))
            .collect()
    }

    fn settings(&self) -> &Settings {
        &self.authenticator.settings
    }

    /// Returns the store and its contents.
    fn stored(&self) -> Result<(Option<Store>, StoreContents), Finding> {
        let dir = &self.settings().state_directory;
        needs_root(dir)?;
        let load = || {
            let Some(store) = Store::look(dir)? else {
                return Ok((None, StoreContents::default()));
            };
            let contents = StoreContents::load(&store, &self.authenticator.machine)?;
            Ok((Some(store), contents))
        };
        load().map_err(|failure: Failure| Finding::fail(&failure))
    }

    /// Does the same as `stored`, but for checks of objects other than the store. If the store cannot be read, such a
    /// check is skipped, because another check reports the error.
    fn stored_or_skip(&self) -> Result<(Option<Store>, StoreContents), Finding> {
        self.stored()
            .map_err(|_| Finding::skip("cannot read the state directory"))
    }

    fn unit(&self) -> Result<&Unit, &UnitUnknown> {
        self.unit.as_ref()
    }

    /// The host name, and the arguments of the running kubelet, or otherwise the arguments in its unit.
    fn local(&self) -> Local {
        let running = self.unit().ok().and_then(Unit::arguments);
        match running.map(KubeletArguments::collect) {
            Some(running) => Local::of(Ok(Some(running))),
            None => self.authenticator.local(),
        }
    }

    /// The provider's own checks, and the check of the machine's provider ID.
    fn provider(&self, report: Report<'_>) {
        let stored = self.stored().ok();
        let remembered = stored.as_ref().and_then(|(store, contents)| {
            let store = store.as_ref().filter(|_| contents.origin.is_some())?;
            remembered(store)
        });
        let local = self.local();
        let sources = ProviderIdSources {
            settings: self.settings(),
            remembered: remembered.as_deref(),
            kubelet: local.kubelet(),
            machine: &self.authenticator.machine,
            known: None,
            deadline: Deadline::after(STEP),
        };
        let attester = &self.authenticator.attester;
        let node_name = self.named().ok();
        let failed = RefCell::new(Vec::new());
        let noted = |name, finding: Finding| {
            if finding.state == State::Fail {
                failed.borrow_mut().push((name, finding.what.clone()));
            }
            report(name, finding);
        };
        attester.examine(&sources, node_name.as_ref(), &noted);
        let failed = failed.into_inner();
        let machine = match attester.provider_id(&sources) {
            Ok(id) => Finding::pass(id.to_string()),
            // Report each cause as only one failed check.
            Err(failure) => match failed.iter().find(|(_, what)| what == failure.what()) {
                Some((name, _)) => Finding::skip(format!("fails for the same reason as {name}")),
                None => Finding::fail(&failure),
            },
        };
        report(MACHINE, machine);
    }
}

fn start(doctor: &Arc<Doctor>, task: Task, findings: Sender<Checked>) {
    let doctor = Arc::clone(doctor);
    let run = move || {
        task(&doctor, &|name, finding| {
            drop(findings.send((name, finding)));
        });
    };
    // If the thread of a check cannot be started, the check has no finding, and therefore fails.
    drop(thread::Builder::new().spawn(run));
}

fn fail(what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding::fail(&Failure::new(Code::CheckFailed, what, cure))
}

fn warn(what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding::warn(&Failure::new(Code::CheckFailed, what, cure))
}

/// Skips the check if only root is allowed to read `path`.
fn needs_root(path: &Path) -> Result<(), Finding> {
    let is_denied = rustix::fs::access(path, Access::READ_OK) == Err(Errno::ACCESS);
    if is_denied && !rustix::process::geteuid().is_root() {
        return Err(Finding::skip("run as root"));
    }
    Ok(())
}

/// Returns the finding of a check that uses `?` to return early.
fn either(result: Result<Finding, Finding>) -> Finding {
    result.unwrap_or_else(|finding| finding)
}
