//! Checks that each type name has only one meaning within its package.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::modules::{SMALL_SOURCES, SOURCES, is_of_tests};
use crate::{Workspace, rust_files};

/// The names that several modules of a package declare. Each controller has its own settings, and each kind of Cluster
/// API has its own spec and status. Callers write the module before the name.
const REPEATED: [&str; 3] = [
    "controller/runtime/src: Settings",
    "controller/runtime/src: Spec",
    "controller/runtime/src: Status",
];

/// The types in the text that other modules of the package can use.
fn types(text: &str) -> BTreeSet<&str> {
    let declared = text.lines().filter_map(|line| {
        let behind = line.strip_prefix("pub")?;
        let restricted = behind.strip_prefix('(').and_then(|it| it.split_once(')'));
        restricted.map_or(behind, |(_, it)| it).strip_prefix(' ')
    });
    declared.filter_map(declared_type).collect()
}

/// The name of the type in a declaration without its visibility. `None` if it does not declare a type.
fn declared_type(declaration: &str) -> Option<&str> {
    let (kind, behind) = declaration.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type"].contains(&kind);
    let mut words = behind.split(|character: char| !character.is_ascii_alphanumeric());
    words.next().filter(|_| is_type)
}

/// The names that several files declare.
fn repeated(sources: &Path) -> BTreeSet<String> {
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    for file in rust_files(sources) {
        if !is_of_tests(sources, &file) {
            let text = fs::read_to_string(&file).unwrap();
            for name in types(&text) {
                *files.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    let repeated = files.into_iter().filter(|(_, count)| *count > 1);
    repeated.map(|(name, _)| name).collect()
}

#[test]
fn a_type_name_means_one_thing_within_its_package() {
    let root = Workspace::read().root;
    let sources = SOURCES.into_iter().chain(SMALL_SOURCES);
    let found = sources.flat_map(|sources| {
        let repeated = repeated(&root.join(sources)).into_iter();
        repeated.map(move |name| format!("{sources}: {name}"))
    });

    assert_eq!(found.collect::<Vec<_>>(), REPEATED);
}

#[test]
fn the_types_that_other_modules_can_use_are_found() {
    let text = "pub struct A<T>(T);\npub(crate) enum B {\npub(super) struct C;\nstruct D;\n    pub struct E;\n\
                pub type F = A<u8>;\npub(crate) trait G: Debug {\npub fn h() {}\npub(crate) use i::J;\n\
                pub(in crate::k) type L = B;\n";

    assert_eq!(types(text), BTreeSet::from(["A", "B", "C", "F", "G", "L"]));
}
