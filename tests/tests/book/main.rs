//! Checks the pages in docs and the README: their links, commands, files and rows.

mod blocks;
mod combinations;
mod commands;
mod conditions;
mod features;
mod help;
mod links;
mod markdown;
mod names;
mod options;
mod policies;
mod printed;
mod settings;
mod tables;

use std::collections::BTreeMap;
use std::fs;

use kubelet_authenticator_tests::page::repository;

const PLUGIN: &str = "kubelet-authenticator-";

/// The programs whose settings the pages describe.
const PLUGINS: [&str; 3] = ["insecure", "aws", "tpm"];

/// The paths of the pages for users, relative to the repository, with the contents of the pages.
fn pages() -> BTreeMap<String, String> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    let others = ["README.md", "SECURITY.md", "image-builder/README.md"].map(str::to_owned);
    let paths = docs.chain(others).filter(|path| path.ends_with(".md"));
    read(paths)
}

/// The pages for users, and the pages that can name removed commands and options.
fn all_pages() -> BTreeMap<String, String> {
    let others = ["CHANGELOG.md", "CONTRIBUTING.md"].map(str::to_owned);
    let mut pages = pages();
    pages.extend(read(others.into_iter()));
    pages
}

fn read(paths: impl Iterator<Item = String>) -> BTreeMap<String, String> {
    paths
        .map(|path| {
            let text = fs::read_to_string(repository().join(&path)).unwrap();
            (path, text)
        })
        .collect()
}
