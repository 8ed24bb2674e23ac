//! Finds wording that a native editor would change, in pages, comments, program texts and test names.
//!
//! The patterns find about a fifth of the unidiomatic sentences, so a low number is necessary but not sufficient. `make
//! lint-prose` prints all findings.

use std::path::Path;

use regex_lite::Regex;

use crate::returns::FOLDERS;
use crate::{Workspace, rust_files};

/// A pattern for unidiomatic wording, with better wording.
type Rule = (Regex, &'static str);

/// Patterns for sentences.
const SENTENCES: [(&str, &str); 31] = [
    (
        r"\b(at once|anew|for ever|but for)\b",
        "immediately; again; indefinitely; except",
    ),
    (r"\bin the place of\b", "instead of"),
    (r"\bbeside\b", "in addition to; next to"),
    (r"\bas a rule\b|\bmeanwhile\b", "usually; during this time"),
    (r"\bformer(ly)?\b", "previous(ly)"),
    (
        r"\b(whoever|somebody|someone|nobody|everybody|no one)\b",
        "the actor: operator, attacker, node",
    ),
    (
        r"\b(a person|people|he|she|his|hers?)\b",
        "an operator; they",
    ),
    (r"\blook(s|ed|ing)? after\b", "manage"),
    (r"\bhand(s|ed)? on\b|\bpass(es|ed)? over\b", "forward; skip"),
    (r"\b(tells?|told) (apart|from)\b", "distinguish"),
    (r"\blets? in\b", "admit"),
    (
        r"\banother [a-z-]+( [a-z-]+)? than\b",
        "a different ... from; does not match",
    ),
    (r"\b(is|are|was|were) no \b", "is not a ..."),
    (r"\balone\b", "only, before the word that it limits"),
    (r"\bask(s|ed|ing)?\b", "call; query; request"),
    (r"\b(say|says|said|tells?|told)\b", "report; show; contain"),
    (r"\b(goes|go|went) on\b", "continue"),
    (r"\b(comes?|came) back\b", "recover; rejoin"),
    (r"\b(has|have|had) (ended|gone)\b", "expired; was deleted"),
    (r"\bof (its|their|one's) own\b", "its; a separate"),
    (r"\bby (its|the) word of\b", "as reported by"),
    (r"\b(may|shall)\b", "can; must; is allowed to"),
    (r"\b(that|those) of\b", "the noun again"),
    (
        r"\bnothing of\b|\bhas (no|nothing) to\b",
        "the negated verb",
    ),
    (
        r"\b(knows?|knew) (no|of|which|what|who)\b",
        "recognize; list",
    ),
    (r"\bproves? nothing\b", "without evidence"),
    (r"\bhears? (of|from)\b", "receive"),
    (r"\bin vain\b", "failed"),
    (r"\bwhat (is|was|are|it|they)\b", "a noun"),
    (r"\bwithout (a|one) word\b", "silently"),
    (r"\bgives? (it |them )?up\b", "release; stop"),
];

/// Patterns for test names.
const NAMES: [(&str, &str); 4] = [
    (r"(^|_)(what|who|whoever|nobody|somebody)(_|$)", "a noun"),
    (
        r"(^|_)(told|said|asked|given_up|looked_after)(_|$)",
        "the verb of the field",
    ),
    (
        r"(^|_)(former|anew|at_once|alone|beside)(_|$)",
        "a plain word",
    ),
    (r"^.{71,}$", "at most 70 characters"),
];

fn rules(rules: &[(&str, &'static str)]) -> Vec<Rule> {
    let rule = |(pattern, better): &(&str, &'static str)| {
        let pattern = Regex::new(&format!("(?i){pattern}")).unwrap();
        (pattern, *better)
    };
    rules.iter().map(rule).collect()
}

/// The findings in an area, and the number of words in the area.
#[derive(Debug, Default)]
struct Findings {
    found: Vec<String>,
    words: usize,
}

impl Findings {
    fn look(&mut self, rules: &[Rule], (path, number): (&Path, usize), text: &str) {
        self.words += text
            .split([' ', '_'])
            .filter(|word| !word.is_empty())
            .count();
        for (pattern, better) in rules {
            for wording in pattern.find_iter(text) {
                let (path, number, wording) = (path.display(), number + 1, wording.as_str());
                let finding = format!("{path}:{number}: {:?}: {better}", wording.trim());
                self.found.push(finding);
            }
        }
    }

    /// Prints the findings, and asserts that there are at most `limit` findings in 1,000 words.
    fn are_at_most(&self, limit: f64) {
        let Self { found, words } = self;
        for finding in found {
            println!("{finding}");
        }
        #[expect(clippy::cast_precision_loss, reason = "both are small")]
        let rate = found.len() as f64 * 1000.0 / *words as f64;
        println!(
            "{} findings in {words} words, {rate:.1} per 1,000",
            found.len()
        );
        assert!(*words > 10_000, "the area is not found");
        assert!(
            rate <= limit,
            "{rate:.1} findings per 1,000 words, more than {limit}"
        );
    }
}

/// The text without code and link targets.
fn without_code(line: &str) -> String {
    let text: Vec<&str> = line.split('`').step_by(2).collect();
    let mut parts = text.join(" ");
    while let Some(begin) = parts.find("](") {
        let end = parts[begin..]
            .find(')')
            .map_or(parts.len(), |end| begin + end + 1);
        parts.replace_range(begin..end, " ");
    }
    parts
}

/// The string literals with at least four words.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    let literals = line.split('"').skip(1).step_by(2);
    literals.filter(|text| text.split(' ').count() > 3)
}

#[test]
fn pages_are_written_in_plain_english() {
    let root = Workspace::read().root;
    let rules = rules(&SENTENCES);
    let names = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ];
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let docs = docs.map(|page| page.unwrap().path());
    let pages = docs.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let pages = names.iter().map(|name| root.join(name)).chain(pages);
    let mut findings = Findings::default();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut in_code = false;
        for (number, line) in text.lines().enumerate() {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            if !in_code && !fence {
                let place = (page.strip_prefix(&root).unwrap(), number);
                findings.look(&rules, place, &without_code(line));
            }
        }
    }

    findings.are_at_most(0.2);
}

#[test]
fn comments_and_program_texts_are_written_in_plain_english() {
    let root = Workspace::read().root;
    let rules = rules(&SENTENCES);
    let mut findings = Findings::default();
    for folder in ["attestation", "controller", "providers", "resolver", "src"] {
        for file in rust_files(&root.join(folder)) {
            let within = file.strip_prefix(&root).unwrap();
            let is_of_tests = within.iter().any(|part| {
                let part = part.to_str().unwrap().trim_end_matches(".rs");
                ["tests", "benches", "examples", "testing", "fixture"].contains(&part)
            });
            if is_of_tests {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap();
            for (number, line) in text.lines().enumerate() {
                let (place, line) = ((within, number), line.trim());
                if let Some(comment) = line.strip_prefix("//") {
                    findings.look(&rules, place, &without_code(comment));
                } else {
                    literals(line).for_each(|text| findings.look(&rules, place, text));
                }
            }
        }
    }

    findings.are_at_most(0.5);
}

#[test]
fn test_names_are_written_in_plain_english() {
    let root = Workspace::read().root;
    let rules = rules(&NAMES);
    let test = Regex::new(r"^\s*(?:async )?fn ([a-z0-9_]{20,})\(\)").unwrap();
    let mut findings = Findings::default();
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder)) {
            let text = std::fs::read_to_string(&file).unwrap();
            for (number, line) in text.lines().enumerate() {
                if let Some(found) = test.captures(line) {
                    let place = (file.strip_prefix(&root).unwrap(), number);
                    findings.look(&rules, place, &found[1]);
                }
            }
        }
    }

    findings.are_at_most(0.3);
}
