//! Checks that the page on names lists exactly the names in the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kubelet_authenticator_tests::docs::{page, quoted, sources};
use kubelet_authenticator_tests::page::repository;

/// The directories with the production code.
const CODE: [&str; 5] = ["src", "attestation", "resolver", "providers", "controller"];

/// Parts of file paths that show that a file is only for tests.
const OF_TESTS: [&str; 5] = ["/tests", "tests.rs", "testing", "fixture", "benches"];

/// The domains of names in Kubernetes and AWS.
const DOMAINS: [&str; 4] = [".x-k8s.io", ".k8s.aws", "kubernetes.io", "sigs.k8s.io"];

/// The directories that contain files on a node.
const DIRECTORIES: [&str; 3] = ["/etc/", "/var/lib/", "/usr/lib/"];

/// Strings that look like names, but are not.
const OTHERS: [&str; 4] = [
    // This string is the prefix of the hash input for key bindings.
    "cluster.x-k8s.io/kubelet-authenticator/",
    // The code uses this string to decide whether a path in a log is redacted.
    "/etc/",
    // The signer and the directory belong to other programs, and the project neither reads nor writes them under this
    // name.
    "kubernetes.io/kube-apiserver-client",
    "/etc/kubernetes",
];

/// The production code, without unit tests.
fn code() -> String {
    let sources = sources().into_iter().filter(|source| {
        let path = source.path.to_str().unwrap();
        CODE.iter().any(|root| source.path.starts_with(root))
            && !OF_TESTS.iter().any(|part| path.contains(part))
    });
    let texts = sources.map(|source| {
        let text = source
            .text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap();
        text.to_owned()
    });
    texts.collect()
}

/// The text of every file below the directory.
fn texts(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, all);
        } else if let Ok(text) = fs::read_to_string(path) {
            all.push_str(&text);
        }
    }
}

/// The names in the first column of the tables on the page.
fn listed(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let first = rows.filter_map(|row| row.split(" | ").next());
    first.flat_map(quoted).collect()
}

/// Whether the text between two quotes is a name in Kubernetes or AWS, or the path of a file.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./_-".contains(&byte);
    if !text.bytes().all(plain) || OTHERS.contains(&text) {
        return false;
    }
    if DIRECTORIES
        .iter()
        .any(|directory| text.starts_with(directory))
    {
        return true;
    }
    text.split_once('/').is_some_and(|(domain, name)| {
        let is_version =
            name.starts_with('v') && name[1..].starts_with(|it: char| it.is_ascii_digit());
        DOMAINS.iter().any(|known| domain.ends_with(known)) && !is_version
    })
}

#[test]
fn every_listed_name_is_in_the_code_or_the_packaging() {
    let page = page("names.md");
    let mut known = code();
    texts(&repository().join("packaging"), &mut known);
    texts(&repository().join("image-builder"), &mut known);

    let listed = listed(&page);
    assert!(listed.len() > 70, "{}", listed.len());
    let unknown: Vec<_> = listed
        .into_iter()
        .filter(|name| {
            let literal = name.split(['<', '>']).step_by(2);
            literal.into_iter().any(|part| !known.contains(part))
        })
        .collect();
    assert_eq!(unknown, Vec::<&str>::new());
}

#[test]
fn every_name_in_the_code_is_listed() {
    let page = page("names.md");
    let code = code();

    let names: BTreeSet<&str> = code.split('"').filter(|text| is_name(text)).collect();
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<_> = names
        .into_iter()
        .filter(|name| !page.contains(&format!("`{name}")))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}
