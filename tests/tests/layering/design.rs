//! Checks that the code uses the packages, and contains the directories, of the design in docs/conformance.md.

use std::fs;
use std::path::Path;

use crate::Workspace;
use crate::modules::rows;

const PACKAGES: [&str; 10] = [
    "clap",
    "rcgen",
    "x509-parser",
    "pem",
    "base64",
    "reqwest",
    "serde_json",
    "fs2",
    "tss-esapi",
    "aws-sdk-ec2",
];

const PLACES: [&str; 7] = [
    "Cargo.toml",
    "src",
    "providers",
    "packaging",
    "image-builder",
    "tests",
    "README.md",
];

/// The quoted names in a column of a table in docs/conformance.md.
fn names(heading: &str, column: usize) -> Vec<String> {
    let cells = rows("conformance.md", heading, column).into_iter();
    cells
        .map(|cell| cell.trim_matches('`').to_owned())
        .collect()
}

/// Whether the manifest lists the package among the dependencies of production code.
fn depends(manifest: &str, package: &str) -> bool {
    let production = manifest.split("[dev-dependencies]").next().unwrap();
    let forms = [
        format!("{package}.workspace = true"),
        format!("{package} = {{ workspace = true"),
    ];
    let mut lines = production.lines();
    lines.any(|line| forms.iter().any(|form| line.starts_with(form.as_str())))
}

/// Whether production code in the text contains the package name.
fn uses(text: &str, package: &str) -> bool {
    let path = format!("{}::", package.replace('-', "_"));
    let production = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let mut lines = production.lines();
    lines.any(|line| !line.trim_start().starts_with("//") && line.contains(&path))
}

/// The manifest of the package that contains the file.
fn manifest(file: &Path) -> String {
    let mut manifests = file.ancestors().map(|folder| folder.join("Cargo.toml"));
    let manifest = manifests.find(|manifest| manifest.is_file()).unwrap();
    fs::read_to_string(manifest).unwrap()
}

#[test]
fn production_code_uses_each_package_of_the_design() {
    let root = Workspace::read().root;
    let packages = names("## Packages in the design", 0);

    assert_eq!(packages, PACKAGES);
    for (package, file) in packages.iter().zip(names("## Packages in the design", 2)) {
        let file = root.join(file);
        assert!(depends(&manifest(&file), package), "{package}");
        let text = fs::read_to_string(&file).unwrap();
        assert!(uses(&text, package), "{package}: {}", file.display());
    }
}

#[test]
fn each_place_of_the_design_exists() {
    let root = Workspace::read().root;

    assert_eq!(names("## Folders in the design", 0), PLACES);
    for place in PLACES {
        let path = root.join(place);
        assert_eq!(path.is_file(), place.contains('.'), "{place}");
        assert_eq!(path.is_dir(), !place.contains('.'), "{place}");
    }
}

#[test]
fn a_package_for_tests_or_in_a_comment_is_not_used() {
    let manifest = "[dependencies]\npem.workspace = true\nclap = { workspace = true }\n\
        [dev-dependencies]\nrcgen.workspace = true\n";
    let found = ["pem", "clap", "rcgen", "pe"].map(|package| depends(manifest, package));
    assert_eq!(found, [true, true, false, false]);

    let text =
        "use x509_parser::der;\n// fs2::lock\n\n#[cfg(test)]\nmod tests {\n    use pem::Pem;\n}\n";
    let found = ["x509-parser", "fs2", "pem"].map(|package| uses(text, package));
    assert_eq!(found, [true, false, false]);
}
