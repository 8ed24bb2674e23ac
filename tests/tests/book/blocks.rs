//! Checks that a test runs every block of commands, unless the block is an example.
//!
//! The line before a block has one of these marks, which neither GitHub nor the book shows:
//!
//! ```text
//! <!-- run by: the_name_of_a_test -->
//! <!-- run by: tests/a/script -->
//! <!-- example: The reason for which no test runs it. -->
//! ```
//!
//! A block in another language, such as a manifest, can also have a mark.
//!
//! The named test or script contains the text of each command, or reads the command from a page. This suite does not
//! check whether the test also runs the command.

use std::collections::BTreeMap;
use std::fs;

use kubelet_authenticator_tests::docs::{TestItems, sources, tests};
use kubelet_authenticator_tests::page::repository;

use crate::all_pages;

/// The languages of commands.
const LANGUAGES: [&str; 4] = ["sh", "console", "bash", "shell"];

/// A block of commands, with the number of its first line.
struct Block {
    line: usize,
    commands: Vec<String>,
    marks: Vec<Mark>,
}

#[derive(Debug, PartialEq, Eq)]
enum Mark {
    RunBy(String),
    Example(String),
}

impl Mark {
    fn parse(line: &str) -> Option<Self> {
        let comment = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        let (kind, value) = comment.split_once(": ")?;
        match kind {
            "run by" => Some(Self::RunBy(value.to_owned())),
            "example" => Some(Self::Example(value.to_owned())),
            _ => None,
        }
    }
}

/// The blocks on the page, and the lines that contain a mark without a block.
fn blocks(page: &str) -> (Vec<Block>, Vec<usize>) {
    let (mut blocks, mut stray) = (Vec::new(), Vec::new());
    let mut marks: Vec<Mark> = Vec::new();
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let trimmed = line.trim_start();
        if let Some(mark) = Mark::parse(trimmed) {
            marks.push(mark);
            continue;
        }
        if let Some(language) = trimmed.strip_prefix("```") {
            let body = lines.by_ref().map(|(line, _)| line.trim());
            let body: Vec<&str> = body.take_while(|line| !line.starts_with("```")).collect();
            if LANGUAGES.contains(&language) || !marks.is_empty() {
                blocks.push(Block {
                    line: number,
                    commands: commands(language, &body),
                    marks: std::mem::take(&mut marks),
                });
            }
        }
        if !marks.is_empty() {
            stray.push(number);
            marks.clear();
        }
    }
    (blocks, stray)
}

/// The commands in a block: the lines that follow a prompt, or the whole script.
fn commands(language: &str, body: &[&str]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut continues = false;
    for line in body.iter().filter(|line| !line.is_empty()) {
        let prompted = line.strip_prefix("$ ").or(line.strip_prefix("# "));
        let command = if language == "console" {
            prompted
        } else {
            Some(*line).filter(|line| !line.starts_with('#'))
        };
        // A line without a prompt belongs to the command, or to its output.
        if let Some(command) = command.or(Some(*line).filter(|_| continues)) {
            let part = command.trim_end_matches('\\').trim();
            if continues {
                let last = commands.last_mut().unwrap();
                last.push_str(&format!(" {part}"));
            } else {
                commands.push(part.to_owned());
            }
            continues = command.ends_with(['\\', '|']);
        }
    }
    commands
}

/// The text without the parts that differ between Rust and pages: quotes, escapes and line breaks.
fn plain(text: &str) -> String {
    let text = text.replace("\\\n", " ").replace(['\\', '"'], "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The commands that the test does not contain, and does not read from a page. `pages` maps each path to its page.
fn lacking(block: &Block, code: &str, pages: &BTreeMap<String, String>) -> Vec<String> {
    let read = pages.iter().filter(|(path, _)| {
        let name = path.rsplit('/').next().unwrap();
        ["\"", "/"]
            .iter()
            .any(|before| code.contains(&format!("{before}{name}")))
    });
    let read: String = read.map(|(_, text)| text.as_str()).collect();
    let known = [plain(code), plain(&read)];
    let commands = block.commands.iter();
    let lacking = commands.filter(|command| {
        let command = plain(command);
        !known.iter().any(|text| text.contains(&command))
    });
    lacking.cloned().collect()
}

/// The error message about a block, if the block has a fault.
fn objection(
    block: &Block,
    (tests, items): (&[String], &TestItems),
    pages: &BTreeMap<String, String>,
) -> Option<String> {
    match block.marks.as_slice() {
        [Mark::Example(reason)] => {
            let is_reason = reason.ends_with('.') && reason.split(' ').count() > 3;
            (!is_reason).then(|| format!("{reason:?} is not a reason"))
        }
        [Mark::RunBy(test)] => {
            let script = test.contains('/').then(|| repository().join(test));
            let code = match script {
                Some(script) => fs::read_to_string(script).ok(),
                None if tests.iter().filter(|it| *it == test).count() == 1 => {
                    Some(items.code(test))
                }
                None => None,
            };
            let Some(code) = code else {
                return Some(format!("{test} is not one test"));
            };
            let lacking = lacking(block, &code, pages);
            (!lacking.is_empty()).then(|| format!("{test} has not {lacking:?}"))
        }
        marks => Some(format!("it has {} marks instead of one", marks.len())),
    }
}

#[test]
fn every_command_block_is_run_by_a_test_or_marked_as_an_example() {
    let sources = sources();
    let (tests, items) = (tests(), TestItems::of(&sources));
    let pages = all_pages();
    let mut objections = Vec::new();
    let mut count = 0;
    for (path, text) in &pages {
        let (blocks, stray) = blocks(text);
        objections.extend(stray.iter().map(|line| format!("{path}:{line}: no block")));
        for block in blocks {
            count += 1;
            if let Some(objection) = objection(&block, (&tests, &items), &pages) {
                objections.push(format!("{path}:{}: {objection}", block.line));
            }
        }
    }

    assert!(count > 100, "only {count} blocks are found");
    assert_eq!(objections, Vec::<String>::new());
}

#[test]
fn a_command_block_without_exactly_one_valid_mark_is_reported() {
    let this = "a_command_block_without_exactly_one_valid_mark_is_reported";
    let sources = sources();
    let (tests, items) = (tests(), TestItems::of(&sources));
    let page = |marks: &str, command: &str| format!("Text.\n\n{marks}```sh\n{command}\n```\n");
    let run_by = |test: &str| format!("<!-- run by: {test} -->\n");
    let example = "<!-- example: It needs a cloud account. -->\n";
    for (marks, command, expected) in [
        (example.to_owned(), "aws anything", None),
        (run_by(this), "echo the text of a command", None),
        (String::new(), "true", Some("it has 0 marks instead of one")),
        (
            example.repeat(2),
            "true",
            Some("it has 2 marks instead of one"),
        ),
        (
            "<!-- example: Because. -->\n".to_owned(),
            "true",
            Some("\"Because.\" is not a reason"),
        ),
        (run_by("tests/fresh/check"), "make demo", None),
        (
            run_by("tests/no/script"),
            "true",
            Some("tests/no/script is not one test"),
        ),
        (
            run_by("no_such_test"),
            "true",
            Some("no_such_test is not one test"),
        ),
        (
            run_by(this),
            &["echo", "another", "command"].join(" "),
            Some("has not ["),
        ),
    ] {
        let text = page(&marks, command);
        let (blocks, stray) = blocks(&text);
        assert_eq!(stray, Vec::<usize>::new());
        let found = objection(&blocks[0], (&tests, &items), &BTreeMap::new());
        match expected {
            None => assert_eq!(found, None),
            Some(words) => assert!(found.as_ref().unwrap().contains(words), "{found:?}"),
        }
    }
    let (found, stray) = blocks(&format!("{example}\nText.\n"));
    assert_eq!((found.len(), stray), (0, vec![2]));
}

#[test]
fn a_marked_manifest_is_a_block_and_another_manifest_is_not() {
    let manifest = "```yaml\nkind: ConfigMap\n```\n";
    let text = format!("{manifest}<!-- run by: a_test -->\n{manifest}");

    let (found, stray) = blocks(&text);

    assert_eq!((found.len(), stray), (1, Vec::<usize>::new()));
    assert_eq!(found[0].commands, ["kind: ConfigMap"]);
    assert_eq!(found[0].marks, [Mark::RunBy("a_test".to_owned())]);
}

#[test]
fn the_commands_of_a_block_exclude_prompts_and_output() {
    let page = "```console\n$ one \\\n    two |\n    three\noutput\n# four\n```\n";
    let (blocks, _) = blocks(page);
    assert_eq!(blocks[0].commands, ["one two | three", "four"]);
}
