//! Runs every target with its seeds, which the target must accept, and with mutated seeds. The target's guarantees must
//! hold for both.

#[path = "smoke/mutation.rs"]
mod mutation;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;

use fastrand::Rng;
use kubelet_authenticator_fuzz::{Outcome, TARGETS, Target};

/// The number of mutated inputs for a target.
const MUTATIONS: usize = 4_000;

/// The number of mutated inputs for a target that signs or writes files.
const FEW_MUTATIONS: usize = 1_000;

/// Prints the input that made a target panic.
struct Culprit<'a>(&'a Target, &'a [u8]);

impl Drop for Culprit<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self(target, input) = self;
            eprintln!("{} with \"{}\"", target.name, input.escape_ascii());
        }
    }
}

fn run(target: &Target, input: &[u8]) -> Outcome {
    let culprit = Culprit(target, input);
    (target.check)(culprit.1)
}

#[track_caller]
fn target(name: &str) -> &'static Target {
    let mut named = TARGETS.iter().filter(|target| target.name == name);
    named.next().expect("a target has this name")
}

/// Runs the target with its seeds and this number of mutations. The target must accept and reject at least these
/// numbers of mutations, which are half of the measured numbers. A target that rejects every input does not check the
/// guarantees about accepted input.
#[track_caller]
fn survive(name: &str, mutations: usize, accepted: usize, refused: usize) {
    let target = target(name);
    let seeds = (target.seeds)();
    for seed in &seeds {
        let text = seed.escape_ascii();
        assert_eq!(run(target, seed), Outcome::Accepted, "a seed: \"{text}\"");
    }
    let mut numbers = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let mut found = 0;
    for _ in 0..mutations {
        let input = mutation::mutated(&seeds, &mut numbers);
        found += usize::from(run(target, &input) == Outcome::Refused);
    }
    println!("{name}: {found} of {mutations} refused");
    assert!(found >= refused, "{name} refuses too few inputs: {found}");
    let found = mutations - found;
    assert!(found >= accepted, "{name} accepts too few inputs: {found}");
}

macro_rules! survive {
    ($($fact:ident: $name:literal $mutations:ident $accepted:literal $refused:literal,)+) => {
        $(#[test]
        fn $fact() {
            survive($name, $mutations, $accepted, $refused);
        })+

        const RUN: &[&str] = &[$($name),+];
    };
}

// Each target, with the minimum numbers of mutations that it accepts and rejects.
survive! {
    the_parser_of_envelopes_survives_mutations: "envelope" MUTATIONS 62 1936,
    the_parser_of_certification_requests_survives_mutations: "certification_request" MUTATIONS 242 1755,
    the_parser_of_evidence_of_aws_survives_mutations: "aws_evidence" MUTATIONS 76 1924,
    the_parser_of_evidence_of_tpms_survives_mutations: "tpm_evidence" MUTATIONS 49 1950,
    the_parser_of_evidence_headers_survives_mutations: "evidence_header" MUTATIONS 118 1881,
    the_parser_of_challenges_survives_mutations: "challenge" MUTATIONS 27 1972,
    the_parsers_of_names_survive_mutations: "names" MUTATIONS 1394 606,
    the_key_binding_survives_mutations: "key_binding" MUTATIONS 2000 0,
    the_parser_of_exec_info_survives_mutations: "exec_info" MUTATIONS 52 1926,
    the_parser_of_kubeconfigs_survives_mutations: "kubeconfig" FEW_MUTATIONS 12 483,
    the_parser_of_settings_files_survives_mutations: "settings_file" FEW_MUTATIONS 14 485,
    the_parser_of_kubelet_arguments_survives_mutations: "kubelet_arguments" MUTATIONS 969 1030,
    the_parser_of_credential_files_survives_mutations: "credential_file" MUTATIONS 196 1802,
    the_parser_of_issued_chains_survives_mutations: "issued_chain" MUTATIONS 62 1934,
    the_parser_of_origin_files_survives_mutations: "origin_file" MUTATIONS 661 1335,
    the_parser_of_pending_files_survives_mutations: "pending_file" MUTATIONS 51 1949,
    the_parser_of_failure_records_survives_mutations: "failure_record" MUTATIONS 105 1894,
    the_decoder_for_people_survives_mutations: "inspected_text" FEW_MUTATIONS 56 443,
    the_parser_of_stored_requests_survives_mutations: "csr_object" MUTATIONS 231 1769,
    the_parser_of_watches_survives_mutations: "watch_lines" MUTATIONS 206 1793,
    the_parser_of_statuses_survives_mutations: "status" MUTATIONS 277 1723,
    the_parser_of_document_messages_survives_mutations: "document_message" MUTATIONS 9 1990,
    the_parser_of_ber_survives_mutations: "ber" MUTATIONS 435 1565,
    the_parser_of_document_contents_survives_mutations: "document_contents" FEW_MUTATIONS 29 471,
    the_parser_of_answers_of_sts_survives_mutations: "sts_answer" MUTATIONS 260 1739,
    the_parsers_of_names_of_aws_survive_mutations: "aws_names" MUTATIONS 657 1342,
    the_parser_of_signers_files_survives_mutations: "signers_file" MUTATIONS 91 1906,
    the_parser_of_keys_of_ec2_survives_mutations: "ec2_endorsement_key" MUTATIONS 135 1864,
    the_parser_of_attestation_keys_survives_mutations: "attestation_public" MUTATIONS 221 1778,
    the_parser_of_endorsement_keys_survives_mutations: "endorsement_public" MUTATIONS 129 1869,
    the_parser_of_quotes_survives_mutations: "attest" FEW_MUTATIONS 14 486,
    the_parser_of_signatures_of_tpms_survives_mutations: "signature" FEW_MUTATIONS 3 497,
    the_parser_of_endorsement_certificates_survives_mutations: "endorsement_certificate" FEW_MUTATIONS 3 497,
    the_parser_of_intermediate_certificates_survives_mutations: "intermediate_certificate" FEW_MUTATIONS 1 498,
    the_decision_survives_mutations: "decision" FEW_MUTATIONS 2 498,
    the_parser_of_serving_names_survives_mutations: "serving_names" MUTATIONS 110 1889,
    the_parsers_of_identifiers_survive_mutations: "identifiers" MUTATIONS 141 1859,
    the_parser_of_tenants_kubeconfigs_survives_mutations: "tenant_kubeconfig" FEW_MUTATIONS 6 493,
    the_parser_of_cluster_cas_survives_mutations: "cluster_ca" FEW_MUTATIONS 28 471,
    the_parser_of_bootstrap_tokens_survives_mutations: "bootstrap_token" MUTATIONS 134 1865,
    the_sieve_of_managed_fields_survives_mutations: "managed_fields" MUTATIONS 169 1831,
    the_parser_of_watched_objects_survives_mutations: "watched_object" MUTATIONS 228 1772,
}

#[test]
fn every_fuzz_target_has_a_program_and_a_test() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    for Target { name, .. } in TARGETS {
        let path = format!("fuzz_targets/{name}.rs");
        let program = fs::read_to_string(package.join(&path)).unwrap();
        assert!(program.contains(&format!("::{name}(input)")), "{path}");
        assert!(manifest.contains(&path), "{path}");
    }
    let programs = fs::read_dir(package.join("fuzz_targets")).unwrap();
    assert_eq!(programs.count(), TARGETS.len());
    let targets: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(targets, RUN.iter().copied().collect());
}
