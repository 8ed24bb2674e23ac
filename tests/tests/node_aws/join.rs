//! Tests of the requests in a join, and of their evidence.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::aws::{
    BINDING_HEADER, Proof, SIGNED_HEADERS, STS_ACCEPT, STS_BODY, STS_CONTENT_TYPE, STS_SERVICE,
};
use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::instance_identity::Document;
use kubelet_authenticator_test_support::sts::{Signing, Sts, sign};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

use crate::bed::{ACCOUNT, Bed, INSTANCE, NAME, PROVIDER_ID, REGION, ROLE, Sent, ZONE};

const RSA2048: &str = "/latest/dynamic/instance-identity/rsa2048";
const LOCAL_HOSTNAME: &str = "/latest/meta-data/local-hostname";
const IDENTITY_ROLE: &str =
    "/latest/meta-data/identity-credentials/ec2/security-credentials/ec2-instance";
const PROFILE: &str = "/latest/meta-data/iam/security-credentials/";
const DOMAIN: &str = "/latest/meta-data/services/domain";

#[test]
fn an_aws_join_costs_1_token_4_reads_1_create_and_1_watch() {
    let bed = Bed::calling_its_regions_sts();

    bed.run().succeeded();

    assert_eq!(bed.imds.tokens(), 1);
    assert_eq!(bed.imds.requests()[0].ttl, Some(60));
    assert_eq!(
        bed.reads(),
        [RSA2048, LOCAL_HOSTNAME, IDENTITY_ROLE, DOMAIN]
    );
    assert_eq!((bed.server.creates(), bed.server.lists()), (1, 0));
    assert!(bed.server.watches() + bed.server.gets() <= 1);
}

#[test]
fn a_join_with_an_instance_profile_needs_one_more_read() {
    let mut bed = Bed::calling_its_regions_sts();
    bed.node.set("aws.principal", "instanceProfile");

    bed.run().succeeded();

    let role = format!("{PROFILE}{ROLE}");
    assert_eq!(bed.imds.tokens(), 1);
    assert_eq!(
        bed.reads(),
        [RSA2048, LOCAL_HOSTNAME, PROFILE, &role, DOMAIN]
    );
}

#[test]
fn the_request_matches_the_signed_document() {
    let bed = Bed::new();

    bed.run().succeeded();

    let sent = bed.sent();
    assert_eq!(sent.provider_id.as_str(), PROVIDER_ID);
    assert_eq!(sent.node_name.as_str(), NAME);
    bed.imds.update(|instance| {
        assert_eq!(sent.evidence.rsa2048, instance.rsa2048);
    });
    assert_eq!(sent.evidence.header.audience, bed.audience());
}

#[test]
fn sts_accepts_the_proof_only_for_its_instance_and_key() {
    let bed = Bed::new();
    bed.run().succeeded();
    let sent = bed.sent();

    let (status, answer) = call(
        &bed.sts,
        &sent.evidence.sts,
        &binding(&bed, &sent, &sent.spki),
    );
    assert_eq!(status, 200, "{answer}");
    let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}");
    assert!(answer.contains(&arn), "{answer}");

    let other = binding(&bed, &sent, b"another key");
    let (status, answer) = call(&bed.sts, &sent.evidence.sts, &other);
    assert_eq!(status, 403);
    assert!(answer.contains("SignatureDoesNotMatch"), "{answer}");
}

#[test]
fn with_an_instance_profile_the_proof_is_signed_by_its_role() {
    let mut bed = Bed::new();
    bed.node.set("aws.principal", "instanceProfile");
    bed.run().succeeded();
    let sent = bed.sent();

    let (_, answer) = call(
        &bed.sts,
        &sent.evidence.sts,
        &binding(&bed, &sent, &sent.spki),
    );

    let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}");
    assert!(answer.contains(&arn), "{answer}");
}

#[test]
fn the_proof_is_for_the_regional_sts_endpoint_in_every_partition() {
    for (region, zone, domain) in [
        (REGION, ZONE, "amazonaws.com"),
        ("us-gov-west-1", "us-gov-west-1a", "amazonaws.com"),
        ("cn-north-1", "cn-north-1b", "amazonaws.com.cn"),
        ("eusc-de-east-1", "eusc-de-east-1a", "amazonaws.eu"),
    ] {
        let mut bed = Bed::calling_its_regions_sts();
        let name = format!("ip-10-0-0-1.{region}.compute.internal");
        bed.node.set("nodeName", name);
        bed.set_document(&Document::new(ACCOUNT, region, zone, INSTANCE));
        bed.imds
            .update(|instance| instance.domain = domain.to_owned());

        bed.run().succeeded();

        let sent = bed.sent();
        let host = format!("sts.{region}.{domain}");
        let secret = bed.identity_secret();
        assert_eq!(sent.evidence.sts.region, region);
        assert_eq!(
            sent.evidence.sts.signature,
            signed(&bed, &sent, &host, &secret)
        );
    }
}

#[test]
fn the_environment_proxy_is_not_used_for_the_metadata_service() {
    let mut bed = Bed::new();
    for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        bed.node.set_env(variable, "http://127.0.0.1:1");
    }

    bed.run().succeeded();
}

#[test]
fn a_configured_provider_id_that_does_not_match_exits_with_3() {
    let mut bed = Bed::new();
    bed.node
        .set("providerID", "aws:///eu-west-1a/i-0123456789abcdef1");
    bed.run().failed(3).saying("providerID").saying(PROVIDER_ID);

    bed.node.set("providerID", PROVIDER_ID);
    bed.run().succeeded();
}

#[test]
fn a_dry_run_hides_the_token_and_the_signature_by_default() {
    let bed = Bed::new();
    let evidence = |arguments: &[&str]| {
        let run = bed.node.command(arguments).succeeded();
        let envelope = Envelope::parse(run.stdout.as_bytes()).unwrap();
        let evidence: Value = serde_json::from_slice(&envelope.evidence.unwrap()).unwrap();
        (evidence, run.stderr)
    };

    let (shown, told) = evidence(&["csr", "--dry-run"]);
    let (whole, untold) = evidence(&["csr", "--dry-run", "--show-secrets"]);

    for member in ["sessionToken", "signature"] {
        assert_eq!(shown["sts"][member], "(not shown)");
        assert!(
            whole["sts"][member].as_str().unwrap().len() > 32,
            "{whole:#}"
        );
    }
    assert_eq!(shown["sts"]["region"], whole["sts"]["region"]);
    bed.assert_no_secret_in(&shown.to_string());
    assert!(told.contains("--show-secrets"), "{told}");
    assert_eq!(untold, "");
    let yaml = bed.node.command(&["csr", "--dry-run", "-o", "yaml"]);
    let request = yaml.succeeded().stdout;
    let request: Value = serde_saphyr::from_str(&request).unwrap();
    let request = STANDARD.decode(request["spec"]["request"].as_str().unwrap());
    let envelope = Envelope::parse(&request.unwrap()).unwrap();
    bed.assert_no_secret_in(str::from_utf8(&envelope.evidence.unwrap()).unwrap());
}

fn binding(bed: &Bed, sent: &Sent, spki: &[u8]) -> KeyBinding {
    let document = bed.document_digest();
    KeyBinding::new(
        &Provider::AWS,
        &bed.audience(),
        &sent.provider_id,
        &sent.node_name,
        spki,
        &[&document],
    )
}

/// The request's headers in the order that wire-format.md specifies.
fn headers(proof: &Proof, host: &str, binding: &KeyBinding) -> Vec<(String, String)> {
    [
        ("accept", STS_ACCEPT),
        ("content-type", STS_CONTENT_TYPE),
        ("host", host),
        ("x-amz-date", &proof.amz_date),
        ("x-amz-security-token", &proof.session_token),
        (BINDING_HEADER, &binding.to_hex()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// The signature that STS would compute for another host.
fn signed(bed: &Bed, sent: &Sent, host: &str, secret: &str) -> String {
    let proof = &sent.evidence.sts;
    let signing = Signing {
        method: "POST",
        path: "/",
        query: "",
        headers: &headers(proof, host, &binding(bed, sent, &sent.spki)),
        signed_headers: &SIGNED_HEADERS.split(';').collect::<Vec<_>>(),
        body: STS_BODY.as_bytes(),
        time: &proof.amz_date,
        region: &proof.region,
        service: STS_SERVICE,
    };
    sign(&signing, secret)
}

/// Calls STS as a verifier does.
fn call(sts: &Sts, proof: &Proof, binding: &KeyBinding) -> (u16, String) {
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(sts.ca_pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = reqwest::blocking::Client::builder()
        .no_proxy()
        .tls_backend_preconfigured(tls)
        .build()
        .unwrap();
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{}/{}/sts/aws4_request, SignedHeaders={SIGNED_HEADERS}, Signature={}",
        &proof.access_key_id,
        &proof.amz_date[..8],
        &proof.region,
        &proof.signature,
    );
    let request = client
        .post(format!("{}/", sts.url()))
        .header("authorization", authorization)
        .body(STS_BODY);
    let headers = headers(proof, &sts.host(), binding).into_iter();
    let request = headers
        .filter(|(name, _)| name != "host")
        .fold(request, |request, (name, value)| {
            request.header(name, value)
        });
    let answer = request.send().unwrap();
    (answer.status().as_u16(), answer.text().unwrap())
}
