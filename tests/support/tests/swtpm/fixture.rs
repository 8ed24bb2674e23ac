//! The TPM itself.

use std::net::TcpStream;
use std::sync::{Arc, mpsc};

use kubelet_authenticator_test_support::ek_ca::EkCa;
use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use x509_parser::prelude::{FromDer, X509Certificate};

const RSA_CERTIFICATE: u32 = 0x01c0_0002;
const P256_CERTIFICATE: u32 = 0x01c0_000a;
const P384_CERTIFICATE: u32 = 0x01c0_0016;

fn parsed(pem: &str) -> Vec<u8> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    pem.contents
}

#[test]
fn a_tpm_has_two_persistent_keys_and_nothing_in_its_memory() {
    let tpm = Swtpm::start();

    assert_eq!(tpm.persistent_handles(), [0x8101_0001, 0x8101_0016]);
    assert!(tpm.transient_handles().is_empty());
    assert!(tpm.loaded_sessions().is_empty());
    tpm.evict(0x8101_0001);
    assert_eq!(tpm.persistent_handles(), [0x8101_0016]);
}

#[test]
fn its_maker_has_certified_its_keys() {
    let maker = Arc::new(EkCa::new("another maker"));
    let tpm = Swtpm::made_by(&maker);
    let (root, intermediate) = (parsed(tpm.ca_pem()), parsed(maker.intermediates_pem()));
    let (_, root) = X509Certificate::from_der(&root).unwrap();
    let (_, intermediate) = X509Certificate::from_der(&intermediate).unwrap();

    intermediate
        .verify_signature(Some(root.public_key()))
        .unwrap();
    for index in [RSA_CERTIFICATE, P384_CERTIFICATE] {
        let der = tpm.read_certificate(index).unwrap();
        let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
        assert!(rest.is_empty());
        certificate
            .verify_signature(Some(intermediate.public_key()))
            .unwrap();
        assert_eq!(certificate.issuer(), intermediate.subject());
    }
    assert_eq!(tpm.read_certificate(P256_CERTIFICATE), None);
}

#[test]
fn two_tpms_have_two_keys_and_a_copy_has_the_same() {
    let (one, other) = (Swtpm::start(), Swtpm::start());
    let copy = Swtpm::copy_of(&one);
    let certificate = |tpm: &Swtpm| tpm.read_certificate(RSA_CERTIFICATE).unwrap();

    assert_ne!(certificate(&one), certificate(&other));
    assert_eq!(certificate(&one), certificate(&copy));
    assert_eq!(
        copy.clock().reset_count,
        one.clock().reset_count + 1,
        "it was switched on once more"
    );
}

#[test]
fn a_reset_counts_and_forgets_what_it_should() {
    let tpm = Swtpm::start();
    let cases = [
        (Reset::Orderly, (1, 0), true),
        (Reset::Resume, (0, 1), false),
        (Reset::Restart, (0, 2), true),
        (Reset::Hard, (1, 0), true),
    ];

    for (reset, (resets, restarts), forgets) in cases {
        tpm.extend(4, &[1; 32]);
        let (before, value) = (tpm.clock(), tpm.pcr(4));
        tpm.reset(reset);
        let after = tpm.clock();
        assert_eq!(after.reset_count, before.reset_count + resets, "{reset:?}");
        assert_eq!(after.restart_count, restarts, "{reset:?}");
        assert_eq!(after.safe, before.safe && reset != Reset::Hard, "{reset:?}");
        let expected = if forgets { vec![0; 32] } else { value };
        assert_eq!(tpm.pcr(4), expected, "{reset:?}");
    }
}

#[test]
fn a_cleared_tpm_counts_from_nothing_and_has_no_persistent_keys() {
    let tpm = Swtpm::start();
    tpm.reset(Reset::Hard);

    tpm.clear();

    let clock = tpm.clock();
    assert_eq!((clock.reset_count, clock.restart_count), (0, 0));
    assert!(tpm.persistent_handles().is_empty());
    assert!(tpm.read_certificate(RSA_CERTIFICATE).is_some());
}

#[test]
fn certificates_are_written_replaced_and_removed() {
    let tpm = Swtpm::start();
    let certificate = |byte| vec![byte; 1200];

    for (index, byte) in [
        (P256_CERTIFICATE, 1),
        (P256_CERTIFICATE, 2),
        (RSA_CERTIFICATE, 3),
    ] {
        tpm.write_certificate(index, &certificate(byte));
        assert_eq!(tpm.read_certificate(index), Some(certificate(byte)));
    }
    tpm.remove_certificate(RSA_CERTIFICATE);
    assert_eq!(tpm.read_certificate(RSA_CERTIFICATE), None);
}

#[test]
fn a_locked_out_tpm_says_so() {
    let tpm = Swtpm::start();
    assert!(!tpm.is_locked_out());

    tpm.lock_out();

    assert!(tpm.is_locked_out());
    assert!(tpm.transient_handles().is_empty());
}

#[test]
#[should_panic = "0x101"]
fn a_broken_tpm_is_in_failure_mode() {
    let tpm = Swtpm::start();

    tpm.break_down();

    tpm.persistent_handles();
}

#[test]
fn an_owner_and_a_full_memory_can_refuse_keys() {
    let refused = |tpm: &Swtpm, code: &str| {
        let output = std::process::Command::new("tpm2_createek")
            .args(["-T", &tpm.tcti(), "-G", "ecc", "-c", "/dev/null"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(code), "{said}");
    };
    let tpm = Swtpm::start();

    tpm.fill_memory();
    assert_eq!(tpm.transient_handles().len(), 3);
    refused(&tpm, "0x902");
    tpm.flush();
    assert!(tpm.transient_handles().is_empty());
    tpm.disable_endorsement();
    refused(&tpm, "0x185");
    tpm.reset(Reset::Hard);
    tpm.set_endorsement_password();
    refused(&tpm, "0x9A2");
}

#[test]
fn a_tpm_may_have_no_bank_of_sha256() {
    let tpm = Swtpm::with_banks("sha1");

    assert!(tpm.pcr(4).is_empty());
}

#[test]
fn one_client_waits_for_the_other() {
    let tpm = Arc::new(Swtpm::start());
    let other = TcpStream::connect(tpm.address()).unwrap();
    let (done, ended) = mpsc::channel();
    let asked = std::thread::spawn({
        let tpm = tpm.clone();
        move || done.send(tpm.persistent_handles())
    });

    assert!(ended.try_recv().is_err());
    drop(other);
    assert_eq!(ended.recv().unwrap().len(), 2);
    asked.join().unwrap().unwrap();
}

#[test]
fn a_tpm_ends_with_its_owner() {
    let tpm = Swtpm::start();
    let address = tpm.address();
    drop(TcpStream::connect(address).unwrap());

    drop(tpm);

    TcpStream::connect(address).unwrap_err();
}
