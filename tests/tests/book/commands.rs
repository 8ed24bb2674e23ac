//! Checks the commands and files that the pages name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use kubelet_authenticator_tests::page::{self, repository};
use kubelet_authenticator_tests::program;

use crate::markdown::{blocks, inline_code};
use crate::{PLUGIN, PLUGINS, pages};

pub const CONTROLLER: &str = "node-attestation-controller";

/// The commands in console blocks, without their prompts, and the complete text of script blocks.
fn commands(page: &str) -> Vec<String> {
    let scripts = blocks(page, "sh").into_iter().map(str::to_owned);
    let consoles = blocks(page, "console").into_iter().map(|block| {
        let block = block.replace("\\\n", " ");
        let lines = block.lines().map(str::trim_start);
        let lines = lines.filter_map(|line| line.strip_prefix("$ ").or(line.strip_prefix("# ")));
        lines.collect::<Vec<_>>().join("\n")
    });
    let blocks = scripts.chain(consoles);
    let lines: Vec<String> = blocks
        .flat_map(|block| {
            let block = block.replace("\\\n", " ");
            block.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    lines.into_iter().chain(inline_code(page)).collect()
}

/// The words in each simple command on the line, without the text after a redirection.
fn words(line: &str) -> Vec<Vec<String>> {
    let line = line.replace("<provider>", "aws");
    let line = line.replace("$(", "|").replace("&&", "|").replace(';', "|");
    let commands = line.split(['|', '>', '&']);
    commands
        .map(|command| {
            let words = command.split(' ').filter(|word| !word.is_empty());
            let words = words.take_while(|word| !word.starts_with('#'));
            words
                .map(|word| word.trim_matches('\'').to_owned())
                .collect()
        })
        .collect()
}

/// The program that this word starts.
fn started(word: &str) -> Option<String> {
    let name = word.rsplit('/').next()?;
    if name == CONTROLLER {
        return Some(CONTROLLER.to_owned());
    }
    let provider = name.strip_prefix(PLUGIN)?;
    let provider = PLUGINS.into_iter().find(|known| *known == provider)?;
    Some(format!("{PLUGIN}{provider}"))
}

/// The help of each command that the pages name.
#[derive(Default)]
pub struct Help(BTreeMap<Vec<String>, String>);

impl Help {
    pub fn of(&mut self, command: &[String]) -> &str {
        self.0.entry(command.to_owned()).or_insert_with(|| {
            let (name, arguments) = command.split_first().unwrap();
            let mut process = Command::new(program(name));
            let output = process.args(arguments).arg("--help").env_clear().output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        })
    }

    /// The names of the commands directly below this command.
    pub fn commands(&mut self, command: &[String]) -> Vec<String> {
        let help = self.of(command);
        let Some((_, list)) = help.split_once("\nCommands:\n") else {
            return Vec::new();
        };
        let lines = list.lines().take_while(|line| !line.is_empty());
        let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The entry for the flag in the help of the command, or of a command above it.
    fn flag(&mut self, command: &[String], flag: &str) -> Option<String> {
        (1..=command.len()).rev().find_map(|length| {
            let lines = self.of(&command[..length]).lines().map(str::trim_start);
            let mut entries = lines.filter(|line| line.starts_with('-'));
            let entry = entries.find(|line| {
                let mut words = line.split([' ', ',']);
                words.any(|word| word == flag)
            });
            entry.map(str::to_owned)
        })
    }

    /// The error message, if the command or one of its flags does not exist.
    fn objection(&mut self, words: &[String]) -> Option<String> {
        let name = started(words.first()?)?;
        let mut command = vec![name];
        let mut words = words[1..].iter();
        let mut descends = true;
        while let Some(word) = words.next() {
            if word.starts_with("--") || (word.starts_with('-') && word.len() == 2) {
                let (flag, value) = match word.split_once('=') {
                    Some((flag, _)) => (flag, true),
                    None => (word.as_str(), false),
                };
                let Some(entry) = self.flag(&command, flag) else {
                    return Some(format!("{command:?} has no {flag}"));
                };
                if entry.contains('<') && !value {
                    words.next();
                }
            } else if descends && word.starts_with(|letter: char| letter.is_ascii_lowercase()) {
                let known = self.commands(&command);
                descends = known.contains(word);
                if descends {
                    command.push(word.clone());
                } else if !known.is_empty() {
                    return Some(format!("{command:?} has no {word}"));
                }
            } else {
                descends = false;
            }
        }
        None
    }
}

#[test]
fn every_command_and_flag_of_our_programs_exists() {
    let mut help = Help::default();
    let mut objections = Vec::new();
    let mut count = 0;
    for (path, text) in pages() {
        for words in commands(&text).iter().flat_map(|line| words(line)) {
            count += usize::from(words.first().is_some_and(|word| started(word).is_some()));
            let objection = help.objection(&words);
            objections.extend(objection.map(|objection| format!("{path}: {objection}")));
        }
    }

    assert!(count > 80, "only {count} commands are found");
    assert_eq!(objections, Vec::<String>::new());
}

#[test]
fn documented_resets_and_revocations_have_yes_or_dry_run() {
    let mut unconfirmed = Vec::new();
    let mut count = 0;
    for (path, text) in pages() {
        for words in commands(&text).iter().flat_map(|line| words(line)) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let [
                program,
                "identities",
                "reset" | "revoke" | "floor",
                arguments @ ..,
            ] = words.as_slice()
            else {
                continue;
            };
            // A command without arguments is only named.
            if started(program).as_deref() != Some(CONTROLLER) || arguments.is_empty() {
                continue;
            }
            count += 1;
            let is_confirmed = |word: &&str| ["--yes", "--dry-run", "--help"].contains(word);
            if !arguments.iter().any(is_confirmed) {
                unconfirmed.push(format!("{path}: {}", words.join(" ")));
            }
        }
    }

    assert!(count > 8, "only {count} commands are found");
    assert_eq!(unconfirmed, Vec::<String>::new());
}

/// The commands below this command that have no commands below them, without the name of the program.
fn leaves(help: &mut Help, command: &[String]) -> Vec<String> {
    let below = help.commands(command);
    if below.is_empty() {
        return vec![command[1..].join(" ")];
    }
    let below = below.into_iter();
    let leaves = below.flat_map(|name| leaves(help, &[command, &[name]].concat()));
    leaves.collect()
}

#[test]
fn the_page_of_plugin_commands_lists_every_command() {
    let pages = pages();
    let mut parts = pages["docs/plugin-commands.md"].split("\n\n");
    let table = parts.find(|part| part.starts_with("| command | description |"));
    let listed = inline_code(table.unwrap());
    let mut help = Help::default();
    let mut missing = BTreeSet::new();
    for provider in PLUGINS {
        let commands = leaves(&mut help, &[format!("{PLUGIN}{provider}")]);
        assert!(commands.len() > 15, "{commands:?}");
        missing.extend(commands.into_iter().filter(|command| {
            let is_command = |code: &str| {
                let rest = code.strip_prefix(command.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            };
            !listed.iter().any(|code| is_command(code))
        }));
    }

    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn a_page_that_renders_a_file_names_the_packaged_plugin() {
    let programs = program("kubelet-authenticator-aws");
    let path = format!("{}:/usr/bin:/bin", programs.parent().unwrap().display());
    let mut count = 0;
    for name in [
        "aws.md",
        "tpm.md",
        "tutorial-ec2.md",
        "tutorial-tpm.md",
        "enable-cluster.md",
        "start.md",
    ] {
        let commands = page::commands(name, '$').into_iter();
        for command in commands.filter(|it| it.starts_with(PLUGIN) && it.contains(" render ")) {
            let script = command.split(" > ").next().unwrap();
            let mut shell = Command::new("bash");
            let run = shell.args(["-euc", script]).env("PATH", &path).output();
            let run = run.unwrap();
            let (rendered, said) = (
                String::from_utf8(run.stdout).unwrap(),
                String::from_utf8(run.stderr).unwrap(),
            );
            assert!(run.status.success(), "{name}: {command}: {said}");
            let plugin = command.split(' ').next().unwrap();
            let runs = format!("ExecStartPre=-/usr/bin/{plugin} setup");
            assert!(rendered.contains(&runs), "{name}: {command}: {rendered}");
            assert_eq!(said, "", "{name}: {command}");
            count += 1;
        }
    }
    assert!(count >= 4, "only {count} commands are found");
}

/// The names that follow the occurrences of the marker.
fn names_after<'a>(text: &'a str, marker: &str) -> Vec<&'a str> {
    let is_outside = |it: char| !it.is_ascii_alphanumeric() && it != '-' && it != '_';
    let rests = text.split(marker).skip(1);
    let names = rests.map(|rest| rest.split(is_outside).next().unwrap());
    names.collect()
}

#[test]
fn every_page_has_the_same_challenge_key_secret() {
    const SECRET: &str = "challenge-keys";
    const NAMESPACE: &str = "node-attestation-system";
    let mut counts = BTreeMap::new();
    for (path, text) in pages() {
        let mut found = Vec::new();
        let lines = commands(&text);
        for line in &lines {
            let Some((_, rest)) = line.split_once("secret generic ") else {
                continue;
            };
            if line.contains("challenge") || line.contains("current") {
                let words: Vec<&str> = line.split([' ', '=']).collect();
                let mut pairs = words.windows(2);
                let of = pairs.find(|pair| ["-n", "--namespace"].contains(&pair[0]));
                let namespace = of.map(|pair| pair[1]).unwrap_or_default();
                found.push(("command", rest.split(' ').next().unwrap(), SECRET));
                found.push(("namespace of a command", namespace, NAMESPACE));
            }
        }
        for value in ["challengeKeysSecret=", "challengeKeysSecret: "] {
            let names = names_after(&text, value).into_iter();
            found.extend(names.map(|name| (value, name, SECRET)));
        }
        for line in text.lines().filter(|line| line.contains("name: keys,")) {
            let names = names_after(line, "secretName: ").into_iter();
            found.extend(names.map(|name| ("volume", name, SECRET)));
        }
        let generated = text
            .lines()
            .filter(|line| line.contains("files: [current="));
        for line in generated {
            let name = names_after(line, "{name: ").pop().unwrap_or_default();
            let namespace = names_after(line, "namespace: ").pop().unwrap_or_default();
            found.push(("generator", name, SECRET));
            found.push(("namespace of a generator", namespace, NAMESPACE));
        }
        for (of, name, expected) in found {
            assert_eq!(name, expected, "{path}: {of}");
            *counts.entry(of).or_insert(0) += 1;
        }
        // Only the option has this name. The Secret and the directory have different names.
        for (at, name) in text.match_indices("tpm-challenge-keys") {
            assert!(text[..at].ends_with("--"), "{path}: {name}");
        }
        assert!(!text.contains("-n node-attestation "), "{path}");
    }
    for of in [
        "command",
        "namespace of a command",
        "challengeKeysSecret=",
        "volume",
        "generator",
        "namespace of a generator",
    ] {
        assert!(counts.contains_key(of), "no page has a {of}: {counts:?}");
    }
}

#[test]
fn every_documented_make_target_exists() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let rules = makefile.lines().filter_map(|line| line.split_once(':'));
    let targets: BTreeSet<&str> = rules.flat_map(|(names, _)| names.split(' ')).collect();
    let (mut count, mut missing) = (0, Vec::new());
    for (path, text) in pages() {
        for words in commands(&text).iter().flat_map(|line| words(line)) {
            if words.first().is_none_or(|word| word != "make") {
                continue;
            }
            count += 1;
            let mut names = words[1..].iter().filter(|word| !word.contains('='));
            let unknown = names.find(|name| !targets.contains(name.as_str()));
            missing.extend(unknown.map(|name| format!("{path}: make {name}")));
        }
    }

    assert_eq!(missing, Vec::<String>::new());
    assert!(count > 30, "{count}");
}

#[test]
fn every_repository_file_named_on_a_page_exists() {
    let roots = ["packaging/", "image-builder/", "tests/", "docs/"];
    let (mut count, mut missing) = (0, BTreeSet::new());
    for (path, text) in pages() {
        for line in commands(&text) {
            for word in line.split([' ', '=', ',', '\'', '"', '[', ']', '{', '}']) {
                let word = word.trim_start_matches("../");
                let word = word.split('#').next().unwrap().trim_end_matches(['/', '.']);
                let is_file = roots.iter().any(|root| word.starts_with(root));
                let placeholder = word.contains(['*', '<', '$', '(', ':']);
                let found = [word.to_owned(), format!("{word}.rs")];
                let found = found.iter().any(|file| repository().join(file).exists());
                if is_file && !placeholder {
                    count += 1;
                    if !found {
                        missing.insert(format!("{path}: {word}"));
                    }
                }
            }
        }
    }

    assert_eq!(missing, BTreeSet::new());
    assert!(count > 50, "{count}");
}
