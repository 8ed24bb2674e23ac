//! Checks that the code for nodes does not contain the controller's reasons as text.

use std::fs;

use crate::{Workspace, rust_files};

/// If the code contained a reason as text, it would no longer match after a change of the reason's name.
#[test]
fn nodes_have_no_reason_of_the_controller_as_text() {
    let root = Workspace::read().root;
    let page = fs::read_to_string(root.join("docs/reasons.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let reasons: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    assert!(reasons.len() > 100, "{reasons:?}");

    let files = ["src", "providers"].map(|folder| rust_files(&root.join(folder)));
    let mut found = Vec::new();
    for file in files.into_iter().flatten() {
        let mut parts = file.strip_prefix(&root).unwrap().iter();
        if parts.any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let named = reasons
            .iter()
            .filter(|reason| production.contains(reason.as_str()));
        found.extend(named.map(|reason| format!("{}: {reason}", file.display())));
    }
    assert_eq!(found, Vec::<String>::new());
}
