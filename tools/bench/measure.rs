//! The cost of one run of a program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The number of runs for the median peak memory.
const PEAK_RUNS: usize = 21;

/// A program with its arguments and environment. The environment contains only the listed variables.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name of the program in the tables.
    pub name: &'static str,
    /// The path of the program's file.
    pub path: PathBuf,
    /// The arguments of the program.
    pub args: Vec<OsString>,
    /// The complete environment of the program.
    pub env: Vec<(OsString, OsString)>,
}

/// The cost of one run. The cost does not include the time, because a measurement of the time requires many runs.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// The size of the file in bytes.
    pub size: u64,
    /// The number of user-space instructions, measured with callgrind.
    pub instructions: u64,
    /// The number of system calls, measured with strace.
    pub system_calls: u64,
    /// The number of system calls that open a file, including files that do not exist.
    pub opens: u64,
    /// The peak resident memory in KiB.
    pub peak_kib: u64,
}

impl Program {
    /// Creates a program without arguments or environment.
    pub fn new(name: &'static str, path: impl Into<PathBuf>) -> Self {
        Self {
            name,
            path: path.into(),
            args: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Adds these arguments.
    pub fn with_args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds these variables.
    pub fn with_env<T: Into<OsString>>(mut self, env: impl IntoIterator<Item = (T, T)>) -> Self {
        self.env.extend(
            env.into_iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        self
    }

    fn command(&self) -> Command {
        self.under::<&str>(None, &[])
    }

    /// The command that runs the program, optionally under a measuring tool.
    fn under<T: AsRef<std::ffi::OsStr>>(&self, tool: Option<&Path>, tool_args: &[T]) -> Command {
        let mut command = match tool {
            Some(tool) => {
                let mut command = Command::new(tool);
                command.args(tool_args).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        command
            .args(&self.args)
            .env_clear()
            .envs(self.env.iter().cloned());
        command
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Runs the program once, and returns the elapsed time.
    pub fn time(&self) -> Duration {
        let mut command = self.command();
        command.stderr(Stdio::null());
        let start = Instant::now();
        let status = command.status().unwrap();
        let elapsed = start.elapsed();
        assert!(status.success(), "{} failed: {status}", self.name);
        elapsed
    }

    /// Measures everything except the time. `peak_memory` is the path of the program `peak-memory`.
    pub fn cost(&self, peak_memory: &Path) -> Cost {
        let (system_calls, opens) = self.system_calls();
        // The part of a program that a page fault maps depends on the program's load address in this run.
        let mut peaks: Vec<u64> = (0..PEAK_RUNS)
            .map(|_| self.peak_memory(peak_memory).0)
            .collect();
        peaks.sort_unstable();
        Cost {
            size: std::fs::metadata(&self.path).unwrap().len(),
            instructions: self.instructions(),
            system_calls,
            opens,
            peak_kib: peaks[peaks.len() / 2],
        }
    }

    /// The number of user-space instructions in a run, measured with callgrind.
    pub fn instructions(&self) -> u64 {
        let args = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
        let output = self
            .under(Some(Path::new("valgrind")), &args)
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        let collected = report
            .lines()
            .find_map(|line| line.split_once("Collected :"));
        let (_, count) =
            collected.unwrap_or_else(|| panic!("{} under callgrind: {report}", self.name));
        count.trim().parse().unwrap()
    }

    /// The names of the functions that a run executes, in the linker's form. The program must contain its symbols.
    pub fn functions(&self) -> BTreeSet<String> {
        let calls = tempfile::NamedTempFile::new().unwrap();
        let mut file = OsString::from("--callgrind-out-file=");
        file.push(calls.path());
        let args = ["--tool=callgrind".into(), "--demangle=no".into(), file];
        let mut command = self.under(Some(Path::new("valgrind")), &args);
        assert!(command.output().unwrap().status.success(), "{}", self.name);
        let calls = std::fs::read_to_string(calls.path()).unwrap();
        // "fn=(3) name" and "cfn=(3) name": the name only appears at the first occurrence.
        let named = calls
            .lines()
            .filter(|line| line.starts_with("fn=") || line.starts_with("cfn="))
            .filter_map(|line| line.split_once(") "));
        named.map(|(_, name)| name.to_owned()).collect()
    }

    fn system_calls(&self) -> (u64, u64) {
        let trace = tempfile::NamedTempFile::new().unwrap();
        let args = [
            OsString::from("-f"),
            "-qq".into(),
            "-o".into(),
            trace.path().into(),
        ];
        let output = self
            .under(Some(Path::new("strace")), &args)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "strace: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let trace = std::fs::read_to_string(trace.path()).unwrap();
        // A line consists of a process ID and a call; lines with "+++" and "---" are exits and signals.
        let calls = trace
            .lines()
            .filter_map(|line| line.split_once(char::is_whitespace))
            .map(|(_, call)| call.trim());
        let calls: Vec<&str> = calls
            .filter(|call| call.contains('(') && !call.starts_with(['+', '-']))
            .collect();
        let opens = calls.iter().filter(|call| call.starts_with("open")).count();
        (calls.len().try_into().unwrap(), opens.try_into().unwrap())
    }

    /// The peak memory in KiB and the CPU time of one run.
    pub fn peak_memory(&self, peak_memory: &Path) -> (u64, Duration) {
        let output = self.under::<&str>(Some(peak_memory), &[]).output().unwrap();
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{} failed under {}: {report}",
            self.name,
            peak_memory.display()
        );
        let (kib, micros) = report.trim().split_once(' ').unwrap();
        (
            kib.parse().unwrap(),
            Duration::from_micros(micros.parse().unwrap()),
        )
    }
}

/// The wall times of programs that run alternately, so that noise affects all programs equally. Returns a sorted list
/// for each program.
pub fn interleaved(programs: &[Program], runs: usize) -> Vec<Vec<Duration>> {
    let mut times = vec![Vec::with_capacity(runs); programs.len()];
    for _ in 0..runs {
        for (program, times) in programs.iter().zip(&mut times) {
            times.push(program.time());
        }
    }
    for times in &mut times {
        times.sort_unstable();
    }
    times
}

/// The value below which this percentage of the sorted times lies.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The peak memory of a process in MiB.
pub fn peak_memory(pid: u32) -> f64 {
    status(pid, "VmHWM:") / 1024.0
}

/// Resets the peak memory of this process to its resident memory, as in `proc_pid_clear_refs(5)`.
pub fn reset_peak_memory() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// The resident memory of a process in MiB.
pub fn resident_memory(pid: u32) -> f64 {
    status(pid, "VmRSS:") / 1024.0
}

/// The number of threads of a process.
pub fn threads(pid: u32) -> f64 {
    status(pid, "Threads:")
}

fn status(pid: u32, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// The processor time of a process with all its threads, in user space and in the kernel.
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field is the name, which can contain any character.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: &str| field.parse::<u32>().unwrap();
    // On every Linux system, the times are in hundredths of a second.
    Duration::from_millis(10) * (ticks(fields[11]) + ticks(fields[12]))
}
