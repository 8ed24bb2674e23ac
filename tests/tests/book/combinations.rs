//! Checks that the page on settings that influence each other names every setting, and every pair of settings that can
//! be used together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kubelet_authenticator_tests::docs::{ambiguous, named, page, quoted};
use kubelet_authenticator_tests::page::repository;
use serde_json::Value;

use crate::commands::Help;

/// The fields below `spec` of a `KubeletAuthentication` that do not have properties, with their paths.
fn fields() -> BTreeSet<String> {
    let path = repository().join("packaging/crds/kubeletauthentications.yaml");
    let text = fs::read_to_string(path).unwrap();
    let definition: Value = serde_saphyr::from_str(&text).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut fields = BTreeSet::new();
    collect("spec", &schema["properties"]["spec"], &mut fields);
    fields
}

fn collect(path: &str, schema: &Value, fields: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, schema) in properties {
                collect(&format!("{path}.{name}"), schema, fields);
            }
        }
        None => {
            fields.insert(path.to_owned());
        }
    }
}

/// The options in the help of `node-attestation-controller run`.
fn options() -> BTreeSet<String> {
    let command = ["node-attestation-controller", "run"].map(str::to_owned);
    let mut help = Help::default();
    let lines = help.of(&command).lines().map(str::trim_start);
    let entries = lines.filter(|line| line.starts_with('-'));
    let long = entries.filter_map(|line| {
        let mut words = line.split([' ', ',', '=']);
        words.find(|word| word.starts_with("--"))
    });
    let options = long.filter(|option| *option != "--help");
    options.map(str::to_owned).collect()
}

/// The keys in the plugins' settings file, from the table that is generated from the help of the plugins.
fn keys() -> BTreeSet<String> {
    let page = page("settings.md");
    let rows = table(&page, "All settings").into_iter();
    let keys = rows.filter_map(|cells| Some(quoted(cells[0]).next()?.to_owned()));
    keys.collect()
}

/// A row in the table of subjects.
struct Subject {
    name: String,
    settings: BTreeSet<String>,
    /// The subjects whose settings influence these settings.
    meets: BTreeSet<String>,
    /// The reason why this subject does not influence other subjects.
    reason: String,
}

/// The cells in the rows of the first table below this heading.
fn table<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

fn subjects(page: &str) -> Vec<Subject> {
    let rows = table(page, "Subjects").into_iter();
    rows.map(|cells| {
        let [name, settings, meets, reason] = cells.try_into().unwrap();
        let meets = meets.split(", ").filter(|name| *name != "none");
        Subject {
            name: name.to_owned(),
            settings: quoted(settings).map(str::to_owned).collect(),
            meets: meets.map(str::to_owned).collect(),
            reason: reason.to_owned(),
        }
    })
    .collect()
}

/// A pair of settings, in alphabetical order.
type Pair = (String, String);

fn pair(one: &str, other: &str) -> Pair {
    let (first, second) = (one.min(other), one.max(other));
    (first.to_owned(), second.to_owned())
}

/// A row in the table of pairs. The row combines each setting in its first cell with each setting in its second cell.
struct Together {
    pairs: BTreeSet<Pair>,
    kind: String,
    reason: String,
}

fn pairs(page: &str) -> Vec<Together> {
    let rows = table(page, "Pairs").into_iter();
    rows.map(|cells| {
        let [some, others, kind, reason] = cells.try_into().unwrap();
        let some: Vec<&str> = quoted(some).collect();
        let others = quoted(others);
        let pairs = others.flat_map(|other| some.iter().map(move |one| pair(one, other)));
        Together {
            pairs: pairs.filter(|(one, other)| one != other).collect(),
            kind: kind.to_owned(),
            reason: reason.to_owned(),
        }
    })
    .collect()
}

/// The pairs that the table of pairs must contain: pairs in one subject, and pairs from two neighboring subjects.
fn met(subjects: &[Subject]) -> BTreeSet<Pair> {
    let mut met = BTreeSet::new();
    for one in subjects {
        for other in subjects {
            if one.name != other.name && !one.meets.contains(&other.name) {
                continue;
            }
            for setting in &one.settings {
                let others = other.settings.iter().filter(|other| *other != setting);
                met.extend(others.map(|other| pair(setting, other)));
            }
        }
    }
    met
}

#[test]
fn the_number_of_documented_settings_is_limited() {
    let counts = [fields().len(), options().len(), keys().len()];

    assert_eq!(
        counts,
        [23, 29, 14],
        "the fields of a KubeletAuthentication, the options of run, the keys of the node: a new setting \
         needs a reason that outweighs its combinations. Delete or merge one before you raise a limit \
         (at most 23, 30 and 14)"
    );
}

#[test]
fn every_setting_belongs_to_one_subject() {
    let page = page("combinations.md");
    let mut subjects_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for subject in subjects(&page) {
        for setting in subject.settings {
            let names = subjects_of.entry(setting).or_default();
            names.push(subject.name.clone());
        }
    }
    let existing: BTreeSet<String> = fields()
        .into_iter()
        .chain(options())
        .chain(keys())
        .collect();

    let listed: BTreeSet<String> = subjects_of.keys().cloned().collect();
    let missing: Vec<_> = existing.difference(&listed).collect();
    assert!(missing.is_empty(), "without a subject: {missing:#?}");
    let unknown: Vec<_> = listed.difference(&existing).collect();
    assert!(unknown.is_empty(), "no such setting: {unknown:#?}");
    let several: Vec<_> = subjects_of.iter().filter(|(_, of)| of.len() > 1).collect();
    assert!(several.is_empty(), "of several subjects: {several:#?}");
}

#[test]
fn every_subject_has_a_reason_and_known_related_subjects() {
    let page = page("combinations.md");
    let subjects = subjects(&page);
    let names: BTreeSet<&String> = subjects.iter().map(|subject| &subject.name).collect();

    for subject in &subjects {
        let words = subject.reason.split(' ').count();
        assert!(words > 3, "{} has no reason", subject.name);
        let unknown: Vec<_> = subject
            .meets
            .iter()
            .filter(|name| !names.contains(name))
            .collect();
        assert!(
            unknown.is_empty(),
            "{}: no subject {unknown:?}",
            subject.name
        );
    }
}

#[test]
fn every_pair_of_related_subjects_is_tested_or_has_a_reason() {
    let page = page("combinations.md");
    let met = met(&subjects(&page));
    let mut seen = BTreeSet::new();
    for row in pairs(&page) {
        let known = ["tested", "refused", "independent"].contains(&row.kind.as_str());
        assert!(known, "{:?}: {} is no kind", row.pairs, row.kind);
        assert!(
            row.reason.split(' ').count() > 3,
            "{:?} has no reason",
            row.pairs
        );
        assert!(!row.pairs.is_empty(), "{} has no pair", row.reason);
        let names_a_test = !named(&row.reason).is_empty();
        assert!(
            names_a_test || row.kind == "independent",
            "{:?} is {}, and names no test",
            row.pairs,
            row.kind
        );
        for pair in row.pairs {
            assert!(
                met.contains(&pair),
                "{pair:?} belongs to subjects that do not influence each other"
            );
            assert!(seen.insert(pair.clone()), "{pair:?} is in two rows");
        }
    }

    let missing: Vec<_> = met.difference(&seen).collect();
    assert!(
        missing.is_empty(),
        "{} pairs have no row: {missing:#?}",
        missing.len()
    );
}

#[test]
fn every_test_of_a_subject_pair_exists_once() {
    let page = page("combinations.md");

    let ambiguous = ambiguous(&page);
    assert!(ambiguous.is_empty(), "tests of that name: {ambiguous:#?}");
}
