//! Checks the files of each package for circular imports. Only a parent and its descendants are allowed to import each
//! other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::modules::{SMALL_SOURCES, SOURCES, group, identifier, is_of_tests, production, reached};
use crate::{Workspace, rust_files};

/// The names that form the path of a module or an item.
type Names = Vec<String>;

/// The modules, with the modules that each of them imports.
type Imports = BTreeMap<Names, BTreeSet<Names>>;

/// The names that a module imports, with their paths.
type Declared = BTreeMap<Names, BTreeMap<String, Names>>;

/// The maximum number of re-exports between the use of an item and its definition.
const MAX_IMPORTS: usize = 5;

/// The module that the file defines.
fn module(sources: &Path, file: &Path) -> Names {
    let path = file.strip_prefix(sources).unwrap().with_extension("");
    let names = path.iter().map(|name| name.to_str().unwrap().to_owned());
    let mut names: Names = names.collect();
    names.pop_if(|name| ["mod", "lib", "main"].contains(&name.as_str()));
    names
}

/// The paths within a path or a group of paths. `text` starts after `prefix::`. A `*` represents the module itself.
fn paths(text: &str, prefix: &[String]) -> Vec<Names> {
    let text = text.trim_start();
    if let Some(members) = text.strip_prefix('{') {
        let members = group(members).into_iter();
        return members.flat_map(|member| paths(member, prefix)).collect();
    }
    let Some(name) = identifier(text) else {
        return vec![prefix.to_vec()];
    };
    let behind = text[name.len()..].strip_prefix("::");
    let path = [prefix, &[name]].concat();
    match behind {
        Some(behind) => paths(behind, &path),
        None => vec![path],
    }
}

/// The paths in the text that begin with `crate`, `super` or `self`.
fn named(text: &str) -> Vec<Names> {
    let mut named = Vec::new();
    for root in ["crate", "super", "self"] {
        let mark = format!("{root}::");
        for (at, _) in text.match_indices(&mark) {
            let before = text[..at].chars().next_back();
            let is_part = before
                .is_some_and(|before| before.is_ascii_alphanumeric() || ":_$".contains(before));
            if !is_part {
                named.extend(paths(&text[at + mark.len()..], &[root.to_owned()]));
            }
        }
    }
    named
}

/// The paths in the `use` declarations of the file's module.
fn declared(text: &str) -> Vec<Names> {
    let declarations = text.match_indices("use ").filter(|(at, _)| {
        let line = text[..*at].rsplit('\n').next().unwrap();
        line.is_empty() || line == "pub " || line.starts_with("pub(") && line.ends_with(") ")
    });
    let paths = declarations.flat_map(|(at, mark)| paths(&text[at + mark.len()..], &[]));
    paths.collect()
}

/// The path from the root of the package. `None` if the path belongs to another package.
fn absolute(path: &[String], module: &[String], modules: &BTreeSet<Names>) -> Option<Names> {
    let mut names = path.iter().filter(|name| *name != "self").peekable();
    let mut absolute = module.to_vec();
    match path.first()?.as_str() {
        "crate" => {
            absolute.clear();
            names.next();
        }
        "super" | "self" => {
            while names.next_if(|name| *name == "super").is_some() {
                absolute.pop();
            }
        }
        child => {
            let child = [module, &[child.to_owned()]].concat();
            if !modules.contains(&child) {
                return None;
            }
        }
    }
    absolute.extend(names.cloned());
    Some(absolute)
}

/// The module that defines the item with this path.
fn defining(path: &[String], declared: &Declared, imports: usize) -> Option<Names> {
    let mut ends = (0..=path.len()).rev();
    let end = ends.find(|end| declared.contains_key(&path[..*end]))?;
    let (module, item) = path.split_at(end);
    let imported = item.first().and_then(|name| declared[module].get(name));
    match imported {
        Some(imported) if imports < MAX_IMPORTS => {
            let path = [imported.as_slice(), &item[1..]].concat();
            defining(&path, declared, imports + 1)
        }
        _ => Some(module.to_vec()),
    }
}

/// The imports within the package that has these sources. Excludes imports in tests, and in the root, which declares
/// all modules.
fn imports(sources: &Path) -> Imports {
    let files = rust_files(sources).into_iter();
    // `bin` contains other programs.
    let programs = sources.join("bin");
    let files = files.filter(|file| !is_of_tests(sources, file) && !file.starts_with(&programs));
    let texts = files.map(|file| {
        let text = fs::read_to_string(&file).unwrap();
        (module(sources, &file), production(&text))
    });
    let texts: BTreeMap<Names, String> = texts.collect();
    let modules: BTreeSet<Names> = texts.keys().cloned().collect();
    let declarations = texts.iter().map(|(module, text)| {
        let paths = declared(text).into_iter();
        let paths = paths.filter_map(|path| absolute(&path, module, &modules));
        let names = paths.filter_map(|path| Some((path.last()?.clone(), path)));
        (module.clone(), names.collect())
    });
    let declarations: Declared = declarations.collect();
    let imports = texts.iter().map(|(module, text)| {
        let paths = named(text).into_iter().chain(declared(text));
        let paths = paths.filter_map(|path| absolute(&path, module, &modules));
        let used = paths.filter_map(|path| defining(&path, &declarations, 0));
        let used = used.filter(|used| used != module && !used.is_empty());
        (module.clone(), used.collect())
    });
    let mut imports: Imports = imports.collect();
    imports.remove(&Names::new());
    imports
}

/// The maximal sets of modules that import each other.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<Names>> {
    let reached = imports
        .keys()
        .map(|module| (module, reached(imports, module)));
    let reached: BTreeMap<&Names, BTreeSet<&Names>> = reached.collect();
    let in_circles = imports
        .keys()
        .filter(|module| reached[module].contains(module));
    let circle = |module: &Names| -> BTreeSet<Names> {
        let others = reached[module].iter().copied();
        let others = others.filter(|other| reached[other].contains(module));
        others.cloned().collect()
    };
    in_circles.map(circle).collect()
}

/// The modules that import each other, excluding a parent and its descendants.
fn cycles(imports: &Imports) -> Vec<BTreeSet<Names>> {
    let mut cycles_found = Vec::new();
    for circle in circles(imports) {
        let is_parent = |one: &&Names| circle.iter().all(|other| other.starts_with(one));
        let Some(parent) = circle.iter().find(is_parent) else {
            cycles_found.push(circle);
            continue;
        };
        let rest = circle.iter().filter(|module| *module != parent);
        let rest = rest.map(|module| {
            let others = imports[module].intersection(&circle);
            let others = others.filter(|other| *other != parent).cloned();
            (module.clone(), others.collect())
        });
        cycles_found.extend(cycles(&rest.collect()));
    }
    cycles_found
}

#[test]
fn files_of_a_package_have_no_import_cycles_except_parent_and_child() {
    let root = Workspace::read().root;
    let mut found = Vec::new();
    for sources in SOURCES.into_iter().chain(SMALL_SOURCES) {
        for cycle in cycles(&imports(&root.join(sources))) {
            let files: Vec<String> = cycle.iter().map(|module| module.join("/")).collect();
            found.push(format!("{sources}: {}", files.join(", ")));
        }
    }

    assert_eq!(found, Vec::<String>::new());
}

fn names(path: &str) -> Names {
    path.split('/').map(str::to_owned).collect()
}

#[test]
fn imports_are_found_in_groups_and_through_reexports() {
    let text =
        "use super::{a::{X, y}, self, b::*};\npub(super) use child::Z;\nfn f(it: crate::c::D) {}\n";
    let expected = [
        "crate/c/D",
        "super/a/X",
        "super/a/y",
        "super/self",
        "super/b",
    ];
    assert_eq!(named(text), expected.map(names));
    let expected = ["super/a/X", "super/a/y", "super/self", "super/b", "child/Z"];
    assert_eq!(declared(text), expected.map(names));

    let modules: BTreeSet<Names> = ["m", "m/child", "m/other"].map(names).into();
    let within = |path: &str| absolute(&names(path), &names("m/child"), &modules);
    assert_eq!(within("super/other/X"), Some(names("m/other/X")));
    assert_eq!(within("crate/m/self"), Some(names("m")));
    assert_eq!(within("std/fs"), None);

    // `m` exports an item of `m/child`.
    let exports = BTreeMap::from([("X".to_owned(), names("m/child/X"))]);
    let declared: Declared = [(names("m"), exports), (names("m/child"), BTreeMap::new())].into();
    assert_eq!(
        defining(&names("m/X"), &declared, 0),
        Some(names("m/child"))
    );
}

#[test]
fn siblings_that_import_each_other_are_a_cycle_and_a_family_is_not() {
    let imports = |all: &[(&str, Vec<&str>)]| -> Imports {
        let imports = all.iter().map(|(module, used)| {
            let used = used.iter().map(|used| names(used));
            (names(module), used.collect())
        });
        imports.collect()
    };

    let family = imports(&[("m", vec!["m/child"]), ("m/child", vec!["m"])]);
    assert!(cycles(&family).is_empty());
    let siblings = imports(&[
        ("m", vec!["m/child"]),
        ("m/child", vec!["m", "m/other"]),
        ("m/other", vec!["m/child"]),
    ]);
    let expected: BTreeSet<Names> = ["m/child", "m/other"].map(names).into();
    assert_eq!(cycles(&siblings), [expected]);
}
