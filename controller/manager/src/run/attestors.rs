//! Whose evidence this program appraises.

use std::sync::Arc;

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::Provider;
use node_attestation_aws::policy::AwsPolicy;
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationSpec, TpmSettings};
use node_attestation_core::verifier::{InsecureVerifier, Verifier, Verifiers};
use node_attestation_runtime::management::VerifierUnavailable;

use crate::aws::Aws;
use crate::tpm::{self, ConfigMapReader, NoTpm, Tpm};

/// What the operator admits.
#[derive(Debug)]
pub(super) struct Attestors {
    /// Machines that prove nothing.
    pub(super) allow_insecure: bool,
    /// Instances of AWS; or why they cannot be appraised here.
    pub(super) aws: Result<Aws, String>,
    /// Machines with a TPM.
    pub(super) tpm: Tpm,
    /// The `ConfigMap`s that may list their endorsement keys; `None` without a management cluster.
    pub(super) config_maps: Option<ConfigMapReader>,
}

impl Attestors {
    fn one(
        &self,
        attestor: &str,
        authentication: &KubeletAuthentication,
        cluster_uid: &str,
    ) -> Result<Arc<dyn Verifier>, VerifierUnavailable> {
        let spec = &authentication.spec;
        if attestor == Provider::AWS.as_str() {
            let aws = self
                .aws
                .as_ref()
                .map_err(|why| VerifierUnavailable::Unusable {
                    attestor: "aws",
                    why: why.clone(),
                })?;
            Ok(aws.verifier(policy(spec), cluster_uid))
        } else if attestor == Provider::TPM.as_str() {
            let settings = spec.tpm.clone().unwrap_or_default();
            let namespace = authentication.metadata.namespace.as_deref();
            let verifier = self.tpm(&settings, cluster_uid, policy(spec), namespace);
            verifier.map_err(|error| VerifierUnavailable::Unusable {
                attestor: "tpm",
                why: error_chain(&error),
            })
        } else if attestor != Provider::INSECURE.as_str() {
            Err(VerifierUnavailable::Unknown(attestor.to_owned()))
        } else if self.allow_insecure {
            Ok(Arc::new(InsecureVerifier))
        } else {
            Err(VerifierUnavailable::InsecureNotAllowed)
        }
    }

    /// The verifier of a cluster whose machines have TPMs; those that are instances of AWS are what
    /// `policy` accepts. The `ConfigMaps` that `settings` name are in `namespace`.
    pub(super) fn tpm(
        &self,
        settings: &TpmSettings,
        cluster_uid: &str,
        policy: AwsPolicy,
        namespace: Option<&str>,
    ) -> Result<Arc<dyn Verifier>, NoTpm> {
        let platform = tpm::platform(settings, self.aws.as_ref(), policy)?;
        let names = &settings.endorsement_keys.config_maps;
        let lists = match (&self.config_maps, namespace) {
            _ if names.is_empty() => None,
            (Some(reader), Some(namespace)) => Some(reader.lists(namespace, names)),
            (None, _) | (_, None) => return Err(NoTpm::NoConfigMaps),
        };
        self.tpm.verifier(settings, cluster_uid, platform, lists)
    }
}

fn policy(spec: &KubeletAuthenticationSpec) -> AwsPolicy {
    let settings = spec.aws.clone().unwrap_or_default();
    AwsPolicy::new(&settings, Some(spec.cluster_name.clone()))
}

impl Attestors {
    /// The verifiers of what is authorized for a cluster.
    pub(super) fn verifiers(
        &self,
        authentication: &KubeletAuthentication,
        cluster_uid: &str,
    ) -> Result<Verifiers, VerifierUnavailable> {
        let authorized = authentication.spec.authorized_attestors.iter();
        authorized
            .map(|attestor| self.one(attestor, authentication, cluster_uid))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_core::crd::EndorsementKeyPlatform;

    use super::*;

    fn attestors(allow_insecure: bool) -> Attestors {
        Attestors {
            allow_insecure,
            aws: Err("no authorities".to_owned()),
            tpm: Tpm::without_keys(),
            config_maps: None,
        }
    }

    fn authorizing(attestor: &str) -> KubeletAuthentication {
        let spec = KubeletAuthenticationSpec::new("prod-1", &[attestor]);
        KubeletAuthentication::new("prod-1", spec)
    }

    #[test]
    fn insecure_is_admitted_only_where_both_say_so() {
        let admitted = attestors(true)
            .verifiers(&authorizing("insecure"), "")
            .unwrap();
        assert!(admitted.of(&Provider::INSECURE).is_some());

        let refused = attestors(false).verifiers(&authorizing("insecure"), "");
        assert_eq!(
            refused.unwrap_err(),
            VerifierUnavailable::InsecureNotAllowed
        );
    }

    #[test]
    fn an_attestor_that_is_not_verified_here_is_named() {
        let refused = attestors(true).verifiers(&authorizing("gcp"), "");

        assert_eq!(
            refused.unwrap_err(),
            VerifierUnavailable::Unknown("gcp".to_owned())
        );
    }

    #[test]
    fn a_tpm_is_challenged_only_with_keys_to_do_it() {
        let refused = attestors(true).verifiers(&authorizing("tpm"), "");

        let expected = VerifierUnavailable::Unusable {
            attestor: "tpm",
            why: "it runs without --tpm-challenge-keys".to_owned(),
        };
        assert_eq!(refused.unwrap_err(), expected);
    }

    #[test]
    fn config_maps_are_not_passed_over_where_nothing_can_read_them() {
        let mut authentication = authorizing("tpm");
        authentication.metadata.namespace = Some("metal".to_owned());
        let mut settings = TpmSettings::default();
        settings.endorsement_keys.config_maps = vec!["rack-1".to_owned()];
        authentication.spec.tpm = Some(settings);

        let refused = attestors(true).verifiers(&authentication, "");

        let why = "endorsementKeys.configMaps are read by a controller with a management cluster, \
                   and there is none here: list the keys in allowList";
        let expected = VerifierUnavailable::Unusable {
            attestor: "tpm",
            why: why.to_owned(),
        };
        assert_eq!(refused.unwrap_err(), expected);
    }

    #[test]
    fn what_keeps_ec2_from_telling_endorsement_keys_is_told_to_who_has_it_do_so() {
        let mut authentication = authorizing("tpm");
        let mut settings = TpmSettings::default();
        settings.endorsement_keys.platform = EndorsementKeyPlatform::Aws;
        authentication.spec.tpm = Some(settings);

        let refused = attestors(true).verifiers(&authentication, "");

        let why = "the platform aws, which is to tell the endorsement keys, cannot be asked: \
                   no authorities";
        let expected = VerifierUnavailable::Unusable {
            attestor: "tpm",
            why: why.to_owned(),
        };
        assert_eq!(refused.unwrap_err(), expected);
    }

    #[test]
    fn what_keeps_aws_from_being_asked_is_told_to_who_authorizes_it() {
        let refused = attestors(true).verifiers(&authorizing("aws"), "");

        let expected = VerifierUnavailable::Unusable {
            attestor: "aws",
            why: "no authorities".to_owned(),
        };
        assert_eq!(refused.unwrap_err(), expected);
    }
}
