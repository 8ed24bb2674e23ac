//! Checks the page of settings, which contains a table of all settings.

use std::collections::BTreeMap;

use kubelet_authenticator_tests::docs::page;
use kubelet_authenticator_tests::snapshot::assert_file;

use crate::commands::Help;
use crate::markdown::blocks;
use crate::{PLUGIN, PLUGINS};

/// The settings table, generated from the plugins' help.
fn settings() -> String {
    let mut rows = BTreeMap::new();
    let mut help = Help::default();
    for provider in PLUGINS {
        let help = help.of(&[format!("{PLUGIN}{provider}")]).to_owned();
        let (_, section) = help.split_once("\nSettings:\n").unwrap();
        let section = section.split("\nOutput:\n").next().unwrap();
        for entry in section.split("\n\n") {
            let (usage, about) = entry.trim().split_once('\n').unwrap();
            let (flag, value) = usage.split_once(' ').unwrap();
            let name = flag.trim_start_matches('-');
            let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
            let entry = (value.to_owned(), about, Vec::new());
            let row = rows.entry(name.to_owned()).or_insert(entry);
            row.2.push(provider);
        }
    }
    let table = rows.iter().map(|(name, (value, about, plugins))| {
        let plugins = match plugins.len() {
            3 => "all".to_owned(),
            _ => plugins.join(", "),
        };
        let key = match key(name).as_str() {
            "config" => String::new(),
            key => format!("`{key}`"),
        };
        format!("| {key} | `--{name} {value}` | {plugins} | {about} |\n")
    });
    format!("{HEADER}{}", table.collect::<String>())
}

/// The header of the settings table on the page.
const HEADER: &str = "\
| key in a file | option | plugins | meaning |
| --- | --- | --- | --- |
";

/// The key in a settings file for the setting with this flag.
fn key(flag: &str) -> String {
    let (section, name) = match flag.split_once('-') {
        Some((section @ ("aws" | "tpm"), name)) => (format!("{section}."), name),
        _ => (String::new(), flag),
    };
    let mut words = name.split('-');
    let first = words.next().unwrap().to_owned();
    let words = words.map(|word| match word {
        "id" => "ID".to_owned(),
        _ => word[..1].to_uppercase() + &word[1..],
    });
    words.fold(section + &first, |key, word| key + &word)
}

#[test]
fn the_settings_page_matches_the_programs_and_has_every_example() {
    let table = settings();
    let stored = page("settings.md");
    let (before, rest) = stored.split_once(HEADER).unwrap();
    let rows = rest.split_inclusive('\n');
    let rows: usize = rows
        .take_while(|row| row.starts_with('|'))
        .map(str::len)
        .sum();
    let expected = [before, &table, &rest[rows..]].concat();

    assert_file("docs/settings.md", &expected);
    let example = blocks(&expected, "yaml").concat();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let key = row.split('`').nth(1).unwrap();
        let name = key.rsplit('.').next().unwrap();
        let found = example
            .lines()
            .any(|line| line.trim_start().starts_with(&format!("{name}:")));
        assert!(found, "the example in docs/settings.md has no {key}");
    }
}
