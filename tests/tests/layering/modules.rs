//! Checks the modules of each package for circular imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Workspace, rust_files};

/// The top-level modules of a package, with the modules that each of them imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The packages' sources.
pub(super) const SOURCES: [&str; 12] = [
    "attestation/src",
    "src",
    "controller/core/src",
    "controller/aws/src",
    "controller/tpm/src",
    "controller/manager/src",
    "controller/runtime/src",
    "controller/signers/pkcs11/src",
    "providers/aws/src",
    "providers/insecure/src",
    "providers/null/src",
    "providers/tpm/src",
];

/// The sources of packages with so few files that docs/modules.md has no map of them.
pub(super) const SMALL_SOURCES: [&str; 3] = [
    "controller/signer-api/src",
    "controller/turns/src",
    "resolver/src",
];

/// The imports of the package that has these sources, excluding imports in tests.
fn imports(sources: &Path) -> Imports {
    let files: Vec<(String, PathBuf)> = rust_files(sources)
        .into_iter()
        .filter(|file| !is_of_tests(sources, file))
        .map(|file| (module(sources, &file), file))
        .collect();
    let names: BTreeSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let mut imports = Imports::new();
    for (name, file) in &files {
        let text = fs::read_to_string(file).unwrap();
        let used = used(&text).into_iter();
        let used = used.filter(|used| used != name && names.contains(used.as_str()));
        imports.entry(name.clone()).or_default().extend(used);
    }
    // The root declares every module, and `bin` contains other programs.
    imports.retain(|name, _| !["lib", "main", "bin"].contains(&name.as_str()));
    imports
}

/// The top-level module of the package that contains this file.
fn module(sources: &Path, file: &Path) -> String {
    let first = file.strip_prefix(sources).unwrap().iter().next().unwrap();
    let first = first.to_str().unwrap();
    first.strip_suffix(".rs").unwrap_or(first).to_owned()
}

/// Whether the file is compiled only for tests, because its module, or a module above it, is declared for tests.
pub(super) fn is_of_tests(sources: &Path, file: &Path) -> bool {
    let within = file.strip_prefix(sources).unwrap();
    within.ancestors().any(|path| {
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
            return false;
        };
        let parent = sources.join(path.parent().unwrap());
        let declaring = [
            parent.with_extension("rs"),
            parent.join("mod.rs"),
            parent.join("lib.rs"),
            parent.join("main.rs"),
        ];
        declaring.iter().any(|declaring| {
            let text = fs::read_to_string(declaring).unwrap_or_default();
            declared_for_tests(&text, name)
        })
    })
}

/// The attributes of modules that only tests use.
const FOR_TESTS: [&str; 3] = [
    "#[cfg(test)]",
    "#[cfg(feature = \"testing\")]",
    "#[cfg(any(test, feature = \"testing\"))]",
];

/// Whether the text declares the module only for tests.
fn declared_for_tests(text: &str, module: &str) -> bool {
    let mut lines = text.lines();
    let mut for_tests = false;
    lines.any(|line| {
        let declared = line
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ");
        let found = for_tests && declared == format!("mod {module};");
        for_tests = FOR_TESTS.contains(&line) || for_tests && line.starts_with("#[");
        found
    })
}

/// The text without its tests and comments.
pub(super) fn production(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The top-level modules of the package that the text names after `crate::`, excluding tests and comments.
fn used(text: &str) -> BTreeSet<String> {
    let text = production(text);
    let mut used = BTreeSet::new();
    for behind in text.split("crate::").skip(1) {
        match behind.strip_prefix('{') {
            Some(members) => {
                let members = group(members).into_iter();
                used.extend(members.filter_map(|member| identifier(member.trim())));
            }
            None => used.extend(identifier(behind)),
        }
    }
    used
}

/// The members of an import group. `text` starts after the group's opening brace.
pub(super) fn group(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut members) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' => {
                members.push(&text[start..at]);
                break;
            }
            ',' if depth == 0 => {
                members.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    members
}

/// The identifier at the beginning of the text.
pub(super) fn identifier(text: &str) -> Option<String> {
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    let name = &text[..end.unwrap_or(text.len())];
    (!name.is_empty()).then(|| name.to_owned())
}

/// The modules that import themselves through other modules.
fn circular(imports: &Imports) -> BTreeSet<&str> {
    let leads_back = |name: &&String| reached(imports, name).contains(*name);
    let names = imports.keys().filter(leads_back);
    names.map(String::as_str).collect()
}

/// The modules that this module imports directly or through other modules.
pub(super) fn reached<'a, M: Ord>(
    imports: &'a BTreeMap<M, BTreeSet<M>>,
    module: &'a M,
) -> BTreeSet<&'a M> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        let imported = imports.get(module).into_iter().flatten();
        next.extend(imported.filter(|one| reached.insert(*one)));
    }
    reached
}

#[test]
fn modules_of_a_package_have_no_import_cycles() {
    let root = Workspace::read().root;
    for sources in SOURCES {
        let imports = imports(&root.join(sources));

        assert_eq!(
            circular(&imports),
            BTreeSet::new(),
            "{sources}: {imports:#?}"
        );
    }
}

/// A certificate can be issued only through the chain of types, which determines the contents of the certificate.
#[test]
fn only_the_last_links_of_the_chain_create_certificate_contents() {
    let sources = Workspace::read().root.join("controller/core/src");
    let files = rust_files(&sources).into_iter();
    let named = files.filter(|file| {
        let text = fs::read_to_string(file).unwrap();
        text.contains("CertificateContents")
    });
    let named: BTreeSet<_> = named
        .map(|file| file.strip_prefix(&sources).unwrap().to_owned())
        .collect();
    let expected = ["request/issued.rs", "signer.rs", "signer/certificate.rs"];
    assert_eq!(named, expected.map(PathBuf::from).into());
}

/// The first or the second column of a table on a page in docs.
pub(super) fn rows(page: &str, heading: &str, column: usize) -> Vec<String> {
    let page = Workspace::read().root.join("docs").join(page);
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|row| row.split(" | ").nth(column).unwrap());
    let cells = cells.map(|cell| cell.trim_matches(['|', ' ']).to_owned());
    cells.skip(2).collect()
}

/// The modules of a package with their descriptions, from the first page of the package.
fn first_page(sources: &Path) -> Vec<(String, String)> {
    let roots = ["lib.rs", "main.rs"].map(|root| sources.join(root));
    let root = roots.iter().find(|root| root.exists()).unwrap();
    let text = fs::read_to_string(root).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! - `"));
    let modules = lines.filter_map(|line| line.split_once("`: "));
    let modules = modules.map(|(module, does)| (module.to_owned(), does.to_owned()));
    modules.collect()
}

#[test]
fn modules_match_the_documented_map_and_its_import_order() {
    for source in SOURCES {
        let sources = Workspace::read().root.join(source);
        let imports = imports(&sources);
        // A program that consists of only one file has no modules.
        if imports.is_empty() {
            continue;
        }
        let package = source.trim_end_matches("/src");
        let heading = format!("## `{package}`");
        let names = rows("modules.md", &heading, 0).into_iter();
        let names = names.map(|cell| cell.trim_matches('`').to_owned());
        let map: Vec<(String, String)> = names.zip(rows("modules.md", &heading, 1)).collect();

        assert_eq!(first_page(&sources), map, "{package}");
        let map: Vec<&str> = map.iter().map(|(module, _)| module.as_str()).collect();
        let modules: BTreeSet<&str> = imports.keys().map(String::as_str).collect();
        assert_eq!(
            map.iter().copied().collect::<BTreeSet<_>>(),
            modules,
            "{package}"
        );
        for (place, module) in map.iter().enumerate() {
            let above = &map[..place];
            let below: Vec<_> = imports[*module]
                .iter()
                .filter(|import| !above.contains(&import.as_str()))
                .collect();
            assert!(below.is_empty(), "{package}: {module} imports {below:?}");
        }
    }
}

#[test]
fn every_file_in_the_change_map_exists() {
    let root = Workspace::read().root;
    let places = rows("architecture.md", "## Find the code for a change", 1);
    assert!(places.len() >= 30, "{places:?}");
    for place in places.iter().flat_map(|cell| cell.split(", ")) {
        assert!(root.join(place.trim_matches('`')).exists(), "{place}");
    }
}

#[test]
fn import_cycles_are_found_through_groups_and_paths_outside_tests() {
    let direct = used("use crate::{a::{X, y}, b};\nfn f(it: crate::c::D) {} // crate::d\n");
    assert_eq!(direct, ["a", "b", "c"].map(str::to_owned).into());
    let tested = used("use crate::a;\n\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n");
    assert_eq!(tested, ["a".to_owned()].into());
    assert!(declared_for_tests(
        "#[cfg(test)]\npub(crate) mod forge;\n",
        "forge"
    ));
    assert!(!declared_for_tests(
        "#[cfg(test)]\nmod forge;\nmod kept;\n",
        "kept"
    ));

    let imports = [
        ("a", vec!["b"]),
        ("b", vec!["c"]),
        ("c", vec!["b"]),
        ("d", vec!["a"]),
    ];
    let owned = |(name, used): (&str, Vec<&str>)| {
        let used = used.into_iter().map(str::to_owned);
        (name.to_owned(), used.collect())
    };
    assert_eq!(circular(&imports.map(owned).into()), ["b", "c"].into());
}
