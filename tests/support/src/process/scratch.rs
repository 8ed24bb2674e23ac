use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

use super::spawner;

/// A shell script that waits until its standard input, a pipe from the test process, is closed, and then removes the
/// directory. It tries several times, because processes in the directory might still be stopping.
const REMOVER: &str = r#"cat; for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$1" 2>/dev/null && exit; sleep 0.2
done"#;

/// The directory that contains all scratch directories of this test process.
///
/// A child process removes the directory, because a `static` is not dropped, and a killed process does not drop its
/// values.
static BASE: LazyLock<Base> = LazyLock::new(|| {
    let base = tempfile::Builder::new()
        .prefix("kubelet-authenticator-")
        .tempdir();
    let path = base.expect("a directory can be created in TMPDIR").keep();
    let mut remover = Command::new("sh");
    remover
        .args(["-c", REMOVER, "remover"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let remover = spawner::spawn(remover).expect("sh can be started");
    Base {
        path,
        _remover: remover,
    }
});

struct Base {
    path: PathBuf,
    // The standard input of the remover is open until this process ends. The remover ends after this process, and this
    // process does not wait for the remover.
    _remover: Child,
}

/// A directory that only one fixture uses. The directory is removed together with the fixture, or at the latest when
/// the test process ends.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// Creates the directory, whose name begins with `name`.
    pub fn new(name: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(&BASE.path);
        Self {
            directory: directory.expect("a directory can be created in TMPDIR"),
        }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The path of `name` in this directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Creates the directory `name` in this directory.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        path
    }

    /// Writes the file `name` in this directory.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, contents)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }
}
