//! The command `support-bundle`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kubelet_attestation::csr::envelope::Envelope;
use serde_json::Value;

use super::arguments::Arguments;
use super::doctor::to_json;
use super::{Session, answer, status};
use crate::authenticator::Caller;
use crate::bundle::Bundle;
use crate::clock::{self, Deadline};
use crate::credential::Credential;
use crate::doctor::{TOTAL, Unit};
use crate::failure::Failure;
use crate::inspect;
use crate::kube::kubeconfig::{Kubeconfig, Login};
use crate::kubelet::KUBEADM_FLAGS;
use crate::pending::Pending;
use crate::process::output;
use crate::redact::Redactor;
use crate::settings::Settings;
use crate::store::{Store, StoreFile};

/// The time limit for a program such as journalctl.
const PATIENCE: Duration = Duration::from_secs(10);

/// The arguments of journalctl for the last lines of the kubelet's journal.
const JOURNAL: &[&str] = &[
    "--unit=kubelet",
    "--lines=1000",
    "--no-pager",
    "--quiet",
    "--output=short-iso",
];

/// The kubeconfig that kubeadm writes for the kubelet's first start.
const KUBEADM_BOOTSTRAP: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

impl Session {
    pub(super) fn support_bundle(
        &self,
        arguments: &Arguments,
        kubelet_kubeconfig: &Path,
        file: Option<&Path>,
    ) -> Result<(), Failure> {
        let now = clock::now();
        let unit = Unit::read();
        let sources = Self::sources(arguments);
        let (in_force, _) = Settings::valid(sources.clone(), &self.schema);
        let bootstrap = in_force.bootstrap_kubeconfig.as_path();
        let mut redactor = Redactor::default();
        for path in [kubelet_kubeconfig, bootstrap, Path::new(KUBEADM_BOOTSTRAP)] {
            know_login(path, &mut redactor);
        }
        self.know_store(&in_force.state_directory, &mut redactor);

        let mut bundle = Bundle::new(redactor);
        let words = |failure: Failure| failure.to_string();
        bundle.add(
            "version.json",
            "version",
            Ok(answer::json(&self.versions())),
        );
        bundle.add("system.txt", "kernel and operating system", Ok(system()));
        let config = self
            .effective(sources.clone())
            .map(|sheet| answer::json(&sheet.to_json()));
        bundle.add("config.json", "config check", config.map_err(words));
        let status = self
            .authenticator(sources, Caller::Person)
            .and_then(|it| status::Status::of(&it, now));
        let status = status.map(|status| answer::json(&status.to_json()));
        bundle.add("status.json", "status", status.map_err(words));
        let store = inspect::store(&in_force.state_directory, &self.machine, now);
        let store = store.map(|sheet| answer::json(&sheet.to_json()));
        bundle.add("store.json", "inspect store", store.map_err(words));
        let total = Deadline::after(TOTAL);
        let checks = self.checks(arguments, kubelet_kubeconfig, unit, total);
        bundle.add("doctor.json", "doctor", Ok(answer::json(&to_json(&checks))));
        let unit = output("systemctl", &["cat", "kubelet.service"], PATIENCE);
        bundle.add_output("kubelet.service.txt", "systemctl cat kubelet.service", unit);
        let journal = output("journalctl", JOURNAL, PATIENCE);
        bundle.add_output("kubelet.log", "journalctl --unit=kubelet", journal);
        let version = output("kubelet", &["--version"], PATIENCE);
        bundle.add_output("kubelet-version.txt", "kubelet --version", version);
        bundle.add_file("kubeadm-flags.env", Path::new(KUBEADM_FLAGS));
        bundle.add_file("kubelet.conf", kubelet_kubeconfig);
        bundle.add_file("bootstrap.kubeconfig", bootstrap);
        bundle.add_file("bootstrap-kubelet.conf", Path::new(KUBEADM_BOOTSTRAP));

        let path = file.map_or_else(|| self.default_name(now), Path::to_owned);
        let title = format!(
            "Support bundle of kubelet-authenticator-{} {}, made at {}",
            self.attester.provider(),
            env!("CARGO_PKG_VERSION"),
            humantime::format_rfc3339_seconds(now)
        );
        let count = bundle.write(&path, &title, now)?;
        let path = path.display();
        let text = format!("{path} has {count} files; read them before you send it\n");
        answer::print(&text)
    }

    /// A file name in the current directory, with the time.
    fn default_name(&self, now: SystemTime) -> PathBuf {
        let time = humantime::format_rfc3339_seconds(now).to_string();
        let time = time.replace(['-', ':'], "");
        format!(
            "kubelet-authenticator-{}-support-{time}.tar",
            self.attester.provider()
        )
        .into()
    }

    /// Registers the keys in the store, and the secret parts of the pending request's evidence, as secrets to remove.
    fn know_store(&self, dir: &Path, redactor: &mut Redactor) {
        let Ok(Some(store)) = Store::look(dir) else {
            return;
        };
        let read = |file| store.read(file).ok().flatten();
        if let Some(text) = read(StoreFile::Credential) {
            match Credential::from_store(&text) {
                Ok(credential) => redactor.know(credential.key_pem().expose()),
                // A corrupt file has no readable certificate, so its whole text is secret.
                Err(_) => redactor.know(&text),
            }
        }
        let Some(pending) = read(StoreFile::Pending).and_then(|text| Pending::parse(&text).ok())
        else {
            return;
        };
        redactor.know(pending.key.pem().expose());
        let envelope = pending.request.map(|open| Envelope::parse(&open.bytes));
        let evidence = envelope.and_then(|envelope| envelope.ok()?.evidence);
        let evidence = evidence.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(evidence) = evidence {
            know_members(self.attester.secret_members(), &evidence, redactor);
        }
    }
}

/// Registers the values of the members with these names as secrets to remove.
fn know_members(names: &[&str], json: &Value, redactor: &mut Redactor) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str() {
                    Some(text) if names.contains(&name.as_str()) => redactor.know(text),
                    Some(_) | None => know_members(names, value, redactor),
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                know_members(names, value, redactor);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Registers the token or the key of a kubeconfig as a secret to remove.
fn know_login(path: &Path, redactor: &mut Redactor) {
    match Kubeconfig::read(path).map(|kubeconfig| kubeconfig.login) {
        Ok(Login::Token(token)) => {
            redactor.know(token.expose());
            // The secret part of a bootstrap token.
            redactor.know(token.expose().rsplit('.').next().unwrap_or_default());
        }
        Ok(Login::ClientCertificate { key_pem, .. }) => redactor.know(key_pem.expose()),
        Err(_) => {}
    }
}

/// The kernel and the operating system.
fn system() -> String {
    let kernel = rustix::system::uname();
    let kernel = [kernel.sysname(), kernel.release(), kernel.machine()];
    let kernel: Vec<_> = kernel.iter().map(|word| word.to_string_lossy()).collect();
    let release = fs::read_to_string("/etc/os-release");
    let release = release.unwrap_or_else(|error| format!("no /etc/os-release: {error}\n"));
    format!("{}\n{release}", kernel.join(" "))
}
