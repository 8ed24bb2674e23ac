//! Checks the page with the options of the controller and of its external signer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kubelet_authenticator_tests::snapshot::assert_file;

use crate::commands::{CONTROLLER, Help};

pub const SIGNER: &str = "node-attestation-signer-pkcs11";

const PREAMBLE: &str = "\
# Controller options

This page lists every command and option of `node-attestation-controller` and of `node-attestation-signer-pkcs11`. Each command
also has the option `--help`. `node-attestation-controller man` prints manual pages.

The tests write this page from `--help` of the programs:
`UPDATE=1 cargo test -p kubelet-authenticator-tests --test book`.

## Environment variables

| variable | used by | effect |
| --- | --- | --- |
| `KUBECONFIG` | each command except `run` | Kubeconfig files, as for kubectl. `--kubeconfig` overrides these files. |
| `HOME` | each command except `run` | Directory of `.kube/config`, the kubeconfig without `--kubeconfig` and `KUBECONFIG`. |
| `HTTPS_PROXY`, `https_proxy` | each command | Proxy for API servers whose kubeconfig does not specify a proxy. `run` also uses this proxy for STS and EC2. |
| `NO_PROXY`, `no_proxy` | each command | Hosts that the program calls without the proxy. |
| `AWS_USE_FIPS_ENDPOINT` | `run` | `true`: FIPS endpoints for EC2 and `AssumeRole`. Set `--aws-sts-endpoint` for `GetCallerIdentity`. |
| variables of the AWS SDK | `run` | Credentials of the controller, such as `AWS_WEB_IDENTITY_TOKEN_FILE`. |
";

/// The variables in the table that the controller itself reads. The API server client and the AWS SDK read the other
/// variables.
const VARIABLES: [&str; 7] = [
    "KUBECONFIG",
    "HOME",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "AWS_USE_FIPS_ENDPOINT",
];

/// An option or an argument of a command.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    usage: String,
    default: String,
    about: String,
}

impl Entry {
    fn row(&self) -> String {
        let default = match self.default.as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let about = self.about.replace('|', "\\|");
        format!("`{}` | {default} | {about} |\n", self.usage)
    }
}

/// The help of a command.
struct Command {
    words: Vec<String>,
    about: String,
    usage: String,
    subcommands: Vec<String>,
    /// Headings with their entries.
    sections: Vec<(String, Vec<Entry>)>,
    /// The exit codes, as rows of a table.
    exit_codes: String,
}

impl Command {
    fn read(words: Vec<String>, help: &mut Help) -> Self {
        let text = help.of(&words);
        let (about, rest) = text.split_once("\n\nUsage: ").unwrap();
        let (usage, rest) = rest.split_once('\n').unwrap();
        let mut command = Self {
            about: about.split_whitespace().collect::<Vec<_>>().join(" "),
            usage: usage.to_owned(),
            subcommands: Vec::new(),
            sections: Vec::new(),
            exit_codes: String::new(),
            words,
        };
        let mut lines = rest.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(heading) = line.strip_suffix(':').filter(|line| !line.starts_with(' ')) else {
                assert_eq!(line.trim(), "", "{:?}", command.words);
                continue;
            };
            let mut section = Vec::new();
            while let Some(line) = lines.next_if(|line| line.is_empty() || line.starts_with(' ')) {
                section.push(line);
            }
            if heading == "Commands" {
                let names = section
                    .iter()
                    .filter_map(|line| line.split_whitespace().next());
                command.subcommands = names.map(str::to_owned).collect();
            } else if heading == "Exit codes" {
                let rows = section
                    .iter()
                    .filter_map(|line| line.trim().split_once("  "));
                let rows = rows.map(|(code, meaning)| format!("| {code} | {} |\n", meaning.trim()));
                command.exit_codes = format!(
                    "| code | meaning |\n| --- | --- |\n{}",
                    rows.collect::<String>()
                );
            } else {
                command
                    .sections
                    .push((heading.to_owned(), entries(&section)));
            }
        }
        command
    }
}

/// The entries in a section, without the options for help and version that every program has.
fn entries(lines: &[&str]) -> Vec<Entry> {
    let begins = |line: &&str| {
        let text = line.trim_start();
        line.len() - text.len() < 8 && text.starts_with(['-', '<', '['])
    };
    let mut entries = Vec::new();
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        assert!(begins(line), "{line}");
        let (usage, first) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        let (about, values) = first
            .trim()
            .split_once(" [possible values: ")
            .unwrap_or((first.trim(), ""));
        let mut entry = Entry {
            usage: usage.to_owned(),
            default: String::new(),
            about: about.to_owned(),
        };
        if let Some(values) = values.strip_suffix(']') {
            let _ = write!(entry.about, ". Values: `{}`", values.replace(", ", "`, `"));
        }
        while let Some(line) = lines.next_if(|line| !begins(line)) {
            entry.add(line.trim());
        }
        if !entry.usage.ends_with("--help") && !entry.usage.ends_with("--version") {
            entries.push(entry);
        }
    }
    entries
}

impl Entry {
    fn add(&mut self, line: &str) {
        if let Some(default) = line.strip_prefix("[default: ") {
            default.trim_end_matches(']').clone_into(&mut self.default);
        } else if line == "Possible values:" {
            self.about += ". Values:";
        } else if let Some(value) = line.strip_prefix("- ") {
            let (value, about) = value.split_once(':').unwrap_or((value, ""));
            let first = self.about.ends_with("Values:");
            self.about += if first { " " } else { "; " };
            let _ = write!(self.about, "`{value}`: {}", about.trim());
        } else if !line.is_empty() {
            self.about += if self.about.is_empty() { "" } else { " " };
            self.about += line;
        }
    }
}

/// Appends the command and all commands below it.
fn read(words: Vec<String>, help: &mut Help, all: &mut Vec<Command>) {
    let command = Command::read(words, help);
    let below = command.subcommands.clone();
    let words = command.words.clone();
    all.push(command);
    for name in below {
        let words = words.iter().cloned().chain([name]).collect();
        read(words, help, all);
    }
}

/// The tables on the page, generated from the output of the programs.
fn options() -> String {
    let mut help = Help::default();
    let mut all = Vec::new();
    read(vec![CONTROLLER.to_owned()], &mut help, &mut all);
    // A common table contains the options that many commands share.
    let mut commands_of: BTreeMap<Entry, usize> = BTreeMap::new();
    for (_, entries) in all.iter().flat_map(|command| &command.sections) {
        for entry in entries.iter().filter(|entry| entry.usage.starts_with('-')) {
            *commands_of.entry(entry.clone()).or_default() += 1;
        }
    }
    let common = |entry: &Entry| commands_of.get(entry).is_some_and(|count| *count > 3);
    let is_run = |command: &Command| command.words.last().is_some_and(|word| word == "run");
    let mut page = format!(
        "{PREAMBLE}\n## Exit codes of the controller\n\n{}\n## Common options\n\n\
         Options of each command that reads a management cluster, except `run`:\n\n\
         | option | default | meaning |\n| --- | --- | --- |\n",
        all.first().unwrap().exit_codes
    );
    for entry in commands_of.keys().filter(|entry| common(entry)) {
        page += &format!("| {}", entry.row());
    }
    for command in &all {
        section(
            command,
            |entry| common(entry) && !is_run(command),
            &mut page,
        );
    }
    let signer = Command::read(vec![SIGNER.to_owned()], &mut help);
    section(&signer, |_| false, &mut page);
    page += "\nExit codes:\n\n";
    page += &signer.exit_codes;
    page
}

fn section(command: &Command, common: impl Fn(&Entry) -> bool, page: &mut String) {
    let level = "#".repeat(command.words.len().min(2) + 1);
    let name = command.words.join(" ");
    let about = &command.about;
    let _ = write!(
        page,
        "\n{level} {name}\n\n{about}.\n\n```text\n{}\n```\n",
        command.usage
    );
    for (heading, entries) in &command.sections {
        let rows: String = entries
            .iter()
            .filter(|entry| !common(entry))
            .map(|entry| format!("| {}", entry.row()))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let column = if heading == "Arguments" {
            "argument"
        } else {
            "option"
        };
        let _ = write!(
            page,
            "\n{heading}:\n\n| {column} | default | meaning |\n| --- | --- | --- |\n{rows}"
        );
    }
}

#[test]
fn the_options_page_lists_every_option() {
    assert_file("docs/controller-options.md", &options());
}

#[test]
fn each_listed_variable_is_read_by_the_controller() {
    let sources = kubelet_authenticator_tests::docs::sources().into_iter();
    let sources = sources.filter(|source| source.path.starts_with("controller/manager/src"));
    let code: String = sources.map(|source| source.text).collect();

    for name in VARIABLES {
        assert!(PREAMBLE.contains(&format!("`{name}`")), "{name}");
        assert!(code.contains(&format!("\"{name}\"")), "{name}");
    }
}
