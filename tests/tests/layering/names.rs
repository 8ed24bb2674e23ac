//! Checks that each type name has only one meaning within its package.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::modules::{SOURCES, is_of_tests};
use crate::{Workspace, rust_files};

/// The names that several modules of a package declare. Each controller has its own settings, and callers write the
/// module before the name.
const REPEATED: [&str; 1] = ["controller/runtime/src: Settings"];

/// The types in the text that all modules of the package can use.
fn types(text: &str) -> BTreeSet<&str> {
    let declared = text.lines().filter_map(|line| {
        let behind = line.strip_prefix("pub ");
        behind.or_else(|| line.strip_prefix("pub(crate) "))
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
    let found = SOURCES.into_iter().flat_map(|sources| {
        let repeated = repeated(&root.join(sources)).into_iter();
        repeated.map(move |name| format!("{sources}: {name}"))
    });

    assert_eq!(found.collect::<Vec<_>>(), REPEATED);
}

#[test]
fn the_types_that_all_modules_can_use_are_found() {
    let text = "pub struct A<T>(T);\npub(crate) enum B {\npub(super) struct C;\nstruct D;\n    pub struct E;\n\
                pub type F = A<u8>;\npub(crate) trait G: Debug {\npub fn h() {}\npub(crate) use i::J;\n";

    assert_eq!(types(text), BTreeSet::from(["A", "B", "F", "G"]));
}
