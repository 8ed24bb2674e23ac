//! Commands that read from a management cluster: their options and output formats.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kubelet_attestation::ensure;
use kubelet_attestation::text::{is_invisible, visible, visible_json};
use node_attestation_runtime::client::ClusterAccess;
use serde::Serialize;

use crate::access::for_person;
use crate::error::{BoxError, Hinted};

/// The spaces between two columns.
const GAP: usize = 3;

/// The options of every command about a management cluster.
#[derive(Debug, Args)]
pub(crate) struct QueryOptions {
    /// Kubeconfig of the management cluster. Default: KUBECONFIG, then ~/.kube/config, then the cluster of the Pod
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig, instead of the current context
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
    /// Namespace of the Cluster, instead of the namespace in the context. Without this option, lists contain the
    /// objects in all namespaces
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, global = true, default_value_t = Format::Table)]
    pub(crate) output: Format,
}

/// The confirmation of a command that changes the permissions of nodes.
#[derive(Debug, Args)]
pub(crate) struct Confirmation {
    /// Do not ask for confirmation. Required without a terminal
    #[arg(long)]
    yes: bool,
    /// Print the effect without making a change
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

impl Confirmation {
    /// Checks that the command has `--yes` or `--dry-run`, or a terminal for the confirmation.
    ///
    /// # Errors
    ///
    /// Returns an error if the command has neither option, and no terminal is available.
    pub(crate) fn check(&self) -> Result<(), BoxError> {
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        let unconfirmed = || {
            let what = "this command requires a confirmation, but no terminal is available";
            Hinted::unconfirmed(what, "check the arguments, then add --yes")
        };
        ensure!(self.yes || self.dry_run || can_ask, unconfirmed().into());
        Ok(())
    }

    /// Prints the effect of the command. Unless `--yes` or `--dry-run` is set, waits for the operator's confirmation.
    /// Returns whether to run the command.
    ///
    /// # Errors
    ///
    /// Returns an error if the answer is neither `y` nor `yes`.
    pub(crate) fn ask(&self, effect: &str) -> Result<bool, BoxError> {
        self.check()?;
        let mut terminal = io::stderr();
        writeln!(terminal, "{}", visible(effect))?;
        if self.yes || self.dry_run {
            return Ok(self.yes);
        }
        write!(terminal, "Continue? [y/N] ")?;
        terminal.flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        let unconfirmed = || {
            Hinted::unconfirmed(
                "not confirmed, so nothing was changed",
                "answer y, or set --yes",
            )
        };
        ensure!(is_yes(&answer), unconfirmed().into());
        Ok(true)
    }
}

fn is_yes(answer: &str) -> bool {
    let answer = answer.trim();
    ["y", "yes"]
        .iter()
        .any(|yes| answer.eq_ignore_ascii_case(yes))
}

/// A form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for terminals.
    Table,
    /// API objects as JSON.
    Json,
    /// API objects as YAML.
    Yaml,
}

impl Format {
    /// Formats the output, either as objects or as a table.
    pub(crate) fn print(
        self,
        objects: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<String, BoxError> {
        Ok(match self {
            Self::Table => table(),
            Self::Json => json(objects)?,
            Self::Yaml => {
                let yaml = serde_saphyr::to_string(objects)?;
                let is_visible = |letter| letter == '\n' || !is_invisible(letter);
                // YAML can escape invisible characters only in double quotes, so the output is JSON, which is valid
                // YAML.
                if yaml.chars().all(is_visible) {
                    yaml
                } else {
                    json(objects)?
                }
            }
        })
    }
}

impl QueryOptions {
    /// Returns access to the management cluster.
    pub(crate) async fn access(&self) -> Result<ClusterAccess, BoxError> {
        for_person(self.kubeconfig.clone(), self.context.as_deref()).await
    }

    /// The namespace of one object, from the option or the context.
    pub(crate) fn namespace_of(&self, access: &ClusterAccess) -> String {
        let given = self.namespace.as_deref();
        given
            .unwrap_or(access.client().default_namespace())
            .to_owned()
    }
}

fn json(objects: &impl Serialize) -> Result<String, BoxError> {
    Ok(visible_json(&serde_json::to_string_pretty(objects)?) + "\n")
}

/// Formats a table. The columns are as wide as their contents. Invisible characters become spaces.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0) + GAP
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // A write to a string cannot fail.
            let _ = write!(line, "{:width$}", visible(cell));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The line width of texts for users.
const WIDTH: usize = 80;

/// Appends the words in lines of [`WIDTH`], after a margin that begins with `first`. If a word is longer than a line,
/// it gets a separate line. Invisible characters become spaces.
pub(crate) fn wrapped(first: &str, margin: usize, words: &str, text: &mut String) {
    let mut line = format!("{first:margin$}");
    let mut is_begun = false;
    let words = visible(words);
    for word in words.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.extend([line.trim_end(), "\n"]);
            line = " ".repeat(margin);
            is_begun = false;
        }
        line.extend([if is_begun { " " } else { "" }, word]);
        is_begun = true;
    }
    text.extend([line.trim_end(), "\n"]);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_y_or_yes_confirms_a_command() {
        for answer in ["y\n", "Y\n", "yes\n", " YES \n"] {
            assert!(is_yes(answer), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "no\n", "yess\n", "y n\n"] {
            assert!(!is_yes(answer), "{answer:?}");
        }
    }

    #[test]
    fn yaml_with_invisible_characters_is_written_as_json() {
        let print = |text: &str| {
            let object = json!({ "name": text });
            let yaml = Format::Yaml.print(&object, String::new).unwrap();
            let read: Value = serde_saphyr::from_str(&yaml).unwrap();
            assert_eq!(read, object);
            yaml
        };

        assert_eq!(print("prod-1"), "name: prod-1\n");
        for text in ["a\u{202e}b", "a\u{9b}b", "a\u{1b}[2Jb"] {
            let yaml = print(text);
            assert!(
                yaml.chars()
                    .all(|letter| letter == '\n' || !is_invisible(letter)),
                "{yaml:?}"
            );
        }
    }
}
