use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The number of log lines that a failure message contains.
const TAIL_LINES: usize = 25;

/// The number of bytes at the end of a log that are read as its tail.
const TAIL_BYTES: u64 = 16 * 1024;

/// The log file of a process, to which a restarted process appends.
///
/// The `Display` output is the tail of the log.
#[derive(Debug, Clone)]
pub struct Log {
    path: PathBuf,
}

/// A position in a [`Log`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl Log {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    pub(super) fn writer(&self) -> File {
        File::options()
            .create(true)
            .append(true)
            .open(&self.path)
            .unwrap_or_else(|error| panic!("cannot open {}: {error}", self.path.display()))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole text.
    pub fn text(&self) -> String {
        self.since(Mark(0))
    }

    /// The current end of the log.
    pub fn mark(&self) -> Mark {
        Mark(fs::metadata(&self.path).map_or(0, |metadata| metadata.len()))
    }

    /// The text after `mark`.
    pub fn since(&self, mark: Mark) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.path) {
            file.seek(SeekFrom::Start(mark.0))
                .expect("the position in a file can be set");
            file.read_to_end(&mut bytes).expect("a log can be read");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The first complete line after `mark` that contains `needle`.
    pub fn find_after(&self, mark: Mark, needle: &str) -> Option<String> {
        let text = self.since(mark);
        let whole = &text[..=text.rfind('\n')?];
        whole
            .lines()
            .find(|line| line.contains(needle))
            .map(str::to_owned)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.mark().0;
        let text = self.since(Mark(end.saturating_sub(TAIL_BYTES)));
        let lines: Vec<_> = text.lines().collect();
        writeln!(f, "\n--- end of {}:", self.path.display())?;
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            writeln!(f, "{line}")?;
        }
        write!(f, "---")
    }
}
