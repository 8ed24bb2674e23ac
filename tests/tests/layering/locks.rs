//! Checks the locks that tenants share.

use std::fs;

use crate::{Workspace, rust_files};

/// Whether the text contains exactly the name of this lock, and not only a longer name that begins with it.
fn names(text: &str, lock: &str) -> bool {
    let mut rest = text.split(lock).skip(1);
    rest.any(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
}

#[test]
fn each_lock_that_tenants_share_has_a_test_that_counts_visits() {
    let controller = Workspace::read().root.join("controller");
    let list = fs::read_to_string(controller.join("turns/src/shared/lock.rs")).unwrap();
    let locks = list.lines().filter_map(|line| line.strip_suffix("\","));
    let locks: Vec<String> = locks
        .filter_map(|line| line.trim().split_once(" = \""))
        .map(|(lock, _)| format!("Lock::{lock}"))
        .collect();
    assert!(locks.len() > 20, "{locks:?}");
    let texts = rust_files(&controller).into_iter().map(|file| {
        let text = fs::read_to_string(file).unwrap();
        text.split_whitespace().collect::<String>()
    });
    let texts: Vec<String> = texts.collect();

    for lock in locks {
        let made = format!("::new({lock}");
        assert!(
            texts.iter().any(|text| names(text, &made)),
            "{lock} is not used"
        );
        let counts = |text: &&String| {
            text.contains("most_visited(") && names(&text.replace(&made, ""), &lock)
        };
        assert!(
            texts.iter().any(|text| counts(&text)),
            "no test counts the visits under {lock}"
        );
    }
}
