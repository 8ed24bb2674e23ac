//! The log on standard error. The kubelet writes it to its journal.

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use kubelet_attestation::text::{visible, visible_lines};
use serde::Serialize;

use crate::failure::Failure;

/// The format of the log: plain text, or one JSON object per line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// Writes to standard error, and nowhere else. Messages contain no secrets.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Log {
    /// Log format on standard error.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    log_format: Format,
    /// Log every step and its duration.
    #[arg(long, short, global = true, help_heading = "Output")]
    verbose: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    level: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'a str,
    /// The command that helps to find the cause.
    #[serde(skip_serializing_if = "str::is_empty")]
    diagnosis: &'a str,
}

impl Log {
    /// Logs a step of the run, if verbose.
    pub(crate) fn step(self, message: &str) {
        if self.verbose {
            self.write("info", message, None, "");
        }
    }

    /// Logs a warning. The run continues.
    pub(crate) fn warn(self, message: &str) {
        self.write("warning", message, None, "");
    }

    /// Logs a warning with a hint. The run continues.
    pub(crate) fn warn_with_remedy(self, message: &str, remedy: &str) {
        self.write_line("warning", message, None, remedy, "");
    }

    /// Logs a failure as a warning, because the run still prints a credential.
    pub(crate) fn warn_of(self, message: &str, failure: &Failure) {
        let message = format!("{message}: {failure}");
        self.write("warning", &message, Some(failure), "");
    }

    /// Logs the failure that ends the run.
    pub(crate) fn fail(self, failure: &Failure) {
        self.write("error", failure.what(), Some(failure), "");
    }

    /// Logs the failure that ends the run, with the command that helps to find the cause.
    pub(crate) fn fail_with_diagnosis(self, failure: &Failure, command: &str) {
        self.write("error", failure.what(), Some(failure), command);
    }

    fn write(self, level: &str, message: &str, failure: Option<&Failure>, diagnosis: &str) {
        let code = failure.map(|failure| failure.code().number());
        let remedy = failure.map_or("", Failure::remedy);
        self.write_line(level, message, code, remedy, diagnosis);
    }

    fn write_line(
        self,
        level: &str,
        message: &str,
        code: Option<u8>,
        remedy: &str,
        diagnosis: &str,
    ) {
        let (message, diagnosis) = (&visible(message), &visible(diagnosis));
        let text = match self.log_format {
            Format::Text => {
                let mut lines = format!("{level}: {message}\n");
                if !remedy.is_empty() {
                    lines.extend(["hint: ", remedy, "\n"]);
                }
                if !diagnosis.is_empty() {
                    lines.extend(["hint: to find the cause, run: ", diagnosis, "\n"]);
                }
                lines
            }
            Format::Json => {
                let line = Line {
                    level,
                    message,
                    code,
                    remedy,
                    diagnosis,
                };
                serde_json::to_string(&line).unwrap_or_default() + "\n"
            }
        };
        show(&text);
    }
}

/// Writes lines to standard error, without characters that could control a terminal. All output to standard error goes
/// through this function. If standard error is closed, the run continues.
pub(crate) fn show(lines: &str) {
    drop(
        io::stderr()
            .lock()
            .write_all(visible_lines(lines).as_bytes()),
    );
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let sources = entries.flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                vec![path]
            } else {
                Vec::new()
            }
        });
        sources.collect()
    }

    #[test]
    fn only_modules_that_sanitize_text_write_to_the_terminal() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let writes = [
            "io::stdout",
            "io::stderr",
            "print!(",
            "println!(",
            "error.print()",
        ];
        let mut doors: Vec<_> = sources(&root)
            .into_iter()
            .filter(|path| {
                let text = fs::read_to_string(path).unwrap();
                let code = text.split("\nmod tests {").next().unwrap_or_default();
                writes.iter().any(|write| code.contains(write))
            })
            .map(|path| path.strip_prefix(&root).unwrap().to_owned())
            .collect();
        doors.sort();

        // `rescue` prints the credential as JSON for client-go.
        assert_eq!(
            doors,
            ["cli/answer.rs", "log.rs", "rescue.rs"].map(PathBuf::from)
        );
    }
}
