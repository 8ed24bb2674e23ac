//! Checks the syntax of the files in YAML and JSON that a release or a machine image contains.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Workspace;

/// The folders with these files.
const FOLDERS: [&str; 2] = ["image-builder", "packaging"];

/// Templates, which are not YAML until a program has filled them: the chart (Helm), the checks of a machine image
/// (goss), and the definitions of two packages (`packaging/package-functions`). The tests of these programs read the
/// results.
const TEMPLATES: [&str; 4] = [
    "image-builder/goss/goss-kubelet-authenticator.yaml",
    "packaging/chart/node-attestation-controller/templates",
    "packaging/controller/package.yaml",
    "packaging/node/package.yaml",
];

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extensions.contains(&extension))
}

/// Adds the files in YAML and JSON below `folder`, without the templates.
fn find(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let within = path.strip_prefix(root).unwrap();
        if TEMPLATES.iter().any(|one| within == Path::new(one)) {
            continue;
        }
        if path.is_dir() {
            find(root, &path, found);
        } else if has_extension(&path, &["yaml", "yml", "json"]) {
            found.push(within.to_owned());
        }
    }
}

/// The reason why a file with this text is invalid. A valid file contains objects or lists, and at least one of them.
fn fault(path: &Path, text: &str) -> Option<String> {
    let documents: Vec<Value> = if has_extension(path, &["json"]) {
        match serde_json::from_str(text) {
            Ok(document) => vec![document],
            Err(error) => return Some(error.to_string()),
        }
    } else {
        match serde_saphyr::from_multiple(text) {
            Ok(documents) => documents,
            Err(error) => return Some(error.to_string()),
        }
    };
    let are_structures = documents
        .iter()
        .all(|one| one.is_object() || one.is_array());
    let is_valid = are_structures && !documents.is_empty();
    (!is_valid).then(|| "not an object or a list".to_owned())
}

#[test]
fn each_yaml_and_json_file_of_a_release_can_be_parsed() {
    let root = Workspace::read().root;
    for template in TEMPLATES {
        assert!(root.join(template).exists(), "{template}");
    }
    let mut files = Vec::new();
    for folder in FOLDERS {
        find(&root, &root.join(folder), &mut files);
    }
    for known in [
        "image-builder/roles/kubelet_authenticator/tasks/main.yml",
        "packaging/chart/node-attestation-controller/values.yaml",
        "packaging/deploy/deployment.yaml",
        "packaging/monitoring/alerts.yaml",
        "packaging/monitoring/dashboard.json",
    ] {
        assert!(files.contains(&PathBuf::from(known)), "{known}: {files:?}");
    }

    let faults = files.iter().filter_map(|path| {
        let text = fs::read_to_string(root.join(path)).unwrap();
        let fault = fault(path, &text)?;
        Some(format!("{}: {fault}", path.display()))
    });
    assert_eq!(faults.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_file_with_invalid_yaml_or_without_an_object_has_a_fault() {
    for (name, text) in [
        ("a.yaml", "a: [1"),
        ("a.yaml", "a: 1\na: 2\n"),
        ("a.yaml", "a: 1\n---\nb: [2\n"),
        ("a.yaml", "# a\n"),
        ("a.yml", "only words"),
        ("a.json", "{'a': 1}"),
        ("a.json", "{\"a\": 1"),
    ] {
        assert!(fault(Path::new(name), text).is_some(), "{name}: {text}");
    }
    for (name, text) in [("a.yaml", "a: 1\n---\n- b\n"), ("a.json", "{\"a\": [1]}")] {
        assert_eq!(fault(Path::new(name), text), None, "{name}: {text}");
    }
}
