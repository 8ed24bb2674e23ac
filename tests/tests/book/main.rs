//! The pages of docs and the README: their links, commands, files and rows are true.

mod commands;
mod features;
mod links;
mod markdown;
mod settings;

use std::collections::BTreeMap;
use std::fs;

use kubelet_authenticator_tests::page::repository;

/// What pages name before it is merged: pages, targets of make, commands and files.
const PENDING: &[&str] = &[
    "docs/packages.md",
    "docs/machine-images.md",
    "docs/release.md",
    "docs/signers.md",
    "image-builder/README.md",
    "make chart",
    "make image",
    "kubelet-authenticator config",
    "kubelet-authenticator support-bundle",
    "node-attestation-controller cluster",
    "node-attestation-controller explain",
];

const PLUGIN: &str = "kubelet-authenticator-";

/// The programs whose settings are described.
const PLUGINS: [&str; 3] = ["insecure", "aws", "tpm"];

/// The paths of all pages, from the repository's directory, with their contents.
fn pages() -> BTreeMap<String, String> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    let others = ["README.md", "SECURITY.md", "image-builder/README.md"].map(str::to_owned);
    let paths = docs.chain(others).filter(|path| path.ends_with(".md"));
    paths
        .filter(|path| !is_pending(path))
        .map(|path| {
            let text = fs::read_to_string(repository().join(&path)).unwrap();
            (path, text)
        })
        .collect()
}

fn is_pending(name: &str) -> bool {
    PENDING.contains(&name)
}
