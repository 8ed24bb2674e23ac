//! Finds tests that end early. If a condition does not hold, such as the rights of the user, a test must fail with the
//! reason, because a test that returns early passes without its assertions.

use std::fs;

use crate::{Workspace, rust_files};

/// The folders with tests.
pub const FOLDERS: [&str; 7] = [
    "attestation",
    "controller",
    "providers",
    "resolver",
    "src",
    "tests",
    "tools",
];

/// The names of the tests in the text that contain a `return` without a value.
fn early(text: &str) -> Vec<String> {
    let mut early = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        if !attribute.starts_with("#[test]") && !attribute.starts_with("#[tokio::test") {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - attribute.len()]);
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != end).collect();
        if body.iter().any(|line| line.trim() == "return;") {
            let name = body.iter().find_map(|line| line.split_once("fn "));
            let name = name.and_then(|(_, rest)| rest.split('(').next());
            early.extend(name.map(str::to_owned));
        }
    }
    early
}

#[test]
fn no_test_returns_before_its_end() {
    let root = Workspace::read().root;
    let mut found = Vec::new();
    for file in FOLDERS
        .iter()
        .flat_map(|folder| rust_files(&root.join(folder)))
    {
        let text = fs::read_to_string(&file).unwrap();
        let file = file.strip_prefix(&root).unwrap().display().to_string();
        found.extend(early(&text).iter().map(|name| format!("{file}: {name}")));
    }

    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_test_that_returns_early_is_found() {
    // This file must not contain the text itself.
    let text = "
fn other() {
    LEAVE;
}

mod tests {
    #[test]
    fn whole() {
        assert!(true);
    }

    #[tokio::test(start_paused = true)]
    async fn partial() {
        if !is_root() {
            LEAVE;
        }
        assert!(true);
    }
}
";
    assert_eq!(early(&text.replace("LEAVE", "return")), ["partial"]);
}
