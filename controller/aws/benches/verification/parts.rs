//! The parts of a verification, measured separately.

use std::hint::black_box;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256};
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_authenticator_test_support::instance_identity::TestSigner;
use node_attestation_aws::credentials::Tenant;
use node_attestation_aws::ec2::check;
use x509_cert::Certificate;
use x509_cert::der::{DecodePem as _, Encode as _};

use crate::World;
use crate::controller;
use crate::fleet::{self, REGION};
use crate::results::Results;

/// Measures each part with the number of iterations that criterion selects.
pub(crate) fn measure(world: &World, results: &mut Results) {
    let instance = world.fleet.first().unwrap();
    let request = instance.request();
    let envelope = Envelope::parse(&request.spec.request.0).unwrap();
    let csr = CertificationRequest::from_der(&envelope.csr).unwrap();
    let evidence = envelope.evidence.unwrap();

    let all = world.controller();
    results.measure("the request and its form", None, || {
        black_box(world.runtime.block_on(all.locate(&request)));
    });
    results.measure("- its ECDSA signature", None, || has_signed(&csr));

    results.measure("the evidence's form", None, || {
        black_box(AwsEvidence::parse(&evidence).unwrap());
    });
    let AwsEvidence { rsa2048, sts, .. } = AwsEvidence::parse(&evidence).unwrap();

    let signers = controller::signers(&world.signer);
    results.measure("the document", None, || {
        black_box(signers.verify(&rsa2048).unwrap());
    });
    let (key, bytes, signature) = signature(&world.signer);
    results.measure("- its RSA signature", None, || {
        key.verify_sig(black_box(&bytes), &signature).unwrap();
    });
    let document = signers.verify(&rsa2048).unwrap();

    let spki = csr.spki_der();
    results.measure("the key binding", None, || {
        black_box(instance.binding(spki));
    });

    let (binding, now) = (instance.binding(spki), fleet::now());
    let caller = controller::caller(&world.sts);
    let call = || {
        let verified = caller
            .of_cluster("", "")
            .verify(&sts, &document, &binding, spki, now, now);
        world.runtime.block_on(verified).unwrap();
    };
    call();
    results.measure("the call of STS, rebuilt and found", None, || {
        call();
    });

    let (instances, policy) = (controller::instances(), controller::policy());
    results.measure("the facts of EC2", None, || {
        let facts = instances.describe(&Tenant::Controller, REGION, &document.instance);
        let facts = world.runtime.block_on(facts).unwrap().unwrap();
        black_box(check(&facts, &document, &policy, now).unwrap());
    });
}

/// Reads the key, and uses it in the same way as the controller.
fn has_signed(csr: &CertificationRequest) {
    let point = csr.key_bits().unwrap();
    let key = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).unwrap();
    let signature = csr.signature().unwrap();
    key.verify_sig(black_box(csr.signed_bytes()), signature)
        .unwrap();
}

/// Returns a key, bytes with the size of a message's signed attributes, and their signature.
fn signature(signer: &TestSigner) -> (ParsedPublicKey, Vec<u8>, Vec<u8>) {
    let certificate = Certificate::from_pem(signer.certificate_pem()).unwrap();
    let spki = certificate.tbs_certificate().subject_public_key_info();
    let spki = spki.to_der().unwrap();
    let key = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &spki).unwrap();
    let bytes = vec![7; 192];
    let signature = signer.signature(&bytes);
    (key, bytes, signature)
}
