//! The kubelet's arguments, from its process or from its unit.

mod configuration;
mod environment;
mod pattern;
mod unit;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::failure::{Code, Failure};
use crate::machine::Machine;

pub(crate) use environment::words;
pub(crate) use pattern::environment_files;
pub(crate) use unit::{KUBEADM_FLAGS, UNIT};

/// The configuration file of a kubelet that kubeadm configured. `kubeadm reset` removes it.
pub(crate) const CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// The maximum length of the kubelet's arguments, in bytes, which is much longer than the arguments of real kubelets.
/// Linux allows 2 MiB of arguments per process.
const MAX_ARGUMENTS_LEN: usize = 256 * 1024;

/// The size of the read buffer on the stack, in bytes. The buffer is larger than the arguments of a kubelet that
/// kubeadm configured.
const USUAL_ARGUMENTS_LEN: usize = 4096;

/// The kubelet's arguments that identify its node. If a flag is repeated, the last occurrence takes precedence, as in
/// the kubelet itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletArguments {
    hostname_override: Option<String>,
    provider_id: Option<String>,
    /// The configuration file.
    config: Option<String>,
    /// The directory of files that are merged into the configuration file.
    config_dir: Option<String>,
}

impl KubeletArguments {
    /// Reads the arguments of the parent process, if the parent process is a kubelet; also `None` if the process has
    /// exited or cannot be read.
    pub fn of_parent() -> Option<Self> {
        let parent = std::os::unix::process::parent_id();
        Self::of_process(&Path::new("/proc").join(parent.to_string()).join("cmdline"))
    }

    /// The arguments in a process's `cmdline`, if the process is a kubelet.
    fn of_process(cmdline: &Path) -> Option<Self> {
        Self::from_cmdline(&read(cmdline).ok()?)
    }

    /// The arguments in the content of a process's `cmdline` (proc(5)), if the process is a kubelet.
    pub fn from_cmdline(arguments: &[u8]) -> Option<Self> {
        let mut arguments = arguments
            .split(|byte| *byte == 0)
            .map(String::from_utf8_lossy);
        let program = arguments.next().unwrap_or_default();
        if Path::new(program.as_ref()).file_name() != Some(OsStr::from_bytes(b"kubelet")) {
            return None;
        }
        Some(Self::collect(arguments))
    }

    /// Returns the arguments of the kubelet that started this process, or otherwise the arguments in its unit; `None`
    /// without a source of arguments.
    ///
    /// # Errors
    ///
    /// The unit, or one of its environment files, cannot be read.
    pub(crate) fn of_kubelet(machine: &Machine) -> Result<Option<Self>, Failure> {
        match Self::of_parent() {
            Some(arguments) => Ok(Some(arguments)),
            None => Ok(unit::arguments(machine)?.map(Self::collect)),
        }
    }

    /// Parses the content of an environment file of kubeadm's unit, such as
    /// `KUBELET_KUBEADM_ARGS="--a=b --c=d"`.
    pub fn from_environment_file(contents: &str) -> Self {
        Self::collect(unit::arguments_of_files(&[contents]))
    }

    /// The value of `--hostname-override`.
    pub fn hostname_override(&self) -> Option<&str> {
        self.hostname_override.as_deref()
    }

    /// The value of `--provider-id`.
    pub fn provider_id(&self) -> Option<&str> {
        self.provider_id.as_deref()
    }

    /// Returns the provider ID of the node: from the flag, otherwise from the configuration file and its drop-ins.
    ///
    /// # Errors
    ///
    /// One of these files cannot be read. The kubelet would also not start.
    pub(crate) fn configured_provider_id(
        &self,
        machine: &Machine,
    ) -> Result<Option<String>, Failure> {
        if self.provider_id.is_some() {
            return Ok(self.provider_id.clone());
        }
        configuration::provider_id(machine, self.config.as_deref(), self.config_dir.as_deref())
    }

    /// Whether the configuration file and its drop-ins make the kubelet renew its own certificate.
    ///
    /// # Errors
    ///
    /// One of these files cannot be read. The kubelet would also not start.
    pub(crate) fn rotates_certificates(&self, machine: &Machine) -> Result<bool, Failure> {
        let (config, folder) = (self.config.as_deref(), self.config_dir.as_deref());
        configuration::rotates_certificates(machine, config, folder)
    }

    /// Accepts `--flag=value` and `--flag value`. As in the kubelet, an empty value counts as no value.
    pub(crate) fn collect(arguments: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut collected = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let argument = argument.as_ref();
            let (flag, value) = match argument.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (argument, None),
            };
            let slot = if is_flag(flag, "--hostname-override") {
                &mut collected.hostname_override
            } else if is_flag(flag, "--provider-id") {
                &mut collected.provider_id
            } else if is_flag(flag, "--config") {
                &mut collected.config
            } else if is_flag(flag, "--config-dir") {
                &mut collected.config_dir
            } else {
                continue;
            };
            let value = value.or_else(|| arguments.next().map(|next| next.as_ref().to_owned()));
            *slot = value.filter(|value| !value.is_empty());
        }
        collected
    }
}

/// Whether an argument is this flag. The kubelet also accepts `_` instead of `-` in the name of a flag
/// (`WordSepNormalizeFunc` in Kubernetes' `component-base/cli/flag`).
pub(crate) fn is_flag(argument: &str, flag: &str) -> bool {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    argument.starts_with("--") && argument.bytes().map(dashed).eq(flag.bytes())
}

/// Reads the text of a kubelet file; `None` if the file does not exist.
fn read_text(path: &Path) -> Result<Option<String>, Failure> {
    match read(path) {
        Ok(contents) => Ok(Some(String::from_utf8_lossy(&contents).into_owned())),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(unreadable(path, &error.into())),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    let what = format!("cannot read the kubelet's arguments from {path}");
    let cure = format!("allow root to read {path}");
    Failure::new(Code::Configuration, what, cure).because(error)
}

/// Reads the paths in a directory, sorted; none if the directory does not exist.
fn folder_contents(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    Ok(paths)
}

/// Reads a file in chunks on the stack. The plugin calls this function at each start, and a buffer on the heap would
/// take more time than the read.
fn read(path: &Path) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut contents = Vec::new();
    let mut chunk = [0; USUAL_ARGUMENTS_LEN];
    while contents.len() < MAX_ARGUMENTS_LEN {
        let length = retry_on_intr(|| rustix::io::read(&file, &mut chunk))?;
        match chunk.get(..length) {
            Some(read) if !read.is_empty() => contents.extend_from_slice(read),
            _ => break,
        }
    }
    contents.truncate(MAX_ARGUMENTS_LEN);
    Ok(contents)
}

/// The machine's host name, from the kernel.
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests;
