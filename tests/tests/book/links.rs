//! Checks the links on the pages, the lengths of the pages, and the book's list of pages.

use std::collections::BTreeSet;
use std::path::Path;

use kubelet_authenticator_tests::docs::{named, page, tests};
use kubelet_authenticator_tests::page::repository;

use crate::markdown::{anchors, links};
use crate::{all_pages, pages};

/// The path with `.` and `..` resolved.
fn resolved(page: &str, target: &str) -> String {
    let folder = Path::new(page).parent().unwrap();
    let mut parts: Vec<&str> = folder.iter().map(|part| part.to_str().unwrap()).collect();
    for part in target.split('/').filter(|part| *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[test]
fn every_relative_link_and_its_anchor_exist() {
    let pages = all_pages();
    let mut broken = Vec::new();
    for (path, text) in &pages {
        for link in links(text) {
            if link.contains("://") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match target {
                "" => path.clone(),
                _ => resolved(path, target),
            };
            let exists = repository().join(&target).exists();
            let anchored = anchor.is_empty()
                || pages
                    .get(&target)
                    .is_some_and(|page| anchors(page).contains(anchor));
            if !exists || !anchored {
                broken.push(format!("{path}: {link}"));
            }
        }
    }

    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn no_page_has_more_than_300_lines_and_the_readme_has_at_most_110() {
    // A program writes the first page. The other page grows with each release.
    let exempt = ["docs/controller-options.md", "CHANGELOG.md"];
    let mut long = Vec::new();
    for (path, text) in all_pages() {
        let limit = if path == "README.md" { 110 } else { 300 };
        let lines = text.lines().count();
        if lines > limit && !exempt.contains(&path.as_str()) {
            long.push(format!("{path}: {lines} lines"));
        }
    }

    assert_eq!(long, Vec::<String>::new());
}

#[test]
fn every_page_is_in_the_summary_once() {
    let mut listed = links(&page("SUMMARY.md"));
    listed.sort();
    let listed: Vec<String> = listed.iter().map(|link| format!("docs/{link}")).collect();

    let mut pages: Vec<String> = pages()
        .into_keys()
        .filter(|path| path.starts_with("docs/") && path != "docs/SUMMARY.md")
        .collect();
    pages.sort();
    assert_eq!(listed, pages);
}

#[test]
fn the_summary_contains_the_title_of_each_page() {
    let summary = page("SUMMARY.md");
    let mut different = Vec::new();
    for entry in summary.lines().map(str::trim_start) {
        let entry = entry.strip_prefix("- ").unwrap_or(entry).strip_prefix('[');
        let Some((title, rest)) = entry.and_then(|entry| entry.split_once("](")) else {
            continue;
        };
        let name = rest.trim_end_matches(')');
        let text = page(name);
        let heading = text.lines().find_map(|line| line.strip_prefix("# "));
        if heading != Some(title) {
            different.push(format!("{name}: {title}"));
        }
    }

    assert_eq!(different, Vec::<String>::new());
}

#[test]
fn pages_for_users_do_not_name_tests() {
    let summary = page("SUMMARY.md");
    // The parts from here on are for reviewers and contributors, so their pages can name tests.
    let (users, _) = summary.split_once("\n# Evidence\n").unwrap();
    let tests: BTreeSet<String> = tests().into_iter().collect();
    let mut found = Vec::new();
    for name in links(users) {
        let text = page(&name);
        let names = named(&text)
            .into_iter()
            .filter(|name| tests.contains(*name));
        found.extend(names.map(|test| format!("{name}: {test}")));
    }

    assert_eq!(found, Vec::<String>::new());
}
