//! The verifier: which instance made a request, in one order: cheap and local first.
//!
//! | | check | asks |
//! | --- | --- | --- |
//! | 1 | the evidence can be read, and is for this cluster | nobody |
//! | 2 | the identity document's signature | nobody |
//! | 3 | account and region are those of this cluster | nobody |
//! | 4 | the document is about the machine that is claimed | nobody |
//! | 5 | the caller of STS is the instance of the document, and signed for this request | STS |
//! | 6 | the instance exists, runs, and is this cluster's; its name | EC2 |
//!
//! A contradiction ends it with a denial, what could not be asked with a retry, and nothing after it
//! is asked.

mod answers;

use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::identifiers::ServingName;
use node_attestation_core::refusal::{Deferral, Denial, Reason, Refusal, Unavailable};
use node_attestation_core::verifier::{Appraisal, Assurance, AttestedIdentity, Identity, Verifier};

use crate::credentials::Tenant;
use crate::denial::AwsDenial;
use crate::document::{Signers, VerifiedDocument};
use crate::ec2::{self, Checked, Instances, Reservation};
use crate::policy::AwsPolicy;
use crate::sts::Sts;
use crate::tenants::TenantCredentials;

use self::answers::Answers;

/// The state and the clients that the verifiers of all clusters share.
///
/// Shared so that one evidence counts once, however many clusters it is shown to, and so that
/// requests of several clusters go to EC2 together where the same credentials ask.
#[derive(Debug)]
pub struct AwsClients {
    signers: Signers,
    sts: Sts,
    instances: Instances,
    answers: Answers,
    tenants: Option<Arc<TenantCredentials>>,
}

impl AwsClients {
    /// With the signers of identity documents, the client of STS, and the client of EC2.
    pub fn new(signers: Signers, sts: Sts, instances: Instances) -> Self {
        Self {
            signers,
            sts,
            instances,
            answers: Answers::default(),
            tenants: None,
        }
    }

    /// The same, with conditions about the identities of clusters.
    #[must_use]
    pub fn with_tenants(self, tenants: Arc<TenantCredentials>) -> Self {
        Self {
            tenants: Some(tenants),
            ..self
        }
    }
}

/// Appraises the evidence of instances, for one cluster.
#[derive(Debug)]
pub struct AwsVerifier {
    clients: Arc<AwsClients>,
    policy: AwsPolicy,
    cluster: String,
}

/// Evidence that holds as far as can be told without asking anybody.
struct Claim {
    evidence: AwsEvidence,
    document: VerifiedDocument,
    provider_id: ProviderId,
}

impl AwsVerifier {
    /// A verifier of the cluster that accepts what `policy` says. The cluster with this UID has a share of
    /// the clients of its own.
    pub fn new(clients: Arc<AwsClients>, policy: AwsPolicy, cluster_uid: &str) -> Self {
        Self {
            clients,
            policy,
            cluster: cluster_uid.to_owned(),
        }
    }

    /// All that can be checked without asking anybody.
    fn read(&self, appraisal: &Appraisal<'_>) -> Result<Claim, Denial> {
        let evidence = appraisal.evidence.ok_or(Denial::EvidenceMissing)?;
        let evidence = AwsEvidence::parse(evidence)
            .map_err(|error| Denial::EvidenceMalformed(error.to_string()))?;
        if !appraisal.audiences.contains(&evidence.header.audience) {
            return Err(Denial::AudienceMismatch(evidence.header.audience));
        }
        let document = self.clients.signers.verify(&evidence.rsa2048)?;
        self.policy.accepts(&document)?;
        let provider_id = provider_id(&document)?;
        if provider_id != *appraisal.provider_id {
            return Err(Denial::AnotherMachine {
                attested: provider_id,
                claimed: appraisal.provider_id.clone(),
            });
        }
        Ok(Claim {
            evidence,
            document,
            provider_id,
        })
    }

    async fn is_called_by_its_instance(
        &self,
        claim: &Claim,
        appraisal: &Appraisal<'_>,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let (evidence, document) = (&claim.evidence, &claim.document);
        let binding = KeyBinding::new(
            &Provider::AWS,
            &evidence.header.audience,
            appraisal.provider_id,
            appraisal.node_name,
            appraisal.spki,
            &[&document.digest],
        );
        let Appraisal { spki, asked, .. } = *appraisal;
        let namespace = self.policy.tenant.line().namespace;
        let sts = self.clients.sts.of_cluster(&namespace, &self.cluster);
        sts.verify(&evidence.sts, document, &binding, spki, asked, now)
            .await
    }

    /// The document is of the region of the tenant's cluster, where that has one: nobody is asked in another.
    fn is_of_region(&self, document: &VerifiedDocument) -> Result<(), Refusal> {
        let tenants = self.clients.tenants.as_ref();
        tenants.map_or(Ok(()), |tenants| {
            ec2::check_region(&**tenants, &self.policy, &document.region)
        })
    }

    async fn is_there(
        &self,
        document: &VerifiedDocument,
        expected: Result<Reservation, Unavailable>,
        now: SystemTime,
    ) -> Result<Checked, Refusal> {
        let facts = match expected {
            Ok(expected) if !is_of_account(&expected, document) => {
                return Err(AwsDenial::AccountNotAllowed(document.account.clone()).into());
            }
            Ok(expected) => expected.describe(&document.instance).await,
            Err(outage) => Err(outage),
        };
        let answers = &self.clients.answers;
        answers.heard(&self.cluster, &document.region, facts.as_ref().err());
        let facts = facts.map_err(Deferral::VerifierUnavailable)?;
        match facts {
            Some(facts) => ec2::check(&facts, document, &self.policy, now),
            None => Err(ec2::absent(document, now)),
        }
    }
}

#[async_trait::async_trait]
impl Verifier for AwsVerifier {
    fn provider(&self) -> &Provider {
        &Provider::AWS
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[EvidenceVersion::V1]
    }

    fn denials(&self) -> Vec<Reason> {
        AwsDenial::CATALOGUE.to_vec()
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let claim = self.read(&appraisal)?;
        let document = &claim.document;
        self.is_of_region(document)?;
        // Machines that join together are asked about together.
        let instances = &self.clients.instances;
        let expected = instances
            .expect(&self.policy.tenant, &document.region)
            .await;
        self.is_called_by_its_instance(&claim, &appraisal, now)
            .await?;
        let checked = self.is_there(document, expected, now).await?;
        let identity = Identity {
            node_name: Some(checked.node_name),
            instance: Some(claim.document.instance),
            ..Identity::of(claim.provider_id)
        };
        let attested = AttestedIdentity::vouched(identity);
        Ok(Assurance::Attested(match checked.first_claim_only {
            Some(denial) => attested.unless_known(denial),
            None => attested,
        }))
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let instances = &self.clients.instances;
        instances.serving_names(&self.policy, provider_id).await
    }

    fn reports(&self) -> Vec<ConditionReport> {
        let answers = &self.clients.answers;
        let regions = &self.policy.settings.regions;
        match (&self.policy.tenant, &self.clients.tenants) {
            (Tenant::Cluster(tenant), Some(tenants)) => {
                let identity = tenants.identity_report(tenant);
                let ready = if identity.holds == ConditionStatus::False {
                    ConditionReport {
                        of: conditions::AWS_CREDENTIALS_READY,
                        holds: ConditionStatus::False,
                        reason: reason::IDENTITY_NOT_RESOLVED,
                        message: "AWS is not asked before the identity is resolved".to_owned(),
                    }
                } else {
                    let failed = tenants.credentials_report(&tenant.cluster);
                    failed.unwrap_or_else(|| {
                        let expiry = tenants.expiry(&tenant.cluster);
                        until(answers.credentials(&self.cluster, regions), expiry)
                    })
                };
                vec![identity, ready]
            }
            (Tenant::Controller, _) | (Tenant::Cluster(_), None) => {
                answers.reports(&self.cluster, regions)
            }
        }
    }
}

/// The report, with the end of the credentials where it says that they are accepted.
fn until(mut report: ConditionReport, expiry: Option<SystemTime>) -> ConditionReport {
    let expiry = expiry.and_then(|expiry| Timestamp::try_from(expiry).ok());
    if let Some(expiry) = expiry.filter(|_| report.holds == ConditionStatus::True) {
        report.message = format!("{}; the session ends at {expiry:.0}", report.message);
    }
    report
}

/// Whether the document is of the account that EC2 is asked about. An instance of another account is not there,
/// and its owner should learn why.
fn is_of_account(expected: &Reservation, document: &VerifiedDocument) -> bool {
    expected
        .account()
        .is_none_or(|account| account == document.account)
}

/// The provider ID of the instance, as of Cluster API Provider AWS.
fn provider_id(document: &VerifiedDocument) -> Result<ProviderId, AwsDenial> {
    let id = format!(
        "aws:///{}/{}",
        document.availability_zone, document.instance
    );
    ProviderId::parse(&id).map_err(|error| AwsDenial::DocumentMalformed(error.to_string()))
}

#[cfg(test)]
mod tests;
