//! Tests of servers that only OpenSSL can create.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use super::bed::{Alive, Bed, Form, kubeconfig, openssl_server};

pub fn forms() -> Vec<Form> {
    // A server whose certificate has this subject alternative name, and the additional field of its cluster.
    let of_name = |name: &'static str,
                   (alternative, field): (&str, &str),
                   key: &[&str],
                   more: &[&str],
                   options: &[&str]| {
        let folder = TempDir::new().unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=kube-apiserver",
        ]);
        openssl.args(["-addext", &format!("subjectAltName={alternative}")]);
        openssl.args(["-keyout", "k", "-out", "c", "-newkey"]);
        let output = openssl
            .args(key)
            .args(more)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let [key, certificate] =
            ["k", "c"].map(|file| fs::read_to_string(folder.path().join(file)).unwrap());
        let (port, process) = openssl_server(&folder, (&certificate, &key), options);
        let text = kubeconfig(
            &format!("https://127.0.0.1:{port}"),
            &STANDARD.encode(certificate),
        );
        let text = text.replacen("contexts:", &format!("{field}contexts:"), 1);
        Form::new(name, &Bed::start(), text)
            .keeping(process)
            .keeping(Alive::Folder(Arc::new(folder)))
    };
    let made = |name: &'static str, key: &[&str], more: &[&str], options: &[&str]| {
        of_name(name, ("IP:127.0.0.1", ""), key, more, options)
    };
    let p256 = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let weak = ["-cipher", "ALL:@SECLEVEL=0"];
    vec![
        made("self-signed by openssl req -x509", &["rsa:2048"], &[], &[]),
        made("negative serial number", &p256, &["-set_serial", "-5"], &[]).looser(),
        made("RSA key of 1024 bits", &["rsa:1024"], &[], &weak).stricter("1024 bits"),
        made("RSA key of 4096 bits", &["rsa:4096"], &[], &[]),
        made(
            "P-384 key",
            &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"],
            &[],
            &[],
        ),
        made(
            "P-521 key",
            &["ec", "-pkeyopt", "ec_paramgen_curve:P-521"],
            &[],
            &[],
        ),
        made("Ed25519 key", &["ed25519"], &[], &[]),
        of_name(
            "name of digits",
            ("DNS:123", "    tls-server-name: \"123\"\n"),
            &p256,
            &[],
            &[],
        )
        .stricter("invalid server name"),
        made("TLS 1.2", &p256, &[], &["-tls1_2"]),
        made(
            "TLS 1.2 with only CBC cipher suites",
            &p256,
            &[],
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"],
        )
        .stricter("cipher suite"),
        made(
            "key exchange with only P-384",
            &p256,
            &[],
            &["-groups", "P-384"],
        ),
        made(
            "key exchange with only P-521",
            &p256,
            &[],
            &["-groups", "P-521"],
        )
        .stricter("key exchange"),
        made(
            "TLS 1.1",
            &p256,
            &[],
            &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        ),
    ]
}
