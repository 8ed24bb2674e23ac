//! The disk of a machine that is switched off.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Scratch;

/// A file with an ext4 file system, which the host reads and writes without mounting it.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Copies a disk without its empty blocks.
    #[track_caller]
    pub(super) fn copy_of(from: &Path, to: &Path) -> Self {
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--"]).args([from, to]);
        let status = copy.status().expect("cp can be started");
        assert!(status.success(), "cannot copy {}", from.display());
        Self {
            path: to.to_owned(),
        }
    }

    /// The path of the disk's file on the host.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that belongs to root. The directory of the file must exist.
    #[track_caller]
    pub(super) fn write(&self, path: &str, mode: u32, content: impl AsRef<[u8]>) {
        let scratch = Scratch::new("file");
        let host = scratch.write("content", content);
        fs::set_permissions(&host, fs::Permissions::from_mode(mode)).expect("it is our file");
        self.copy_in(path, &host);
    }

    /// Copies a file from the host with its mode.
    #[track_caller]
    pub(super) fn copy_in(&self, path: &str, host: &Path) {
        // Remove the file of an earlier boot, because debugfs does not replace files.
        self.debugfs(&["-w"], &format!("rm {path}"));
        let said = self.debugfs(&["-w"], &format!("write {} {path}", host.display()));
        assert!(said.contains("Allocated inode"), "write {path}: {said}");
    }

    /// Copies a directory to the host.
    #[track_caller]
    pub(super) fn copy_out(&self, path: &str, host: &Path) {
        self.debugfs(&[], &format!("rdump {path} {}", host.display()));
    }

    /// The content of a file. `None` if the file does not exist.
    #[track_caller]
    pub(super) fn read(&self, path: &str) -> Option<Vec<u8>> {
        let scratch = Scratch::new("file");
        let host = scratch.join("content");
        // debugfs does not create the copy of a file that does not exist.
        self.debugfs(&[], &format!("dump {path} {}", host.display()));
        fs::read(host).ok()
    }

    /// Replays the journal of the file system, as the kernel does after a power failure.
    #[track_caller]
    pub(super) fn recover(&self) {
        let mut check = Command::new("e2fsck");
        check.args(["-f", "-p"]).arg(&self.path);
        let output = check.output().expect("e2fsck can be started");
        // Status 1 means that e2fsck has corrected errors, such as the counters of the file system.
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{output:?}");
    }

    /// Runs one command of debugfs, and returns its output. debugfs also succeeds if the command fails.
    #[track_caller]
    fn debugfs(&self, options: &[&str], command: &str) -> String {
        let mut debugfs = Command::new("debugfs");
        debugfs
            .args(options)
            .args(["-R", command])
            .arg(&self.path)
            // Otherwise, numbers and messages would depend on the user's language.
            .env("LC_ALL", "C.UTF-8");
        let output = debugfs.output().expect("debugfs can be started");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "debugfs {command}: {said}");
        said
    }
}
