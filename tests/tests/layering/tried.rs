//! Checks that an integration test contains each option of `run`, each setting of the plugins and each field of a
//! KubeletAuthentication. This does not prove that the option or field is tested. Without an occurrence, however, no
//! test with the real programs uses it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::program;
use node_attestation_core::crd;
use regex_lite::Regex;
use serde_json::Value;

use super::rust_files;

/// The plugins whose settings an operator sets.
const PLUGINS: [&str; 3] = ["insecure", "aws", "tpm"];

/// The directories in `tests/tests` whose files check only texts. A name in these files does not count as a use.
const TEXTS: [&str; 3] = ["book", "conformance", "layering"];

/// The concatenated sources of the suites, of their fixtures, and of the demo.
fn suites() -> String {
    let tests = repository().join("tests");
    let folders = ["src", "tests", "../tools"].map(|folder| rust_files(&tests.join(folder)));
    let is_about_texts = |name: &str| TEXTS.iter().any(|text| name.starts_with(text));
    let files = folders.into_iter().flatten().filter(|file| {
        let path = file.strip_prefix(tests.join("tests"));
        let first = path.ok().and_then(|path| path.iter().next());
        !first.is_some_and(|first| is_about_texts(first.to_str().unwrap()))
    });
    files
        .map(|file| fs::read_to_string(file).unwrap())
        .collect()
}

/// The names that no suite contains in one of these forms.
fn unused<const FORMS: usize>(
    names: &BTreeSet<String>,
    forms: impl Fn(&str) -> [String; FORMS],
) -> Vec<&String> {
    let suites = suites();
    let is_used = |name: &str| forms(name).iter().any(|form| occurs(&suites, form));
    names.iter().filter(|name| !is_used(name)).collect()
}

/// Whether the text contains the form as a whole word.
fn occurs(text: &str, form: &str) -> bool {
    let goes_on = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter))
    };
    let starts = goes_on(form.chars().next());
    let ends = goes_on(form.chars().next_back());
    text.match_indices(form).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + form.len()..].chars().next();
        !(starts && goes_on(before) || ends && goes_on(after))
    })
}

fn help(name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program(name));
    let output = command.args(arguments).env_clear().output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The long options in the entries of a help text, without `--help` and hidden options.
fn options(help: &str) -> BTreeSet<String> {
    let entry = Regex::new(r"(?m)^ {2,6}(?:-\w, )?--([a-z0-9-]+)").unwrap();
    let names = entry.captures_iter(help).map(|found| found[1].to_owned());
    names.filter(|name| name != "help").collect()
}

/// The names of the fields in an object, including the fields in nested objects and lists.
fn fields(schema: &Value, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(name.clone());
        fields(field, found);
        fields(&field["items"], found);
    }
}

/// A name in quotes, and the name as a YAML key.
fn keys(name: &str) -> [String; 3] {
    [
        format!("\"{name}\""),
        format!("\"{name}\\\""),
        format!("{name}: "),
    ]
}

#[test]
fn each_option_of_run_is_used_by_a_suite() {
    let options = options(&help("node-attestation-controller", &["run", "--help"]));

    assert!(options.contains("kubeconfig"), "{options:?}");
    let unused = unused(&options, |name| [format!("--{name}")]);
    assert_eq!(unused, Vec::<&String>::new());
}

#[test]
fn each_setting_of_a_plugin_is_used_by_a_suite() {
    let mut settings = BTreeSet::new();
    for plugin in PLUGINS {
        let help = help(&format!("kubelet-authenticator-{plugin}"), &["--help"]);
        let (_, section) = help.split_once("\nSettings:\n").unwrap();
        let section = section.split("\nOutput:\n").next().unwrap();
        settings.extend(options(section));
    }

    assert!(settings.contains("aws-principal"), "{settings:?}");
    // The three forms are an option, a variable, and a key in a file: `aws: {stsEndpoint: HOST}`.
    let unused = unused(&settings, |name| {
        let variable = name.to_uppercase().replace('-', "_");
        let own = name.strip_prefix("aws-").or(name.strip_prefix("tpm-"));
        let [quoted, escaped, yaml] = keys(&camel_case(own.unwrap_or(name)));
        let prefixed = format!("KUBELET_AUTHENTICATOR_{variable}");
        [
            format!("--{name}"),
            format!("\"{variable}\""),
            prefixed,
            quoted,
            escaped,
            yaml,
        ]
    });
    assert_eq!(unused, Vec::<&String>::new());
}

#[test]
fn each_field_of_a_kubelet_authentication_is_used_by_a_suite() {
    let definitions = crd::manifests().into_iter();
    let mut definitions = definitions.map(|one| serde_json::to_value(one).unwrap());
    let definition =
        definitions.find(|one| one["spec"]["names"]["kind"] == "KubeletAuthentication");
    let version = &definition.unwrap()["spec"]["versions"][0];
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut found = BTreeSet::new();

    fields(spec, &mut found);

    assert!(found.contains("requireCA"), "{found:?}");
    assert_eq!(unused(&found, keys), Vec::<&String>::new());
}

/// The name of an option as a key: `sts-endpoint` becomes `stsEndpoint`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| match word {
        "id" => key + "ID",
        _ => key + &word[..1].to_uppercase() + &word[1..],
    })
}
