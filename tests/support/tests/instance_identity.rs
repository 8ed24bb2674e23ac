//! Tests that check the simulated instance identity documents with independent programs.

use std::process::Command;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};

static SIGNER: LazyLock<TestSigner> =
    LazyLock::new(|| TestSigner::new([0xb6, 0x4b, 0xde, 0x5a, 0xd0, 0x09, 0x24, 0xcc]));

fn document() -> Document {
    Document::new(
        "278576220453",
        "us-west-2",
        "us-west-2a",
        "i-078517ca8a70a1dde",
    )
}

/// Verifies a message with openssl and the certificate of `signer`. Returns the content if the message is valid.
fn openssl(message: &[u8], signer: &TestSigner) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (path, certificate) = (folder.path().join("message"), folder.path().join("signer"));
    std::fs::write(&path, message).unwrap();
    std::fs::write(&certificate, signer.certificate_pem()).unwrap();
    let output = Command::new("openssl")
        .args([
            "cms", "-verify", "-binary", "-inform", "DER", "-purpose", "any", "-in",
        ])
        .arg(path)
        .arg("-certfile")
        .arg(&certificate)
        .arg("-CAfile")
        .arg(&certificate)
        .output()
        .unwrap();
    output.status.success().then_some(output.stdout)
}

#[test]
fn openssl_verifies_signed_messages_in_ber_and_der() {
    let document = document().to_json();
    let message = SIGNER.message(document.as_bytes());

    for encoded in [message.to_ber(), message.to_der()] {
        assert_eq!(
            openssl(&encoded, &SIGNER),
            Some(document.clone().into_bytes())
        );
    }
}

#[test]
fn openssl_verifies_a_document_in_several_pieces() {
    let mut document = document();
    document.billing_products = vec!["bp-6fa54006".into(); 100];
    let document = document.to_json();

    let message = SIGNER.message(document.as_bytes()).to_ber();

    assert_eq!(openssl(&message, &SIGNER), Some(document.into_bytes()));
}

#[test]
fn openssl_rejects_a_changed_document_and_another_signer() {
    let other = TestSigner::new([0xb6, 0x4b, 0xde, 0x5a, 0xd0, 0x09, 0x24, 0xcc]);
    let message = SIGNER.message(document().to_json().as_bytes());
    let mut changed = message.clone();
    changed.content.as_mut().unwrap()[20] ^= 1;

    assert_eq!(openssl(&changed.to_ber(), &SIGNER), None);
    assert_eq!(openssl(&message.to_ber(), &other), None);
}

#[test]
fn identity_documents_and_messages_have_the_format_of_aws() {
    // In these parts, the message equals the message that AWS signed for this document in 2021: before the content's
    // length, between the content and the serial number, and between the signing time and the digest.
    let mut document = document();
    document.instance_type = "t2.medium".into();
    document.pending_time = "2021-09-03T21:25:44Z".into();
    let base64 = SIGNER.sign(&document);

    assert!(base64.starts_with(
        "MIAGCSqGSIb3DQEHAqCAMIACAQExDzANBglghkgBZQMEAgEFADCABgkqhkiG9w0BBwGggCSABIIB\n\
         23sKICAiYWNjb3VudElkIiA6ICIyNzg1NzYyMjA0NTMiLAogICJhcmNoaXRlY3R1cmUiIDogIng4\n"
    ));
    assert!(base64.contains(
        "\nb24iIDogIjIwMTctMDktMzAiCn0AAAAAAAAxggIvMIICKwIBATBpMFwxCzAJBgNVBAYTAlVTMRkw\n\
         FwYDVQQIExBXYXNoaW5ndG9uIFN0YXRlMRAwDgYDVQQHEwdTZWF0dGxlMSAwHgYDVQQKExdBbWF6\n\
         b24gV2ViIFNlcnZpY2VzIExMQwIJALZL3lrQCSTMMA0GCWCGSAFlAwQCAQUAoIGYMBgGCSqGSIb3\n"
    ));
    assert!(base64.contains(
        "\nAQk0MSAwHjANBglghkgBZQMEAgEFAKENBgkqhkiG9w0BAQsFADAvBgkqhkiG9w0BCQQxIgQgCH2d\n\
         JiKmdx9uhxlm8ObWAvFOhqJb7k79+DW/T3ezwVUwDQYJKoZIhvcNAQELBQAEggEA"
    ));
    assert!(base64.ends_with("AAAAAAAA=="));
    let bytes = STANDARD.decode(base64.replace('\n', "")).unwrap();
    assert_eq!(bytes.len(), 1108);
}
