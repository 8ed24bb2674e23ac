//! Tests of a cluster's verifiers, of docs/reasons.md, and of the list of reasons in the plugins.

mod packed;

use std::fmt::Write as _;

use kubelet_attestation::contract;
use node_attestation_aws::denial::AwsDenial;
use node_attestation_aws::sts::InvalidStsSettings;
use node_attestation_core::crd::{EndorsementKeyPlatform, KubeletAuthenticationSpec};
use node_attestation_core::refusal::{Deferral, Denial, Failure, Ignored, Reason};
use node_attestation_tpm::denial::TpmDenial;

use super::*;

const PREAMBLE: &str = "# Reasons

This page lists every reason for which a certificate signing request (CSR) has no certificate. The condition of the request, an
Event and the log line `decided` contain the reason. A pending request has no condition, so its reason is only in the Event and in
the log.

The requester reads only the message. The Event and the log show the details, such as the name of the machine.
`node-attestation-controller explain NAME --cluster CLUSTER` prints the reason and the cure for one request.
On a node, `kubelet-authenticator-<provider> explain-reason NAME` prints a row of this page, without a network.
To start with a symptom, see [Troubleshoot](troubleshooting.md).

A test writes this page from the code: `UPDATE=1 cargo test -p node-attestation-manager providers`.
";

/// The reasons for denials: first the reasons of the core, and then the reasons of each provider.
fn denials() -> Vec<Reason> {
    let of_providers = [
        (Provider::AWS, AwsDenial::CATALOGUE),
        (Provider::TPM, TpmDenial::CATALOGUE),
    ];
    let providers = of_providers.iter().map(|(provider, _)| provider);
    assert!(PROVIDERS.iter().map(|one| &one.provider).eq(providers));
    let of_providers = of_providers.into_iter().flat_map(|(_, denials)| denials);
    let all = Denial::CATALOGUE.iter().chain(of_providers);
    all.copied().collect()
}

/// Each outcome with its description and its reasons.
fn outcomes() -> [(&'static str, &'static str, Vec<Reason>); 4] {
    [
        (
            "Denied",
            "The request contradicts itself, the settings or the state of the machine. The cause is an attack or a \
             wrong setting. Another request is also denied until the cause is corrected.",
            denials(),
        ),
        (
            "Failed",
            "This request can never get a certificate, although it contains no contradiction. The node sends another \
             request.",
            Failure::CATALOGUE.to_vec(),
        ),
        (
            "Pending",
            "A service does not respond, or a condition is not met yet. The request stays open, and the controller \
             retries.",
            Deferral::CATALOGUE.to_vec(),
        ),
        (
            "Ignored",
            "The controller is not responsible for the request. It does not write anything.",
            Ignored::CATALOGUE.to_vec(),
        ),
    ]
}

/// The list of reasons in the plugins, in the format that `src/reasons.rs` describes.
fn table() -> String {
    let mut text = String::new();
    for (title, _, reasons) in outcomes() {
        text += &title.to_lowercase();
        text.push('\n');
        for reason in reasons {
            let meaning = reason.meaning.trim();
            let cells = [reason.name, meaning, reason.cure, reason.message];
            assert!(cells.iter().all(|cell| !cell.contains(['\t', '\n'])));
            text += &cells.join("\t");
            text.push('\n');
        }
    }
    text
}

/// The document that lists every reason.
fn markdown() -> String {
    let mut text = PREAMBLE.to_owned();
    for (title, about, reasons) in outcomes() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n## {title}\n\n{about}\n\n\
             | reason | meaning | what to do | message for the requester |\n\
             | --- | --- | --- | --- |\n"
        );
        for reason in reasons {
            let Reason {
                name,
                message,
                meaning,
                cure,
            } = reason;
            // Without the escape, a placeholder such as `<name>` would be an HTML tag.
            let [meaning, cure, message] =
                [meaning.trim(), cure, message].map(|text| text.replace('<', r"\<"));
            let _ = writeln!(text, "| `{name}` | {meaning} | {cure} | {message} |");
        }
    }
    text
}

#[test]
fn the_reasons_page_matches_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, markdown()).unwrap();
    }

    let document = std::fs::read_to_string(path).unwrap();

    assert!(
        document == markdown(),
        "docs/reasons.md is stale: run this test with UPDATE=1"
    );
}

#[test]
fn the_embedded_reasons_match_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/reasons.bin");
    let packed = packed::packed(&table());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &packed).unwrap();
    }

    assert!(
        std::fs::read(path).unwrap_or_default() == packed,
        "src/reasons.bin is stale: run this test with UPDATE=1"
    );
    // The size of the plugins is close to its limit, so the list must not grow by much.
    assert!(packed.len() < 14_000, "{} bytes", packed.len());
}

#[test]
fn reason_names_are_unique() {
    let all = [
        &*denials(),
        Failure::CATALOGUE,
        Deferral::CATALOGUE,
        Ignored::CATALOGUE,
    ]
    .concat();
    let mut names: Vec<_> = all.iter().map(|reason| reason.name).collect();
    names.sort_unstable();
    names.dedup();

    assert_eq!(names.len(), all.len());
}

/// If a node does not recognize a reason, it does not send another request.
#[test]
fn reasons_that_change_a_nodes_request_are_reasons_of_the_controller() {
    let denials = denials();
    for name in contract::DENIALS {
        assert!(denials.iter().any(|reason| reason.name == name), "{name}");
    }
    let failures = Failure::CATALOGUE.iter().map(|reason| reason.name);
    for name in contract::FAILURES {
        assert!(failures.clone().any(|reason| reason == name), "{name}");
    }
}

fn providers(allow_insecure: bool) -> Providers {
    Providers {
        allow_insecure,
        aws: Err(AwsUnavailable(Arc::new(InvalidStsSettings::NoAuthorities))),
        tpm_keys: None,
        config_maps: None,
        observations: ObservationsOfClusters::default(),
        tpm_policies: PoliciesOfClusters::default(),
    }
}

/// The certificate of an authority.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhDCCASugAwIBAgIUXhHi3eV+dyBDxV0BB9iyDeXWg0kwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEYSBDQTAgFw0yNjExMjkxNjM5MTdaGA8yMTI2MTEwNTE2Mzkx
N1owDzENMAsGA1UEAwwEYSBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABImP
9hc00LCDy/ZxO0qDRNsDk0yUTH9CJs631ugK8ZzCsi73iQxJAGf7Qj2OlI/HtZvM
+pMhM3RBLPy07f265m2jYzBhMB0GA1UdDgQWBBTHeO/PPsIzNpcJRtHKbpsWKjT8
wzAfBgNVHSMEGDAWgBTHeO/PPsIzNpcJRtHKbpsWKjT8wzAPBgNVHRMBAf8EBTAD
AQH/MA4GA1UdDwEB/wQEAwICBDAKBggqhkjOPQQDAgNHADBEAh9y44sTUG+eIhoU
O9nPt6Qz2beiiuIa9qP+WzWBsrPoAiEAmUZa+aXlXDDe4DMITmAZcXsRUOX6PqYi
xeMxatxDggc=
-----END CERTIFICATE-----
";

fn authorizing(attestor: &str) -> KubeletAuthentication {
    let spec = KubeletAuthenticationSpec::new("prod-1", &[attestor]);
    KubeletAuthentication::new("prod-1", spec)
}

#[test]
fn insecure_requires_both_the_option_and_the_authorization() {
    let admitted = providers(true).verifiers(&authorizing("insecure"), "");
    assert!(admitted.of(&Provider::INSECURE).is_some());

    let refused = providers(false).verifiers(&authorizing("insecure"), "");
    assert_eq!(
        refused.none_available().unwrap(),
        &VerifierUnavailable::InsecureNotAllowed
    );
}

#[test]
fn the_error_names_an_unsupported_attestor() {
    let refused = providers(true).verifiers(&authorizing("gcp"), "");

    assert_eq!(
        refused.none_available().unwrap(),
        &VerifierUnavailable::Unknown("gcp".to_owned())
    );
}

/// The settings are kept with their cluster, so a reconciliation parses them again only after a change.
#[test]
fn a_parsed_policy_is_kept_even_without_a_verifier() {
    let providers = providers(true);
    let verifiers = |uid| providers.verifiers(&authorizing("tpm"), uid);
    let first = verifiers("one");
    assert!(first.none_available().is_some());
    let settings = first.settings().cloned().unwrap();
    drop(first);

    assert!(Arc::ptr_eq(&settings, verifiers("one").settings().unwrap()));
    assert!(!Arc::ptr_eq(
        &settings,
        verifiers("another").settings().unwrap()
    ));
}

#[test]
fn a_tpm_is_challenged_only_with_challenge_keys() {
    let refused = providers(true).verifiers(&authorizing("tpm"), "");

    let expected = VerifierUnavailable::Unusable {
        attestor: "tpm",
        why: "it runs without --tpm-challenge-keys".to_owned(),
    };
    assert_eq!(refused.none_available().unwrap(), &expected);
}

#[test]
fn config_maps_without_a_management_cluster_are_refused() {
    let mut authentication = authorizing("tpm");
    authentication.metadata.namespace = Some("metal".to_owned());
    let mut settings = TpmSettings::default();
    settings.endorsement_keys.config_maps = vec!["rack-1".to_owned()];
    authentication.spec.tpm = Some(settings);

    let refused = providers(true).verifiers(&authentication, "");

    let why = "endorsementKeys.configMaps requires a management cluster, \
               and this controller has none: list the keys in allowList";
    let expected = VerifierUnavailable::Unusable {
        attestor: "tpm",
        why: why.to_owned(),
    };
    assert_eq!(refused.none_available().unwrap(), &expected);
}

#[test]
fn a_stored_list_with_too_many_cas_is_reported_as_unusable() {
    let with = |count| {
        let mut authentication = authorizing("tpm");
        let mut settings = TpmSettings::default();
        settings.endorsement_keys.require_ca = vec![AUTHORITY.repeat(count)];
        authentication.spec.tpm = Some(settings);
        let providers = Providers {
            tpm_keys: Some(Arc::new(RehearsedKeys)),
            ..providers(true)
        };
        providers.verifiers(&authentication, "")
    };
    assert!(with(192).of(&Provider::TPM).is_some());

    let expected = VerifierUnavailable::Unusable {
        attestor: "tpm",
        why: "requireCA: it has more than 192 certificates".to_owned(),
    };
    assert_eq!(with(193).none_available().unwrap(), &expected);
}

#[test]
fn a_tpm_platform_without_aws_clients_is_reported_as_unusable() {
    let mut authentication = authorizing("tpm");
    let mut settings = TpmSettings::default();
    settings.endorsement_keys.platform = EndorsementKeyPlatform::Aws;
    authentication.spec.tpm = Some(settings);

    let refused = providers(true).verifiers(&authentication, "");

    let why = "spec.tpm.endorsementKeys.platform is aws, but EC2 cannot be called: \
               the system has no CA certificates, and none were configured";
    let expected = VerifierUnavailable::Unusable {
        attestor: "tpm",
        why: why.to_owned(),
    };
    assert_eq!(refused.none_available().unwrap(), &expected);
}

#[test]
fn an_authorized_aws_without_clients_is_reported_as_unusable() {
    let refused = providers(true).verifiers(&authorizing("aws"), "");

    let expected = VerifierUnavailable::Unusable {
        attestor: "aws",
        why: "the system has no CA certificates, and none were configured".to_owned(),
    };
    assert_eq!(refused.none_available().unwrap(), &expected);
}

#[test]
fn unavailable_attestors_leave_the_others_available() {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["gcp", "tpm", "insecure"]);
    let authentication = KubeletAuthentication::new("prod-1", spec);

    let verifiers = providers(true).verifiers(&authentication, "");

    assert!(verifiers.of(&Provider::INSECURE).is_some());
    assert_eq!(verifiers.none_available(), None);
    let report = verifiers.availability();
    assert_eq!(report.reason, "AttestorUnknown");
    for word in ["\"gcp\"", "--tpm-challenge-keys"] {
        assert!(report.message.contains(word), "{}", report.message);
    }
}
