//! The program that speaks to the TPM: where it is, and how it is asked.

use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kubelet_authenticator::clock::Deadline;

use crate::protocol::{Answer, MAX_LINE_LEN, Question};

const NAME: &str = "kubelet-authenticator-tpm-device";

/// Where the packages put it.
const FOLDER: &str = "/usr/lib/kubelet-authenticator";

/// What the loader says fits in there many times.
const MAX_WORDS_LEN: u64 = 4 * 1024;

/// With what the dynamic loader of glibc ends in place of a program that it cannot load.
const NOT_LOADED: i32 = 127;

/// How often a program that has answered is asked whether it has ended.
const ENDING: Duration = Duration::from_millis(1);

/// The program did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It is nowhere.
    #[error("the program that speaks to the TPM is not installed: {NAME} is not {}", places(.looked))]
    Absent {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// It is there, and what loads it is not.
    #[error("{} cannot be started: this system has no glibc to load it", .program.display())]
    NoLoader {
        /// The program.
        program: PathBuf,
    },
    /// The system does not start it.
    #[error("{} cannot be started", .program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A library is not there, or is none.
    #[error("the library {library} that speaks to TPMs is not installed, or is damaged")]
    Library {
        /// The library.
        library: String,
    },
    /// A library is not the one that it was built for.
    #[error("the libraries that speak to TPMs are not those that {} was built for: {words}", .program.display())]
    OtherLibrary {
        /// The program.
        program: PathBuf,
        /// What the loader says.
        words: String,
    },
    /// This process may have no thread more to hear it.
    #[error("there is no thread to hear the program that speaks to the TPM")]
    NoThread {
        /// The reason.
        source: io::Error,
    },
    /// No answer at the deadline.
    #[error("the TPM did not answer within {waited:.1?}")]
    Slow {
        /// How long we waited.
        waited: Duration,
    },
    /// It ended without an answer.
    #[error("{} ended without an answer ({status}){words}", .program.display())]
    Ended {
        /// The program.
        program: PathBuf,
        /// How.
        status: ExitStatus,
        /// What it said, after ": ".
        words: String,
    },
    /// It answered something else.
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

/// Where the program is: where it is set to be, or else beside this one, or else where the packages
/// put it.
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

/// Starts the program and asks it one question.
///
/// Whatever it does, this ends at the deadline: the library waits for a TPM for ever. It is killed
/// then and not waited for, because a process that is in the middle of a command ends only when the
/// TPM has answered the kernel.
pub(crate) fn ask(
    program: &Path,
    question: &Question,
    deadline: Deadline,
) -> Result<Answer, ProgramError> {
    let given = deadline.remaining();
    let mut child = start(program)?;
    if let Some(mut input) = child.stdin.take() {
        let line = serde_json::to_string(question).unwrap_or_default() + "\n";
        // What the loader has ended has closed its end; how it ended says more.
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
        // It writes a line for everything that goes wrong, on what is the kubelet's journal.
        .env("TSS2_LOG", "all+none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    started.map_err(|source| {
        let program = program.to_owned();
        // It is there, so what is not found is the loader that it names.
        if source.kind() == io::ErrorKind::NotFound && program.exists() {
            ProgramError::NoLoader { program }
        } else {
            ProgramError::NotStarted { program, source }
        }
    })
}

/// What it says on standard output and error, once it has closed both; none at the deadline.
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

/// The first `limit` bytes, once there are no more.
///
/// On a thread of its own, and to the end: a program that cannot get rid of its words waits.
fn text(mut from: impl Read + Send + 'static, limit: u64) -> io::Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is what there is.
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

/// The loader's words, understood.
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
