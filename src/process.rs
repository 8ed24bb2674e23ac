//! The name of this program, and functions that run other programs and return their output.

use std::env;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::clock::Deadline;

/// The interval at which a program is polled for its exit.
const POLL: Duration = Duration::from_millis(5);

/// The maximum wait for a killed program to exit. A program in an uninterruptible sleep, for example on an unavailable
/// network file system, exits later.
const KILLED: Duration = Duration::from_secs(1);

/// The limit of a program's output in bytes.
const MAX_OUTPUT_LEN: u64 = 4 * 1024 * 1024;

/// The file name in `argv[0]`.
pub(crate) fn program() -> String {
    let name = env::args_os().next().unwrap_or_default();
    Path::new(&name)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Returns the path with which this program was started, if it is absolute. The path can be a link that an upgrade
/// changes.
pub(crate) fn path() -> io::Result<PathBuf> {
    let started = env::args_os().next().map(PathBuf::from);
    match started.filter(|path| path.is_absolute()) {
        Some(path) => Ok(path),
        None => env::current_exe(),
    }
}

/// Returns the start of a command line for this program: its path, because it might not be in the search path.
pub fn command() -> String {
    match path() {
        Ok(path) => quoted(&path.display().to_string()),
        Err(_) => program(),
    }
}

/// Returns the word in quotes if a shell would otherwise split or change it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "+,-./:=@_".contains(letter);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns the command that prints `file` for the program at the path `program`. `render` uses the path in the packages
/// by default, and this machine might not have a program at that path.
pub(crate) fn render(file: &str, program: &Path) -> String {
    let program = program.display();
    format!("{program} render {file} --command {program}")
}

/// The standard output of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) text: String,
    /// Whether the output was truncated. The text then ends with a complete line.
    pub(crate) is_cut: bool,
}

/// The reason why a program did not return output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoOutput {
    #[error("cannot run {program}")]
    Start { program: String, source: io::Error },
    /// The exit status cannot be read.
    #[error("{program}")]
    Wait { program: String, source: io::Error },
    #[error("{0} did not exit in time")]
    Late(String),
    #[error("{program} failed: {first}")]
    Failed {
        program: String,
        /// The first line that the program wrote to standard error.
        first: String,
    },
    #[error("{0} has exited, but another program keeps its output open")]
    Held(String),
}

/// Returns the standard output of a program, or the reason why it did not return output. A program that does not exit
/// within `patience` is killed. Returns an error if a different program keeps the output open for longer.
pub(crate) fn output(
    program: &str,
    arguments: &[&str],
    patience: Duration,
) -> Result<Output, NoOutput> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let name = || program.to_owned();
    let mut child = child.map_err(|source| NoOutput::Start {
        program: name(),
        source,
    })?;
    let deadline = Deadline::after(patience);
    let out = collect(child.stdout.take());
    let err = collect(child.stderr.take());
    let ended = wait(&mut child, deadline).map_err(|source| NoOutput::Wait {
        program: name(),
        source,
    })?;
    let text = |receiver: mpsc::Receiver<Output>| {
        let patience = deadline.remaining().max(POLL);
        let text = receiver.recv_timeout(patience);
        text.map_err(|_| NoOutput::Held(name()))
    };
    match ended {
        None => Err(NoOutput::Late(name())),
        Some(true) => text(out),
        Some(false) => {
            let words = text(err).map(|output| output.text).unwrap_or_default();
            let first = words.lines().next().unwrap_or_default();
            Err(NoOutput::Failed {
                program: name(),
                first: first.to_owned(),
            })
        }
    }
}

/// A running program.
trait Running {
    /// Whether the program succeeded; `None` while it is running.
    fn ended(&mut self) -> io::Result<Option<bool>>;

    /// Kills it with SIGKILL.
    fn kill(&mut self) -> io::Result<()>;
}

impl Running for Child {
    fn ended(&mut self) -> io::Result<Option<bool>> {
        Ok(self.try_wait()?.map(|status| status.success()))
    }

    fn kill(&mut self) -> io::Result<()> {
        Self::kill(self)
    }
}

/// Whether the program succeeded; `None` if it did not exit in time. In that case it is killed. If the program still
/// does not exit, init reaps it later.
fn wait(program: &mut impl Running, deadline: Deadline) -> io::Result<Option<bool>> {
    if let Some(success) = poll(program, deadline)? {
        return Ok(Some(success));
    }
    program.kill()?;
    poll(program, Deadline::after(KILLED))?;
    Ok(None)
}

fn poll(program: &mut impl Running, deadline: Deadline) -> io::Result<Option<bool>> {
    loop {
        let ended = program.ended()?;
        if ended.is_some() || deadline.passed() {
            return Ok(ended);
        }
        thread::sleep(POLL);
    }
}

/// Reads a pipe to its end on a separate thread, so that the program never waits for a reader.
fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Output> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let read = move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            drop(pipe.by_ref().take(MAX_OUTPUT_LEN).read_to_end(&mut bytes));
            let more = io::copy(&mut pipe, &mut io::sink());
            let is_cut = more.is_ok_and(|more| more > 0);
            if is_cut {
                // Drop the incomplete line, because the redactor would not recognize a part of a secret.
                let line = bytes.iter().rposition(|byte| *byte == b'\n');
                bytes.truncate(line.map_or(0, |end| end + 1));
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            drop(sender.send(Output { text, is_cut }));
        }
    };
    drop(thread::Builder::new().spawn(read));
    receiver
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::errors::error_chain;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// The output of a program, or the error text with its causes.
    fn told(program: &str, arguments: &[&str], patience: Duration) -> Result<Output, String> {
        output(program, arguments, patience).map_err(|error| error_chain(&error))
    }

    #[test]
    fn a_shell_reads_the_path_in_a_command_as_one_word() {
        let plain = "/usr/bin/kubelet-authenticator-tpm";
        assert_eq!(quoted(plain), plain);
        for path in ["/opt/kube tools/plugin", "/opt/it's/$HOME;`x`/plugin"] {
            let script = format!("printf '<%s>' {}", quoted(path));
            let printed = output("sh", &["-c", &script], PATIENCE).unwrap();
            assert_eq!(printed.text, format!("<{path}>"));
        }
    }

    #[test]
    fn program_output_is_read_and_a_failure_shows_its_first_error_line() {
        let sh = |script| told("sh", &["-c", script], PATIENCE).map(|output| output.text);

        assert_eq!(sh("echo one; echo two"), Ok("one\ntwo\n".to_owned()));
        assert_eq!(
            sh("echo a >&2; echo b >&2; exit 3"),
            Err("sh failed: a".to_owned())
        );
        let missing = told("/missing", &[], PATIENCE).unwrap_err();
        assert!(missing.starts_with("cannot run /missing: "), "{missing}");
    }

    #[test]
    fn output_larger_than_a_pipe_buffer_is_read() {
        let output = output("sh", &["-c", "yes | head -c 1000000"], PATIENCE).unwrap();
        assert_eq!((output.text.len(), output.is_cut), (1_000_000, false));
    }

    #[test]
    fn long_output_is_truncated_at_a_line_and_marked() {
        let script = "yes abcdef | head -c 5000000";
        let output = output("sh", &["-c", script], PATIENCE).unwrap();
        assert_eq!((output.text.len(), output.is_cut), (4_194_302, true));
        assert!(output.text.ends_with("abcdef\n"));
    }

    #[test]
    fn output_held_open_by_a_background_process_is_an_error() {
        let script = "echo one; sleep 60 &";
        let error = told("sh", &["-c", script], Duration::from_secs(3)).unwrap_err();
        assert_eq!(
            error,
            "sh has exited, but another program keeps its output open"
        );
    }

    #[test]
    fn a_hanging_program_is_killed() {
        let error = told("sleep", &["600"], Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "sleep did not exit in time");
    }

    /// Simulates a program in an uninterruptible sleep.
    #[derive(Default)]
    struct Hanging {
        kills: u32,
    }

    impl Running for Hanging {
        fn ended(&mut self) -> io::Result<Option<bool>> {
            Ok(None)
        }

        fn kill(&mut self) -> io::Result<()> {
            self.kills += 1;
            Ok(())
        }
    }

    #[test]
    fn a_program_that_survives_a_kill_is_abandoned_after_a_second() {
        let mut program = Hanging::default();

        let ended = wait(&mut program, Deadline::after(POLL));

        assert_eq!((ended.unwrap(), program.kills), (None, 1));
    }
}
