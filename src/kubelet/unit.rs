//! The kubelet's arguments from its unit.
//!
//! `setup` runs before the kubelet, and operators run commands while the kubelet is stopped. Both must find the name
//! and the provider ID that the kubelet will use. An administrator can set the name and the provider ID in
//! `ExecStart=`, in `Environment=`, or in an environment file.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;

use super::environment::{assignments, expanded, words};
use super::pattern::environment_files;
use super::{CONFIGURATION, read_text};
use crate::failure::{Code, Failure};
use crate::machine::Machine;
use crate::process::output;

/// The kubelet's unit.
pub(crate) const UNIT: &str = "kubelet.service";

/// The file that contains kubeadm's arguments for the kubelet.
pub(crate) const KUBEADM_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// The directory that exists while systemd runs the machine (`sd_booted(3)`).
const SYSTEMD: &str = "/run/systemd/system";

const PROPERTIES: &str = "--property=LoadState,InvocationID,ExecStart,Environment,EnvironmentFiles";

/// The variable with the invocation ID of a unit, in the environment of its processes (systemd.exec(5)).
const INVOCATION: &str = "INVOCATION_ID";

/// The time limit of systemctl, which is much shorter than the time limit of a run.
const PATIENCE: Duration = Duration::from_secs(2);

/// The environment files of kubeadm's unit in its packages for Debian and for Fedora.
const FILES: [&str; 3] = [
    KUBEADM_FLAGS,
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
];

/// The command line of kubeadm's unit.
const COMMAND: [&str; 5] = [
    "kubelet",
    "$KUBELET_KUBECONFIG_ARGS",
    "$KUBELET_CONFIG_ARGS",
    "$KUBELET_KUBEADM_ARGS",
    "$KUBELET_EXTRA_ARGS",
];

/// The variable of kubeadm's unit that specifies the configuration file.
const CONFIG_ARGUMENTS: &str = "KUBELET_CONFIG_ARGS";

/// Returns the arguments in the kubelet's unit. If the machine does not have this unit or systemd, returns the
/// arguments in kubeadm's unit; `None` if no variable of that unit is set.
pub(super) fn arguments(machine: &Machine) -> Result<Option<Vec<String>>, Failure> {
    if machine.path(SYSTEMD).exists() {
        let shown = output("systemctl", &["show", UNIT, PROPERTIES], PATIENCE);
        let shown = shown.map_err(|error| {
            let why = error_chain(&error);
            let what = format!("cannot determine the kubelet's arguments: {why}");
            Failure::new(
                Code::Configuration,
                what,
                format!("see: systemctl status {UNIT}"),
            )
        })?;
        let shown = Properties(&shown.text);
        match shown.all("LoadState").next() {
            Some("loaded") => return shown.arguments(machine, variable).map(Some),
            // The unit exists but cannot be loaded. The kubelet's arguments in this unit can differ from the arguments
            // in kubeadm's unit, so do not use the latter.
            Some(state @ ("bad-setting" | "error")) => {
                let what = format!(
                    "cannot determine the kubelet's arguments: systemd cannot load {UNIT} ({state})"
                );
                let cure = format!("see: systemctl status {UNIT}");
                return Err(Failure::new(Code::Configuration, what, cure));
            }
            _ => {}
        }
    }
    let mut variables = BTreeMap::new();
    for file in FILES {
        variables.extend(read(&machine.path(file))?);
    }
    let value = |name: &str| variables.get(name).cloned().or_else(|| variable(name));
    let is_set = COMMAND.iter().filter_map(|word| word.strip_prefix('$'));
    let is_set = is_set.map(value).any(|value| value.is_some());
    if !is_set && !machine.path(CONFIGURATION).exists() {
        return Ok(None);
    }
    Ok(Some(of_kubeadm(value)))
}

/// Returns the arguments in kubeadm's unit with these environment files.
pub(super) fn arguments_of_files(files: &[&str]) -> Vec<String> {
    let variables: BTreeMap<_, _> = files.iter().flat_map(|file| assignments(file)).collect();
    of_kubeadm(|name| variables.get(name).cloned())
}

fn of_kubeadm(value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let value = |name: &str| {
        let otherwise = || (name == CONFIG_ARGUMENTS).then(|| format!("--config={CONFIGURATION}"));
        value(name).or_else(otherwise)
    };
    let line = expanded(&COMMAND.map(str::to_owned), value);
    line.into_iter().skip(1).collect()
}

/// The output of `systemctl show`.
struct Properties<'a>(&'a str);

impl<'a> Properties<'a> {
    fn all(&self, key: &str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.lines().filter_map(|line| line.split_once('='));
        lines.filter_map(move |(known, value)| (known == key).then_some(value))
    }

    /// Returns the arguments in the unit's command. `inherited` are the variables of this process.
    fn arguments(
        &self,
        machine: &Machine,
        inherited: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>, Failure> {
        let command = self.all("ExecStart").next().unwrap_or_default();
        let argv = command.split_once("argv[]=").unwrap_or_default().1;
        let argv = argv
            .rsplit_once(" ; ignore_errors=")
            .map_or(argv, |it| it.0);
        let argv = words(argv);
        let program = argv.first().map(Path::new).and_then(Path::file_name);
        if program.is_none_or(|name| name != "kubelet") {
            let what = format!(
                "cannot determine the kubelet's arguments before the kubelet runs: {UNIT} starts {}",
                argv.first().map_or("nothing", String::as_str)
            );
            let cure = "set nodeName and providerID in the settings, or wait for the kubelet";
            return Err(Failure::new(Code::Configuration, what, cure));
        }
        // If this process runs in `ExecStartPre=` of the unit, its environment contains the kubelet's variables, which
        // systemd has set. A process of a different unit or of a shell can have other values.
        let start = self.all("InvocationID").find(|id| !id.is_empty());
        let is_in_unit = start.is_some() && start == inherited(INVOCATION).as_deref();
        let line = if is_in_unit {
            expanded(&argv, inherited)
        } else {
            let variables = self.variables(machine)?;
            expanded(&argv, |name| variables.get(name).cloned())
        };
        Ok(line.into_iter().skip(1).collect())
    }

    /// Returns the variables in the unit and in its environment files.
    fn variables(&self, machine: &Machine) -> Result<BTreeMap<String, String>, Failure> {
        let mut variables = BTreeMap::new();
        for list in self.all("Environment") {
            let pairs = words(list);
            let pairs = pairs.iter().filter_map(|pair| pair.split_once('='));
            variables.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        for path in self.all("EnvironmentFiles") {
            let path = path.rsplit_once(" (").map_or(path, |it| it.0);
            for file in environment_files(machine, path)? {
                // A pattern can match a directory. systemd skips directories.
                if !file.is_dir() {
                    variables.extend(read(&file)?);
                }
            }
        }
        Ok(variables)
    }
}

/// Returns an environment variable of this process.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn read(file: &Path) -> Result<Vec<(String, String)>, Failure> {
    Ok(assignments(&read_text(file)?.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::kubelet::KubeletArguments;

    const COMMAND: &str = "ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet \
                           $KUBELET_KUBEADM_ARGS ${NAME} $KUBELET_EXTRA_ARGS --v=2 ; \
                           ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) }\n";

    fn found(shown: &str, files: &[(&str, &str)]) -> Result<KubeletArguments, Failure> {
        found_in(&[], shown, files)
    }

    /// Returns the kubelet's arguments, which are read with these environment variables.
    fn found_in(
        variables: &[(&str, &str)],
        shown: &str,
        files: &[(&str, &str)],
    ) -> Result<KubeletArguments, Failure> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine::rooted(root.path());
        let inherited = |name: &str| {
            let known = variables.iter().find(|(key, _)| *key == name);
            known.map(|&(_, value)| value.to_owned())
        };
        Properties(shown)
            .arguments(&machine, inherited)
            .map(KubeletArguments::collect)
    }

    #[test]
    fn each_source_of_the_unit_is_read() {
        let flag = "--hostname-override=n1";
        let in_line = COMMAND.replace("--v=2", flag);
        let variable = format!("{COMMAND}Environment=NAME={flag} B=c\n");
        let quoted = format!("{COMMAND}Environment=B=c \"KUBELET_EXTRA_ARGS=--v=2 {flag}\"\n");
        let files =
            "EnvironmentFiles=/a (ignore_errors=yes)\nEnvironmentFiles=/b (ignore_errors=no)\n";
        let files =
            format!("{COMMAND}Environment=KUBELET_EXTRA_ARGS=--hostname-override=n2\n{files}");
        let pattern = files.replace("/b ", "/b.d/*.env ");
        let assigned = format!("KUBELET_EXTRA_ARGS=\"{flag}\"\n");
        let other = "KUBELET_EXTRA_ARGS=--hostname-override=n3\n";
        let kubeadm = "KUBELET_KUBEADM_ARGS=--hostname-override=n3\n";
        for (shown, in_files) in [
            (&in_line, &[][..]),
            (&variable, &[]),
            (&quoted, &[]),
            (&files, &[("/a", &*assigned)]),
            (&files, &[("/a", kubeadm), ("/b", &assigned)]),
            (&files, &[("/a", other), ("/b", &assigned)]),
            (&pattern, &[("/a", other), ("/b.d/1.env", &assigned)]),
            (
                &pattern,
                &[("/b.d/2.env", &assigned), ("/b.d/1.env", other)],
            ),
            // The directory contains a file that the pattern does not match, and a directory.
            (
                &pattern,
                &[
                    ("/b.d/1.env", &assigned),
                    ("/b.d/2", other),
                    ("/b.d/3.env/x", ""),
                ],
            ),
        ] {
            let found = found(shown, in_files).unwrap();
            assert_eq!(
                found.hostname_override(),
                Some("n1"),
                "{shown} {in_files:?}"
            );
        }
        // The unit does not refer to this file.
        let unread = found(&in_line.replace(flag, ""), &[("/a", &assigned)]).unwrap();
        assert_eq!(unread.hostname_override(), None);
        // Packages install this file with an empty value. The empty value replaces the value in a drop-in.
        let empty = files.replace("=n2", "=n1");
        let emptied = found(&empty, &[("/a", "KUBELET_EXTRA_ARGS=\n")]).unwrap();
        assert_eq!(emptied.hostname_override(), None);
        assert_eq!(found(&empty, &[]).unwrap().hostname_override(), Some("n1"));
    }

    #[test]
    fn process_variables_count_only_in_the_unit_of_the_kubelet() {
        let set = |name: &str| format!("--hostname-override={name}");
        let (right, wrong) = (set("n1"), set("n2"));
        let hidden = format!(
            "{COMMAND}InvocationID=4f\nEnvironment=KUBELET_EXTRA_ARGS={wrong}\n\
             EnvironmentFiles=/a (ignore_errors=no)\n"
        );
        let stopped = hidden.replace("=4f", "=");
        let unset = format!("{COMMAND}InvocationID=4f\n");
        let extra = "KUBELET_EXTRA_ARGS";
        for (shown, invocation, value, expected) in [
            (&hidden, Some("4f"), Some(&*right), Some("n1")),
            // The variable is removed with `UnsetEnvironment=`.
            (&hidden, Some("4f"), None, None),
            // The process belongs to a different unit, or is a shell.
            (&hidden, Some("4e"), Some(&right), Some("n2")),
            (&hidden, None, Some(&right), Some("n2")),
            (&stopped, Some(""), Some(&right), Some("n2")),
            (&unset, Some("4e"), Some(&right), None),
            (&unset, None, Some(&right), None),
        ] {
            let variables = [(INVOCATION, invocation), (extra, value)];
            let variables: Vec<_> = variables
                .iter()
                .filter_map(|&(name, value)| Some((name, value?)))
                .collect();

            let found = found_in(&variables, shown, &[("/a", &format!("{extra}={wrong}"))]);

            assert_eq!(
                found.unwrap().hostname_override(),
                expected,
                "{variables:?}"
            );
        }
    }

    #[test]
    fn the_arguments_of_another_program_are_an_error() {
        let shell = COMMAND.replace("/usr/bin/kubelet", "/bin/sh -c \"exec kubelet\"");
        for (shown, program) in [(&*shell, "/bin/sh"), ("", "nothing")] {
            let failure = found(shown, &[]).unwrap_err();

            assert_eq!(failure.code(), Code::Configuration);
            assert!(
                failure.what().ends_with(&format!("starts {program}")),
                "{failure}"
            );
        }
    }
}
