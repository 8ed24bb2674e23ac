//! The kubelet's unit in systemd, and its process.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::Provider;

use super::kubelet::rendered;
use super::{Doctor, fail, warn};
use crate::finding::Finding;
use crate::kubelet::{KubeletArguments, UNIT, environment_files, is_flag, words};
use crate::leftovers::VARIABLE_PREFIX;
use crate::machine::Machine;
use crate::process::{NoOutput, command, output};
use crate::setup::PHASES;

const PROPERTIES: &str = "--property=LoadState,ActiveState,MainPID,NeedDaemonReload,ExecStartPre,\
                          Environment,EnvironmentFiles,After";

/// The time limit of systemctl. It is short, because other checks need the output.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time limit for all reads together. A read from `/proc` can also hang, if the kubelet hangs in a system call.
const ALL: Duration = Duration::from_millis(2500);

/// The values that disable a flag (Go's `strconv.ParseBool`).
const OFF: [&str; 6] = ["0", "f", "F", "false", "FALSE", "False"];

/// The common part of this project's program and file names.
const OURS: &str = "kubelet-authenticator";

/// The reason why the kubelet's unit is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnitUnknown {
    #[error(transparent)]
    NoOutput(#[from] NoOutput),
    #[error("the unit {UNIT} does not exist")]
    Missing,
    #[error("the kubelet's unit and process could not be read in time")]
    Late,
}

/// The properties of the kubelet's unit (systemd.directives(7)), and the arguments and variables of its process.
pub(crate) struct Unit {
    properties: Vec<(String, String)>,
    arguments: Option<Vec<String>>,
    variables: Vec<OsString>,
}

impl Unit {
    /// Reads the properties from systemd, and the files of the kubelet's process. Returns within [`ALL`], even if a
    /// read hangs.
    pub(crate) fn read() -> Result<Self, UnitUnknown> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let read = move || drop(sender.send(Self::ask()));
        drop(thread::Builder::new().spawn(read));
        let answer = receiver.recv_timeout(ALL);
        answer.map_err(|_| UnitUnknown::Late)?
    }

    fn ask() -> Result<Self, UnitUnknown> {
        let text = output("systemctl", &["show", UNIT, PROPERTIES], PATIENCE)?.text;
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let properties = lines.map(|(key, value)| (key.into(), value.into()));
        let unit = Self::of(properties.collect());
        if unit.get("LoadState") == "not-found" {
            return Err(UnitUnknown::Missing);
        }
        Ok(unit)
    }

    fn of(properties: Vec<(String, String)>) -> Self {
        let mut unit = Self {
            properties,
            arguments: None,
            variables: Vec::new(),
        };
        let pid: Option<u32> = unit.get("MainPID").parse().ok().filter(|pid| *pid > 0);
        let file = |name: &str| fs::read(format!("/proc/{}/{name}", pid?)).ok();
        unit.arguments = file("cmdline").map(|cmdline| {
            let arguments = cmdline.split(|byte| *byte == 0).skip(1);
            let text = |argument: &[u8]| String::from_utf8_lossy(argument).into_owned();
            arguments.map(text).collect()
        });
        unit.variables = if let Some(environ) = file("environ") {
            environ
                .split(|byte| *byte == 0)
                .filter_map(variable)
                .collect()
        } else {
            let words = words(unit.get("Environment"));
            words
                .iter()
                .filter_map(|word| variable(word.as_bytes()))
                .collect()
        };
        unit
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        let properties = self.properties.iter();
        properties.filter_map(move |(known, value)| (known == key).then_some(value.as_str()))
    }

    fn get(&self, key: &str) -> &str {
        self.all(key).next().unwrap_or_default()
    }

    /// The arguments of the kubelet, if it is running.
    pub(super) fn arguments(&self) -> Option<&[String]> {
        self.arguments.as_deref()
    }

    /// The names of the variables with this project's prefix in the environment of the kubelet, which its plugin
    /// inherits. Without root, or if the kubelet is not running, these are the names in its unit, without environment
    /// files.
    pub(crate) fn variables(&self) -> impl Iterator<Item = OsString> {
        self.variables.iter().cloned()
    }

    /// Whether systemd starts the kubelet after all units that extend PCRs.
    fn is_after_boot_phases(&self) -> bool {
        let mut phases = PHASES.into_iter();
        phases.all(|phase| {
            let mut units = self.all("After").flat_map(str::split_whitespace);
            units.any(|unit| unit == phase)
        })
    }

    /// The environment file that `setup` writes, if the file is missing.
    fn missing_environment(&self) -> Option<PathBuf> {
        let files = self.all("EnvironmentFiles").flat_map(str::split_whitespace);
        let mut ours = files.filter(|file| file.starts_with('/') && file.contains(OURS));
        let machine = Machine::default();
        let missing = ours.find(|path| {
            let found = environment_files(&machine, path);
            found.is_ok_and(|found| !found.iter().any(|file| file.exists()))
        });
        missing.map(PathBuf::from)
    }
}

impl Doctor {
    pub(super) fn kubelet_unit(&self) -> Finding {
        let unit = match self.unit() {
            Ok(unit) => unit,
            Err(why) => return Finding::skip(error_chain(why)),
        };
        if unit.get("NeedDaemonReload") == "yes" {
            let cure = "run: systemctl daemon-reload && systemctl restart kubelet";
            return fail(
                "systemd has not reloaded the changed files of the kubelet's unit",
                cure,
            );
        }
        let state = unit.get("LoadState");
        if state != "loaded" {
            let what = format!("systemd has not loaded the kubelet's unit ({state})");
            return warn(what, format!("run: systemctl status {UNIT}"));
        }
        let arguments = unit.arguments();
        if let Some(finding) = arguments.and_then(bypass) {
            return finding;
        }
        if !unit
            .all("ExecStartPre")
            .any(|command| command.contains(OURS))
        {
            let with = rendered("kubelet-drop-in");
            let cure = format!("if kubeadm configures the kubelet, create the drop-in with {with}");
            return warn("the kubelet's unit has no drop-in that runs `setup`", cure);
        }
        if let Some(file) = unit.missing_environment() {
            let what = format!(
                "{} does not exist, so the kubelet starts with kubeadm's arguments",
                file.display()
            );
            return fail(what, set_up(""));
        }
        if arguments.is_none() {
            let what = format!("the kubelet is not running ({})", unit.get("ActiveState"));
            return warn(what, "run: journalctl -u kubelet");
        }
        let provider = self.authenticator.attester.provider();
        if provider == Provider::TPM && !unit.is_after_boot_phases() {
            let with = rendered("kubelet-drop-in");
            let cure =
                format!("create the drop-in again with {with}, and run: systemctl daemon-reload");
            return warn(
                "the kubelet can start before systemd has extended the PCRs, so two boots can have different quotes",
                cure,
            );
        }
        Finding::pass("the drop-in runs `setup`, and the kubelet uses its arguments")
    }
}

/// The name of a variable, if it has this project's prefix.
fn variable(entry: &[u8]) -> Option<OsString> {
    let at = entry.iter().position(|byte| *byte == b'=')?;
    let (name, _) = entry.split_at(at);
    let is_ours = name.starts_with(VARIABLE_PREFIX.as_bytes());
    is_ours.then(|| OsString::from_vec(name.into()))
}

/// Returns the finding if an argument makes the kubelet bypass the plugin.
fn bypass(arguments: &[String]) -> Option<Finding> {
    if value(arguments, "--bootstrap-kubeconfig").is_some_and(|path| !path.is_empty()) {
        return Some(fail(
            "the kubelet runs with --bootstrap-kubeconfig, and overwrites its kubeconfig",
            set_up("; without kubeadm, remove the flag"),
        ));
    }
    let rotates = if let Some(text) = value(arguments, "--rotate-certificates") {
        !OFF.contains(&text)
    } else {
        let configured = KubeletArguments::collect(arguments);
        let rotates = configured.rotates_certificates(&Machine::default());
        // If the file cannot be read, the kubelet does not start.
        rotates.unwrap_or_default()
    };
    rotates.then(|| {
        fail(
            "the kubelet runs with rotateCertificates: true, and does not use the plugin",
            set_up("; without kubeadm, start it with --rotate-certificates=false"),
        )
    })
}

/// Returns the hint to configure the kubelet, followed by `addition`.
fn set_up(addition: &str) -> String {
    format!(
        "run: {} setup, and restart the kubelet{addition}",
        command()
    )
}

/// The value of the last occurrence of a flag. Empty for a flag without a value.
fn value<'a>(arguments: &'a [String], flag: &str) -> Option<&'a str> {
    let mut found = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, given) = match argument.split_once('=') {
            Some((name, given)) => (name, Some(given)),
            None => (argument.as_str(), None),
        };
        if is_flag(name, flag) {
            let next = || rest.clone().next().filter(|next| !next.starts_with('-'));
            found = Some(given.unwrap_or_else(|| next().map_or("", String::as_str)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn words_of(arguments: &[&str]) -> String {
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        bypass(&arguments).map_or_else(String::new, |finding| finding.what)
    }

    fn variables(properties: &[(&str, &str)]) -> Vec<OsString> {
        let properties = properties.iter();
        let owned = properties.map(|&(key, value)| (key.to_owned(), value.to_owned()));
        Unit::of(owned.collect()).variables().collect()
    }

    #[test]
    fn the_variables_come_from_the_kubelet_process_or_its_unit() {
        let kubelet = Command::new("sleep")
            .arg("1000")
            .env_clear()
            .env("KUBELET_AUTHENTICATOR_P", "of process")
            .env("HTTPS_PROXY", "http://user:password@proxy")
            .spawn();
        let mut kubelet = kubelet.unwrap();
        let pid = kubelet.id().to_string();
        let of_unit = (
            "Environment",
            r#"PATH=/a "KUBELET_AUTHENTICATOR_A=of \"a\" unit" KUBELET_AUTHENTICATOR_B=1=2 KUBELET_AUTHENTICATOR_C= KUBELET_AUTHENTICATOR_D"#,
        );

        let running = variables(&[("MainPID", &pid), of_unit]);
        kubelet.kill().unwrap();
        kubelet.wait().unwrap();
        assert_eq!(running, ["KUBELET_AUTHENTICATOR_P"]);
        let expected =
            ["A", "B", "C"].map(|it| OsString::from(format!("KUBELET_AUTHENTICATOR_{it}")));
        assert_eq!(variables(&[("MainPID", "0"), of_unit]), expected);
        assert!(variables(&[("Environment", "")]).is_empty());
    }

    #[test]
    fn a_kubelet_argument_that_bypasses_the_plugin_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(
            &path,
            "kind: KubeletConfiguration\nrotateCertificates: true\n",
        )
        .unwrap();
        let config = format!("--config={}", path.display());
        let drop_ins = folder.path().join("kubelet.conf.d");
        fs::create_dir(&drop_ins).unwrap();
        fs::write(drop_ins.join("10.conf"), "rotateCertificates: true\n").unwrap();
        let config_dir = format!("--config-dir={}", drop_ins.display());

        for (arguments, expected) in [
            (&["--bootstrap-kubeconfig=/b"][..], "--bootstrap-kubeconfig"),
            (&["--bootstrap-kubeconfig", "/b"], "--bootstrap-kubeconfig"),
            (&["--rotate-certificates"], "rotateCertificates: true"),
            (
                &["--rotate-certificates=false", "--rotate-certificates=true"],
                "rotateCertificates",
            ),
            (&["--bootstrap_kubeconfig=/b"], "--bootstrap-kubeconfig"),
            (&["--rotate_certificates=T"], "rotateCertificates: true"),
            (&[&config], "rotateCertificates: true"),
            (&[&config_dir], "rotateCertificates: true"),
        ] {
            assert!(words_of(arguments).contains(expected), "{arguments:?}");
        }
        for arguments in [
            &[][..],
            &["--bootstrap-kubeconfig=", "--v=2"],
            &[&config, "--rotate-certificates=false"],
            &[&config, "--rotate_certificates=0"],
            &[&config_dir, "--rotate-certificates=False"],
            &["--config=/missing"],
        ] {
            assert_eq!(words_of(arguments), "", "{arguments:?}");
        }
    }
}
