//! Checks the page URLs that programs, manifests and pages show, and the columns in the picture of the demo.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kubelet_attestation::page_url;
use kubelet_authenticator_tests::docs::{Source, sources};
use kubelet_authenticator_tests::page::repository;
use serde_json::Value;

use crate::markdown::anchors;
use crate::pages;

/// The packages that contain the programs.
const PROGRAMS: [&str; 5] = ["attestation", "controller", "providers", "resolver", "src"];

/// Files that are not pages, but contain page URLs.
const OTHERS: [&str; 5] = [
    "docs/images/doctor.svg",
    "packaging/chart/node-attestation-controller/values.yaml",
    "packaging/monitoring/alerts.yaml",
    "packaging/monitoring/alerts-test.yaml",
    "packaging/monitoring/dashboard.json",
];

/// The source files of the programs, without their tests.
fn programs() -> Vec<Source> {
    let is_program = |source: &Source| {
        let path = &source.path;
        let is_of_tests = path
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        let package = PROGRAMS.iter().any(|folder| path.starts_with(folder));
        // The module that defines the macro contains only an example. The other module is compiled only for tests.
        let exceptions = [
            "attestation/src/pages.rs",
            "controller/core/src/crd/reference.rs",
        ];
        package && !is_of_tests && !exceptions.iter().any(|it| path == Path::new(it))
    };
    let mut sources: Vec<Source> = sources().into_iter().filter(is_program).collect();
    for source in &mut sources {
        let end = source.text.find("#[cfg(test)]\nmod ");
        source.text.truncate(end.unwrap_or(source.text.len()));
    }
    sources
}

/// The error message for a page with an anchor, if any. An anchor that ends with a hyphen is the start of several
/// anchors.
fn objection(pages: &BTreeMap<String, String>, target: &str) -> Option<String> {
    let (name, anchor) = target.split_once('#').unwrap_or((target, ""));
    let Some(page) = pages.get(&format!("docs/{name}")) else {
        return Some(format!("docs/{name} does not exist"));
    };
    let is_start = anchor.ends_with('-');
    let exists = anchor.is_empty()
        || anchors(page)
            .iter()
            .any(|known| known == anchor || (is_start && known.starts_with(anchor)));
    (!exists).then(|| format!("docs/{name} has no anchor {anchor}"))
}

#[test]
fn each_page_and_anchor_that_a_program_prints_exists() {
    let pages = pages();
    let (mut count, mut objections) = (0, Vec::new());
    for source in programs() {
        for rest in source.text.split("page_url!(").skip(1) {
            let target = rest.trim_start().strip_prefix('"').unwrap();
            let target = target.split('"').next().unwrap();
            let objection = objection(&pages, target);
            objections.extend(objection.map(|it| format!("{}: {it}", source.path.display())));
            count += 1;
        }
    }

    assert_eq!(objections, Vec::<String>::new());
    assert!(count >= 8, "{count}");
}

/// Nodes do not have the source code, and packages do not install the pages.
#[test]
fn programs_do_not_refer_to_pages_by_source_path() {
    let mut found = Vec::new();
    for source in programs() {
        let lines = source.text.lines().map(str::trim_start);
        let printed = lines.filter(|line| !line.starts_with("//"));
        let named = printed.filter(|line| line.contains("docs/") && line.contains(".md"));
        found.extend(named.map(|line| format!("{}: {line}", source.path.display())));
    }

    assert_eq!(found, Vec::<String>::new(), "use page_url!");
}

#[test]
fn each_page_url_has_this_version_and_exists() {
    let pages = pages();
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let others = OTHERS.map(|path| (path.to_owned(), read(path)));
    let repository = page_url!("").split("/blob/").next().unwrap();
    let start = format!("{repository}/blob/v");
    let mut objections = Vec::new();
    for (path, text) in pages.clone().into_iter().chain(others) {
        for (at, _) in text.match_indices(&start) {
            let url = text[at..].split(|c: char| c.is_whitespace() || "'\"<>)`".contains(c));
            let url = url.into_iter().next().unwrap();
            let objection = match url.strip_prefix(page_url!("")) {
                Some(target) => objection(&pages, target),
                None => Some(format!("{url} is of another version")),
            };
            objections.extend(objection.map(|it| format!("{path}: {it}")));
        }
    }

    assert_eq!(objections, Vec::<String>::new());
}

#[test]
fn the_urls_have_the_repository_and_the_version_of_the_manifest() {
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let field = |name: &str| {
        let start = format!("{name} = \"");
        let mut lines = manifest.lines();
        let value = lines.find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'));
        value.unwrap()
    };

    let expected = format!(
        "{}/blob/v{}/docs/reasons.md",
        field("repository"),
        field("version")
    );

    assert_eq!(page_url!("reasons.md"), expected);
}

#[test]
fn the_picture_of_the_demo_has_the_columns_of_node_identities() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let definition = read("packaging/crds/nodeidentities.yaml");
    let definition: Value = serde_saphyr::from_str(&definition).unwrap();
    let columns = &definition["spec"]["versions"][0]["additionalPrinterColumns"];
    let shown = columns.as_array().unwrap().iter();
    let shown = shown.filter(|column| column["priority"].is_null());
    let mut expected = vec!["NAME".to_owned()];
    expected.extend(shown.map(|column| column["name"].as_str().unwrap().to_uppercase()));

    let picture = read("docs/images/demo.svg");
    let mut lines = picture.lines();
    let header = lines.find(|line| line.contains(">NAME ") && line.contains("ATTESTOR"));
    let header = header.unwrap().strip_suffix("</text>").unwrap();
    let (_, header) = header.split_once('>').unwrap();
    let found = header.split("   ").map(str::trim);
    let found: Vec<&str> = found.filter(|word| !word.is_empty()).collect();
    assert_eq!(found, expected);
}
