//! Finds, starts and asks the program that accesses the TPM.

use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kubelet_authenticator::clock::Deadline;

use crate::protocol::{Answer, MAX_LINE_LEN, Question};

const NAME: &str = "kubelet-authenticator-tpm-device";

/// The folder of the packages.
const FOLDER: &str = "/usr/lib/kubelet-authenticator";

/// Many times the length of the loader's message.
const MAX_WORDS_LEN: u64 = 4 * 1024;

/// The exit code of glibc's dynamic loader, if it cannot load a program.
const NOT_LOADED: i32 = 127;

/// The interval of checks whether a program that has answered has exited.
const ENDING: Duration = Duration::from_millis(1);

/// The program did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It is not installed.
    #[error("the program that speaks to the TPM is not installed: {NAME} is not {}", places(.looked))]
    Absent {
        /// The paths that were searched.
        looked: Vec<PathBuf>,
    },
    /// It exists, but its loader does not.
    #[error("{} cannot be started: this system has no glibc to load it", .program.display())]
    NoLoader {
        /// The program.
        program: PathBuf,
    },
    /// The system cannot start it.
    #[error("{} cannot be started", .program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A library is missing or damaged.
    #[error("the library {library} that speaks to TPMs is not installed, or is damaged")]
    Library {
        /// The library.
        library: String,
    },
    /// A library is not the one that the program was built for.
    #[error("the libraries that speak to TPMs are not those that {} was built for: {words}", .program.display())]
    OtherLibrary {
        /// The program.
        program: PathBuf,
        /// The loader's message.
        words: String,
    },
    /// This process cannot start a thread that reads the answer.
    #[error("there is no thread to hear the program that speaks to the TPM")]
    NoThread {
        /// The reason.
        source: io::Error,
    },
    /// There was no answer before the deadline.
    #[error("the TPM did not answer within {waited:.1?}")]
    Slow {
        /// The time of the wait.
        waited: Duration,
    },
    /// It exited without an answer.
    #[error("{} ended without an answer ({status}){words}", .program.display())]
    Ended {
        /// The program.
        program: PathBuf,
        /// Its exit status.
        status: ExitStatus,
        /// Its message, after ": ".
        words: String,
    },
    /// Its answer has another format.
    #[error("{} is of another release than this plugin", .program.display())]
    OtherRelease {
        /// The program.
        program: PathBuf,
    },
}

fn places(looked: &[PathBuf]) -> String {
    let places = looked.iter().map(|path| path.display().to_string());
    places.collect::<Vec<_>>().join(", nor ")
}

/// The path of the program: from the settings, or else beside this program, or else in the folder
/// of the packages.
pub(crate) fn find(set: Option<&Path>) -> Result<PathBuf, ProgramError> {
    let looked = match set {
        Some(set) => vec![set.to_owned()],
        None => std::env::current_exe()
            .ok()
            .map(|this| this.with_file_name(NAME))
            .into_iter()
            .chain([Path::new(FOLDER).join(NAME)])
            .collect(),
    };
    let found = looked.iter().find(|path| path.exists()).cloned();
    found.ok_or(ProgramError::Absent { looked })
}

/// Starts the program and asks it a question.
///
/// Ends at the deadline, whatever the program does: the library waits for a TPM for ever. The
/// program is then killed and not waited for, because a process in the middle of a command ends
/// only when the TPM has answered the kernel.
pub(crate) fn ask(
    program: &Path,
    question: &Question,
    deadline: Deadline,
) -> Result<Answer, ProgramError> {
    let given = deadline.remaining();
    let mut child = start(program)?;
    if let Some(mut input) = child.stdin.take() {
        let line = serde_json::to_string(question).unwrap_or_default() + "\n";
        // The loader closes its end when it fails. Its exit status says more than this error.
        drop(input.write_all(line.as_bytes()));
    }
    let slow = ProgramError::Slow { waited: given };
    let heard = hear(&mut child, deadline);
    let Ok(Some((said, complained))) = heard else {
        drop(child.kill());
        return Err(heard.map_or_else(|source| ProgramError::NoThread { source }, |_| slow));
    };
    let Some(status) = end(&mut child, deadline) else {
        drop(child.kill());
        return Err(slow);
    };
    if status.success() {
        let program = program.to_owned();
        return serde_json::from_str(&said).map_err(|_| ProgramError::OtherRelease { program });
    }
    Err(ended(program, status, &complained))
}

fn start(program: &Path) -> Result<Child, ProgramError> {
    let started = Command::new(program)
        .env_clear()
        // libtss2 logs every error to standard error. Only the loader's messages are of use there.
        .env("TSS2_LOG", "all+none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    started.map_err(|source| {
        let program = program.to_owned();
        // The program exists, so the missing file is the loader that it names.
        if source.kind() == io::ErrorKind::NotFound && program.exists() {
            ProgramError::NoLoader { program }
        } else {
            ProgramError::NotStarted { program, source }
        }
    })
}

/// Its standard output and standard error, once it has closed both. `None` at the deadline.
fn hear(child: &mut Child, deadline: Deadline) -> io::Result<Option<(String, String)>> {
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(None);
    };
    let said = text(out, MAX_LINE_LEN)?;
    let complained = text(err, MAX_WORDS_LEN)?;
    let heard = || {
        let said = said.recv_timeout(deadline.remaining()).ok()?;
        let complained = complained.recv_timeout(deadline.remaining()).ok()?;
        Some((said, complained))
    };
    Ok(heard())
}

/// The first `limit` bytes, once the stream has ended.
///
/// Reads on a thread of its own, and to the end: a program blocks if nobody reads its output.
fn text(mut from: impl Read + Send + 'static, limit: u64) -> io::Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // After a read error, the bytes before it are the text.
        drop(from.by_ref().take(limit).read_to_end(&mut bytes));
        drop(io::copy(&mut from, &mut io::sink()));
        drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
    })?;
    Ok(receiver)
}

fn end(child: &mut Child, deadline: Deadline) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if !deadline.passed() => thread::sleep(ENDING),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// The error of a program that failed, by the loader's message.
fn ended(program: &Path, status: ExitStatus, words: &str) -> ProgramError {
    let program = program.to_owned();
    if status.code() == Some(NOT_LOADED) {
        let library = words
            .split_once("shared libraries: ")
            .and_then(|(_, rest)| rest.split_once(':'));
        if let Some((library, _)) = library {
            return ProgramError::Library {
                library: library.to_owned(),
            };
        }
        if words.contains("symbol lookup error") || words.contains("version `") {
            let words = words.trim().to_owned();
            return ProgramError::OtherLibrary { program, words };
        }
    }
    let words = match words.trim() {
        "" => String::new(),
        words => format!(": {words}"),
    };
    ProgramError::Ended {
        program,
        status,
        words,
    }
}

#[cfg(test)]
mod tests;
