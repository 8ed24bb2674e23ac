//! Tests with secrets as they occur in kubelet journals, units, kubeconfigs and environments, and with ordinary lines
//! around the secrets.

use super::redact;

/// Texts, separated by empty lines. Each secret is in brackets.
const SECRETS: &str = include_str!("secrets.txt");

const ORDINARY: &str = include_str!("ordinary.txt");

const BRACKETS: [char; 2] = ['\u{27e6}', '\u{27e7}'];

/// The texts. An empty line within brackets is a part of a secret.
fn texts() -> Vec<String> {
    let mut texts = vec![String::new()];
    for line in SECRETS.lines() {
        let text = texts.last_mut().unwrap();
        let is_open = text.matches(BRACKETS[0]).count() > text.matches(BRACKETS[1]).count();
        let is_block = text.contains("-----BEGIN PGP") && !text.contains("-----END PGP");
        if line.is_empty() && !is_open && !is_block {
            texts.push(String::new());
        } else {
            text.extend([line, "\n"]);
        }
    }
    texts
}

fn secrets(text: &str) -> Vec<&str> {
    let parts = text.split(BRACKETS[0]).skip(1);
    let secrets = parts.map(|part| part.split(BRACKETS[1]).next().unwrap());
    // If a secret has several lines, each of its lines must be removed.
    secrets
        .flat_map(|secret| secret.lines().map(str::trim))
        .collect()
}

#[test]
fn all_secrets_in_the_corpus_are_removed() {
    let texts = texts();
    let count = SECRETS.matches(BRACKETS[0]).count();
    let mut left = String::new();
    for text in &texts {
        let plain = text.replace(BRACKETS, "");
        let found = redact(&plain);
        for secret in secrets(text)
            .into_iter()
            .filter(|secret| !secret.is_empty())
        {
            // A short secret can be a part of an ordinary word.
            let words = found.split(|it: char| it.is_whitespace() || "\"',;:=>[]{}@&".contains(it));
            let mut words = words.filter(|word| *word == secret);
            let is_left = secret.len() > 4 && found.contains(secret) || words.next().is_some();
            if is_left {
                left.extend([secret, " in ", &found]);
            }
        }
    }
    assert_eq!(left, "");
    assert!(count >= 250, "{count}");
}

#[test]
fn ordinary_lines_in_the_corpus_are_unchanged() {
    let whole = redact(ORDINARY);
    let lines = ORDINARY.lines().map(|line| (line, redact(line)));
    let together = ORDINARY.lines().zip(whole.lines().map(str::to_owned));
    let wrong = lines.chain(together).filter(|(line, found)| line != found);
    let wrong: Vec<_> = wrong
        .map(|(line, found)| format!("{line}\n  {found}\n"))
        .collect();
    assert_eq!(wrong.concat(), "");
    assert!(ORDINARY.lines().count() >= 200);
}
