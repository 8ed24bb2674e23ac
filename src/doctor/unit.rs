//! The kubelet's unit in systemd, and the process of its kubelet.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{Doctor, fail, warn};
use crate::finding::Finding;
use crate::process::output;

const UNIT: &str = "kubelet.service";

const PROPERTIES: &str = "--property=LoadState,ActiveState,MainPID,NeedDaemonReload,ExecStartPre,\
                          Environment,EnvironmentFiles";

/// The time for systemctl. Other checks need its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The part of our programs' and files' names.
const OURS: &str = "kubelet-authenticator";

/// The properties of the kubelet's unit (systemd.directives(7)).
#[derive(Debug)]
pub(crate) struct Unit {
    properties: Vec<(String, String)>,
}

/// The field of the kubelet's configuration file that makes it bypass the plugin.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    rotate_certificates: Option<bool>,
}

impl Unit {
    /// Asks systemd.
    pub(crate) fn read() -> Result<Self, String> {
        let text = output("systemctl", &["show", UNIT, PROPERTIES], PATIENCE)?.text;
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let unit = Self {
            properties: lines
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        };
        if unit.get("LoadState") != "loaded" {
            return Err(format!("there is no unit {UNIT}"));
        }
        Ok(unit)
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        let properties = self.properties.iter();
        properties.filter_map(move |(known, value)| (known == key).then_some(value.as_str()))
    }

    fn get(&self, key: &str) -> &str {
        self.all(key).next().unwrap_or_default()
    }

    /// A file of the kubelet's process, if it runs.
    fn of_process(&self, file: &str) -> Option<Vec<u8>> {
        let pid: u32 = self.get("MainPID").parse().ok().filter(|pid| *pid > 0)?;
        fs::read(format!("/proc/{pid}/{file}")).ok()
    }

    /// The arguments of the kubelet, if it runs.
    pub(super) fn arguments(&self) -> Option<Vec<String>> {
        let cmdline = self.of_process("cmdline")?;
        let arguments = cmdline.split(|byte| *byte == 0).skip(1);
        let text = |argument: &[u8]| String::from_utf8_lossy(argument).into_owned();
        Some(arguments.map(text).collect())
    }

    /// The environment of the kubelet, which its plugin inherits; if it does not run or is not to be read, that of its
    /// unit without environment files.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let pair = |(name, value): (Vec<u8>, Vec<u8>)| {
            (OsString::from_vec(name), OsString::from_vec(value))
        };
        if let Some(environ) = self.of_process("environ") {
            let entries = environ.split(|byte| *byte == 0);
            return entries.filter_map(split_entry).map(pair).collect();
        }
        // No value of a setting has a space, which systemd would quote.
        let words = self.get("Environment").split_whitespace();
        let entries = words.map(|word| word.trim_matches('"').as_bytes());
        entries.filter_map(split_entry).map(pair).collect()
    }

    /// The environment file of `setup` that is not there.
    fn missing_environment(&self) -> Option<PathBuf> {
        let files = self.all("EnvironmentFiles").flat_map(str::split_whitespace);
        let ours = files.filter(|file| file.starts_with('/') && file.contains(OURS));
        ours.map(PathBuf::from).find(|file| !file.exists())
    }
}

impl Doctor {
    pub(super) fn kubelet_unit(&self) -> Finding {
        let unit = match self.unit() {
            Ok(unit) => unit,
            Err(why) => return Finding::skip(why),
        };
        if unit.get("NeedDaemonReload") == "yes" {
            let cure = "run: systemctl daemon-reload && systemctl restart kubelet";
            return fail(
                "systemd has not read the changed files of the kubelet's unit",
                cure,
            );
        }
        let arguments = unit.arguments();
        if let Some(finding) = arguments.as_deref().and_then(bypass) {
            return finding;
        }
        if !unit
            .all("ExecStartPre")
            .any(|command| command.contains(OURS))
        {
            let cure = "write one with `render kubelet-drop-in`; without kubeadm none is needed";
            return warn("no drop-in of the kubelet's unit runs `setup`", cure);
        }
        if let Some(file) = unit.missing_environment() {
            let what = format!(
                "{} is not there, so that the kubelet starts with kubeadm's own arguments",
                file.display()
            );
            return fail(what, "run `setup`, and restart the kubelet");
        }
        if arguments.is_none() {
            let what = format!("the kubelet does not run ({})", unit.get("ActiveState"));
            return warn(what, "see: journalctl -u kubelet");
        }
        Finding::pass("the drop-in runs `setup`, and the kubelet runs with its arguments")
    }
}

fn split_entry(entry: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let at = entry.iter().position(|byte| *byte == b'=')?;
    let (name, value) = entry.split_at(at);
    Some((name.to_vec(), value.strip_prefix(b"=")?.to_vec()))
}

/// The argument by which the kubelet does not use the plugin.
fn bypass(arguments: &[String]) -> Option<Finding> {
    if value(arguments, "--bootstrap-kubeconfig").is_some_and(|path| !path.is_empty()) {
        return Some(fail(
            "the kubelet runs with --bootstrap-kubeconfig, and overwrites its kubeconfig",
            "run `setup`, and restart the kubelet; without kubeadm, take the flag away",
        ));
    }
    let rotates = match value(arguments, "--rotate-certificates") {
        Some(text) => text != "false",
        None => value(arguments, "--config").is_some_and(|path| rotates(Path::new(path))),
    };
    rotates.then(|| {
        fail(
            "the kubelet runs with rotateCertificates: true, and passes the plugin over",
            "run `setup`, and restart the kubelet; without kubeadm, give it \
             --rotate-certificates=false",
        )
    })
}

/// The last value of a flag. Empty for a flag without one.
fn value<'a>(arguments: &'a [String], flag: &str) -> Option<&'a str> {
    let mut found = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == flag {
            let next = rest.clone().next().filter(|next| !next.starts_with('-'));
            found = Some(next.map_or("", String::as_str));
        } else if let Some(value) = argument
            .strip_prefix(flag)
            .and_then(|rest| rest.strip_prefix('='))
        {
            found = Some(value);
        }
    }
    found
}

fn rotates(configuration: &Path) -> bool {
    let text = fs::read_to_string(configuration).unwrap_or_default();
    let parsed: Option<Configuration> = serde_saphyr::from_str(&text).ok();
    parsed.and_then(|it| it.rotate_certificates) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(arguments: &[&str]) -> String {
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        bypass(&arguments).map_or_else(String::new, |finding| finding.what)
    }

    fn environment(properties: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        let properties = properties.iter();
        let unit = Unit {
            properties: properties
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        };
        unit.environment()
    }

    #[test]
    fn the_environment_is_that_of_the_process_or_else_of_the_unit() {
        let own = std::process::id().to_string();
        let of_unit = ("Environment", "A=1 \"B=2\" C=3=4 D= E");

        let running = environment(&[("MainPID", &own), of_unit]);
        assert!(running.iter().eq(&std::env::vars_os().collect::<Vec<_>>()));
        let expected = [("A", "1"), ("B", "2"), ("C", "3=4"), ("D", "")];
        let expected = expected.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(environment(&[("MainPID", "0"), of_unit]), expected);
        assert_eq!(environment(&[("Environment", "")]), []);
    }

    #[test]
    fn an_argument_by_which_the_kubelet_passes_the_plugin_over_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(
            &path,
            "kind: KubeletConfiguration\nrotateCertificates: true\n",
        )
        .unwrap();
        let config = format!("--config={}", path.display());

        for (arguments, expected) in [
            (&["--bootstrap-kubeconfig=/b"][..], "--bootstrap-kubeconfig"),
            (&["--bootstrap-kubeconfig", "/b"], "--bootstrap-kubeconfig"),
            (&["--rotate-certificates"], "rotateCertificates: true"),
            (
                &["--rotate-certificates=false", "--rotate-certificates=true"],
                "rotateCertificates",
            ),
            (&[&config], "rotateCertificates: true"),
        ] {
            assert!(words(arguments).contains(expected), "{arguments:?}");
        }
        for arguments in [
            &[][..],
            &["--bootstrap-kubeconfig=", "--v=2"],
            &[&config, "--rotate-certificates=false"],
            &["--config=/missing"],
        ] {
            assert_eq!(words(arguments), "", "{arguments:?}");
        }
    }
}
