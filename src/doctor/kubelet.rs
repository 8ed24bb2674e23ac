//! Checks of the kubelet's kubeconfig, and of the node's name.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use kubelet_attestation::names::NodeName;
use rustix::fs::{Access, StatVfsMountFlags};

use super::{Doctor, either, fail, needs_root, warn};
use crate::authenticator::bound;
use crate::exec::ApiVersion;
use crate::failure::{Code, Failure};
use crate::finding::Finding;
use crate::kube::kubeconfig::{ExecUser, Kubeconfig};
use crate::setup::{PROGRAMS, check_length};
use crate::{ownership, process};

/// The interactive modes in which the kubelet runs a plugin.
const MODES: [&str; 2] = ["Never", "IfAvailable"];

impl Doctor {
    pub(super) fn kubelet_kubeconfig(&self) -> Finding {
        either(self.plugin_of_kubelet())
    }

    fn plugin_of_kubelet(&self) -> Result<Finding, Finding> {
        let path = &self.kubelet_kubeconfig;
        let place = path.display();
        needs_root(path)?;
        let user = ExecUser::read(path).map_err(|error| {
            let cure = format!(
                "if kubeadm configures the kubelet, add a drop-in that runs `setup`, and join the node; \
                 otherwise, create {place} with {}",
                rendered("kubeconfig")
            );
            Finding::fail(&Failure::of(Code::Configuration, &error, cure))
        })?;
        let Some(exec) = user.exec else {
            let what = format!("{place} contains a credential instead of the plugin");
            return Err(fail(
                what,
                format!("run: {} setup --from {place}", process::command()),
            ));
        };
        let again = format!("write {place} again with {}", rendered("kubeconfig"));
        let wrong = |what: String| fail(format!("{place}: {what}"), again.clone());
        if user.has_credential {
            let what =
                "the user has a token or certificate, which the kubelet uses instead of the plugin";
            return Err(wrong(what.to_owned()));
        }
        let command = exec.command.unwrap_or_default();
        let program = Path::new(&command);
        if !program.is_absolute() {
            return Err(wrong(format!(
                "the command {command:?} of the plugin is not an absolute path"
            )));
        }
        executable(program)?;
        trusted(path)?;
        trusted(program)?;
        let version = exec.api_version.unwrap_or_default();
        if ![ApiVersion::V1, ApiVersion::V1Beta1]
            .map(ApiVersion::as_str)
            .contains(&&*version)
        {
            return Err(wrong(format!(
                "apiVersion of the plugin is missing or not supported: {version:?}"
            )));
        }
        let mode = exec.interactive_mode.unwrap_or_default();
        let is_set = !mode.is_empty() || version == ApiVersion::V1Beta1.as_str();
        if !is_set || (!mode.is_empty() && !MODES.contains(&&*mode)) {
            return Err(wrong(format!(
                "interactiveMode of the plugin is missing or invalid: {mode:?}"
            )));
        }
        let this = format!("{PROGRAMS}{}", self.authenticator.attester.provider());
        if program.file_name() != Some(OsStr::new(&this)) {
            let what = format!("{place} runs {command} instead of {this}");
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            let otherwise = if name.starts_with(PROGRAMS) {
                let this = process::command();
                format!("to change the provider, run: {this} setup --replace")
            } else {
                again
            };
            let cure = format!("run the `doctor` of that program; or {otherwise}");
            return Err(warn(what, cure));
        }
        if exec.provide_cluster_info != Some(true) {
            let what = format!("{place}: the plugin's provideClusterInfo is not true");
            return Err(warn(what, again));
        }
        // Another check reports errors in the cluster entry.
        if let Ok(endpoint) = Kubeconfig::read_endpoint(path) {
            check_length(&endpoint, path).map_err(|failure| Finding::fail(&failure))?;
        }
        Ok(Finding::pass(format!("{place} runs {command}")))
    }

    /// Compares the node's name with the name in the kubelet's arguments.
    pub(super) fn node_name(&self) -> Finding {
        either(self.named().map(|name| Finding::pass(name.to_string())))
    }

    pub(super) fn named(&self) -> Result<NodeName, Finding> {
        let (_, stored) = self.stored_or_skip()?;
        let failed = |failure: Failure| Finding::fail(&failure);
        let (local, bound) = (self.local(), bound(self.settings(), &stored));
        let sources = local.sources(self.settings(), bound.as_ref());
        let sources = sources.map_err(failed)?;
        let name = sources.decide().map_err(failed)?;
        if let Some(passed_over) = sources.passed_over() {
            return Err(failed(passed_over));
        }
        Ok(name)
    }
}

/// The command that prints the file `file` for this program.
pub(super) fn rendered(file: &str) -> String {
    format!("`{}`", process::render(file, process::command().as_ref()))
}

/// Warns about a file that root executes, if another user could change the file.
fn trusted(path: &Path) -> Result<(), Finding> {
    match ownership::of_path(path) {
        Some(untrusted) => Err(warn(untrusted.what, untrusted.remedy)),
        None => Ok(()),
    }
}

fn executable(program: &Path) -> Result<(), Finding> {
    let place = program.display();
    let metadata = fs::metadata(program).map_err(|error| {
        let what = format!("cannot run the plugin: {place}: {error}");
        fail(
            what,
            format!(
                "install the plugin at {place}, or run: {} setup",
                process::command()
            ),
        )
    })?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        let what = format!("cannot run the plugin: {place} is not executable");
        return Err(fail(what, format!("run: chmod 755 {place}")));
    }
    // Mount options can also forbid execution, and the mode bits do not show them.
    if let Err(error) = rustix::fs::access(program, Access::EXEC_OK) {
        let error = io::Error::from(error);
        let what = format!("cannot run the plugin: {place}: {error}");
        return Err(fail(what, why_not_executable(program)));
    }
    // A program might be executable but not readable for this user.
    let (Ok(Some(its)), Ok(Some(ours))) = (
        architecture(program),
        env::current_exe().and_then(|own| architecture(&own)),
    ) else {
        return Ok(());
    };
    if its == ours {
        return Ok(());
    }
    let what = format!(
        "cannot run the plugin: {place} is a program for {}, but this machine is {}",
        name_of(its),
        name_of(ours)
    );
    let cure = format!("install the plugin for {} at {place}", name_of(ours));
    Err(fail(what, cure))
}

/// Returns the hint for a program that cannot be executed although its mode permits execution.
fn why_not_executable(program: &Path) -> String {
    let place = program.display();
    let mount = rustix::fs::statvfs(program);
    if mount.is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return format!(
            "mount the file system of {place} without the option noexec, or move the plugin to a different file \
             system and run its `setup`"
        );
    }
    format!(
        "allow root to run {place}: check the permissions of its parent directories, and the SELinux or AppArmor rules"
    )
}

/// Returns the architecture of an ELF program, `e_machine`; `None` for a file in another format, such as a script.
///
/// All architectures of Kubernetes nodes are little-endian, except s390x, whose number is read with swapped bytes.
fn architecture(program: &Path) -> io::Result<Option<u16>> {
    let mut header = [0; 20];
    match File::open(program)?.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let [0x7f, b'E', b'L', b'F', .., low, high] = header else {
        return Ok(None);
    };
    Ok(Some(u16::from_le_bytes([low, high])))
}

/// The Kubernetes name of an ELF architecture.
fn name_of(architecture: u16) -> String {
    match architecture {
        21 => "ppc64le".to_owned(),
        62 => "amd64".to_owned(),
        183 => "arm64".to_owned(),
        other => format!("the ELF machine {other}"),
    }
}
