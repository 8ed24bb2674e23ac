//! Tests of CA files that appear, change and disappear.

use std::os::unix::fs::symlink;

use rcgen::KeyPair;

use super::*;
use crate::authority::tests::{ca_of, new_ca};

/// The file of a CA for this Cluster.
fn file(cluster: &str, ca: &str) -> Vec<u8> {
    format!("key-label: of-{cluster}\ncluster: {cluster}\n{ca}").into_bytes()
}

fn files<const N: usize>(files: [(&str, &[u8]); N]) -> Files {
    let files = files.into_iter();
    files
        .map(|(name, bytes)| (name.to_owned(), Ok(bytes.to_vec())))
        .collect()
}

/// The changes in text form.
fn changed(folder: &mut Folder, files: Files) -> Vec<String> {
    let events = folder.update(files).into_iter();
    let events = events.map(|event| match event {
        Event::Used(file, authority) => format!("{file}: {}", authority.key_label),
        Event::Refused(file, reason) => format!("{file}: {reason}"),
        Event::Removed(file) => format!("{file} removed"),
    });
    events.collect()
}

fn labels(folder: &Folder) -> Vec<String> {
    folder
        .authorities()
        .map(|authority| authority.key_label.clone())
        .collect()
}

#[test]
fn a_ca_begins_and_ends_with_its_file() {
    let mut folder = Folder::default();
    let [one, two] = ["t/one", "t/two"].map(|cluster| file(cluster, &new_ca()));

    assert_eq!(changed(&mut folder, files([("1", &one)])), ["1: of-t/one"]);
    let both = files([("1", &one), ("2", &two)]);
    assert_eq!(changed(&mut folder, both.clone()), ["2: of-t/two"]);
    assert_eq!(changed(&mut folder, both), Vec::<String>::new());
    assert_eq!(changed(&mut folder, files([("2", &two)])), ["1 removed"]);

    assert_eq!(labels(&folder), ["of-t/two"]);
}

#[test]
fn a_changed_file_replaces_only_its_own_ca() {
    let mut folder = Folder::default();
    let [one, other, new] = ["t/one", "t/other", "t/one"].map(|name| file(name, &new_ca()));
    changed(&mut folder, files([("1", &one), ("2", &other)]));
    let before: Vec<_> = folder.authorities().collect();

    let events = changed(&mut folder, files([("1", &new), ("2", &other)]));

    assert_eq!(events, ["1: of-t/one"]);
    let after: Vec<_> = folder.authorities().collect();
    assert_ne!(before[0].sha256, after[0].sha256);
    assert!(Arc::ptr_eq(&before[1], &after[1]));
}

#[test]
fn an_invalid_ca_file_ends_only_its_own_ca_and_is_reported_once() {
    let mut folder = Folder::default();
    let [one, other] = ["t/one", "t/other"].map(|cluster| file(cluster, &new_ca()));
    changed(&mut folder, files([("1", &one), ("2", &other)]));

    let invalid = files([("1", b"key-label: k\n"), ("2", &other)]);
    let refused = ["1: it has no PEM certificate"];
    assert_eq!(changed(&mut folder, invalid.clone()), refused);
    assert_eq!(changed(&mut folder, invalid), Vec::<String>::new());
    let again = files([("1", b"key-label: l\n"), ("2", &other)]);
    assert_eq!(changed(&mut folder, again), refused);

    assert_eq!(labels(&folder), ["of-t/other"]);
    let reasons: Vec<_> = folder.refused().collect();
    assert_eq!(reasons, [("1", "it has no PEM certificate")]);
}

#[test]
fn a_second_file_for_a_cluster_is_refused_until_the_first_ends() {
    let mut folder = Folder::default();
    let [one, two] = ["t/one", "t/one"].map(|cluster| file(cluster, &new_ca()));
    changed(&mut folder, files([("b", &one)]));

    // The name of the later file sorts before the name of the file in use.
    let both = files([("a", &two), ("b", &one)]);
    let events = changed(&mut folder, both.clone());
    assert_eq!(events, ["a: b is already the file for Cluster t/one"]);
    assert_eq!(changed(&mut folder, both), Vec::<String>::new());
    let events = changed(&mut folder, files([("a", &two)]));
    assert_eq!(events, ["a: of-t/one", "b removed"]);
}

#[test]
fn a_ca_in_use_keeps_its_cluster_if_its_file_changes() {
    let [one, renewed, second] = ["t/one"; 3].map(|cluster| file(cluster, &new_ca()));
    // At the same time, the file of another CA gets a different Cluster.
    let [other, moved] = ["t/other", "t/one"].map(|cluster| file(cluster, &new_ca()));
    let refused = "is already the file for Cluster t/one";
    let mut folder = Folder::default();
    changed(&mut folder, files([("a", &other), ("c", &one)]));

    let events = changed(
        &mut folder,
        files([("a", &moved), ("b", &second), ("c", &renewed)]),
    );

    let expected = [
        format!("a: c {refused}"),
        format!("b: c {refused}"),
        "c: of-t/one".to_owned(),
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_ca_certificate_is_refused_for_a_second_cluster() {
    let mut folder = Folder::default();
    let ca = new_ca();
    let [one, two] = ["t/one", "t/two"].map(|cluster| file(cluster, &ca));

    let events = changed(&mut folder, files([("1", &one), ("2", &two)]));

    let refused = "2: 1 already assigns this CA certificate to Cluster t/one";
    assert_eq!(events, ["1: of-t/one", refused]);
    assert_eq!(labels(&folder), ["of-t/one"]);
}

#[test]
fn the_key_of_a_ca_is_refused_for_a_second_cluster() {
    let key = KeyPair::generate().unwrap();
    let one = file("t/one", &ca_of(&key, 1));
    // If a certificate has the name and the public key of another CA, its digest is different.
    let copied = file("t/two", &ca_of(&key, 2));
    let text = String::from_utf8(file("t/two", &new_ca())).unwrap();
    let labelled = text.replace("key-label: of-t/two", "key-label: of-t/one");
    for second in [copied, labelled.into_bytes()] {
        let mut folder = Folder::default();

        let events = changed(&mut folder, files([("1", &one), ("2", &second)]));

        let refused = "2: 1 already assigns the key of this CA to Cluster t/one";
        assert_eq!(events, ["1: of-t/one", refused]);
        assert_eq!(labels(&folder), ["of-t/one"]);
    }
    // A renewed certificate for the same key replaces the CA.
    let mut folder = Folder::default();
    changed(&mut folder, files([("1", &one)]));
    let renewed = file("t/one", &ca_of(&key, 2));
    assert_eq!(
        changed(&mut folder, files([("1", &renewed)])),
        ["1: of-t/one"]
    );
}

#[test]
fn a_folder_with_too_many_entries_is_an_error() {
    let scratch = tempfile::tempdir().unwrap();
    for number in 0..MAX_ENTRIES {
        fs::write(scratch.path().join(format!(".{number}")), "").unwrap();
    }
    assert!(read(scratch.path()).unwrap().is_empty());

    fs::write(scratch.path().join("one-more"), "").unwrap();

    let error = read(scratch.path()).unwrap_err();
    assert_eq!(error.to_string(), "it has more than 10,000 entries");
}

#[test]
fn only_visible_regular_files_of_limited_length_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    fs::write(path("plain"), "a").unwrap();
    fs::write(path(".hidden"), "b").unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink(path(".hidden"), path("linked")).unwrap();
    symlink(path("nowhere"), path("dangling")).unwrap();
    fs::write(path("long"), vec![b'a'; 64 * 1024 + 1]).unwrap();

    let files = read(scratch.path()).unwrap();

    let names: Vec<_> = files.keys().collect();
    assert_eq!(names, ["dangling", "linked", "long", "plain"]);
    assert_eq!(files["plain"].as_deref(), Ok(&b"a"[..]));
    assert_eq!(files["linked"].as_deref(), Ok(&b"b"[..]));
    assert_eq!(files["long"], Err("it is longer than 64 KiB".to_owned()));
    let missing = "No such file or directory (os error 2)";
    assert_eq!(files["dangling"], Err(missing.to_owned()));
    let error = read(&path("nowhere")).unwrap_err();
    assert_eq!(error.to_string(), missing);
}
