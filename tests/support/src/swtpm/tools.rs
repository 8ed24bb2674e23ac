//! tpm2-tools for one TPM.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Scratch, guarded};

/// The deadline for a tool, which takes milliseconds. A tool waits indefinitely while another client is connected.
const DEADLINE: Duration = Duration::from_secs(180);

/// The tools, with a lock for access to the TPM.
#[derive(Debug)]
pub(crate) struct Tools {
    tcti: String,
    turn: Mutex<()>,
}

/// A sequence of commands that has its own files. This fixture does not run other commands during the sequence.
///
/// At the end of the sequence, the TPM does not contain any transient objects, including older objects.
#[derive(Debug)]
pub(crate) struct Sequence<'a> {
    tools: &'a Tools,
    files: Scratch,
    _turn: MutexGuard<'a, ()>,
}

impl Tools {
    pub(super) fn new(tcti: String) -> Self {
        Self {
            tcti,
            turn: Mutex::new(()),
        }
    }

    /// Waits until the caller gets a turn.
    pub(crate) fn sequence(&self) -> Sequence<'_> {
        Sequence {
            tools: self,
            files: Scratch::new("tools"),
            _turn: self.turn(),
        }
    }

    /// Runs one tool that does not leave objects in the TPM. Returns its output.
    #[track_caller]
    pub(crate) fn once(&self, words: &[&str]) -> String {
        let _turn = self.turn();
        let output = must(words, self.start(words, None));
        String::from_utf8(output).expect("the tools print text")
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, words: &[&str], directory: Option<&Scratch>) -> Result<Vec<u8>, String> {
        let mut command = guarded(&[], words);
        command
            .env("TPM2TOOLS_TCTI", &self.tcti)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(directory) = directory {
            command.current_dir(directory.path());
        }
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {words:?} (with setpriv): {error}"));
        let pid = Pid::from_child(&child);
        let (done, ended) = mpsc::channel();
        thread::spawn(move || done.send(child.wait_with_output()));
        let output = ended.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            kill_process(pid, Signal::KILL).ok();
            panic!("{words:?} takes longer than {DEADLINE:?}: is another client connected?");
        });
        let Output {
            status,
            stdout,
            stderr,
        } = output.expect("a child can be waited for");
        if status.success() {
            return Ok(stdout);
        }
        let stderr = String::from_utf8_lossy(&stderr);
        Err(format!("{} failed ({status}): {stderr}", words[0]))
    }
}

impl Sequence<'_> {
    /// Runs a tool in the directory of the sequence's files. Returns the output or the error message.
    pub(crate) fn run(&self, words: &[&str]) -> Result<Vec<u8>, String> {
        self.tools.start(words, Some(&self.files))
    }

    /// Like [`Sequence::run`], for commands that cannot fail.
    #[track_caller]
    pub(crate) fn must(&self, words: &[&str]) -> Vec<u8> {
        must(words, self.run(words))
    }

    /// Removes all objects from the TPM. An object whose context is in a file can be loaded again.
    #[track_caller]
    pub(crate) fn flush(&self) {
        self.must(&["tpm2_flushcontext", "-t"]);
    }

    /// Writes a file that the tools read.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        self.files.write(name, contents)
    }

    /// Reads a file that the tools wrote.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        let path = self.files.join(name);
        std::fs::read(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        // A tool's failure can cause a panic that leads to this drop, so the TPM might not respond.
        self.run(&["tpm2_flushcontext", "-t"]).ok();
    }
}

#[track_caller]
fn must(words: &[&str], output: Result<Vec<u8>, String>) -> Vec<u8> {
    output.unwrap_or_else(|said| panic!("{words:?}: {said}"))
}
