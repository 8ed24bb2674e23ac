//! Tests of CA certificates in files.

use std::fs;

use super::bed::{Bed, Form};

const BROKEN: &str = "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n";
const NO_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";

pub fn forms(bed: &Bed) -> Vec<Form> {
    let pem = bed.authority.certificate_pem();
    let other = super::bed::Bed::start();
    let other = other.authority.certificate_pem();
    let key = &bed.authority.pair().key_pem;
    let der = bed.authority.certificate_der();
    let (head, body) = pem.split_once('\n').unwrap();
    let one_line = {
        let body = body.split("-----END").next().unwrap().replace('\n', "");
        format!("{head}\n{body}\n-----END CERTIFICATE-----\n")
    };
    let form = |name: &'static str, content: &[u8]| {
        let file = bed
            .folder
            .path()
            .join(format!("{}.crt", name.replace(' ', "-")));
        fs::write(&file, content).unwrap();
        let data = format!("certificate-authority-data: {}", bed.ca());
        let named = format!("certificate-authority: {}", file.display());
        Form::new(name, bed, bed.kubeconfig().replace(&data, &named))
    };
    let text = |name, content: &str| form(name, content.as_bytes());
    vec![
        text("CA file", pem),
        text("CA file with CRLF", &pem.replace('\n', "\r\n")),
        text("CA file without a line break at its end", pem.trim_end()),
        text("CA file in one line of base64", &one_line),
        text(
            "CA file with text around blocks",
            &format!("subject=x\n{pem}\nbye\n"),
        ),
        form(
            "CA file with Latin-2 text",
            &[b"# wa\xbfny\n", pem.as_bytes()].concat(),
        ),
        form(
            "CA file with zero bytes",
            &[b"\0\0\n", pem.as_bytes()].concat(),
        ),
        text("CA file with another CA first", &format!("{other}{pem}")),
        text("CA file with a key", &format!("{key}{pem}")),
        text(
            "CA file with a broken block first",
            &format!("{BROKEN}{pem}"),
        ),
        text(
            "CA file with a broken block last",
            &format!("{pem}{BROKEN}"),
        ),
        text(
            "CA file with a block that is no certificate",
            &format!("{NO_CERTIFICATE}{pem}"),
        ),
        text(
            "CA file with an open block at its end",
            &format!("{pem}-----BEGIN CERTIFICATE-----\n"),
        ),
        text(
            "CA file with an open block first",
            &format!("-----BEGIN CERTIFICATE-----\nMAA=\n{pem}"),
        ),
        text("CA file with tabs after lines", &pem.replace('\n', "\t\n")),
        text(
            "CA file with blank lines in a block",
            &pem.replacen('\n', "\n\n", 3),
        ),
        text("CA file with spaces after lines", &pem.replace('\n', " \n")),
        text("CA file of another cluster", other),
        text("CA file with only a broken block", BROKEN),
        text("CA file with only a key", key),
        text(
            "CA file with the label TRUSTED CERTIFICATE",
            &pem.replace("CERTIFICATE", "TRUSTED CERTIFICATE"),
        ),
        text(
            "CA file with the label X509 CERTIFICATE",
            &pem.replace("CERTIFICATE", "X509 CERTIFICATE"),
        ),
        form("CA file in DER", &der),
        text("empty CA file", ""),
        text(
            "CA file with a header in the block",
            &pem.replacen('\n', "\na: b\n\n", 1),
        ),
    ]
}
