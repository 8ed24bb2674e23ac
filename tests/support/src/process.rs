//! Child processes that cannot outlive the test.
//!
//! # Guarantees
//!
//! - A [`Process`] stops when it is dropped. If the test process ends in any other way, even with SIGKILL, the kernel
//!   kills the [`Process`] with the parent-death signal.
//! - Its environment contains only `PATH` and the variables that the test sets, and no variables from the developer's
//!   environment.
//! - Its output is written to a log file. If a wait fails, the panic message contains the end of that log.

mod address;
mod log;
mod port;
mod scratch;
mod spawner;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub use self::address::HeldAddress;
pub use self::log::{Log, Mark};
pub(crate) use self::port::draw;
pub use self::port::free_port;
pub use self::scratch::Scratch;
pub(crate) use self::spawner::spawn;

/// The interval at which a condition without notifications is checked.
const POLL: Duration = Duration::from_millis(20);

/// The longest pause between two checks of a condition. Checks use at most a fifth of the time, so that other processes
/// can use the processor during a wait.
const SELDOM: Duration = Duration::from_secs(2);

/// A command: its program, arguments and environment.
#[derive(Debug, Clone)]
pub struct Launch {
    name: String,
    wrapper: Vec<OsString>,
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
}

impl Launch {
    /// Creates a command that runs `program`. `name` is its name in messages.
    pub fn new(name: &str, program: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.to_owned(),
            wrapper: Vec::new(),
            command: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            directory: None,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Self {
        arguments.into_iter().fold(self, Launch::arg)
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Starts the command, and appends its output to the file `log`.
    #[track_caller]
    pub fn spawn(&self, log: &Path) -> Process {
        self.spawn_under(&[], log)
    }

    /// Starts the command through `wrapper`, a command whose last arguments are the command to execute.
    ///
    /// The innermost command sets the parent-death signal, because entering a user namespace clears it.
    #[track_caller]
    pub(crate) fn spawn_under(&self, wrapper: &[OsString], log: &Path) -> Process {
        let launch = Self {
            wrapper: wrapper.to_vec(),
            ..self.clone()
        };
        launch.spawn_into(Log::new(log))
    }

    #[track_caller]
    fn spawn_into(self, log: Log) -> Process {
        let mut command = guarded(&self.wrapper, &self.command);
        command
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdout(log.writer())
            .stderr(log.writer());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let start = log.mark();
        let child = spawner::spawn(command)
            .unwrap_or_else(|error| panic!("cannot start {} (with setpriv): {error}", self.name));
        Process {
            launch: self,
            child,
            log,
            start,
        }
    }
}

/// A running child process, which is the leader of its own process group.
#[derive(Debug)]
pub struct Process {
    launch: Launch,
    child: Child,
    log: Log,
    start: Mark,
}

impl Process {
    /// The name of the process in messages.
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// Starts the same command again, with the same log. This process should already have stopped.
    #[track_caller]
    pub fn start_again(&self) -> Self {
        self.launch.clone().spawn_into(self.log.clone())
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The output of the process.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The position in the log file at which the output of this process starts. The file can contain the output of
    /// earlier processes.
    pub fn log_start(&self) -> Mark {
        self.start
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.exit_status().is_none()
    }

    /// The exit status, if the process has stopped.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .unwrap_or_else(|error| panic!("cannot wait for {}: {error}", self.name()))
    }

    /// Waits until the process stops by itself.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        self.poll("end", deadline, Process::exit_status)
    }

    /// Waits until the output of the process since its start contains a line with `needle`.
    ///
    /// Returns that line.
    #[track_caller]
    pub fn wait_for_log(&mut self, needle: &str, deadline: Duration) -> String {
        self.wait_for_log_after(self.start, needle, deadline)
    }

    /// Like [`Process::wait_for_log`], but only for lines after `mark`.
    #[track_caller]
    pub fn wait_for_log_after(&mut self, mark: Mark, needle: &str, deadline: Duration) -> String {
        let what = format!("say {needle:?}");
        self.poll_alive(&what, deadline, |process| {
            process.log.find_after(mark, needle)
        })
    }

    /// Waits until `condition` returns a value. Panics immediately if the process stops earlier.
    #[track_caller]
    pub fn poll_alive<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        self.poll(what, deadline, |process| {
            // The exit status is checked before the condition, so that output before the end still counts.
            let ended = process.exit_status();
            let value = condition(process);
            if let (None, Some(status)) = (&value, ended) {
                panic!(
                    "{} ended ({status}) before it could {what}{}",
                    process.name(),
                    process.log
                );
            }
            value
        })
    }

    #[track_caller]
    fn poll<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        poll(deadline, || condition(self)).unwrap_or_else(|| {
            panic!(
                "{} did not {what} within {deadline:?}{}",
                self.name(),
                self.log
            )
        })
    }

    /// Sends a signal only to this process.
    pub fn signal(&self, signal: Signal) {
        // An error means that the process has ended. The caller detects this in another way.
        kill_process(self.group(), signal).ok();
    }

    /// Terminates the process, and waits until it ends. Kills the process at the deadline.
    pub fn terminate(&mut self, deadline: Duration) {
        self.signal(Signal::TERM);
        poll(deadline, || self.exit_status());
        self.kill();
    }

    /// Kills the process and its whole process group, and waits for the process.
    pub fn kill(&mut self) {
        // The group can exist longer than its leader. The kernel reuses the group's number only after the leader has
        // been waited for, and after all members have ended.
        kill_process_group(self.group(), Signal::KILL).ok();
        self.child.wait().ok();
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates a command whose process is killed when the thread that started it ends, and whose environment contains only
/// `PATH`.
pub(crate) fn guarded<W: AsRef<OsStr>>(wrapper: &[OsString], words: &[W]) -> Command {
    let guard = ["setpriv", "--pdeathsig", "KILL", "--"].map(OsStr::new);
    let mut all = wrapper
        .iter()
        .map(AsRef::as_ref)
        .chain(guard)
        .chain(words.iter().map(AsRef::as_ref));
    let mut command = Command::new(all.next().expect("the guard is never empty"));
    command
        .args(all)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null());
    command
}

/// Checks `condition` until it returns a value, or until the deadline has passed.
pub fn poll<T>(deadline: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(value) = condition() {
            return Some(value);
        }
        if started.elapsed() >= deadline {
            return None;
        }
        // A long wait can take 5 % longer. An API server responds quickly, but each response uses processor time in the
        // test and in the server, and other tests need this time.
        let late = started.elapsed() / 20;
        let cost = asked.elapsed();
        thread::sleep((cost * 4).max(late).clamp(POLL, SELDOM));
    }
}
