//! The report of one boot.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::disk::Disk;
use crate::process::{Process, Scratch};

/// The number of journal lines in a failure message.
const JOURNAL: usize = 60;

/// The report of a boot, and of the commands that the machine ran.
#[derive(Debug)]
pub struct Boot {
    report: PathBuf,
    /// The end of the output on the serial console.
    console: String,
    _scratch: Scratch,
}

impl Boot {
    /// Reads the report that the machine's system wrote.
    ///
    /// # Panics
    ///
    /// Panics if the machine ended without a report, for example because its kernel panicked.
    #[track_caller]
    pub(super) fn read(disk: &Disk, machine: &Process) -> Self {
        let scratch = Scratch::new("boot");
        disk.copy_out("/report", scratch.path());
        let report = scratch.join("report");
        let ended = report.join("uptime").is_file();
        assert!(ended, "the machine wrote no report{}", machine.log());
        Self {
            report,
            console: machine.log().to_string(),
            _scratch: scratch,
        }
    }

    /// The values of the TPM's registers (PCRs) in the SHA-256 bank, before the commands ran.
    #[track_caller]
    pub fn registers(&self) -> BTreeMap<u8, [u8; 32]> {
        let folder = fs::read_dir(self.report.join("registers"));
        let registers = folder.expect("the kernel shows the registers").map(|file| {
            let file = file.expect("the directory can be listed");
            let number = file.file_name().into_string().expect("it is a number");
            let digits = fs::read_to_string(file.path()).expect("it is text");
            (number.parse().expect("a register"), digest(digits.trim()))
        });
        registers.collect()
    }

    /// The event log, in the format of the TCG. `None` if the boot loader did not pass a log to the kernel.
    pub fn event_log(&self) -> Option<Vec<u8>> {
        fs::read(self.report.join("event-log")).ok()
    }

    /// The arguments of the kernel.
    #[track_caller]
    pub fn arguments(&self) -> String {
        self.text("arguments")
    }

    /// The standard output of the commands.
    #[track_caller]
    pub fn output(&self) -> String {
        self.text("output")
    }

    /// The standard error of the commands.
    #[track_caller]
    pub fn errors(&self) -> String {
        self.text("errors")
    }

    /// The exit status of the commands.
    #[track_caller]
    pub fn status(&self) -> i32 {
        self.text("status").trim().parse().expect("a number")
    }

    /// The messages of the kernel, and the audit messages of SELinux.
    #[track_caller]
    pub fn kernel_log(&self) -> String {
        self.text("kernel")
    }

    /// A file that the commands wrote to the directory `/report`.
    #[track_caller]
    pub fn file(&self, name: &str) -> String {
        self.text(name)
    }

    /// An account of the boot for failure messages: the standard error of the commands, the end of the journal, and the
    /// end of the console.
    pub fn account(&self) -> String {
        let read = |name| fs::read(self.report.join(name)).unwrap_or_default();
        let [errors, journal] =
            ["errors", "journal"].map(|name| String::from_utf8_lossy(&read(name)).into_owned());
        let lines: Vec<_> = journal.lines().collect();
        let end = lines[lines.len().saturating_sub(JOURNAL)..].join("\n");
        let console = &self.console;
        format!("\n--- errors:\n{errors}--- end of the journal:\n{end}{console}")
    }

    #[track_caller]
    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.report.join(name))
            .unwrap_or_else(|error| panic!("no {name} in the report: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The digest with these 64 hexadecimal digits.
#[track_caller]
fn digest(digits: &str) -> [u8; 32] {
    let byte = |at: usize| {
        let pair = digits.get(2 * at..2 * at + 2);
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        byte.unwrap_or_else(|| panic!("{digits:?} is not a digest"))
    };
    assert_eq!(digits.len(), 64, "{digits:?} is not a digest");
    std::array::from_fn(byte)
}
