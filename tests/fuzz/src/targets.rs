//! The list of all targets.

use crate::{Target, api_server, attestation, aws, controller, node, store, tenant, tpm};

macro_rules! targets {
    ($($module:ident: $($name:ident $seeds:ident,)+;)+) => {
        &[$($(Target {
            name: stringify!($name),
            check: $module::$name,
            seeds: $module::$seeds,
        },)+)+]
    };
}

/// The targets of every module.
pub const TARGETS: &[Target] = targets! {
    attestation:
        envelope envelope_seeds,
        certification_request certification_request_seeds,
        aws_evidence aws_evidence_seeds,
        tpm_evidence tpm_evidence_seeds,
        evidence_header evidence_header_seeds,
        challenge challenge_seeds,
        names names_seeds,
        key_binding key_binding_seeds,
    ;
    node:
        exec_info exec_info_seeds,
        kubeconfig kubeconfig_seeds,
        settings_file settings_file_seeds,
        kubelet_arguments kubelet_arguments_seeds,
    ;
    store:
        credential_file credential_file_seeds,
        issued_chain issued_chain_seeds,
        origin_file origin_file_seeds,
        pending_file pending_file_seeds,
        failure_record failure_record_seeds,
        inspected_text inspected_text_seeds,
    ;
    api_server:
        csr_object csr_object_seeds,
        watch_lines watch_lines_seeds,
        status status_seeds,
    ;
    aws:
        document_message document_message_seeds,
        ber ber_seeds,
        document_contents document_contents_seeds,
        sts_answer sts_answer_seeds,
        aws_names aws_names_seeds,
        ec2_endorsement_key ec2_endorsement_key_seeds,
        signers_file signers_file_seeds,
    ;
    tpm:
        attestation_public attestation_public_seeds,
        endorsement_public endorsement_public_seeds,
        attest attest_seeds,
        signature signature_seeds,
        endorsement_certificate endorsement_certificate_seeds,
        intermediate_certificate intermediate_certificate_seeds,
    ;
    controller:
        decision decision_seeds,
        serving_names serving_names_seeds,
        identifiers identifiers_seeds,
    ;
    tenant:
        tenant_kubeconfig tenant_kubeconfig_seeds,
        cluster_ca cluster_ca_seeds,
        bootstrap_token bootstrap_token_seeds,
        managed_fields managed_fields_seeds,
        watched_object watched_object_seeds,
    ;
};
