//! Runs the program in its arguments, and writes the program's peak memory (KiB) and CPU time (microseconds) to stderr.
//!
//! The peak memory of a child includes the memory of its parent at the start. Therefore, the parent is a separate,
//! small program.

use std::process::{Command, ExitCode, Stdio};

use nix::sys::resource::{UsageWho, getrusage};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        return ExitCode::from(2);
    };
    let status = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let (Ok(status), Ok(usage)) = (status, getrusage(UsageWho::RUSAGE_CHILDREN)) else {
        return ExitCode::from(3);
    };
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    eprintln!(
        "{} {}",
        usage.max_rss(),
        micros(usage.user_time()) + micros(usage.system_time())
    );
    if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
