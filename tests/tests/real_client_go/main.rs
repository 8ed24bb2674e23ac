//! Kubeconfigs, CA files, server certificates and proxies: the plugin's client accepts what client-go accepts. kubectl
//! represents client-go, and each difference is a row of docs/support.md.

mod authorities;
mod bed;
mod documents;
mod proxies;
mod servers;

use std::fs;
use std::path::Path;
use std::thread;

use bed::{Bed, Form, Verdict};

/// The differences on the page, by their mark.
fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/support.md");
    fs::read_to_string(path).unwrap()
}

/// The results of kubectl and the plugin for each form. They wait most of the time.
fn results(forms: &[Form]) -> Vec<(Result<(), String>, Result<(), String>)> {
    thread::scope(|scope| {
        let parts = forms.chunks(forms.len().div_ceil(4));
        let parts = parts.map(|part| {
            scope.spawn(move || {
                let both = part.iter().map(|form| (form.kubectl(), form.plugin()));
                both.collect::<Vec<_>>()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    })
}

/// Compares each form, and asserts that the differences are the expected ones.
fn compare(forms: Vec<Form>, least: usize) {
    assert!(forms.len() >= least, "{}", forms.len());
    let page = page();
    let mut wrong = Vec::new();
    for (form, (theirs, ours)) in forms.iter().zip(results(&forms)) {
        let found = match (theirs.is_ok(), ours.is_ok()) {
            (true, true) | (false, false) => Verdict::Same,
            (true, false) => Verdict::Stricter,
            (false, true) => Verdict::Looser,
        };
        let name = form.name;
        if found != form.expected {
            wrong.push(format!(
                "{name}: {found:?}\n  client-go: {theirs:?}\n  plugin: {ours:?}"
            ));
        }
        let is_listed = page.contains(&format!("| {name} |"));
        if is_listed != (form.expected != Verdict::Same) {
            wrong.push(format!("{name}: listed in docs/support.md: {is_listed}"));
        }
        // A limit is explained in plain words.
        if let (Verdict::Stricter, Err(why)) = (form.expected, &ours)
            && (form.says.is_empty() || !why.contains(form.says))
        {
            wrong.push(format!("{name}: {why:?} does not contain {:?}", form.says));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_kubeconfig_is_read_as_in_client_go() {
    compare(documents::forms(&Bed::start()), 45);
}

#[test]
fn a_ca_file_is_read_as_in_client_go() {
    compare(authorities::forms(&Bed::start()), 18);
}

#[test]
fn a_server_certificate_is_verified_as_in_client_go() {
    compare(servers::forms(), 26);
}

#[test]
fn a_proxy_is_used_as_in_client_go() {
    compare(proxies::forms(&Bed::start()), 10);
}
