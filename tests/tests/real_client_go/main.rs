//! Tests with kubeconfigs, CA files, server certificates and proxies: the plugin's client accepts the same input as
//! client-go. kubectl represents client-go, and each difference has a row in docs/support.md.

mod authorities;
mod bed;
mod documents;
mod openssl;
mod proxies;
mod servers;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;

use bed::{Bed, Form, Verdict};

/// The section on the page that lists the differences.
fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/support.md");
    fs::read_to_string(path).unwrap()
}

/// The results of kubectl and the plugin for each form. The forms run in parallel, because the programs wait most of
/// the time.
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

/// The differences between the results of a form and its expected comparison, and between the comparison and the page.
fn faults(
    form: &Form,
    theirs: &Result<(), String>,
    ours: &Result<(), String>,
    page: &str,
) -> Vec<String> {
    let mut faults = Vec::new();
    let found = match (theirs.is_ok(), ours.is_ok()) {
        (true, true) | (false, false) => Verdict::Same,
        (true, false) => Verdict::Stricter,
        (false, true) => Verdict::Looser,
    };
    let name = form.name;
    if found != form.expected {
        faults.push(format!(
            "{name}: {found:?}\n  client-go: {theirs:?}\n  plugin: {ours:?}"
        ));
    }
    let is_listed = page.contains(&format!("| {name} |"));
    if is_listed != (form.expected != Verdict::Same) {
        faults.push(format!("{name}: listed in docs/support.md: {is_listed}"));
    }
    // The plugin's error explains the limit.
    if let (Verdict::Stricter, Err(why)) = (form.expected, ours)
        && (form.says.is_empty() || !why.contains(form.says))
    {
        faults.push(format!("{name}: {why:?} does not contain {:?}", form.says));
    }
    faults
}

/// Compares each form, and asserts that only the expected differences occur. Two programs that cannot connect to the
/// server also agree, so both programs must accept the valid forms.
fn compare(forms: Vec<Form>, least: usize, valid: &[&str]) {
    assert!(forms.len() >= least, "{}", forms.len());
    let page = page();
    let mut wrong = Vec::new();
    let mut accepted = BTreeSet::new();
    for (form, (theirs, ours)) in forms.iter().zip(results(&forms)) {
        wrong.extend(faults(form, &theirs, &ours, &page));
        match theirs.and(ours) {
            Ok(()) => _ = accepted.insert(form.name),
            Err(why) if valid.contains(&form.name) => wrong.push(format!("{}: {why}", form.name)),
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for name in valid {
        assert!(
            accepted.contains(name),
            "{name} is not a form: {accepted:?}"
        );
    }
}

#[test]
fn a_disagreement_with_client_go_is_reported() {
    const ROW: &str = "| this form | why |";
    let bed = Bed::start();
    let form = || Form::new("this form", &bed, bed.kubeconfig());
    let (taken, refused) = (Ok(()), Err("the reason".to_owned()));
    let results = [
        (&taken, &taken, Verdict::Same),
        (&refused, &refused, Verdict::Same),
        (&taken, &refused, Verdict::Stricter),
        (&refused, &taken, Verdict::Looser),
    ];

    for form in [form(), form().stricter("reason"), form().looser()] {
        let (page, other_page) = match form.expected {
            Verdict::Same => ("", ROW),
            Verdict::Stricter | Verdict::Looser => (ROW, ""),
        };
        for (theirs, ours, found) in results {
            let reported = faults(&form, theirs, ours, page);
            let expected = usize::from(found != form.expected);
            assert_eq!(reported.len(), expected, "{found:?}: {reported:?}");
            assert!(!faults(&form, theirs, ours, other_page).is_empty());
        }
    }
    for words in ["", "another reason"] {
        let stricter = form().stricter(words);
        let reported = faults(&stricter, &taken, &refused, ROW);
        assert_eq!(reported.len(), 1, "{words:?}: {reported:?}");
    }
}

#[test]
fn a_kubeconfig_is_read_as_in_client_go() {
    let valid = [
        "usual kubeconfig",
        "JSON",
        "CRLF line ends",
        "another name",
        "base64 in a literal block",
        "client certificate",
    ];
    compare(documents::forms(&Bed::start()), 45, &valid);
}

#[test]
fn a_ca_file_is_read_as_in_client_go() {
    let valid = [
        "CA file",
        "CA file with CRLF",
        "CA file with another CA first",
    ];
    compare(authorities::forms(&Bed::start()), 18, &valid);
}

#[test]
fn a_server_certificate_is_verified_as_in_client_go() {
    let valid = [
        "serverAuth",
        "no extended key usage",
        "any extended key usage",
        "exact name",
        "wildcard",
        "intermediate",
        "listed certificate",
        "RSA key of 4096 bits",
        "P-384 key",
        "P-521 key",
        "Ed25519 key",
        "TLS 1.2",
    ];
    compare(servers::forms(), 26, &valid);
}

#[test]
fn a_proxy_is_used_as_in_client_go() {
    let valid = ["proxy-url", "HTTPS_PROXY"];
    compare(proxies::forms(&Bed::start()), 10, &valid);
}
